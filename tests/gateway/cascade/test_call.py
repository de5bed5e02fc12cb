"""A backend call and its outcomes: what each means for the slot, the charge and the hop, and that only one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from gateway.backends.base import BackendError, BadStatus, BudgetSpent, Truncated
from gateway.cascade.call import BackendCall, CallOutcome
from gateway.chat.stream_state import StreamState
from gateway.config.backends import BackendConfig
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop
from gateway.tiers import Endpoint, SlotRequest

PROMPT = 10


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that is never asked anything; no test leaves a slot taken."""
    config = BackendConfig.model_validate(
        {"name": "b", "base_url": "http://127.0.0.1:9/v1", "model": "m", "price": {"input": 1, "output": 1e6}}
    )
    made = Endpoint(config, None)
    yield made
    assert made.in_flight == 0


def call_at(endpoint: Endpoint, *, stream: bool = True) -> tuple[BackendCall, Ledger]:
    """A call that has its slot."""
    ledger = Ledger("r")
    return BackendCall(ledger, endpoint.take(SlotRequest(stream=stream)), Hop([], "attempt"), PROMPT), ledger


def generated(tokens: int, usage: dict[str, int] | None = None) -> StreamState:
    """A stream of which so many tokens have come."""
    state = StreamState()
    for _ in range(tokens):
        state.add({"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": usage})
    return state


@pytest.mark.parametrize(
    ("outcome", "error", "charged"),
    [
        ("answered", None, True),
        ("rejected", None, True),
        ("lost", None, True),
        ("cancelled", "cancelled", True),
        ("fault", "internal_error", False),
        (Truncated("cut"), "upstream_truncated", False),
        (BudgetSpent(1.0), "upstream_timeout", True),
    ],
)
def test_each_outcome_settles_the_call(
    endpoint: Endpoint, outcome: CallOutcome, error: str | None, charged: bool
) -> None:
    """The slot is free, the hop has ended, and a backend that failed before its first token charges nothing."""
    call, ledger = call_at(endpoint)
    call.close(outcome)
    assert endpoint.in_flight == 0
    assert call.hop.end_ns and call.hop.error == error
    assert (ledger.tokens_in, ledger.usage_estimated) == ((PROMPT, True) if charged else (0, False))


@pytest.mark.parametrize("outcome", ["fault", Truncated("cut"), BudgetSpent(1.0)])
def test_what_was_generated_is_charged_though_the_call_fails(endpoint: Endpoint, outcome: CallOutcome) -> None:
    """Tokens that were seen cost what they cost, whatever becomes of the call."""
    call, ledger = call_at(endpoint)
    call.state = generated(3)
    call.close(outcome)
    assert (ledger.tokens_in, ledger.tokens_out) == (PROMPT, 3)
    assert ledger.cost_usd == call.cost_usd == pytest.approx(3 + PROMPT / 1e6)


def test_a_whole_answer_that_came_too_late_has_its_prompt_charged(endpoint: Endpoint) -> None:
    """Nothing of it was seen, but its backend has read the prompt."""
    call, ledger = call_at(endpoint, stream=False)
    call.close(BudgetSpent(1.0))
    assert (ledger.tokens_in, ledger.tokens_out) == (PROMPT, 0)


