"""B39, B44, B45: servers that refuse what others take, count in other words, or know fewer roles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.lanes import Answer, Rig
from tests.support.upstream import Received, Reply, Upstream

BILLING = "x-anthropic-billing-header: cc_version=2.1.330.7b4; cc_entrypoint=cli; cch="
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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("field", ["logprobs", "stream_options", "seed"])
def test_b39_a_field_that_is_refused(rig: Rig, local_upstream: Upstream, field: str, stream: bool) -> None:
    """Once more without it, within the same attempt; it is told if the client asked for it, and never sent again."""
    lane = rig.take("lane")

    def has(received: Received) -> bool:
        return received.body.get(field) is not None

    message = f"Unrecognized request argument supplied: {field}"
    error = {"message": message, "type": "invalid_request_error", "param": field, "code": "unsupported_parameter"}
    local_upstream.on(has).reply(Reply(status=400, body=json.dumps({"error": error}).encode()))
    local_upstream.default = Reply(text=LONG)
    for first in (True, False):
        before = len(local_upstream.requests)
        options: dict[str, Any] = {"seed": 2 - first} | ({"stream": True} if stream else {})
        answer = rig.ask(lane, **options)
        assert (answer.status, answer.text) == (200, LONG)
        assert answer.headers.get("x-tierline-dropped") == ("seed" if field == "seed" else None)
        ledger = rig.record(answer.headers["x-request-id"])["ledger"]
        assert ledger["attempts"] == 1
        refused_at_all = field != "stream_options" or stream
        assert len(local_upstream.requests) - before == (2 if first and refused_at_all else 1)
    backend = rig.readyz()["tiers"][f"{lane}.weak"]["backends"][f"{lane}.weak"]
    assert (backend["refused_fields"], backend["breaker"]) == ([field] if refused_at_all else [], "closed")


def test_b39_what_is_asked_is_another_tiers(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """A tier that takes no tools is passed over, and is not to blame; where none is left, the client gets its 400."""
    lane = rig.take("lane")
    error = {"message": "`tools` is not supported by this model", "type": "invalid_request_error", "param": "tools"}
    refusal = Reply(status=400, body=json.dumps({"error": error}).encode())
    local_upstream.default = refusal
    hosted_upstream.default = Reply(text=LONG)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    answer = rig.ask(lane, tools=tools)
    assert (answer.status, answer.text, answer.headers["x-tierline-tier"]) == (200, LONG, f"{lane}.strong")
    hosted_upstream.default = refusal
    refused = rig.ask(lane, tools=tools, seed=1)
    assert (refused.status, refused.error["param"]) == (400, "tools")
    assert set(rig.states(lane).values()) == {"ready"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            "/v1/chat/completions",
            {"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]},
            id="chat",
        ),
        pytest.param(
            "/v1/responses",
            {
                "instructions": "be kind",
                "input": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}],
            },
            id="responses",
        ),
        pytest.param(
            "/v1/messages",
            {
                "max_tokens": 50,
                "system": [{"type": "text", "text": f"{BILLING}1;"}, {"type": "text", "text": "be kind"}],
                "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "be brief"}],
            },
            id="messages",
        ),
    ],
)
def test_b45_a_server_that_knows_one_system_message(
    rig: Rig, local_upstream: Upstream, path: str, body: dict[str, Any], stream: bool
) -> None:
    """It gets one, at the beginning, and every text of the system, from clients of all three APIs."""

    def refuses(received: Received) -> bool:
        roles = [message["role"] for message in received.body["messages"]]
        return "developer" in roles or "system" in roles[1:]

    local_upstream.on(refuses).reply(Reply(status=400, body=b'{"error": {"message": "Unexpected message role."}}'))
    local_upstream.default = Reply(text=LONG)
    answer = rig.send(path, {"model": rig.take("lane"), **body} | ({"stream": True} if stream else {}))
    assert answer.status == 200
    (received,) = local_upstream.requests
    sent = json.dumps(received.body["messages"])
    assert "be brief" in sent and ("be kind" in sent) is (path != "/v1/chat/completions") and BILLING not in sent


def test_b45_a_line_that_differs_in_each_request_parts_no_answers(rig: Rig, local_upstream: Upstream) -> None:
    """Claude Code's next request with the same words is a hit, and goes to the same server with the same beginning."""
    local_upstream.default = Reply(text=LONG)
    lane, paths = rig.take("lane"), []
    for number in range(2):
        system = [{"type": "text", "text": f"{BILLING}{number};"}, {"type": "text", "text": "be kind"}]
        answer = post(rig, "/v1/messages", lane, stream=False, system=system)
        paths.append(answer.headers["x-tierline-path"])
        rig.record(answer.headers["x-request-id"])
    assert paths == ["direct", "cache-exact"]
    assert local_upstream.requests[0].body["messages"][0] == {"role": "system", "content": "be kind"}
