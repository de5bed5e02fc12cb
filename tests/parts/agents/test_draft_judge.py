"""What a judge's one token says."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest

from cache.store.base import Command, NoStore
from gateway.backends.openai import OpenAIBackend
from gateway.config.backends import BackendConfig
from gateway.parts.agents.verifying import DraftJudge, NotJudged, p_yes
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.request.context import Client
from gateway.tiers import Endpoint
from policies.model import JudgeRules
from routing.confidence.judge import Evidence
from tests.support.context import streamed_request


def answer(*tokens: tuple[str, float]) -> dict[str, Any]:
    """A completion whose first token is the first of these; the others are its alternatives, with probabilities."""
    first, *others = [{"token": token, "logprob": math.log(p) if p else -9999.0} for token, p in tokens]
    return {"choices": [{"logprobs": {"content": [{**first, "top_logprobs": [first, *others]}]}}]}


@pytest.mark.parametrize(
    ("tokens", "p"),
    [
        ([("yes", 0.6), ("no", 0.2)], 0.75),
        ([("Yes", 0.4), (" yes", 0.2), ("No.", 0.1), ("\u2581NO", 0.1)], 0.75),
        ([("no", 0.9), ("yes", 0.1)], 0.1),
        ([("no", 0.9)], 0.0),
        ([("yes", 0.6)], 0.6),
        ([("yes", 0.6), ("Yes", 0.3)], 0.9),
        ([("The", 0.97), ("yes", 0.02), ("no", 0.01)], None),
        ([("Well", 0.9)], None),
        ([("yes", 0.0)], None),
    ],
)
def test_yes_is_held_against_no_however_they_are_spelled(tokens: list[tuple[str, float]], p: float | None) -> None:
    """Where no is not among the alternatives it has all that they leave over, so a draft is never flattered."""
    said = p_yes(answer(*tokens))
    assert said is None if p is None else said == pytest.approx(p)


@pytest.mark.parametrize(
    "value", [{}, {"choices": []}, {"choices": [{"logprobs": None}]}, {"choices": [{"logprobs": {"content": []}}]}]
)
def test_an_answer_without_log_probabilities_is_no_verdict(value: dict[str, Any]) -> None:
    """Whatever it says."""
    assert p_yes(value) is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (None, "no backend 'judge' in the config"),
        ({"price": None}, "nobody states its price"),
        ({"price": {"input": 9_000}}, "more than max_usd_per_request"),
        ({"price": {"input": 0.1}}, "the store does not say what was spent today"),
        ({"busy": True}, "it is busy"),
    ],
)
async def test_a_judge_that_cannot_be_paid_or_called_says_why(config: dict[str, Any] | None, why: str) -> None:
    """Before anything is sent."""
    endpoints = {}
    if config is not None:
        busy = config.pop("busy", False)
        made = BackendConfig(name="judge", base_url="https://models.example/v1", model="m", **config)
        endpoints["judge"] = endpoint = Endpoint(made, OpenAIBackend(NeverSends(), model="m", key=None))
        endpoint.capacity = 0 if busy else endpoint.capacity
    judge = DraftJudge(endpoints, {"judge": "judge"}, DailyBudget(NoStore()))
    rule = JudgeRules(backend="judge")
    with pytest.raises(NotJudged, match=why):
        await judge.ask(streamed_request(Client(None, 60.0)), rule, Evidence("A draft."), 1.0)
    assert judge.takes_s(rule) == 0.0


async def test_a_judge_that_was_late_is_asked_again_after_a_while() -> None:
    """A cold start is no verdict on it for ever: while it is skipped nobody measures how fast it has become."""
    made = BackendConfig(name="judge", base_url="https://models.example/v1", model="m", price={})
    now = 100.0
    endpoint = Endpoint(made, OpenAIBackend(NeverAnswers(), model="m", key=None))
    judge = DraftJudge({"judge": endpoint}, {"judge": "judge"}, DailyBudget(NoStore()), lambda: now)
    rule = JudgeRules(backend="judge")
    with pytest.raises(NotJudged, match=r"no verdict within \d+ ms"):
        await judge.ask(streamed_request(Client(None, 60.0)), rule, Evidence("A draft."), 0.2)
    assert 0.0 < judge.takes_s(rule) <= 0.2  # what was left of it once the budget was asked
    now += 31
    assert judge.takes_s(rule) == 0.0


async def test_a_store_that_hangs_keeps_no_draft_for_longer_than_it_may_be_held() -> None:
    """It is asked what was spent today before the judge is, in the time that there is for both."""
    made = BackendConfig(name="judge", base_url="https://models.example/v1", model="m", price={"input": 0.1})
    endpoint = Endpoint(made, OpenAIBackend(NeverSends(), model="m", key=None))
    judge = DraftJudge({"judge": endpoint}, {"judge": "judge"}, DailyBudget(HangingStore()))
    began = time.monotonic()
    with pytest.raises(NotJudged, match="the store does not say"):
        await judge.ask(streamed_request(Client(None, 60.0)), JudgeRules(backend="judge"), Evidence("A draft."), 0.05)
    assert time.monotonic() - began < 0.5


class HangingStore(NoStore):
    """A store that is there, and says nothing within a command's limit."""

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        """Wait for all of the limit."""
        await asyncio.sleep(limit_s or 60.0)
        return await super().ask(commands, limit_s)


class NeverAnswers:
    """A transport over which nothing ever comes."""

    async def send(self, *_: object) -> Any:
        await asyncio.sleep(3600)

    async def aclose(self) -> None:
        """Nothing is open."""


class NeverSends:
    """A transport that nothing may be sent over."""

    async def send(self, *_: object) -> Any:
        raise AssertionError("nothing was to be sent")

    async def aclose(self) -> None:
        """Nothing is open."""


def test_a_word_that_was_proposed_is_no_verdict() -> None:
    """Servers that speculate give it a log-probability of 0.0 without alternatives, whatever the model thinks."""
    said = {"token": "yes", "logprob": 0.0, "top_logprobs": []}
    assert p_yes({"choices": [{"logprobs": {"content": [said]}}]}) is None
