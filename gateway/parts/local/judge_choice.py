"""Choose who judges the drafts of rungs that give no log-probabilities, and say what that costs.

A judge's verdict is read from the log-probabilities of one token, so only a rung that gives them can judge: never the
one whose drafts are judged. The cheapest is chosen, of those whose name does not state fewer than 3 billion parameters:
models of 1 billion judged no better than chance. Without such a rung a second sample is compared with the draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.parts.lint.model_sizes import LEAST_BILLIONS, billions_in, is_too_small
from gateway.parts.local.ladder import Rung
from gateway.parts.prices.model_facts import known_providers

_TASK_TOKENS: Final = 150
"""Tokens of the judge's own instructions: 523 characters, and the JSON around the conversation, at 4 each."""
_MAX_USD_PER_REQUEST: Final = 0.001
"""What `escalate.judge` lets one question cost unless it says otherwise, in US dollars."""


@dataclass(frozen=True, slots=True)
class JudgeChoice:
    """A rung that judges. `usd` is the cost of 1,000 drafts of the surface chat; None where no price is known."""

    rung: Rung
    billions: float | None
    usd: float | None
    tokens_in: int

    @property
    def backend(self) -> str:
        """Name of its backend in the config that `init` writes."""
        return f"{self.rung.tier}-1" if self.rung.also else self.rung.tier

    @property
    def rule(self) -> str:
        """What a policy has under `escalate`, so that the judge is asked and not skipped for its cost."""
        cap = ""
        if self.usd is not None and self.usd / 1000 > _MAX_USD_PER_REQUEST:
            cap = f", max_usd_per_request: {math.ceil(self.usd / 1000 * 2000) / 1000:g}"
        return f"judge: {{backend: {self.backend}{cap}}}"

    @property
    def reason(self) -> str:
        """Say how it was chosen, and what the cost rests on."""
        size = "its name states no size" if self.billions is None else f"{self.billions:g}B parameters"
        usd = "not known, as no price is"
        if self.rung.place.provider is None:
            usd = "nothing, as it is your own"
        elif self.usd is not None:
            usd = f"about ${self.usd:.2f}, by the price that ships with Tierline"
        return (
            f"the cheapest rung with log-probabilities and not below {LEAST_BILLIONS:g}B ({size}). 1,000 judged drafts "
            f"of chat cost {usd}: assumed are {self.tokens_in} tokens in, {_TASK_TOKENS} of them instructions, 1 out"
        )


def judge_of(rungs: Sequence[Rung]) -> JudgeChoice | None:
    """Return who judges the drafts of rungs without log-probabilities; None if none needs it, or none can."""
    if all(rung.logprobs for rung in rungs[:-1]):
        return None
    prompt, answer = known_providers().typical["chat"]
    tokens_in = prompt + answer + _TASK_TOKENS
    choices = []
    for rung in rungs:
        billions, usd = billions_in(rung.model), rung.usd(tokens_in, 1)
        if rung.logprobs and not is_too_small(rung.model):
            choices.append(JudgeChoice(rung, billions, None if usd is None else usd * 1000, tokens_in))
    return min(choices, key=lambda choice: math.inf if choice.usd is None else choice.usd, default=None)


def verifier_advice(rungs: Sequence[Rung]) -> str:
    """Return what to write in the policies where a rung below the last gives no log-probabilities; '' if nothing."""
    silent = [rung.tier for rung in rungs[:-1] if not rung.logprobs]
    if not silent:
        return ""
    choice = judge_of(rungs)
    what, why = "agreement: {samples: 1}", "no rung gives log-probabilities and is of 3B or more, so none can judge"
    if choice is not None:
        what, why = choice.rule, choice.reason
    of = " and ".join(silent)
    return f"answers of {of} have no log-probabilities; write in each policy, under escalate: `{what}` ({why})"
