"""Recorded decisions can be made again from the store alone, by the policies that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.measures import reader
from gateway.parts.recorder.decision_record import BASES, DecisionBasis, outcome_of
from policies.loader import SHIPPED
from routing.decide import NoTierError, decide
from tests.gateway.telemetry.waiting import eventually
from tests.support.app import in_process
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream, error_reply

SURFACES = ("chat", "batch", "autocomplete")
_SHIPPED = {f"{name}.yaml": (SHIPPED / f"{name}.yaml").read_text() for name in SURFACES}
POLICIES = {**_SHIPPED, "batch.yaml": _SHIPPED["batch.yaml"].replace("holdout: 1%", "holdout: 90%")}
QUESTIONS = (
    "What is the capital of France?",
    "Prove that the square root of two is irrational, step by step.",
    "x" * 20_000,
    "Which of these is a noble gas?\n(A) iron\n(B) neon\n(C) carbon\n(D) sulphur",
    "hi",
)
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
MORE: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True},
    {"tools": [TOOL]},
    {"response_format": {"type": "json_object"}},
    {"max_tokens": 100_000},
)
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"x-tierline-max-tier": "local"},
    {"x-tierline-min-tier": "hosted"},
    {"x-tierline-deadline-ms": "400"},
)


async def _bases(store: RedisStore) -> dict[str, DecisionBasis]:
    [read] = await store.ask([Command((b"HGETALL", BASES.encode()))])
    return {name.decode(): DecisionBasis.decode(blob) for name, blob in zip(read[::2], read[1::2], strict=True)}


@pytest.mark.parametrize("hosted_is_there", [True, False])
async def test_every_recorded_decision_is_made_again(
    hosted_is_there: bool, upstream: Upstream, store: RedisStore, server: LocalStore, tmp_path: Path
) -> None:
    """Bit for bit: surfaces, streams, tools, limits, budgets, a failing tier, a holdout, and a tier without its key."""
    upstream.default = Reply(text="Paris.", logprob=-0.01)
    sent = 0
    hosted = upstream.url if hosted_is_there else None
    async with in_process(tmp_path, local=upstream.url, hosted=hosted, store_url=server.url, policies=POLICIES) as app:
        for surface in SURFACES:
            if surface == SURFACES[-1]:  # by then the others' requests have found it well
                upstream.on(lambda request: request.body["model"] == "large").reply(error_reply(503))
            for more in MORE:
                for headers in HEADERS:
                    question = QUESTIONS[sent % len(QUESTIONS)]
                    sent += 1
                    await app.ask(f"{question} {sent}", headers, **{**more, "model": surface})
    records = [orjson.loads(blob) for blob in await eventually(lambda: reader.latest(store, sent))]
    assert len(records) == sent
    bases = await _bases(store)
    assert {basis.policy.surface for basis in bases.values()} == set(SURFACES)
    made = [record["decide"] for record in records if record["decide"]]
    assert len(made) > sent / 2
    held_out = failed = 0
    for one in made:
        basis = bases[one["basis"]]
        given = basis.input_of(one["in"])
        held_out += given.holdout
        failed += any(health.unavailable != "" for health in given.health.values())
        try:
            again: Any = outcome_of(decide(basis.policy, given))
        except NoTierError:
            again = None
        assert again == one["out"]
    assert (held_out > 0) is (failed > 0) is hosted_is_there
