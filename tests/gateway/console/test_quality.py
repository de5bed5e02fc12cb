"""The console's page on quality: its figures are those of the commands, and what is not known is said."""

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
from gateway.console.views.quality import drifts
from gateway.measures.reliability import FEWEST
from gateway.telemetry import feedback
from gateway.telemetry.feedback import Feedback
from gateway.telemetry.label import LABELS, LabelledReply, PairLabel
from tests.gateway.archive.test_keeper import keep, record
from tests.gateway.console.test_app import console
from tests.gateway.telemetry.conftest import server, store
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


async def test_the_page_and_the_commands_agree(
    server: LocalStore, store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await judged_traffic(store)
    await keep(store, tmp_path)
    async with console(tmp_path, store, 0) as client:
        data = (await client.get("/quality.json")).json()
        [chat] = data["surfaces"]
        where = ("--surface", "chat", "--ledger", str(tmp_path))
        learnt = await asyncio.to_thread(printed, capsys, "learn", "quality", *where)
        for name in ("tiers", "judge_and_people", "shadows", "heads"):
            assert chat[name] == learnt[name], name
        ledger = await asyncio.to_thread(printed, capsys, "ledger", "--surface", "chat", "--store", server.url)
        shown = chat["holdout"]
        assert shown["word"] == ledger["holdout"]["word"]
        for name in ("difference", "interval_95"):  # the command sums from the newest on
            assert shown[name] == pytest.approx(ledger["holdout"][name])
        assert (shown["routed"]["drawn"], shown["held_out"]["drawn"]) == (60, 20) and shown["difference"] < 0
        people = chat["judge_and_people"]
        assert (people["answers"], people["agreed"]) == (20, 19) and 0.6 < people["kappa"][0] < 1
        confidence = next(one for one in chat["heads"] if one["head"] == "confidence")
        assert confidence["whose"] == "judge" and confidence["reliability"]["observed"] == 0.75
        page = (await client.get("/quality?surface=chat")).text
        assert "19 of 20" in page and "Kappa" in page and "points" in page and "<svg" in page
        assert "Too few requests" in page


async def test_what_is_not_known_is_said_with_how_much_is_missing(store: RedisStore, tmp_path: Path) -> None:
    await store.delete(LABELS)
    async with console(tmp_path / "none", store, 0) as client:
        await client.get("/quality.json")
        assert "No request in the last 7d" in (await client.get("/quality")).text
        assert (await client.get("/quality?since=2h")).status_code == 400
    async with console(tmp_path / "few", store, 12, confidence=0.8) as client:
        await rate(store, 1, 1.0)
        data = (await client.get("/quality.json")).json()
        [chat] = data["surfaces"]
        assert chat["holdout"]["difference"] is None and chat["changed"] == "unknown"
        page = (await client.get("/quality")).text
        assert "Not known yet" in page and "learn: {judge: BACKEND" in page and "10 answers to go" in page
        assert f"{FEWEST - 1} more answers to tell" in page or f"{FEWEST} answers to go" in page
        assert "Nothing of voice in the last 7d" in (await client.get("/quality?surface=voice")).text


def test_inputs_are_compared_with_before_and_with_the_training() -> None:
    """Harder and longer prompts than before are seen as such; the kinds and the domain stay."""

    def rows(now: bool, quantile: int, length: int, count: int) -> list[dict[str, Any]]:
        return [
            {"now": now, "kind": kind, "quantile": (quantile + part) % 10, "in_domain": True, "length": length + part,
             "requests": count}
            for kind in ("chat", "code") for part in range(5)
        ]  # fmt: skip

    found = {one["input"]: one for one in drifts([*rows(False, 0, 20, 90), *rows(True, 5, 30, 30)])}
    assert {name: one["state"] for name, one in found.items()} == {
        "training": "drifted", "quantile": "drifted", "length": "drifted", "kind": "stable", "domain": "stable",
    }  # fmt: skip
    assert found["length"]["bins"][0][0] == "32" and found["training"]["before"] is None
    assert found["quantile"]["bins"][0][1] == pytest.approx(0.2)
    quiet = drifts([*rows(False, 0, 20, 90), *rows(True, 0, 20, 30)])
    assert {one["state"] for one in quiet if one["input"] != "training"} == {"stable"}
