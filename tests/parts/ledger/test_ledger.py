from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.ledger.commands._ledger_view import _money
from gateway.parts.ledger.figures import usage_figures
from gateway.parts.ledger.folder import locked
from gateway.parts.ledger.keeper import Keeper, Rotation
from gateway.parts.measures import feedback, label
from gateway.parts.measures.feedback import Feedback
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.telemetry.ledger import CallAccount
from gateway.telemetry.sink import Telemetry
from tests.gateway.telemetry.requests_made import escalated
from tests.support.store import UNHURRIED, LocalStore, local_store


def _call(*, cost_usd: float = 0.0, estimated: bool = False, wasted: bool = False) -> CallAccount:
    return CallAccount(1, "hosted", "openai", "m", "accepted", 100, 20, estimated, cost_usd, wasted, 5.0, None, 50.0)


def _row(**said: Any) -> dict[str, Any]:
    _, ledger = escalated(**({"calls": [_call(cost_usd=0.0003)]} | said))
    row = vars(ledger) | {"started": 1.0, "score": None}
    row["calls"] = list(map(vars, ledger.calls))
    return row


def test_the_saving_is_of_all_requests_that_can_be_compared() -> None:
    """Those whose draft was given up too, which save least; how much rests on our own count is said beside it."""
    free_draft = [_call(estimated=True, wasted=True), _call(cost_usd=0.0003)]
    paid_draft = [_call(estimated=True, wasted=True, cost_usd=0.0001), _call(cost_usd=0.0003)]
    rows = [
        _row(counterfactual_usd=0.001),
        _row(counterfactual_usd=0.001, calls=free_draft),
        _row(counterfactual_usd=0.001, calls=paid_draft),
        _row(counterfactual_usd=0.001, answer_estimated=True),
        _row(),
    ]
    said = usage_figures(rows)["strongest_alone"]
    assert (said["requests"], said["unknown"]["requests"]) == (4, 1)
    assert said["estimated"] == {"requests": 2, "cost_usd": pytest.approx(0.0001)}
    assert said["saved_usd"] == pytest.approx(0.0028) and said["saved_share"] == pytest.approx(0.7)
    low, high = said["interval_95"]
    assert low == high == pytest.approx(0.0028)
    assert ("  estimated", "of 2 of them some tokens are our own count, $0.0001 of their cost") in _money(
        usage_figures(rows)
    )
    assert usage_figures(rows)["estimated_usd"] == pytest.approx(0.0001)


def test_no_saving_is_claimed_where_a_price_is_unknown() -> None:
    """A call that nobody can price would look like a saving; such requests are counted, and compared with nothing."""
    rows = [_row(counterfactual_usd=0.01), _row(counterfactual_usd=0.01, cost_unknown=True)]
    said = usage_figures(rows)
    assert said["cost_unknown"] == 1
    assert said["strongest_alone"]["requests"] == said["strongest_alone"]["unknown"]["requests"] == 1


def test_waste_is_a_share_of_what_was_spent() -> None:
    """Wasted dollars are told against all dollars, wasted tokens against all tokens, though they cost nothing."""
    said = usage_figures([_row(wasted_usd=0.0, wasted_tokens=60), _row(wasted_usd=0.0003)])["wasted"]
    assert (said["tokens"], said["share_of_tokens"]) == (60, 0.25)
    assert said["share_of_usd"] == pytest.approx(0.5)


def test_prompt_caches_are_told_by_what_they_saved_and_how_much_was_read() -> None:
    """Writing cost is taken off; the share is of all prompt tokens, and without any nothing is said."""
    call = _call(cost_usd=0.0003)
    call.tokens_cached = 60
    said = usage_figures([_row(prompt_cache_usd=0.005, calls=[call]), _row(prompt_cache_usd=-0.001), _row()])
    assert said["prompt_caches"] == {
        "saved_usd": pytest.approx(0.004), "tokens_read": 60, "share_read": pytest.approx(0.2)
    }  # fmt: skip
    assert ("prompt caches", "saved $0.004; 20.0% of prompt tokens read from them") in list(_money(said))
    assert not any(name == "prompt caches" for name, _ in _money(usage_figures([_row()])))


