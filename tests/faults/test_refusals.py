"""B9: refusals in words that no rule knows, servers that cannot what the next tier can, and whose fault it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.lanes import Answer, Rig
from tests.faults.test_differences import post
from tests.support.upstream import Received, Reply, Upstream

ASKED = [{"role": "user", "content": "hi"}]
STRONG = "The strong tier knows."
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
json_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
apis = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])


@pytest.fixture(autouse=True)
def _strong_answers(hosted_upstream: Upstream) -> None:
    hosted_upstream.default = Reply(text=STRONG)


def refusal(message: str, status: int = 400, **members: Any) -> Reply:
    """A server's error with these words."""
    error = {"message": message, "type": "invalid_request_error", **members}
    return Reply(status=status, body=json.dumps({"error": error}).encode())


def backend(rig: Rig, lane: str) -> dict[str, Any]:
    """What /readyz says of the first backend of a lane."""
    state: dict[str, Any] = rig.readyz()["tiers"][f"{lane}.weak"]["backends"][f"{lane}.weak"]
    return state


@apis
@json_and_stream
def test_b9_words_that_nobody_knows_go_to_the_next_tier(
    rig: Rig, local_upstream: Upstream, path: str, stream: bool
) -> None:
    """The client gets the next tier's answer; the words are told in trace and /readyz, less what they quote."""
    lane = rig.take("lane")
    local_upstream.default = refusal("The flux of 'secret words' is 17 wrong.")
    for number in range(7):
        answer = post(rig, path, lane, stream=stream, temperature=number / 10)
        assert (answer.status, answer.headers["x-tierline-tier"]) == (200, f"{lane}.strong")
        assert answer.headers["x-tierline-path"] == "escalated"
    first, second = rig.hops(answer)
    attributes = first["attributes"]
    assert (attributes["tierline.outcome"], attributes["tierline.upstream.blame"]) == ("doubtful", "unknown")
    assert attributes["tierline.upstream.words"] == "The flux of * is * wrong."
    assert second["error"] is None
    state = backend(rig, lane)
    (told,) = state["refusals"]
    assert told == {"status": 400, "words": "The flux of * is * wrong.", "count": 7, "meant": "another tier answered"}
    assert (state["state"], state["breaker"]) == ("ready", "closed")


