from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from gateway.accounting import PAYERS, Finalizer, HedgeBudgets, charge, cost, replayed, settle
from gateway.chat.usage import Usage
from gateway.config.policy_reload import PolicyReloader
from gateway.config.prices import Price
from gateway.telemetry import names
from gateway.telemetry.ledger import SHADOW, Ledger, answered
from gateway.telemetry.trace import Hop, Trace
from gateway.tiers import Tier
from policies.model import Policy

PRICE = Price(input=2.5, output=10)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("req-1")


def test_a_price_is_per_million_tokens() -> None:
    """Input and output each at their own."""
    assert cost(PRICE, Usage(1_000_000, 100_000)) == pytest.approx(3.5)


def test_a_charge_is_booked_twice(ledger: Ledger) -> None:
    """Once for the request, which adds its calls up, and once on the call's own hop."""
    trace = Trace(names.REQUEST)
    first, second = trace.begin(names.ATTEMPT), trace.begin(names.ATTEMPT)
    charge(ledger, first, PRICE, Usage(100, 5, estimated=True))
    dollars = charge(ledger, second, PRICE, Usage(0, 7))
    assert dollars == pytest.approx(70e-6)
    assert (ledger.tokens_in, ledger.tokens_out, ledger.usage_estimated) == (100, 12, True)
    assert ledger.cost_usd == pytest.approx(370e-6)
    assert (first.attributes[names.GEN_AI_TOKENS_IN], first.attributes[names.GEN_AI_TOKENS_OUT]) == (100, 5)
    assert first.attributes[names.COST] == pytest.approx(300e-6)
    assert first.attributes[names.USAGE_ESTIMATED] is True
    assert second.attributes[names.COST] == dollars
    assert names.USAGE_ESTIMATED not in second.attributes


def test_who_was_served_adds_up(ledger: Ledger) -> None:
    """Each attempt is served once, several after one another; and nobody served is not the same as nothing known."""
    assert ledger.served is None
    settle(ledger, None)
    assert ledger.served == ()
    for number in (1, 1, 2):
        settle(ledger, number)
    settle(ledger, None)
    assert ledger.served == (1, 2)


def test_a_hit_serves_no_attempt(ledger: Ledger) -> None:
    """One that had begun while the cache was still asked was for nothing; the tokens are the stored answer's."""
    replayed(
        ledger, b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"details":{"reasoning_tokens":0}}}'
    )
    assert ledger.served == ()
    assert (ledger.answer_tokens_in, ledger.answer_tokens_out) == (9, 4)


LARGE = Price(input=2.5, output=10)
FREE = Price()


class Finished:
    """One request on its way, as `charge` and `settle` see it, and its books closed at the end."""

    def __init__(self, **ledger: Any) -> None:
        self.trace = Trace(names.REQUEST)
        self.ledger = Ledger("req-1", surface="chat", policy="chat@1111111", status=200, **ledger)

    def attempt(self, tier: str, *, price: Price = FREE, usage: Usage | None = None, **said: Any) -> Hop:
        number = sum(hop.name == names.ATTEMPT for hop in self.trace.hops) + 1
        hop = self.trace.begin(names.ATTEMPT, {names.ATTEMPT_NUMBER: number, names.TIER: tier, names.BACKEND: tier})
        hop.attributes.update({getattr(names, name): value for name, value in said.items()})
        if usage is not None:
            charge(self.ledger, hop, price, usage)
        hop.end()
        return hop

    def closed(self, books: Finalizer) -> Ledger:
        self.trace.root.end()
        books.close(self.trace, self.ledger)
        return self.ledger


def _books(
    *prices: Price | None,
    slo: dict[str, Any] | None = None,
    version: str = "1111111",
    ladder: tuple[str, ...] = ("local", "hosted"),
    candidate: Policy | None = None,
    ceiling_usd: float = 0.0,
) -> Finalizer:
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
    return Finalizer(cast(PolicyReloader, watcher), cast("dict[str, Tier]", tiers), HedgeBudgets({}), ceiling_usd)


