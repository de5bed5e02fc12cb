from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.accounting import Finalizer, HedgeBudgets, charge, replayed, settle
from gateway.chat.usage import Price, Usage
from gateway.parts.measures.endings import answered
from gateway.parts.measures.request_figures import RequestFigures
from gateway.parts.reload.part import PolicyReloader
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.tiers import Tier
from policies.model import Policy
from tests.gateway.test_accounting import FREE, LARGE, Finished


def closed(request: Finished, figures: RequestFigures) -> Ledger:
    return request.closed(Finalizer(HedgeBudgets({}), complete=figures.complete))


def figures_of(
    *prices: Price | None,
    slo: dict[str, Any] | None = None,
    version: str = "1111111",
    ladder: tuple[str, ...] = ("local", "hosted"),
    candidate: Policy | None = None,
) -> RequestFigures:
    """Books over tiers local and hosted; hosted has a backend for each price, unconfigured where it is None."""
    policy = Policy.model_validate(
        {
            "surface": "chat",
            "slo": {"deadline": "8s"} | (slo or {}),
            "tiers": ["local", "hosted"],
            "route": {"start": {"local": "otherwise"}},
            "version": version,
            "ladder": ladder,
        }
    )
    rolling = {} if candidate is None else {"chat": SimpleNamespace(policy=candidate)}
    watcher = SimpleNamespace(current=SimpleNamespace(by_surface={"chat": policy}, rolling=rolling))
    configs = [SimpleNamespace(name="hosted", configured=one is not None, price=one) for one in prices or (LARGE,)]
    local = [SimpleNamespace(name="local", configured=True, price=Price(input=0.5, output=1))]
    tiers = {
        name: SimpleNamespace(endpoints=[SimpleNamespace(config=config) for config in found])
        for name, found in (("local", local), ("hosted", configs))
    }
    return RequestFigures(cast(PolicyReloader, watcher), cast("dict[str, Tier]", tiers))


def test_a_hit_costs_nothing_and_has_its_list_price_beside() -> None:
    """That of the backend which gave the answer; an attempt that had begun meanwhile is paid for."""
    request = Finished(path="cache-semantic", backend="hosted")
    request.attempt("hosted", price=LARGE, usage=Usage(100, 0), SPECULATIVE=True)
    replayed(request.ledger, b'{"usage":{"prompt_tokens":9,"completion_tokens":4}}')
    ledger = closed(request, figures_of())
    assert (ledger.charged_usd, ledger.list_usd) == (pytest.approx(250e-6), pytest.approx((9 * 2.5 + 4 * 10) / 1e6))


def test_the_counterfactual_is_the_strongest_tiers_price_for_the_answer() -> None:
    """A free answer would have cost the first configured strong backend's price, and that is what was saved."""
    request = Finished()
    request.attempt("local", usage=Usage(100, 50))
    settle(request.ledger, 1)
    ledger = closed(request, figures_of(None, LARGE, Price(input=99)))
    assert ledger.counterfactual_usd == pytest.approx((100 * 2.5 + 50 * 10) / 1e6)
    assert not ledger.answer_estimated


def test_the_strongest_tier_would_have_read_its_prompt_cache_too() -> None:
    """A conversation that stays with one model is read there: what a draft read from its cache, it would have read."""
    request = Finished()
    request.attempt("local", usage=Usage(1000, 10, tokens_cached=900))
    sample = request.trace.begin(names.SAMPLE, {names.BACKEND: "local"})
    charge(request.ledger, sample, FREE, Usage(1000, 10, tokens_cached=1000))  # what its draft has just written
    sample.end()
    request.attempt("hosted", price=LARGE, usage=Usage(1000, 50, tokens_cache_write=1000))
    settle(request.ledger, 2)
    strongest = Price(input=2.5, output=10, cached_input=0.25, cache_write=3.0)
    ledger = closed(request, figures_of(strongest))
    assert ledger.counterfactual_usd == pytest.approx((900 * 0.25 + 100 * 3.0 + 50 * 10) / 1e6)


