"""B39, B44, B45: servers that refuse what others take, count in other words, or know fewer roles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.lanes import Answer, Rig
from tests.support.upstream import Reply, Upstream

LONG = "The quick brown fox jumps over the lazy dog, and nobody knows why it does so."


def post(rig: Rig, path: str, lane: str, *, stream: bool, **more: Any) -> Answer:
    """One question in the API of this path."""
    message = {"role": "user", "content": "hi"}
    body: dict[str, Any] = {"model": lane, **more}
    if path == "/v1/responses":
        body["input"] = [message]
    else:
        body |= {"messages": [message], "max_tokens": 50}
    return rig.send(path, body | ({"stream": True} if stream else {}))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        pytest.param(
            {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 610}
            | {"completion_tokens_details": {"reasoning_tokens": 500}},
            (100, 510, 0),
            id="xai",
        ),
        pytest.param(
            {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010, "prompt_cache_hit_tokens": 800},
            (1000, 10, 800),
            id="deepseek",
        ),
        pytest.param({"prompt_tokens": None, "completion_tokens": 10, "total_tokens": 110}, (100, 10, 0), id="null"),
    ],
)
def test_b44_usage_in_other_words(
    rig: Rig, local_upstream: Upstream, usage: dict[str, Any], counted: tuple[int, int, int], path: str, stream: bool
) -> None:
    """What a server tells is counted, once, in the books and for the client, in all three APIs."""
    local_upstream.default = Reply(text=LONG, usage=usage)
    answer = post(rig, path, rig.take("lane"), stream=stream)
    assert answer.status == 200
    record = rig.record(answer.headers["x-request-id"])
    ledger = record["ledger"]
    assert (ledger["tokens_in"], ledger["tokens_out"], ledger["usage_estimated"]) == (*counted[:2], False)
    assert ledger["cost_usd"] == pytest.approx((counted[0] * 2.5 + counted[1] * 10) / 1e6)
    (call,) = ledger["calls"]
    assert call["tokens_cached"] == counted[2]
    if path == "/v1/messages":
        told = answer.json["usage"] if not stream else answer.event("message_delta")["usage"]
        assert (told["input_tokens"] + told["cache_read_input_tokens"], told["output_tokens"]) == counted[:2]
    elif path == "/v1/responses":
        told = answer.json["usage"] if not stream else answer.event("response.completed")["response"]["usage"]
        assert (told["input_tokens"], told["output_tokens"]) == counted[:2]
        assert told["input_tokens_details"]["cached_tokens"] == counted[2]
    elif not stream:
        told = answer.json["usage"]
        assert (told["prompt_tokens"], told["completion_tokens"]) == counted[:2]
        assert told.get("prompt_cache_hit_tokens") == usage.get("prompt_cache_hit_tokens")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("words", [{"cost": 0.25}, {"cost_in_usd_ticks": 2_500_000_000}], ids=["openrouter", "xai"])
def test_b44_a_stated_charge_is_the_charge(
    rig: Rig, local_upstream: Upstream, words: dict[str, Any], stream: bool
) -> None:
    """Where the provider says what a call cost, that is booked, whatever the price in the config."""
    local_upstream.default = Reply(
        text=LONG, usage={"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, **words}
    )
    answer = post(rig, "/v1/chat/completions", rig.take("lane"), stream=stream)
    assert rig.record(answer.headers["x-request-id"])["ledger"]["cost_usd"] == pytest.approx(0.25)
    if not stream:
        assert float(answer.headers["x-tierline-cost-usd"]) == pytest.approx(0.25)
