"""Quality on the page Now: it is that of `tierline ledger`, by the answers that `tierline fit learn quality` reads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.measures import feedback
from gateway.parts.measures.feedback import Feedback
from gateway.parts.measures.label import LABELS, LabelledReply, PairLabel
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import console
from tests.parts.ledger.test_keeper import keep, record
from tests.support.store import LocalStore

__all__ = ["server", "store"]

ROUTED = {"path": "direct", "tier": "local", "model": "local-1", "attempts": 1, "kind": "chat", "classifier": "c1"}


def label(number: int, *, good: bool) -> PairLabel:
    """What a judge said of request `req-NUMBER`, of which the local tier's answer was served."""

    def reply(tier: str, adequate: float, confidence: float | None) -> LabelledReply:
        return LabelledReply(tier, tier, f"{tier}-1", tier == "local", adequate, 0.0, 9, confidence, None)

    return PairLabel(
        f"req-{number}", "acme", "chat", "chat@1", time.time(), number, "tie", True, "judge-1", 0.0,
        reply("local", float(good), 0.8), reply("hosted", 1.0, None), "c1", "static", True, "chat", 0.5, [0.4, 0.9],
        240, False, "", [],
    )  # fmt: skip


async def rate(store: RedisStore, number: int, score: float) -> None:
    rating = Feedback(f"req-{number}", "acme", "chat", score, None, time.time())
    await store.apply([Append(feedback.STREAM, rating.encode(), 1000)])


async def judged_traffic(store: RedisStore) -> None:
    """60 routed requests, each labelled, three in four of them right and every third rated; and 20 held out, rated."""
    await store.delete(LABELS)
    for number in range(1, 61):
        good = number % 4 != 0
        await store.apply([Append(LABELS, label(number, good=good).encode(), 1000)])
        if number % 3 == 0:
            await rate(store, number, float(good if number != 3 else not good))
    await record(store, 1, 60, holdout=False, quantile=0.15, confidence=0.8, **ROUTED)
    await record(store, 61, 80, holdout=True, quantile=0.15, **{**ROUTED, "tier": "hosted"})
    for number in range(61, 81):
        await rate(store, number, 1.0)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return orjson.loads(capsys.readouterr().out)


async def test_now_and_the_commands_agree(
    server: LocalStore, store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await judged_traffic(store)
    await keep(store, tmp_path)
    async with console(tmp_path, store, 0) as client:
        [chat] = (await client.get("/now.json?since=1h")).json()["surfaces"]
        where = ("--surface", "chat", "--ledger", str(tmp_path))
        learnt = await asyncio.to_thread(printed, capsys, "learn", "quality", *where)
        ledger = await asyncio.to_thread(printed, capsys, "ledger", "--surface", "chat", "--store", server.url)
        assert chat["quality"] == pytest.approx(ledger["holdout"]["difference"]) and chat["quality"] < 0
        assert chat["quality_interval"] == pytest.approx(ledger["holdout"]["interval_95"])
        people = learnt["judge_and_people"]
        assert (people["answers"], people["agreed"]) == (20, 19) and 0.6 < people["kappa"][0] < 1
        confidence = next(one for one in learnt["heads"] if one["head"] == "confidence")
        assert confidence["whose"] == "judge" and confidence["reliability"]["observed"] == 0.75