def test_every_call_has_its_account() -> None:
    """An escalated request has two: what each read, wrote, cost, waited and took, and which of them was for nothing."""
    request = Finished(stream=True)
    request.attempt("local", usage=Usage(100, 24, estimated=True), OUTCOME="low_confidence", QUEUE=3.0, TTFT=40.0)
    request.attempt("hosted", price=LARGE, usage=Usage(110, 50), OUTCOME="accepted", CONFIDENCE_HEAD="feedbeef0000")
    settle(request.ledger, 2)
    ledger = request.closed(_books())
    local, hosted = ledger.calls
    assert (local.attempt, local.tier, local.outcome) == (1, "local", "low_confidence")
    assert (local.tokens_in, local.tokens_out, local.estimated, local.cost_usd) == (100, 24, True, 0)
    assert (local.wasted, local.queue_ms, local.ttft_ms) == (True, 3.0, 40.0)
    assert (hosted.wasted, hosted.estimated, hosted.ttft_ms) == (False, False, None)
    assert hosted.cost_usd == pytest.approx((110 * 2.5 + 50 * 10) / 1e6)
    assert hosted.total_ms > 0
    assert (ledger.queue_ms, ledger.head) == (3.0, "feedbeef0000")


def test_tokens_of_a_prompt_cache_are_in_the_account() -> None:
    """Read and written ones, as far as the provider says."""
    request = Finished()
    request.attempt("hosted", usage=Usage(100, 5, tokens_cached=60, tokens_cache_write=30), OUTCOME="low_confidence")
    request.attempt("hosted", usage=Usage(100, 5), OUTCOME="accepted")
    settle(request.ledger, 2)
    calls = request.closed(_books()).calls
    assert [(call.tokens_cached, call.tokens_cache_write) for call in calls] == [(60, 30), (0, 0)]


def test_a_key_pays_for_what_its_request_caused() -> None:
    """Drafts and samples that nobody read too, but no judge; a call of unknown price counts as the ceiling."""
    request = Finished()
    request.attempt("hosted", price=LARGE, usage=Usage(100, 10))
    for hop in (names.SAMPLE, names.JUDGE):
        charge(request.ledger, request.trace.begin(hop, {names.BACKEND: "hosted"}), LARGE, Usage(100, 10))
    unknown = request.trace.begin(names.ATTEMPT, {names.ATTEMPT_NUMBER: 2})
    charge(request.ledger, unknown, None, Usage(5, 5))
    settle(request.ledger, 2)
    ledger = request.closed(_books(ceiling_usd=0.25))
    assert ledger.cost_usd == pytest.approx(3 * 350e-6)
    assert ledger.charged_usd == pytest.approx(2 * 350e-6 + 0.25)
    assert (ledger.tokens_in, ledger.tokens_out) == (205, 25), "those that the key pays"
    assert ledger.list_usd == 0


def test_a_hit_costs_nothing_and_has_its_list_price_beside() -> None:
    """That of the backend which gave the answer; an attempt that had begun meanwhile is paid for."""
    request = Finished(path="cache-semantic", backend="hosted")
    request.attempt("hosted", price=LARGE, usage=Usage(100, 0), SPECULATIVE=True)
    replayed(request.ledger, b'{"usage":{"prompt_tokens":9,"completion_tokens":4}}')
    ledger = request.closed(_books())
    assert (ledger.charged_usd, ledger.list_usd) == (pytest.approx(250e-6), pytest.approx((9 * 2.5 + 4 * 10) / 1e6))


def test_a_shadow_is_the_operators() -> None:
    """No key pays for a request that is run again under another policy."""
    request = Finished(arm=SHADOW)
    request.attempt("hosted", price=LARGE, usage=Usage(100, 10))
    settle(request.ledger, 1)
    assert request.closed(_books()).charged_usd == 0


def test_the_readme_says_who_pays_as_the_code_has_it() -> None:
    """Row by row, and every hop of a call has one."""
    text = Path("gateway/README.md").read_text()
    assert text.count("| call | who pays |") == 1
    table = text.partition("| call | who pays |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| {row['what']} | {row['payer']} |" for row in PAYERS]
    assert {row["hop"] for row in PAYERS if "hop" in row} == {names.ATTEMPT, names.SAMPLE, names.JUDGE}


