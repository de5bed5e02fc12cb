"""Parse the values of policy files (durations, shares, rules), and define the base class of their sections.

Durations are written `400ms`, `6s`, `24h` and stored in seconds; shares are written `1%` or `0.01` and stored as 0..1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from policies.errors import did_you_mean
from policies.expression import Expression

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

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
