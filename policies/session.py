"""Define the session section of a policy: what one session of a person or an agent may use of it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from policies.quantities import read_number
from policies.validation import Seconds, Section, Whole


class SessionCaps(Section):
    """Caps on what the requests of one session use on this surface together, sub-agents included.

    They are counted over all workers in the store, in each worker alone while it cannot be reached. The request that is
    expected to reach a cap is told to conclude (`on_cap: conclude`): it may call no more tools, and is to give its
    answer from what it has. What comes after that is refused. A session that has rested for a day begins anew.
    """

    calls: Annotated[Whole, Field(ge=1)] | None = None
    """Requests, those that a stored answer serves included."""
    usd: Annotated[float, BeforeValidator(read_number), Field(gt=0, allow_inf_nan=False)] | None = None
    """US dollars; calls whose price nobody states count nothing."""
    time: Annotated[Seconds, Field(gt=0)] | None = None
    """Seconds since the session's first request."""
    on_cap: Literal["conclude", "refuse"] = "conclude"

    @model_validator(mode="after")
    def _caps_something(self) -> Self:
        if self.calls is None and self.usd is None and self.time is None:
            raise ValueError("caps nothing: write `calls`, `usd` or `time`")
        return self