def test_calls_add_up_to_the_request() -> None:
    """Tokens and dollars of the calls, samples included, are those of the request."""
    request = Finished()
    request.attempt("hosted", price=LARGE, usage=Usage(10, 12))
    sample = request.trace.begin(names.SAMPLE, {names.BACKEND: "hosted"})
    charge(request.ledger, sample, LARGE, Usage(10, 6))
    settle(request.ledger, 1)
    ledger = request.closed(_books())
    assert sum(call.tokens_in for call in ledger.calls) == ledger.tokens_in == 20
    assert sum(call.tokens_out for call in ledger.calls) == ledger.tokens_out == 18
    assert sum(call.cost_usd for call in ledger.calls) == pytest.approx(ledger.cost_usd)
    assert [(call.attempt, call.tier, call.wasted) for call in ledger.calls] == [
        (1, "hosted", False),
        (0, "hosted", True),
    ]


def test_a_free_draft_wastes_tokens_and_no_money() -> None:
    """What a local model wrote for nobody is counted, though it cost nothing."""
    request = Finished()
    request.attempt("local", usage=Usage(100, 24))
    request.attempt("hosted", price=LARGE, usage=Usage(100, 50))
    settle(request.ledger, 2)
    ledger = request.closed(_books())
    assert (ledger.wasted_tokens, ledger.wasted_usd) == (124, 0)


def test_nothing_served_is_all_wasted() -> None:
    """A request that ends in an error has wasted what it spent, and has no answer to compare prices by."""
    request = Finished()
    request.attempt("hosted", price=LARGE, usage=Usage(100, 50))
    settle(request.ledger, None)
    ledger = request.closed(_books())
    assert ledger.wasted_usd == pytest.approx(ledger.cost_usd) and ledger.wasted_usd > 0
    assert ledger.wasted_tokens == 150
    assert ledger.counterfactual_usd is None


def test_an_answer_two_attempts_made_is_wasted_by_neither() -> None:
    """Where one attempt goes on with another's text, the answer is the text of both, and its prompt is read once."""
    request = Finished()
    request.attempt("local", usage=Usage(100, 30))
    request.attempt("hosted", price=LARGE, usage=Usage(130, 20), CONTINUES=1)
    settle(request.ledger, 1)
    settle(request.ledger, 2)
    ledger = request.closed(_books())
    assert (ledger.wasted_tokens, ledger.answer_tokens_in, ledger.answer_tokens_out) == (0, 100, 50)


def test_the_counterfactual_is_the_strongest_tiers_price_for_the_answer() -> None:
    """A free answer would have cost the first configured strong backend's price, and that is what was saved."""
    request = Finished()
    request.attempt("local", usage=Usage(100, 50))
    settle(request.ledger, 1)
    ledger = request.closed(_books(None, LARGE, Price(input=99)))
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
    ledger = request.closed(_books(strongest))
    assert ledger.counterfactual_usd == pytest.approx((900 * 0.25 + 100 * 3.0 + 50 * 10) / 1e6)


def test_the_strongest_tier_would_have_written_for_an_hour_too() -> None:
    """Where the call that was served did."""
    request = Finished()
    request.attempt("hosted", price=LARGE, usage=Usage(1000, 50, tokens_cache_write=1000, tokens_hour_write=400))
    settle(request.ledger, 1)
    ledger = request.closed(_books(Price(input=2.5, output=10, cache_write=3.0)))
    assert ledger.counterfactual_usd == pytest.approx((400 * 5 + 600 * 3.0 + 50 * 10) / 1e6)


def test_no_price_is_no_counterfactual() -> None:
    """Where no strong backend is configured, or the policy has changed since, what it would have cost is not known."""
    for books in (_books(None), _books(LARGE, version="2222222")):
        request = Finished()
        request.attempt("local", usage=Usage(100, 50))
        settle(request.ledger, 1)
        assert request.closed(books).counterfactual_usd is None


def test_the_strongest_tier_is_the_last_of_the_ladder() -> None:
    """Of the tiers that are configured; where none is, nobody knows what it would have cost."""
    for ladder, dollars in ((("local",), (100 * 0.5 + 50 * 1) / 1e6), ((), None)):
        request = Finished()
        request.attempt("local", usage=Usage(100, 50))
        settle(request.ledger, 1)
        assert request.closed(_books(ladder=ladder)).counterfactual_usd == pytest.approx(dollars)


