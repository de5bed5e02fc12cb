"""Define the sections `session` and `input` of a policy: what a session may use, and what is sent shorter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from policies.errors import Edit, Finding
from policies.misfits import no_such
from policies.model import Fits, Policy, Rules
from policies.quantities import dollars, read_number, write_duration
from policies.sections import PolicySections
from policies.validation import Seconds, Section, Share, Whole


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


class AgentSections(PolicySections):
    """The sections of policies that this part reads."""

    input: InputRules | None = None
    """What of a conversation is sent shorter than the client sends it."""
    session: SessionCaps | None = None
    """What one session may use of this surface."""

    of_answers: ClassVar[frozenset[str]] = frozenset({"input"})

    @classmethod
    def lint(cls, rules: Rules) -> Iterator[Finding]:
        """Yield caps and steps that do nothing, or too much."""
        yield from _sessions_begin(rules.of(cls).session)
        yield from _input_steps_differ(rules.of(cls).input)

    @classmethod
    def misfits(cls, policy: Policy, fits: Fits) -> Iterator[Finding]:
        """Yield a judge of drafts that the deployment does not have."""
        judge, at = policy.escalate.judge, ("escalate", "judge")
        if judge is not None and judge.backend not in fits.backends:
            yield no_such("backend", judge.backend, fits.backends, (*at, "backend"), at)

    @classmethod
    def describe(cls, policy: Rules) -> Iterator[tuple[str, str]]:
        """Yield what a session gets, and what of it is not sent."""
        if (caps := policy.of(cls).session) is not None:
            allowed = [f"{caps.calls} requests"] if caps.calls is not None else []
            allowed += [dollars(caps.usd)] if caps.usd is not None else []
            allowed += [write_duration(caps.time)] if caps.time is not None else []
            then = "the last one is told to conclude" if caps.on_cap == "conclude" else "what comes later is refused"
            yield "session", f"one session gets {', '.join(allowed)} at most; {then}"
        if (steps := policy.of(cls).input) is not None:
            written = [name for name in ("tool_results", "repeats", "minify", "history") if getattr(steps, name)]
            text = f"what is old is sent shorter ({', '.join(written)}), the last {steps.keep} turns as they are"
            yield "input", text


def _sessions_begin(caps: SessionCaps | None) -> Iterator[Finding]:
    at = ("session", "calls")
    if caps is not None and caps.calls == 1 and caps.on_cap == "conclude":
        message = "the first request is told to conclude, so no session ever calls a tool"
        yield Finding(at, message, "T604", "write 2 or more, or on_cap: refuse", (Edit(at, "50"),))


def _input_steps_differ(rules: InputRules | None) -> Iterator[Finding]:
    if rules is None or rules.tool_results is None:
        return
    at, keep = ("input", "tool_results", "keep"), rules.tool_results.keep
    if keep < rules.keep:
        message = f"less than input.keep, {rules.keep}, for which these turns stay whole in any case"
        yield Finding(at, message, "T605", f"write {rules.keep} or more", (Edit(at, str(rules.keep)),))
    elif keep == rules.keep and (rules.repeats or rules.minify):
        message = "all results that input.repeats and input.minify could shorten are left out already"
        yield Finding(at, message, "T605", f"write {keep * 2}", (Edit(at, str(keep * 2)),))


SECTIONS: Final = AgentSections