def test_goodput_needs_every_limit_of_a_single_request() -> None:
    """A p95, which one request in twenty may miss, is told apart; what failed counts, what was refused does not."""
    rows = [
        _row(slo={"ttft_p95": False, "deadline": True}),
        _row(slo={"ttft_p95": True, "deadline": True}),
        _row(slo={"ttft_p95": True, "deadline": False}),
        _row(slo=None),
        _row(slo=None, status=503, error="server_is_overloaded"),
        _row(slo=None, status=429, error="rate_limit_exceeded", refused=True),
        _row(slo=None, status=400, error="invalid_json"),
    ]
    said = usage_figures(rows)["slo"]
    assert (said["n"], said["goodput"]) == (4, 0.5)
    assert [said[name] for name in ("good", "late", "poor", "failed", "refused", "left")] == [2, 1, 0, 1, 2, 0]
    assert said["objectives"]["ttft_p95"] == {"n": 3, "met": pytest.approx(2 / 3)}


def test_routed_is_compared_with_held_out() -> None:
    """The difference of the two arms' scores comes with its interval; who took no part in the draw is in neither."""
    rows = [_row(holdout=False) | {"score": score} for score in (1.0, 1.0, 0.0, None)]
    rows += [_row(holdout=True) | {"score": 1.0}, _row() | {"score": 0.0}]
    said = usage_figures(rows)["holdout"]
    assert said["routed"] == {"requests": 4, "labels": 3, "score": pytest.approx(2 / 3)}
    assert said["held_out"] == {"requests": 1, "labels": 1, "score": 1.0}
    assert said["difference"] == pytest.approx(-1 / 3)
    low, high = said["interval_95"]
    assert -1 < low < said["difference"] < high < 1


def test_without_labels_there_is_no_difference() -> None:
    """One arm alone says nothing of the other."""
    said = usage_figures([_row(holdout=False) | {"score": 1.0}, _row(holdout=True)])["holdout"]
    assert (said["difference"], said["interval_95"]) == (None, None)


def _label(request_id: str, small: float, strong: float, *, served: str = "small", **more: Any) -> dict[str, Any]:
    def answer(name: str, tier: str, adequate: float) -> dict[str, Any]:
        return {"tier": tier, "served": served == name, "adequate": adequate}

    names = {"request_id": request_id, "tenant": "acme", "surface": "chat", **more}
    return {**names, "small": answer("small", "local", small), "strong": answer("strong", "hosted", strong)}


def test_judge_and_feedback_make_one_figure_for_each_tier() -> None:
    """Labels of other requests count nowhere; those of both arms say what routing costs though nobody gave feedback."""
    rows = [_row(request_id=f"req-{i}", holdout=i % 4 == 0) for i in range(80)]
    labels = [
        _label(f"req-{i}", float(i % 3 > 0), 1.0, served="strong" if i % 4 == 0 else "small") for i in range(0, 120, 1)
    ]
    said = usage_figures(rows, labels)
    local, hosted = said["quality"]
    assert (local["surface"], local["tier"], local["judged"], local["whose"]) == (
        "chat",
        "local",
        80,
        "the judge's alone",
    )
    assert local["value"] == pytest.approx(53 / 80) and hosted["value"] == 1.0 and hosted["low"] < 1.0
    held = said["holdout"]
    assert (held["word"], held["routed"]["labels"], held["held_out"]["labels"]) == ("judge", 60, 20)
    assert held["held_out"]["score"] == 1.0 and held["interval_95"][1] < 0
    rated = [row | {"score": 0.0 if row["request_id"] == "req-1" else row["score"]} for row in rows]
    assert usage_figures(rated, labels)["quality"][0]["both"] == 1


def test_records_of_an_older_version_count() -> None:
    """They lack what came later: their money and times are summed, and nothing is claimed of their saving."""
    row = _row(usage_estimated=True)
    newer = (
        "calls",
        "counterfactual_usd",
        "wasted_tokens",
        "tpot_ms",
        "queue_ms",
        "holdout",
        "slo",
        "answer_estimated",
    )
    for name in newer:
        del row[name]
    said = usage_figures([row])
    assert said["cost_usd"] == said["estimated_usd"] == pytest.approx(0.0003)
    assert said["strongest_alone"]["unknown"]["requests"] == 1
    assert said["queue_ms"]["n"] == 0


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