def test_terms_outlive_a_reload() -> None:
    """A request that ends after its policy was replaced is still held against the version it had, once that was met."""
    books = _books()
    Finished().closed(books)
    renewed = _books(version="2222222")
    books._policies = renewed._policies
    assert Finished().closed(books).slo == {"deadline": True}


def test_what_is_no_chat_is_held_against_nothing() -> None:
    """Neither against the limits nor the strongest tier of its surface's chats, though one was asked before it."""
    books = _books()
    Finished().closed(books)
    request = Finished(answer_tokens_in=25, answer_tokens_out=0)
    request.ledger.surface = "chat/embeddings"
    ledger = request.closed(books)
    assert (ledger.slo, ledger.counterfactual_usd) == (None, None)


def test_a_hit_saves_what_its_tokens_would_have_cost() -> None:
    """A stored answer costs nothing; the usage it was stored with says what it saved."""
    request = Finished(path="cache-exact")
    replayed(request.ledger, b'{"choices":[],"usage":{"prompt_tokens":200,"completion_tokens":10,"total_tokens":210}}')
    ledger = request.closed(_books())
    assert (ledger.cost_usd, ledger.answer_tokens_in) == (0, 200)
    assert ledger.counterfactual_usd == pytest.approx((200 * 2.5 + 10 * 10) / 1e6)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[]}',
        b'{"choices":[],"usage":null}',
        b'{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":4}}',
        b'{"choices":[{"text":"\\"usage\\":{\\"prompt_tokens\\":1,\\"completion_tokens\\":2}"}]}',
    ],
)
def test_a_hit_without_usage_has_saved_nobody_knows_what(body: bytes) -> None:
    """No usage, a nonsensical one, or an answer that speaks of usage: the counterfactual stays unknown."""
    request = Finished(path="cache-exact")
    replayed(request.ledger, body)
    assert request.closed(_books()).counterfactual_usd is None


def test_the_pace_is_a_streams() -> None:
    """A stream's time after its first token is shared among the tokens that followed; JSON has no pace."""
    for stream, pace in ((True, 20.0), (False, None)):
        request = Finished(stream=stream, ttft_ms=100.0, total_ms=1100.0)
        request.attempt("hosted", price=LARGE, usage=Usage(10, 51))
        settle(request.ledger, 1)
        assert request.closed(_books()).tpot_ms == pace


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
    assert Finished(**ledger).closed(_books(slo={"ttft": {"p95": "400ms"}})).slo == met


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
    slo = request.closed(_books(slo={"tpot": {"p95": "20ms"}, "gap": {"p99": "100ms"}})).slo
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
    closed = request.closed(_books(slo=slo))
    assert closed.stages is not None
    assert list(closed.stages) == ["cache", "route", "queue", "drafts", "prefill", "verdict", "decode"]
    assert (closed.stages["queue"], closed.stages["drafts"], closed.stages["prefill"]) == (30, 0, 10)
    assert closed.stages["decode"] == 100
    assert closed.stages["verdict"] == pytest.approx(20 - closed.calls[0].start_ms)
    met = {"deadline": True, "stages_cache_p95": True, "stages_queue_p99": False, "stages_prefill_p99": True}
    assert closed.slo == met
    failed = Finished(total_ms=5.0, error="deadline_exceeded")
    failed.trace.begin(names.CACHE_EXACT).end()
    assert failed.closed(_books(slo=slo)).slo == {"stages_cache_p95": True}
    assert answered(["stages_queue_p99"], "direct", "") == "good", "a stage is no wait of its own"
    hit = Finished(total_ms=5.0)
    hit.trace.begin(names.CACHE_EXACT).end()
    assert hit.closed(_books(slo=slo)).slo == {"deadline": True, "stages_cache_p95": True}
    assert Finished().closed(_books()).stages is None


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
        assert request.closed(_books()).slo == (slo if held else None)


