"""Write values of a policy as a person writes them in YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from gateway.parts.lint.signed import Delay, Fall, Rise
from policies.expression import Expression
from policies.quantities import write_duration, write_share
from policies.validation import Seconds, Section, Share, validator_of

NONE: Final = "none"
_PROBABILITIES: Final = frozenset({"confidence_below", "uncalibrated_below", "min_score", "sure"})
"""Shares that people write as 0.62, not as 62%."""


def written(value: Any, how: Callable[[float], str] = lambda number: f"{number:.10g}") -> str:
    """Return a value as a person writes it in YAML; `how` writes its numbers."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Expression):
        return value.source
    if isinstance(value, Section):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        shown = {name: part for name, part in fields.items() if name in value.model_fields_set} or fields
        kinds = type(value).model_fields
        parts = [f"{name}: {written(part, number_writer(name, kinds[name]))}" for name, part in shown.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {written(part, how)}' for key, part in value.items())}}}"
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(written(part, how) for part in value)}]"
    if isinstance(value, int | float):
        return how(value)
    text = str(value)
    return text if text.isprintable() and text == text.strip() and text else json.dumps(text)


_NOTATIONS: Final[Mapping[Any, Callable[[float], str]]] = {
    validator_of(Seconds): write_duration,
    validator_of(Share): write_share,
    validator_of(Fall): write_share,
    validator_of(Rise): lambda value: f"+{write_share(value)}",
    validator_of(Delay): lambda value: f"+{write_duration(value)}",
}


def number_writer(name: str, field: FieldInfo) -> Callable[[float], str]:
    """Return how the numbers of a key are written."""
    if name == "after":  # `hedge.after`, which may be a quantile as well
        return write_duration
    if name in _PROBABILITIES:
        return lambda value: f"{value:.10g}"
    notations = [_NOTATIONS[part.func] for part in _parts(field) if part.func in _NOTATIONS]
    return notations[0] if notations else lambda value: f"{value:.10g}"


def _parts(field: FieldInfo) -> list[BeforeValidator]:
    pending, found = [*field.metadata, field.annotation], []
    while pending:
        part = pending.pop()
        if isinstance(part, BeforeValidator):
            found.append(part)
        pending += [*getattr(part, "__metadata__", ()), *get_args(part)]
    return found
