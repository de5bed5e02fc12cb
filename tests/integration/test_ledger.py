"""Money and time of real requests through the real gateway, as the ledger has them afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from gateway.cli.main import main
from tests.support.ask import ask
from tests.support.gateway import CHAT, ROOT, Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

IN, OUT = 2.5e-6, 10e-6
"""What a token of the hosted tier costs."""


README = (ROOT / "gateway" / "parts" / "ledger" / "README.md").read_text("utf-8")


def usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}


def exported(store: LocalStore, file: Path) -> list[dict[str, Any]]:
    """The flat records, oldest first."""
    if main(["ledger", "--store", store.url, "--json", "--export", str(file)]) != 0:
        return []
    return [orjson.loads(line) for line in reversed(file.read_bytes().splitlines())]


def test_every_dollar_is_accounted_for(
    cached_gateway: Gateway,
    store: LocalStore,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
    tmp_path: Path,
) -> None:
    """A doubted free draft and the paid answer after it, the same from the cache, and one the free tier settles."""
    local_upstream.on("Malta").reply(text="Rome perhaps", logprob=-3.0, usage=usage(30, 8))
    hosted_upstream.default = Reply(text="Valletta", usage=usage(32, 4))
    local_upstream.on("Italy").reply(text="Rome", logprob=-0.01, usage=usage(28, 6))
    assert ask(cached_gateway, "The capital of Malta?").headers["x-tierline-path"] == "escalated"
    until(lambda: ask(cached_gateway, "The capital of Malta?").headers["x-tierline-path"] == "cache-exact", 5, "a hit")
    assert ask(cached_gateway, "The capital of Italy?").headers["x-tierline-path"] == "direct"
    file = tmp_path / "audit.jsonl"
    paths = {"escalated", "cache-exact", "direct"}
    until(lambda: {row["path"] for row in exported(store, file)} >= paths, 5, "a record of each")
    by_path = {row["path"]: row for row in exported(store, file)}
    escalated, hit, direct = by_path["escalated"], by_path["cache-exact"], by_path["direct"]
    paid = 32 * IN + 4 * OUT
    assert escalated["cost_usd"] == pytest.approx(paid) == pytest.approx(escalated["counterfactual_usd"])
    assert [(call["tier"], call["wasted"], call["tokens_in"]) for call in escalated["calls"]] == [
        ("local", True, 30),
        ("hosted", False, 32),
    ]
    assert (escalated["wasted_tokens"], escalated["wasted_usd"]) == (38, 0)
    assert (hit["cost_usd"], hit["counterfactual_usd"]) == (0, pytest.approx(paid))
    assert (direct["cost_usd"], direct["counterfactual_usd"]) == (0, pytest.approx(28 * IN + 6 * OUT))
    assert direct["slo"] == {"deadline": True}


def test_a_streams_pace_and_feedback_are_kept(
    cached_gateway: Gateway,
    store: LocalStore,
    local_upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A stream has the pace of its tokens; what its client says of it afterwards stands in the ledger and the trace."""
    local_upstream.default = Reply(tokens=tuple("abcdefgh"), logprob=-0.01, between_s=0.02)
    request_id = ask(cached_gateway, "Spell it out.", stream=True).headers["x-request-id"]
    file = tmp_path / "audit.jsonl"
    until(lambda: exported(store, file), 5, "the record")
    said = {"request_id": request_id, "correct": True}
    taken = httpx2.post(f"{cached_gateway.url}/feedback", json=said, timeout=20)
    assert (taken.status_code, taken.json()["score"]) == (200, 1.0)
    (row,) = exported(store, file)
    assert row["score"] == 1.0
    assert row["tpot_ms"] > 5  # the tokens that were held back came at once
    assert row["calls"][0]["ttft_ms"] <= row["ttft_ms"]
    capsys.readouterr()
    assert main(["trace", "show", request_id, "--store", store.url]) == 0
    assert "feedback 1" in capsys.readouterr().out


def _printed(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> str:
    """The table, once all 16 requests are in it."""
    capsys.readouterr()
    main(["ledger", "--store", store.url])
    said = capsys.readouterr().out
    return said if said.startswith("16 requests") else ""


def _rows_of(table: str) -> set[str]:
    """What each row is about."""
    _, *lines = table.strip().splitlines()
    return {name for line in lines if (name := line[:17].rstrip())}


def test_the_readmes_ledger_has_what_is_printed(
    tmp_path: Path,
    store: LocalStore,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The README shows a run with more of everything, so each row that is printed here."""
    objectives = "slo: {ttft: {p95: 400ms, p99: 900ms}, total: {p99: 6s}, deadline: 20s}"
    policy = CHAT.replace("slo: {deadline: 20s}", objectives)
    with serve(
        tmp_path, local_upstream.url, hosted_upstream.url, store_url=store.url, policies={"chat": policy}
    ) as live:
        local_upstream.on("hard").reply(logprob=-3.0)
        for number in range(16):
            kind = "hard" if number % 2 else "simple"
            ask(live, f"A {kind} question, no. {number // 4}", stream=number >= 8)
        shown = until(lambda: _printed(store, capsys), 5, "the records")
    (example,) = re.findall(r"\$ tierline ledger --since 1h\n(.*?)```", README, re.DOTALL)
    assert len(_rows_of(shown)) > 12
    assert _rows_of(shown) <= _rows_of(example)