def test_races_and_draws_are_told() -> None:
    """Hedges, speculation, the holdout and the versions are read off the hops; a rival's queue adds nothing."""
    request = Finished()
    request.trace.begin(names.EMBED, {names.EMBEDDER: "wordllama-256"}).end()
    request.trace.begin(names.ROUTE, {names.HOLDOUT: False}).end()
    request.attempt("local", SPECULATIVE=True, QUEUE=5.0)
    request.attempt("hosted", HEDGE=True, QUEUE=7.0)
    request.attempt("hosted", QUEUE=2.0)
    ledger = request.closed(_books())
    assert (ledger.speculated, ledger.hedged, ledger.holdout) == (True, True, False)
    assert (ledger.embedder, ledger.queue_ms) == ("wordllama-256", 2.0)


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
    books = _books(candidate=candidate)
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
        ledger = request.closed(books)
        assert ledger.slo == {"deadline": good}
        assert ledger.counterfactual_usd == pytest.approx(0.5 if arm == "candidate" else 2.5)


def test_the_thinking_within_the_output_is_told() -> None:
    """On the hop, beside the output tokens that it is a part of; nothing where there was none."""
    request = Finished()
    thought = request.attempt("local", usage=Usage(10, 50, tokens_reasoning=40), OUTCOME="accepted")
    plain = request.attempt("local", usage=Usage(10, 50), OUTCOME="accepted")
    assert thought.attributes["gen_ai.usage.reasoning.output_tokens"] == 40
    assert thought.attributes["gen_ai.usage.output_tokens"] == 50
    assert names.GEN_AI_TOKENS_REASONING not in plain.attributes


@pytest.mark.parametrize("known", [True, False])
def test_no_hedge_where_a_price_is_unknown(known: bool) -> None:
    """The limit is a share of what requests cost: with a price that nobody states, no hedge is within it."""
    policy = Policy.model_validate(
        {
            "surface": "chat",
            "slo": {"deadline": "8s"},
            "tiers": ["local", "hosted"],
            "route": {"start": {"local": "otherwise"}},
            "escalate": {"hedge": {"after": "p95", "max_extra_spend": "3%"}},
            "version": "1111111",
            "ladder": ("local", "hosted"),
        }
    )
    tiers = {"local": SimpleNamespace(priced=True), "hosted": SimpleNamespace(priced=known)}
    assert HedgeBudgets(cast("dict[str, Tier]", tiers)).may_hedge(policy) is known


def test_a_client_is_not_told_what_the_prompt_cache_saved(ledger: Ledger) -> None:
    """Where it shares the backend: the record holds the truth, and the header what an empty cache would have cost."""
    price, hop = Price(input=10, output=10, cached_input=1), Hop([], "attempt")
    charge(ledger, hop, price, Usage(1000, 100, tokens_cached=900), hides_cache=True)
    assert ledger.cost_usd == pytest.approx(0.0029) == hop.attributes[names.COST]
    assert hop.attributes[names.GEN_AI_TOKENS_CACHED] == 900
    assert ledger.cost_shown == "0.01100000"
    assert ledger.prompt_cache_usd == pytest.approx(0.0081) == hop.attributes[names.PROMPT_CACHE_USD]
    assert "discount" not in orjson.dumps(ledger).decode(), "no part of the record"
    charge(ledger, hop, None, Usage(1000, 100, cost_usd=0.001), hides_cache=True)
    assert ledger.cost_shown == "unknown", "the provider's charge depends on its cache, and nothing else is known"


def test_a_stated_charge_comes_before_the_price(ledger: Ledger) -> None:
    """It is known even where the price is not, and an unknown cost is never one of 0."""
    hop = Hop([], "attempt")
    assert charge(ledger, hop, None, Usage(100, 10, cost_usd=0.5)) == 0.5
    assert (ledger.cost_usd, ledger.cost_unknown, ledger.cost_shown) == (0.5, False, "0.50000000")
    assert charge(Ledger("r"), hop, Price(input=99, output=99), Usage(100, 10, cost_usd=0.5)) == 0.5
    charge(ledger, hop, None, Usage(100, 10))
    assert (ledger.cost_unknown, ledger.cost_shown) == (True, "unknown")


def test_a_hit_was_not_steered() -> None:
    """Also where a call had begun by then, whose start a budget chose."""
    ledger = Ledger("r", steered_from="hosted")
    replayed(ledger, b"{}")
    assert ledger.steered_from == ""