def test_the_strongest_tier_would_have_written_for_an_hour_too() -> None:
    """Where the call that was served did."""
    request = Finished()
    request.attempt("hosted", price=LARGE, usage=Usage(1000, 50, tokens_cache_write=1000, tokens_hour_write=400))
    settle(request.ledger, 1)
    ledger = closed(request, figures_of(Price(input=2.5, output=10, cache_write=3.0)))
    assert ledger.counterfactual_usd == pytest.approx((400 * 5 + 600 * 3.0 + 50 * 10) / 1e6)


def test_no_price_is_no_counterfactual() -> None:
    """Where no strong backend is configured, or the policy has changed since, what it would have cost is not known."""
    for books in (figures_of(None), figures_of(LARGE, version="2222222")):
        request = Finished()
        request.attempt("local", usage=Usage(100, 50))
        settle(request.ledger, 1)
        assert closed(request, books).counterfactual_usd is None


def test_the_strongest_tier_is_the_last_of_the_ladder() -> None:
    """Of the tiers that are configured; where none is, nobody knows what it would have cost."""
    for ladder, dollars in ((("local",), (100 * 0.5 + 50 * 1) / 1e6), ((), None)):
        request = Finished()
        request.attempt("local", usage=Usage(100, 50))
        settle(request.ledger, 1)
        assert closed(request, figures_of(ladder=ladder)).counterfactual_usd == pytest.approx(dollars)


def test_terms_outlive_a_reload() -> None:
    """A request that ends after its policy was replaced is still held against the version it had, once that was met."""
    books = figures_of()
    closed(Finished(), books)
    renewed = figures_of(version="2222222")
    books._policies = renewed._policies
    assert closed(Finished(), books).slo == {"deadline": True}


def test_what_is_no_chat_is_held_against_nothing() -> None:
    """Neither against the limits nor the strongest tier of its surface's chats, though one was asked before it."""
    books = figures_of()
    closed(Finished(), books)
    request = Finished(answer_tokens_in=25, answer_tokens_out=0)
    request.ledger.surface = "chat/embeddings"
    ledger = closed(request, books)
    assert (ledger.slo, ledger.counterfactual_usd) == (None, None)


def test_a_hit_saves_what_its_tokens_would_have_cost() -> None:
    """A stored answer costs nothing; the usage it was stored with says what it saved."""
    request = Finished(path="cache-exact")
    replayed(request.ledger, b'{"choices":[],"usage":{"prompt_tokens":200,"completion_tokens":10,"total_tokens":210}}')
    ledger = closed(request, figures_of())
    assert (ledger.cost_usd, ledger.answer_tokens_in) == (0, 200)
    assert ledger.counterfactual_usd == pytest.approx((200 * 2.5 + 10 * 10) / 1e6)


@pytest.mark.parametrize(
    ("ledger", "met"),
    [
        ({"stream": True, "ttft_ms": 300.0, "total_ms": 900.0}, {"ttft_p95": True, "deadline": True}),
        ({"stream": True, "ttft_ms": 500.0, "total_ms": 9000.0}, {"ttft_p95": False, "deadline": False}),
        ({"stream": True, "ttft_ms": 500.0, "error": "upstream_truncated"}, {"ttft_p95": False}),
        ({"stream": False, "ttft_ms": 5000.0, "total_ms": 5000.0}, {"deadline": True}),
    ],
)
def test_a_request_is_held_against_its_objectives(ledger: dict[str, Any], met: dict[str, bool]) -> None:
    """Each objective is met or not, a first token's by streams alone; a broken answer meets none."""
    assert closed(Finished(**ledger), figures_of(slo={"ttft": {"p95": "400ms"}})).slo == met


@pytest.mark.parametrize(
    ("ledger", "met"),
    [
        ({"ttft_ms": 100.0, "total_ms": 600.0, "gap_ms": 90.0}, {"tpot_p95": True, "gap_p99": True}),
        ({"ttft_ms": 100.0, "total_ms": 1700.0, "gap_ms": 900.0}, {"tpot_p95": False, "gap_p99": False}),
        ({"ttft_ms": 100.0, "total_ms": 600.0}, {"tpot_p95": True}),  # a single chunk
        ({"ttft_ms": 100.0, "total_ms": 1700.0, "error": "upstream_truncated"}, {"tpot_p95": False}),
        ({"stream": False, "ttft_ms": 100.0, "total_ms": 1700.0}, {}),
    ],
)
def test_a_stream_is_held_against_its_pace_and_its_longest_gap(ledger: dict[str, Any], met: dict[str, bool]) -> None:
    """By the time per token after the first, and by the longest pause; JSON and what has none are not held to them."""
    request = Finished(**{"stream": True, "total_ms": 100.0} | ledger)
    request.attempt("hosted", price=LARGE, usage=Usage(10, 51))
    settle(request.ledger, 1)
    slo = closed(request, figures_of(slo={"tpot": {"p95": "20ms"}, "gap": {"p99": "100ms"}})).slo
    assert slo is not None and slo.pop("deadline", None) is (None if request.ledger.error else True)
    assert slo == met