@json_and_stream
def test_b9_what_every_tier_refuses_is_the_callers_and_remembered(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    """Asked of the next tier once: the same refusal of such a request is the client's at once from then on."""
    lane = rig.take("lane")
    local_upstream.default = refusal("The flux of '1' is wrong.", code="wrong_flux")
    hosted_upstream.default = refusal("No flux here.", 422)
    for number, calls in enumerate((1, 0, 0)):
        before = len(hosted_upstream.requests)
        answer = rig.ask(lane, stream=stream, seed=number)
        assert len(hosted_upstream.requests) - before == calls
        assert answer.status == (422 if calls else 400)
        assert answer.error["message"] == ("No flux here." if calls else "The flux of '1' is wrong.")
    assert backend(rig, lane)["refusals"][0]["meant"] == "no tier took it"
    hosted_upstream.default = Reply(text=STRONG)
    other = rig.ask(lane, stream=stream, temperature=0.5)
    assert other.text == STRONG, "a request with other fields is another one"


def test_b9_a_third_tier_is_not_asked_about_words_that_nobody_knows(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """Two tiers that refuse are enough, whatever the second one's words are."""
    local_upstream.default = refusal("No flux.")
    hosted_upstream.default = refusal("temperature: Field required")
    answer = rig.ask(rig.take("lane"))
    assert (answer.status, answer.error["message"]) == (400, "temperature: Field required")
    assert answer.headers["x-tierline-attempts"] == "2"


def test_b9_a_next_tier_that_is_down_makes_it_no_fault_of_the_callers(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """What one tier refuses in its own words and the other fails at may be sent again."""
    lane = rig.take("lane")
    local_upstream.default, hosted_upstream.default = refusal("No flux."), Reply(status=500)
    assert rig.ask(lane).status == 502
    assert backend(rig, lane)["refusals"][0]["meant"] == ""


CANNOT = [
    pytest.param(400, {"error": "Invalid tool_choice type: 'object'. Supported string values: none"}, id="lm-studio"),
    pytest.param(400, {"message": '"auto" tool choice requires --enable-auto-tool-choice'}, id="vllm"),
    pytest.param(400, {"error": {"message": "deepseek-r1:14b does not support tools"}}, id="ollama"),
    pytest.param(500, {"error": {"message": "tools param requires --jinja flag", "code": 500}}, id="llama.cpp"),
    pytest.param(400, {"error": {"message": "Invalid 'tools': array too long.", "param": "tools"}}, id="openai"),
]


@apis
@json_and_stream
@pytest.mark.parametrize(("status", "body"), CANNOT)
def test_b9_what_a_server_cannot_the_next_tier_does(
    rig: Rig, local_upstream: Upstream, status: int, body: dict[str, Any], path: str, stream: bool
) -> None:
    """No request counts against the server's health, not even its 500s; asking costs one request, and is remembered."""
    lane = rig.take("lane")
    local_upstream.on(lambda received: "tools" in received.body).reply(
        Reply(status=status, body=json.dumps(body).encode())
    )
    local_upstream.default = Reply(text="plain")
    tool = {
        "/v1/messages": {"name": "f", "input_schema": {"type": "object"}},
        "/v1/responses": {"type": "function", "name": "f", "parameters": {"type": "object"}},
    }.get(path, TOOL)
    asked = []
    for number in range(7):
        answer = post(rig, path, lane, stream=stream, tools=[tool], temperature=number / 10)
        assert (answer.status, answer.headers["x-tierline-tier"]) == (200, f"{lane}.strong")
        asked.append(len(local_upstream.requests))
        assert answer.headers["x-tierline-path"] == ("direct" if number else "escalated")
    assert asked[0] >= 1 and set(asked) == {asked[0]}
    state = backend(rig, lane)
    assert (state["state"], state["breaker"]) == ("ready", "closed")
    assert post(rig, path, lane, stream=stream).headers["x-tierline-tier"] == f"{lane}.weak"


SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("asks", "other"),
    [
        ({"tools": [TOOL, TOOL]}, {"tools": [TOOL]}),
        ({"response_format": SCHEMA}, {"response_format": {"type": "json_object"}}),
        ({"tools": [TOOL]}, {"tools": [TOOL], "seed": 1}),
    ],
    ids=["tools", "schema", "fields"],
)
@pytest.mark.parametrize("words", ["m does not support this", "The flux is wrong."])
def test_b9_a_tier_is_not_asked_again_for_what_it_has_refused(
    rig: Rig, local_upstream: Upstream, asks: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    """In words that are known or not; it is asked for those of another kind, and for what no other may have."""
    lane = rig.take("lane")
    local_upstream.default = refusal(words)
    calls = []
    for number in range(3):
        answer = rig.ask(lane, temperature=number / 10, **asks)
        assert (answer.status, answer.headers["x-tierline-tier"]) == (200, f"{lane}.strong")
        calls.append(len(local_upstream.requests))
    assert calls == [1, 1, 1]
    local_upstream.default = Reply(text='{"a": 1}')
    assert rig.ask(lane, temperature=0.5, **other).headers["x-tierline-tier"] == f"{lane}.weak"
    pinned = rig.ask(lane, {"x-tierline-max-tier": f"{lane}.weak"}, temperature=0.6, **asks)
    assert pinned.headers["x-tierline-tier"] == f"{lane}.weak"


def test_b9_a_refusal_of_a_500_that_no_tier_is_left_for(rig: Rig, local_upstream: Upstream) -> None:
    """It is the client's 400, with the server's words, and asks for no retry."""
    words = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    lane = rig.take("lone")
    local_upstream.default = refusal(words, 500, type="server_error", code=500)
    for _ in range(12):
        answer = rig.ask(lane)
        assert (answer.status, answer.error["message"]) == (400, words)
        assert answer.error["type"] == "invalid_request_error"
    assert set(rig.states(lane).values()) == {"ready"}


@json_and_stream
def test_b39_a_value_that_says_nothing_is_left_out(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """`response_format` text is what every server does without it."""
    lane = rig.take("lone")
    local_upstream.on(lambda received: "response_format" in received.body).reply(
        Reply(status=400, body=b"{\"error\":\"'response_format.type' must be 'json_schema'\"}")
    )
    for calls in (2, 1):
        before = len(local_upstream.requests)
        answer = rig.ask(lane, stream=stream, response_format={"type": "text"}, seed=calls)
        assert (answer.status, len(local_upstream.requests) - before) == (200, calls)


@apis
def test_b39_a_pinned_tool_is_asked_for_as_the_only_one(rig: Rig, local_upstream: Upstream, path: str) -> None:
    """A server that takes no object as `tool_choice` gets that tool alone, and `required`."""
    lane = rig.take("lone")

    def pins(received: Received) -> bool:
        return isinstance(received.body.get("tool_choice"), dict)

    words = "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"
    local_upstream.on(pins).reply(Reply(status=400, body=json.dumps({"error": words}).encode()))
    body: dict[str, Any]
    if path == "/v1/messages":
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in "fg"]
        body = {"tools": tools, "tool_choice": {"type": "tool", "name": "g"}}
    elif path == "/v1/responses":
        tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in "fg"]
        body = {"tools": tools, "tool_choice": {"type": "function", "name": "g"}}
    else:
        tools = [{**TOOL, "function": {**TOOL["function"], "name": name}} for name in "fg"]  # type: ignore[dict-item]
        body = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "g"}}}
    answer: Answer = post(rig, path, lane, stream=False, **body)
    assert answer.status == 200
    sent = local_upstream.requests[-1].body
    assert sent["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["g"]
    assert "x-tierline-dropped" not in answer.headers


LIMIT = "This model's maximum context length is 4096 tokens. However, you requested {} tokens ({} in the messages, {}"


@apis
@json_and_stream
def test_the_limit_of_a_reply_is_lowered_to_what_the_server_says(
    rig: Rig, local_upstream: Upstream, path: str, stream: bool
) -> None:
    """Its context is learnt by one refusal, and the limit that counts is told."""
    lane = rig.take("lone")

    def too_much(received: Received) -> bool:
        limit = received.body.get("max_completion_tokens") or received.body.get("max_tokens") or 0
        return bool(20 + limit > 4096)

    words = LIMIT.format(32020, 20, 32000) + " in the completion)."
    local_upstream.on(too_much).reply(refusal(words, type="BadRequestError", code=400))
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    limits = []
    for calls in (2, 1):
        before = len(local_upstream.requests)
        asked = {"model": lane, "temperature": calls / 10, name: 32000, **({"stream": True} if stream else {})}
        answer = rig.send(path, asked | {"input" if path == "/v1/responses" else "messages": ASKED})
        assert (answer.status, len(local_upstream.requests) - before) == (200, calls)
        sent = local_upstream.requests[-1].body
        limits.append(sent.get("max_completion_tokens") or sent["max_tokens"])
        assert answer.headers["x-tierline-output-limit"] == str(limits[-1])
    assert limits[0] == 4076 and 3900 < limits[1] <= 4076
    assert backend_of(rig, lane)["context"] == 4096


def backend_of(rig: Rig, lane: str) -> dict[str, Any]:
    """What /readyz says of the only backend of a lane."""
    (tier,) = [tier for name, tier in rig.readyz()["tiers"].items() if name.startswith(f"{lane}.")]
    (state,) = tier["backends"].values()
    return dict(state)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for m", 8192),
        ("max_tokens is too large: 32000. This model supports at most 16384 completion tokens", 16384),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
        ("a maxOutputTokens value of 32000 but the supported range is from 1 (inclusive) to 8193 (exclusive).", 8192),
    ],
)
def test_the_longest_reply_of_a_model_is_learnt(rig: Rig, local_upstream: Upstream, words: str, most: int) -> None:
    """From its refusal, which costs one call once."""
    lane = rig.take("lone")
    local_upstream.queue(refusal(words, param="max_tokens"))
    for calls in (2, 1):
        before = len(local_upstream.requests)
        answer = rig.ask(lane, max_tokens=32000, seed=calls)
        assert (answer.status, len(local_upstream.requests) - before) == (200, calls)
        assert local_upstream.requests[-1].body["max_tokens"] == most
        assert answer.headers["x-tierline-output-limit"] == str(most)


def test_a_prompt_counted_only_so_far_is_not_taken_for_its_length(rig: Rig, local_upstream: Upstream) -> None:
    """vLLM stops counting where the limit of the reply begins: the limit is halved until it fits."""
    words = (
        "This model's maximum context length is 4096 tokens. However, you requested {} output tokens and your prompt"
        " contains at least {} input tokens, for a total of at least 4097 tokens."
    )

    def says(limit: int) -> Reply:
        return refusal(words.format(limit, max(1, 4097 - limit)), type="BadRequestError", code=400)

    lane = rig.take("lone")
    local_upstream.queue(says(32000), says(3000))
    answer = rig.ask(lane, max_tokens=32000)
    assert answer.status == 200
    limits = [received.body["max_tokens"] for received in local_upstream.requests]
    assert len(limits) == 3 and limits[0] == 32000 and limits[1] < 4096 and limits[2] <= limits[1] // 2


@json_and_stream
@pytest.mark.parametrize(
    ("error", "told"),
    [
        ({"message": "Authentication Error, No connected db.", "type": "no_db_connection"}, "it refuses our key"),
        ({"message": "Authentication Error, LiteLLM Virtual Key expected.", "type": "auth_error"}, "our key"),
        ({"message": "/chat/completions: Invalid model name passed in model=m."}, "it has no model weak"),
        ({"message": "key not allowed to access model.", "type": "key_model_access_denied"}, "it has no model weak"),
        ({"message": "Budget has been exceeded! Current cost: 2.0", "type": "budget_exceeded"}, "out of quota"),
        ({"message": "You have reached your specified API usage limits."}, "out of quota or credit"),
        ({"message": "API key not valid. Please pass a valid API key.", "code": 400}, "our key"),
    ],
)
def test_b38_what_is_ours_to_mend_is_told_as_such_by_a_400(
    rig: Rig, local_upstream: Upstream, error: dict[str, Any], told: str, stream: bool
) -> None:
    """Bad keys, missing models and spent budgets are 400s of LiteLLM, Anthropic and Google: the next tier answers."""
    lane = rig.take("lane")
    local_upstream.default = Reply(status=400, body=json.dumps({"error": {"code": "400", **error}}).encode())
    for number in (1, 2):
        answer = rig.ask(lane, stream=stream, seed=number)
        assert (answer.status, answer.text) == (200, STRONG)
    assert len(local_upstream.requests) == 1, "it rests"
    assert any(f"backend {lane}.weak: " in line and told in line for line in rig.readyz()["degraded"])