@pytest.mark.parametrize("outcome", ["cancelled", "lost", BudgetSpent(1.0)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_given_up_owes_an_answer(endpoint: Endpoint, outcome: CallOutcome, *, stream: bool) -> None:
    """It was sent, and its backend makes and bills the answer: it is charged until somebody knows better."""
    ledger = Ledger("r")
    call = BackendCall(ledger, endpoint.take(SlotRequest(stream=stream)), Hop([], "attempt"), PROMPT, lambda _: 500)
    call.close(outcome)
    assert (ledger.tokens_in, ledger.tokens_out, ledger.usage_estimated) == (PROMPT, 500, True)
    assert ledger.cost_usd == pytest.approx(500 + PROMPT / 1e6)


@pytest.mark.parametrize("outcome", ["cancelled", "rejected", Truncated("cut")])
def test_a_stream_that_is_cut_owes_what_had_come(endpoint: Endpoint, outcome: CallOutcome) -> None:
    """A chunk may hold many tokens; what the stream's beginning said of its prompt is the truth of that."""
    ledger = Ledger("r")
    call = BackendCall(ledger, endpoint.take(SlotRequest()), Hop([], "attempt"), PROMPT, lambda _: 500)
    call.state = StreamState()
    begun = {"prompt_tokens": 100_003, "completion_tokens": 1, "estimated": True, "begun": True}
    call.state.add({"choices": [{"index": 0, "delta": {"content": ""}}], "usage": begun})
    call.state.add({"choices": [{"index": 0, "delta": {"content": "word " * 80}}]})
    call.close(outcome)
    assert (ledger.tokens_in, ledger.tokens_out, ledger.usage_estimated) == (100_003, 100, True)


def test_what_whole_answers_had_is_known_of_an_endpoint(endpoint: Endpoint) -> None:
    """On average; neither beginnings of drafts nor the words of a judge, which owes nothing, say anything of it."""
    ended: list[tuple[CallOutcome, bool, int, float]] = [
        ("answered", True, 100, 100), ("answered", True, 200, 105), ("rejected", True, 3, 105),
        ("answered", False, 1, 105), ("lost", True, 0, 105),
    ]  # fmt: skip
    for outcome, owes, tokens, mean in ended:
        slot = endpoint.take(SlotRequest())
        call = BackendCall(Ledger("r"), slot, Hop([], "attempt"), PROMPT, (lambda _: 9) if owes else None)
        call.state = generated(tokens, usage={"prompt_tokens": 5, "completion_tokens": tokens})
        call.close(outcome)
        assert endpoint.mean_out == pytest.approx(mean)


def test_only_the_first_close_counts(endpoint: Endpoint) -> None:
    """A second outcome changes neither the slot nor the charge nor the hop."""
    call, ledger = call_at(endpoint)
    call.state = generated(4, usage={"prompt_tokens": 5, "completion_tokens": 2})
    call.close("answered")
    call.close(BadStatus(500))
    call.close("lost")
    assert (ledger.tokens_in, ledger.tokens_out, ledger.usage_estimated) == (5, 2, False)
    assert call.hop.error is None
    assert names.UPSTREAM_STATUS not in call.hop.attributes
    assert endpoint.well


def test_a_whole_answer_is_booked_before_its_hop_ends(endpoint: Endpoint) -> None:
    """While it is judged its slot is free and its charge made; a client that leaves then changes neither."""
    call, ledger = call_at(endpoint, stream=False)
    call.answered()
    assert endpoint.in_flight == 0
    assert (ledger.tokens_in, call.hop.end_ns) == (PROMPT, 0)
    call.close("cancelled")
    assert ledger.tokens_in == PROMPT
    assert call.hop.end_ns


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (None, None),
        (BadStatus(503), "upstream_http_error"),
        (asyncio.CancelledError(), "cancelled"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
def test_a_block_closes_its_call(endpoint: Endpoint, raised: BaseException | None, error: str | None) -> None:
    """However the block ends, the call ends with it, and the error goes on."""
    call, _ = call_at(endpoint)
    with pytest.raises(type(raised)) if raised is not None else nullcontext(), call:
        if raised is not None:
            raise raised
    assert endpoint.in_flight == 0
    assert call.hop.end_ns and call.hop.error == error
    if isinstance(raised, BackendError):
        assert call.hop.attributes[names.UPSTREAM_STATUS] == 503


def test_a_call_that_was_kept_open_outlives_its_block(endpoint: Endpoint) -> None:
    """Its new owner closes it, and it is charged since its text goes to the client; an error closes it even so."""
    call, ledger = call_at(endpoint)
    with call:
        call.keep_open()
    assert endpoint.in_flight == 1
    call.close(Truncated("cut"), "upstream_truncated")
    assert ledger.tokens_in == PROMPT
    assert call.hop.attributes[names.STREAM_END] == "upstream_truncated"
    other, _ = call_at(endpoint)
    with pytest.raises(RuntimeError), other:
        other.keep_open()
        raise RuntimeError("a bug")
    assert endpoint.in_flight == 0
