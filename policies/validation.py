"""Validate a YAML document against a model: every pydantic error becomes a Problem with its line, key and a hint.

`Section` is the base class of the models of a policy file. Its values have notations of their own: durations are
written `400ms`, `6s`, `24h` and stored in seconds; shares are written `1%` or `0.01` and stored as 0..1.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from policies.errors import InvalidContent, KeyPath, Problem, did_you_mean
from policies.expression import Expression
from policies.yaml_source import Document

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: object) -> float:
    """Convert a written duration to seconds. Raises ValueError."""
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write a number with its unit, such as 400ms, 6s, 5m or 24h")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def rule(value: object) -> Expression:
    """Convert a written rule to an expression. Raises ValueError."""
    if isinstance(value, Expression):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a rule; write an expression such as 'tokens_in < 3000', or 'otherwise'")
    return Expression.parse(value)


def share(value: object) -> object:
    """Convert a written share to 0..1; numbers stay unchanged. Raises ValueError."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            raise ValueError(f"{value!r} is not a share; write 1% or 0.01") from None
    return number(value)


def number(value: object) -> object:
    """Return the value unless it is a bool, which Python would accept as a number. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    return value


def knows(values: Collection[str]) -> Callable[[Expression], Expression]:
    """Return a validator that a rule uses only these names."""

    def check(rule: Expression) -> Expression:
        unknown = sorted(rule.names.difference(values))
        if unknown:
            named = ", ".join(f"{name!r}{did_you_mean(name, values)}" for name in unknown)
            raise ValueError(f"{rule.source!r} asks for {named}; a rule here knows {', '.join(sorted(values))}")
        return rule

    return check


Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0)]
Share = Annotated[float, BeforeValidator(share), Field(ge=0, le=1, allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(number)]


class Section(BaseModel):
    """A part of a policy file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)


Model = TypeVar("Model", bound=BaseModel)

Refuse = Callable[[KeyPath, Any], str | None]
"""Maps (key path, value) to why a file may not contain it, or None. For keys that only the loader may set."""

Finding = tuple[KeyPath, str]
"""(path below the value being checked, message)."""

_FINDINGS = "findings"
# Pydantic's messages name Python types, which a YAML author need not know.
_LIST, _MAPPING = "write a list, such as [a, b]", "write keys with their values, such as {a: b}"
_PLAIN_WORDS = {
    "tuple_type": _LIST,
    "frozen_set_type": _LIST,
    "mapping_type": _MAPPING,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}


def raise_findings(findings: list[Finding]) -> None:
    """Raise the findings of a validator that compares keys, so that each is reported at its own key."""
    if findings:
        summary = "; ".join(message for _, message in findings)
        raise PydanticCustomError(_FINDINGS, "{summary}", {"summary": summary, _FINDINGS: findings})


def validate(model: type[Model], document: Document, refuse: Refuse = lambda _path, _value: None) -> Model:
    """Return the document as a `model`. Raises InvalidContent with all problems."""
    problems: list[Problem] = []
    value = _without_refused(document.value, (), document, refuse, problems)
    try:
        valid = model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems += [problem for detail in _without_echoes(details) for problem in _problems(model, detail, document)]
        raise InvalidContent(sorted(problems, key=lambda problem: problem.line)) from None
    if problems:
        raise InvalidContent(problems)
    return valid


def _without_refused(value: Any, path: KeyPath, document: Document, refuse: Refuse, problems: list[Problem]) -> Any:
    if isinstance(value, list):
        return [_without_refused(item, (*path, i), document, refuse, problems) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    allowed = {}
    for key, item in value.items():
        here = (*path, key)
        reason = refuse(here, item)
        if reason is None:
            allowed[key] = _without_refused(item, here, document, refuse, problems)
        else:
            problems.append(document.problem(here, reason))
    return allowed


def _without_echoes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out "too short" for lists that are too short only because an item is invalid, which is reported already."""
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(other is not detail and other["loc"][: len(detail["loc"])] == detail["loc"] for other in details)
    ]


def _problems(model: type[BaseModel], detail: ErrorDetails, document: Document) -> list[Problem]:
    path = _path_in_file(detail["loc"], document)
    kind = detail["type"]
    if kind == _FINDINGS:
        return [document.problem((*path, *below), message) for below, message in detail["ctx"][_FINDINGS]]
    if kind == "extra_forbidden":
        section = _section_at(model, path[:-1])
        known = section.model_fields if section else {}
        return [document.problem(path, "unknown key" + did_you_mean(str(path[-1]), known))]
    if kind == "missing":
        return [document.problem(tuple(detail["loc"]), "required, but missing")]
    message = _PLAIN_WORDS.get(kind) or detail["msg"].removeprefix("Value error, ")
    return [document.problem(path, message[:1].lower() + message[1:])]


def _path_in_file(loc: KeyPath, document: Document) -> KeyPath:
    """Return pydantic's location without the parts that are not in the file (`[key]`, a union branch's name)."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.lines:
            path = (*path, part)
    return path


def _section_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model that describes the mapping at `path`, to list its keys; None if there is none."""
    annotation: Any = model
    for part in path:
        annotation = _unwrap(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model_field = annotation.model_fields.get(str(part))
            if model_field is None:
                return None
            annotation = model_field.annotation
        elif get_origin(annotation) is not None:
            annotation = get_args(annotation)[1 if issubclass(get_origin(annotation), Mapping) else 0]
        else:
            return None
    annotation = _unwrap(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _unwrap(annotation: Any) -> Any:
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation
