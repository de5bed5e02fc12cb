"""Define the input section of a policy: what of a conversation is sent shorter than the client sends it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from policies.quantities import read_number
from policies.validation import Section, Share, Whole


class ToolResults(Section):
    """Cut the results of tools to a stub once they are older than the last `keep` turns of the assistant."""

    keep: Annotated[Whole, Field(ge=1)]


class SummarisedHistory(Section):
    """Have a tier summarise what is before the cut, after the answer, once a conversation fills `at` of the window."""

    window: Annotated[Whole, Field(ge=1000)]
    """Tokens that a conversation may have: those that the surface's models hold, or fewer."""
    at: Annotated[Share, Field(gt=0)] = 0.6
    max_usd_per_day: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 2.0
    """Most that all workers together spend on summaries of this surface in a day (UTC), in US dollars."""


class InputRules(Section):
    """What of the older turns of a conversation is not sent to models, each step only where it is written.

    The system's text, the last `keep` turns of the assistant with what follows them, and calls with their arguments
    stay as they are. Cuts move on in blocks of as many turns as are kept, four at least, so that the beginning that
    providers have cached changes once in so many turns and not with each.
    """

    keep: Annotated[Whole, Field(ge=1)] = 2
    tool_results: ToolResults | None = None
    repeats: Literal["drop"] | None = None
    """Of tool results that are the same, only the first is sent."""
    minify: Literal["json"] | None = None
    """Tool results that are JSON are sent without white space between its tokens."""

    history: SummarisedHistory | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.tool_results is None and self.repeats is None and self.minify is None and self.history is None:
            raise ValueError("shortens nothing: write `tool_results`, `repeats`, `minify` or `history`")
        return self