def test_stages_are_held_against_their_own_objectives() -> None:
    """Each by its own hops and by the call that was served; what a request had not is not held against it."""
    slo = {"stages": {"cache": {"p95": "1h"}, "queue": {"p99": "20ms"}, "prefill": {"p99": "20ms"}, "embed": {}}}
    request = Finished(stream=True, ttft_ms=60.0, total_ms=160.0)
    request.trace.begin(names.CACHE_EXACT).end()
    request.trace.begin(names.ROUTE).end()
    request.attempt("local", QUEUE=30.0, TTFT=10.0)
    settle(request.ledger, 1)
    ledger = closed(request, figures_of(slo=slo))
    assert ledger.stages is not None
    assert list(ledger.stages) == ["cache", "route", "queue", "drafts", "prefill", "verdict", "decode"]
    assert (ledger.stages["queue"], ledger.stages["drafts"], ledger.stages["prefill"]) == (30, 0, 10)
    assert ledger.stages["decode"] == 100
    assert ledger.stages["verdict"] == pytest.approx(20 - ledger.calls[0].start_ms)
    met = {"deadline": True, "stages_cache_p95": True, "stages_queue_p99": False, "stages_prefill_p99": True}
    assert ledger.slo == met
    failed = Finished(total_ms=5.0, error="deadline_exceeded")
    failed.trace.begin(names.CACHE_EXACT).end()
    assert closed(failed, figures_of(slo=slo)).slo == {"stages_cache_p95": True}
    assert answered(["stages_queue_p99"], "direct", "") == "good", "a stage is no wait of its own"
    hit = Finished(total_ms=5.0)
    hit.trace.begin(names.CACHE_EXACT).end()
    assert closed(hit, figures_of(slo=slo)).slo == {"deadline": True, "stages_cache_p95": True}
    assert closed(Finished(), figures_of()).stages is None


@pytest.mark.parametrize(
    ("status", "refused", "held"),
    [(400, False, False), (499, False, False), (429, True, False), (504, True, False), (503, False, True),
     (429, False, True), (502, False, True)],
)  # fmt: skip
def test_a_failure_is_held_against_the_times_that_had_passed(status: int, refused: bool, held: bool) -> None:
    """A refusal of the client's own making, or a client that left, says nothing of the objectives, nor does a failure
    after milliseconds; one that came after the deadline has missed it."""
    for total_ms, slo in ((3.0, {}), (8001.0, {"deadline": False})):
        request = Finished(total_ms=total_ms, refused=refused)
        request.ledger.status = status
        assert closed(request, figures_of()).slo == (slo if held else None)


def test_a_canary_is_held_against_the_objectives_in_force() -> None:
    """A candidate that allows itself more time is not the better one for it; its prices are its own."""
    candidate = Policy.model_validate(
        {
            "surface": "chat",
            "slo": {"deadline": "60s"},
            "tiers": ["local"],
            "route": {"start": {"local": "otherwise"}},
            "version": "2222222",
        }
    )
    books = figures_of(candidate=candidate)
    for policy, arm, total_ms, good in (
        ("chat@2222222", "candidate", 9000.0, False),
        ("chat@2222222", "candidate", 7000.0, True),
        ("chat@1111111", "control", 9000.0, False),
    ):
        request = Finished(arm=arm)
        request.ledger.policy = policy
        request.ledger.total_ms = total_ms
        request.attempt("local", usage=Usage(1_000_000, 0), OUTCOME="accepted")
        settle(request.ledger, 1)
        ledger = closed(request, books)
        assert ledger.slo == {"deadline": good}
        assert ledger.counterfactual_usd == pytest.approx(0.5 if arm == "candidate" else 2.5)