@pytest.fixture
async def url(server: LocalStore) -> AsyncIterator[str]:
    """A store with three requests of chat and one of batch, `req-3` the newest, and a word on `req-2`."""
    store = RedisStore.from_url(server.url, slack=UNHURRIED)
    await store.delete("tierline:traces")
    await store.delete(feedback.STREAM)
    await store.delete(label.LABELS)
    telemetry = Telemetry(store, keep=100, exporter=None, metrics=PrometheusMetrics())
    telemetry.start()
    for number, surface in enumerate(("chat", "batch", "chat", "chat")):
        telemetry.record(*escalated(f"req-{number}", surface=surface, calls=[_call(cost_usd=0.0003)]))
    await telemetry.aclose()
    await store.apply([Append(feedback.STREAM, Feedback("req-2", "acme", "chat", 0.5, None, 1.0).encode(), 10)])
    await store.aclose()
    yield server.url


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["ledger", *arguments, "--json"]) == 0
    return orjson.loads(capsys.readouterr().out)


def _requests_of(path: Path) -> list[tuple[str, Any]]:
    rows = map(orjson.loads, path.read_bytes().splitlines())
    return [(row["request_id"], row["score"]) for row in rows]


def test_a_command_reads_what_it_is_asked_for(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All, the latest, those of a surface, and those since; `--json` is one object."""
    assert _json(capsys, "--store", url)["requests"] == 4
    assert _json(capsys, "--store", url, "--last", "2")["requests"] == 2
    assert _json(capsys, "--store", url, "--surface", "batch")["requests"] == 1
    assert _json(capsys, "--store", url, "--since", "1h")["requests"] == 4


async def test_both_views_of_quality_are_one_estimate(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tierline ledger` reads the store, `tierline fit learn quality` its files: the same labels, the same figures."""
    store = RedisStore.from_url(url, slack=UNHURRIED)
    blobs = [orjson.dumps({"v": 1, **_label(f"req-{i}", float(i > 0), 1.0), "judged_at": float(i)}) for i in (0, 2)]
    await store.apply([Append(label.LABELS, blob, 10) for blob in blobs])
    with locked(tmp_path / "ledger"):
        await Keeper(store, tmp_path / "ledger", Rotation(), lambda _: None).catch_up()
    await store.aclose()

    def said() -> tuple[Any, Any]:
        of_store = _json(capsys, "--store", url)["quality"]
        arguments = ["fit", "learn", "quality", "--surface", "chat", "--ledger", str(tmp_path / "ledger"), "--json"]
        assert main(arguments) == 0
        return of_store, orjson.loads(capsys.readouterr().out)["tiers"]

    of_store, of_files = await asyncio.to_thread(said)
    assert of_store == [{"surface": "chat", **one} for one in of_files]
    assert [(one["tier"], one["judged"], one["both"]) for one in of_files] == [("local", 2, 1), ("hosted", 2, 0)]


def test_an_export_is_one_record_a_line(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Auditors get every figure of every request, with its calls and the feedback on it."""
    file = tmp_path / "audit.jsonl"
    assert main(["ledger", "--store", url, "--surface", "chat", "--export", str(file)]) == 0
    assert f"3 records written to {file}" in " ".join(capsys.readouterr().out.split())
    assert _requests_of(file) == [("req-3", None), ("req-2", 0.5), ("req-0", None)]
    assert orjson.loads(file.read_bytes().splitlines()[0])["calls"][0]["tokens_in"] == 100


def test_a_table_says_it_in_words(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths, times and money in a pipe, plainly; without labels it says what to do to have some."""
    assert main(["ledger", "--store", url]) == 0
    said = capsys.readouterr().out
    for phrase in (
        "4 requests of all surfaces",
        "escalated",
        "TTFT of streams",
        "our overhead",
        "no saving is claimed",
    ):
        assert phrase in said
    assert "POST /v1/feedback" in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--surface", "nowhere"), "no such request is recorded"),
        (("--export", "/nowhere/audit.jsonl"), "/nowhere/audit.jsonl cannot be written: No such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    url: str, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing found, or nowhere to write: exit code 2 and the reason."""
    assert main(["ledger", "--store", url, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_store_that_is_down_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, without the URL's password."""
    assert main(["ledger", "--store", "redis://:secret@127.0.0.1:1/0"]) == 2
    said = capsys.readouterr().err
    assert "the store does not answer" in said and "secret" not in said


@pytest.mark.parametrize("arguments", [("--since", "soon"), ("--last", "0"), ("--last", "1", "--since", "1h")])
def test_bad_flags_are_usage_errors(arguments: tuple[str, ...]) -> None:
    """A time without a unit, none of the latest, or both limits at once."""
    with pytest.raises(SystemExit):
        main(["ledger", *arguments])
