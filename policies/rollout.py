"""Define the rollout section of a policy: how a change of it is to be introduced in steps. Nothing executes it yet.

The section is parsed and validated, so that mistakes in it are found; `tierline check` reports that it has no effect.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from policies.validation import Section, Share, seconds, share


def _fall(value: object) -> object:
    """Parse a share written with a minus, as -0.01 or -1%. Raises ValueError."""
    if isinstance(value, str) and value.startswith("-"):
        return -_positive(share(value[1:]), value)
    raise ValueError(f"{value!r} is not a fall; write a share with a minus, such as -1%")


def _rise(value: object) -> object:
    """Parse a share written with a plus, as +10%. Raises ValueError."""
    if isinstance(value, str) and value.startswith("+"):
        return _positive(share(value[1:]), value)
    raise ValueError(f"{value!r} is not a rise; write a share with a plus, such as +10%")


def _delay(value: object) -> object:
    """Parse a duration written with a plus, as +50ms, to seconds. Raises ValueError."""
    if isinstance(value, str) and value.startswith("+"):
        return seconds(value[1:])
    raise ValueError(f"{value!r} is not a delay; write a duration with a plus, such as +50ms")


def _positive(value: object, written: str) -> float:
    if isinstance(value, int | float) and value >= 0:
        return float(value)
    raise ValueError(f"{written!r} is not a share; write -1% or +10%")


Fall = Annotated[float, BeforeValidator(_fall), Field(ge=-1, le=0)]
Rise = Annotated[float, BeforeValidator(_rise), Field(ge=0)]
Delay = Annotated[float, BeforeValidator(_delay), Field(ge=0)]


class Guard(Section):
    """Limits on how much worse than the present policy the new one may be, as absolute differences; else roll back."""

    goodput: Fall | None = None
    quality: Fall | None = None
    ttft_p95: Delay | None = None
    """Additional seconds."""
    cost: Rise | None = None


class Floor(Section):
    """Values that must hold in every minute, independent of statistical certainty."""

    goodput: Share | None = None


class Rollout(Section):
    """The shares of requests that get the new policy, one step after the other, before all do.

    `sticky`: the unit that stays with one policy. `sure`: the required certainty of a verdict, 0..1. `undecided`: the
    action at the end of a step without a verdict.
    """

    steps: Annotated[tuple[Share, ...], Field(min_length=1)]
    sticky: Literal["conversation", "key", "tenant"] = "conversation"
    guard: Guard = Guard()
    sure: Share = 0.95
    undecided: Literal["pause", "promote", "rollback"] = "pause"
    floor: Floor = Floor()

    @field_validator("steps")
    @classmethod
    def _steps_rise(cls, steps: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < step < 1 for step in steps) or list(steps) != sorted(set(steps)):
            raise ValueError("each step is a larger share than the one before, above 0% and below 100%")
        return steps
