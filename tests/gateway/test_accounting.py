from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from gateway.accounting import PAYERS, Finalizer, HedgeBudgets, charge, cost, replayed, settle
from gateway.chat.usage import Price, Usage
from gateway.telemetry import names
from gateway.telemetry.ledger import SHADOW, Ledger
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


def _books(ceiling_usd: float = 0.0) -> Finalizer:
    return Finalizer(HedgeBudgets({}), ceiling_usd)


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
