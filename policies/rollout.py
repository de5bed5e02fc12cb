"""Define the rollout section of a policy: how a change of it is introduced in steps, and when it is taken back.

The part rollout carries it out, where policies come from the store.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from policies.quantities import read_number
from policies.signed import Delay, Fall, Rise
from policies.validation import Seconds, Section, Share

Sticky = Literal["conversation", "key", "tenant"]
"""What stays with one version of a policy while another is tried."""


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


class ShadowRules(Section):
    """What a candidate in shadow mode may cost: models are called for it, and nobody gets their answers."""

    max_usd_per_day: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 2.0
    """Most that all workers together spend on the surface's shadows in a day (UTC), in US dollars."""


class Rollout(Section):
    """The shares of requests that get the new policy, one step after the other, before all do.

    `sure`: how certain a verdict must be, 0..1; the guards and the steps share what is left of 1. `undecided`: the
    action at the end of a step without a verdict.
    """

    steps: Annotated[tuple[Share, ...], Field(min_length=1)]
    step_min: Seconds = 1800.0
    """Shortest duration of a step in seconds, however clear its figures are."""
    step_max: Seconds = 86400.0
    """Longest duration of a step in seconds, after which `undecided` applies."""
    sticky: Sticky = "conversation"
    guard: Guard = Guard()
    sure: Annotated[Share, Field(gt=0, lt=1)] = 0.95
    undecided: Literal["pause", "promote", "rollback"] = "pause"
    floor: Floor = Floor()
    shadow: ShadowRules = ShadowRules()

    @field_validator("steps")
    @classmethod
    def _steps_rise(cls, steps: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < step < 1 for step in steps) or list(steps) != sorted(set(steps)):
            raise ValueError("each step is a larger share than the one before, above 0% and below 100%")
        return steps

    @model_validator(mode="after")
    def _step_ends(self) -> Self:
        if self.step_max <= self.step_min:
            raise ValueError("step_max must be longer than step_min")
        return self
