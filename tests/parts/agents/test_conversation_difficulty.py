"""A turn is as hard as what it is about: `conversation_difficulty` and `last_tier` in start rules, over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.parts.reasons.words import reasons_of
from gateway.parts.recorder.decision_record import TierFacts, input_of, outcome_of
from gateway.parts.rollout.live_view import LiveRequest, live_view
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES
from routing.decide import decide
from routing.difficulty.effort import effort_head
from routing.difficulty.text_statistics import tokenise
from tests.support.app import InProcess, in_process
from tests.support.store import LocalStore
from tests.support.upstream import Upstream

POLICY = """surface: chat
match: {models: [chat]}
slo: {deadline: 10s}
tiers: [local, hosted]
route:
  classifier: default
  start: {local: "RULE", hosted: otherwise}
cache: {never: ["turns > 0"]}
holdout: 0%
"""
HARD = "Design a web page in HTML that shows a random joke, compare two layouts and justify your choice."
ABOUT_IT = "Write a fifth joke about a cat for the page."
ELSEWHERE = "What do pandas like to eat for breakfast?"
LIONS = "What do lions like to eat for breakfast in the zoo?"


def rated(text: str) -> float:
    """Return the effort of a text, which is how hard it is where the classifier abstains."""
    effort = effort_head().rate(tokenise(text))
    assert effort is not None
    return effort


def talk(*asked: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for text in asked:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Here it is."}]
    return messages[:-1]


async def recorded(app: InProcess, *asked: str) -> dict[str, Any]:
    """Return the record of a request with these turns, once it is written."""
    reply = await app.ask(messages=talk(*asked))
    async with asyncio.timeout(30):
        while True:
            for _, blob in await app.steps.store.latest(TRACES, 100):
                if (record := orjson.loads(blob))["ledger"]["request_id"] == reply.headers["x-request-id"]:
                    return dict(record)
            await asyncio.sleep(0.01)


def told(record: dict[str, Any]) -> list[str]:
    [route] = [hop for hop in record["hops"] if hop["name"] == names.ROUTE]
    return reasons_of(route)


async def tier_of(app: InProcess, *asked: str, **more: Any) -> str:
    reply = await app.ask(messages=talk(*asked), **more)
    return str(reply.headers["x-tierline-tier"])


def policies(rule: str) -> dict[str, str]:
    return {"chat": POLICY.replace("RULE", rule)}


async def test_what_is_about_a_hard_turn_starts_where_that_did(upstream: Upstream, tmp_path: Path) -> None:
    """Easy by itself, it starts small; so does something else after the hard turn, and another conversation."""
    rule = "effort < 0.4 and conversation_difficulty <= 0.5"
    async with in_process(tmp_path, upstream.url, upstream.url, policies=policies(rule)) as app:
        assert await tier_of(app, ABOUT_IT) == "local"
        assert await tier_of(app, HARD) == "hosted"
        assert await tier_of(app, HARD, ABOUT_IT) == "hosted"
        assert await tier_of(app, HARD, "yes", ABOUT_IT, stream=True) == "hosted"
        assert await tier_of(app, HARD, ABOUT_IT, ELSEWHERE) == "local"
        assert await tier_of(app, ELSEWHERE, LIONS) == "local"
        assert await tier_of(app, ELSEWHERE, ABOUT_IT) == "local"


async def test_another_worker_and_a_fresh_one_decide_alike(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """It follows from the texts in the request, so a worker that never saw it knows it to the last bit.

    The trace shows it, and its record decides again alike.
    """
    rule = "effort < 0.4 and conversation_difficulty <= 0.5"
    seen = []
    for folder, before in (("one", [HARD]), ("other", [])):
        (tmp_path / folder).mkdir()
        where, own = tmp_path / folder, policies(rule)
        async with in_process(where, upstream.url, upstream.url, store_url=store.url, policies=own) as app:
            for text in before:
                await tier_of(app, text)
            record = await recorded(app, HARD, ABOUT_IT)
            body = {"model": "chat", "messages": talk(HARD, ABOUT_IT)}
            view = await live_view(app.steps, LiveRequest(body))
            facts = [TierFacts(name, frozenset(), 1, None) for name in ("local", "hosted")]
            policy = app.steps.policies.current.by_surface["chat"]
            assert outcome_of(decide(policy, input_of(record["decide"]["in"], facts, ""))) == record["decide"]["out"]
            seen.append((view["in"][-1], record["decide"]["in"][-1], told(record)))
    before = 0.9 * rated(HARD)
    assert seen[0][:2] == seen[1][:2] == ([before, 0], [before, 0])
    assert {f"in its conversation {before:.3f}", f"by the turns before {before:.3f}"} <= set(seen[0][2])


@pytest.mark.parametrize("classifier", ["default", "none"])
async def test_the_tier_of_the_answer_before_may_be_asked_for(
    classifier: str, upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """By its place on the ladder; 0 on a first turn, and where this worker did not give the answer before."""
    rules = policies("last_tier <= 1 and tokens_in < 60")["chat"].replace(
        "classifier: default", f"classifier: {classifier}"
    )
    own = {"chat": rules}
    async with in_process(tmp_path, upstream.url, upstream.url, store_url=store.url, policies=own) as app:
        long = HARD + " Make it nice." * 20
        assert await tier_of(app, long) == "hosted"
        assert await tier_of(app, ELSEWHERE) == "local"
        record = await recorded(app, long, "yes")
        assert record["ledger"]["tier"] == "hosted" and "the answer before came from hosted" in told(record)
        assert await tier_of(app, ELSEWHERE, "yes") == "local"
        assert await tier_of(app, ELSEWHERE, "yes", user="someone else") == "local"
    async with in_process(tmp_path, upstream.url, upstream.url, policies=policies("last_tier <= 1")) as fresh:
        assert await tier_of(fresh, long, "yes") == "local"
        assert await tier_of(fresh, long, "yes", "no", model="tier:hosted") == "hosted"
        assert await tier_of(fresh, long, "yes", "no", "why?") == "hosted"
        assert await tier_of(fresh, long, "yes", "no", "why?", user="someone else") == "local"
