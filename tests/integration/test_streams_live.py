"""Committed streams that break, over real sockets and through the official SDK: the client sees one unbroken answer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest

from gateway.parts.agents.continuation import GO_ON
from tests.integration.test_path import traced
from tests.support.ask import StreamRead, chat_body, read_stream
from tests.support.gateway import Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Fault, Reply, ToolCall, Upstream

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]
TEXT = " ".join(WORDS)
SAID = 7
"""Words that go out before the break."""
REST = " " + " ".join(WORDS[SAID:])
LANES = 16
WAYS = ("prefill", "continue_final_message", "prompt", "none")
POLICY = """
surface: {name}
slo: {{deadline: {deadline}}}
tiers: [{tiers}]
route: {{classifier: none, start: {{{start}}}}}
escalate:
  when: {{confidence_below: 0.5}}
  no_signal: accept
  stream: {{hold_tokens: 4, hold_max: 200ms{rules}}}
cache: {{exact: {{ttl: 1h}}}}
holdout: 0
"""
KINDS = {
    **{way: (("first", way), "first", "") for way in WAYS},
    "error": (("first", "prefill"), "first", ", on_break: error"),
    "twins": (("pair", "none"), "pair", ""),
    "top": (("prefill", "last"), "last", ""),
    "lone": (("first",), "first", ""),
    "two": (("first", "prompt", "prefill"), "first", ""),
}
"""By kind of surface: its tiers, the one it starts at, and more of its stream rules."""
_MODELS = {"first": "small", "pair": "small", "last": "large"}
_numbers = {kind: itertools.count() for kind in KINDS}


def backend(role: str, local: str, hosted: str) -> list[dict[str, Any]]:
    here = role in ("first", "pair", "last")
    one = {
        "base_url": local if here else hosted,
        "model": _MODELS.get(role, role),
        "idle_timeout": "300ms",
        "capabilities": ["tools", "json"],
        "price": {"input": 1, "output": 10},
        "continuation": "none" if here and role != "pair" else ("prefill" if role == "pair" else role),
    }
    twin = copy.deepcopy(one) | {"base_url": hosted, "model": "twin"}
    return [one, twin] if role == "pair" else [one]


@pytest.fixture(scope="module")
def live(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Surfaces of every kind, several of each: an endpoint that broke off must not rest in the next test."""
    local, hosted = _upstreams
    policies, tiers = {}, []
    for kind, (roles, start, rules) in KINDS.items():
        for number in range(LANES):
            name = f"{kind.replace('_', '-')}-{number}"
            policies[name] = POLICY.format(
                name=name,
                tiers=", ".join(f"{name}.{role}" for role in roles),
                start=f"{name}.{roles[0]}: tokens_in > 100000, {name}.{start}: otherwise"
                if start != roles[0]
                else f"{name}.{start}: otherwise",
                rules=rules,
                deadline="1s" if kind == "lone" else "20s",
            )
            tiers += [{"name": f"{name}.{r}", "backends": backend(r, local.url, hosted.url)} for r in roles]
    settings = {"tiers": tiers, "default_surface": "prefill-0"}
    folder = tmp_path_factory.mktemp("live")
    with serve(folder, local.url, hosted.url, store_url=_store.url, policies=policies, settings=settings) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def scripts(local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore) -> None:
    """Each test begins with nothing scripted and nothing stored; the local upstream breaks off after seven words."""
    local_upstream.default = Reply(text=TEXT, fault=Fault.CLOSE_MID_STREAM, fault_after=SAID, between_s=0.005)
    hosted_upstream.default = Reply(text=REST)


def take(kind: str) -> str:
    """A surface of this kind that no test has had."""
    number = next(_numbers[kind])
    assert number < LANES, f"all surfaces of kind {kind} are taken"
    return f"{kind.replace('_', '-')}-{number}"


def streamed(gateway: Gateway, kind: str, **more: Any) -> StreamRead:
    return read_stream(gateway, chat_body("letters, please", take(kind), **more))


def assert_one_answer(answer: StreamRead, text: str = TEXT) -> None:
    """What a client takes for one answer: one identity, one role, one finish, a clean end."""
    assert answer.error is None
    assert answer.text == text
    assert answer.done
    assert answer.ended
    assert len({(c["id"], c["model"], c["created"], c.get("system_fingerprint")) for c in answer.chunks}) == 1
    choices = [choice for c in answer.chunks for choice in c["choices"]]
    assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


@pytest.mark.parametrize("way", ["prefill", "continue_final_message", "prompt"])
def test_another_tier_goes_on(live: Gateway, hosted_upstream: Upstream, way: str) -> None:
    """The text is exactly the whole, and the next tier was asked for the rest in the way that it understands."""
    answer = streamed(live, way, max_tokens=50)
    assert_one_answer(answer)
    assert answer.headers["x-tierline-path"] == "direct"
    assert answer.comments[-1].endswith(
        f"x-tierline-attempts=2 x-tierline-continued-by={way.replace('_', '-')}-0.{way}"
    )
    (request,) = hosted_upstream.requests
    beginning = {"role": "assistant", "content": " ".join(WORDS[:SAID])}
    asked = [{"role": "user", "content": GO_ON}] if way == "prompt" else []
    assert request.body["messages"] == [{"role": "user", "content": "letters, please"}, beginning, *asked]
    assert request.body.get("continue_final_message") == (True if way == "continue_final_message" else None)
    assert request.body.get("add_generation_prompt") == (False if way == "continue_final_message" else None)
    assert request.body["max_tokens"] == 50 - SAID
    assert "logprobs" not in request.body


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.CLOSE_MID_STREAM, "upstream_truncated"),
        (Fault.RESET_MID_STREAM, "upstream_truncated"),
        (Fault.EOF_MID_STREAM, "upstream_truncated"),
        (Fault.HANG_MID_STREAM, "upstream_timeout"),
        (Fault.MALFORMED_EVENT, "upstream_invalid_response"),
        (Fault.ERROR_MID_STREAM, "upstream_invalid_response"),
    ],
)
def test_whatever_broke_it(
    live: Gateway, local_upstream: Upstream, store: LocalStore, fault: Fault, error: str
) -> None:
    """However an upstream dies, the answer is whole; the trace says who broke off, why, and who went on."""
    local_upstream.default = Reply(text=TEXT, fault=fault, fault_after=SAID, between_s=0.005)
    answer = streamed(live, "prefill")
    assert_one_answer(answer)
    record = traced(store, answer)
    first, second = [hop for hop in record["hops"] if hop["name"] == "attempt"]
    assert (first["error"], first["attributes"]["tierline.stream.end"]) == (error, error)
    assert second["attributes"]["tierline.continues"] == 1
    assert second["attributes"]["tierline.attempt"] == 2
    assert (second["error"], second["attributes"]["tierline.stream.end"]) == (None, "done")
    ledger = record["ledger"]
    assert (ledger["path"], ledger["status"], ledger["error"], ledger["attempts"]) == ("fallback", 200, None, 2)
    costs = [hop["attributes"]["tierline.cost_usd"] for hop in (first, second)]
    assert ledger["cost_usd"] == pytest.approx(sum(costs))
    assert all(costs)


def test_usage_is_added_up(live: Gateway, local_upstream: Upstream) -> None:
    """The totals are those of both calls, once, and flagged since the broken one never told its own."""
    answer = streamed(live, "prefill", stream_options={"include_usage": True})
    (told,) = [chunk["usage"] for chunk in answer.chunks if chunk.get("usage")]
    assert told["estimated"] is True
    assert told["completion_tokens"] >= len(WORDS)
    assert told["prompt_tokens"] > 2 + SAID
    assert told["total_tokens"] == told["prompt_tokens"] + told["completion_tokens"]
    assert answer.chunks[-1]["choices"] == []


@pytest.mark.parametrize("way", ["prefill", "prompt"])
@pytest.mark.parametrize("repeated", [3, 5])
def test_the_seam(live: Gateway, hosted_upstream: Upstream, way: str, repeated: int) -> None:
    """A model that begins by saying the last words once more is cut short there."""
    hosted_upstream.default = Reply(text=" ".join(WORDS[SAID - repeated :]), between_s=0.002)
    assert_one_answer(streamed(live, way))


def test_the_sdk_sees_one_answer(live: Gateway) -> None:
    """The official client's own accumulator takes it for one completion."""
    client = openai.OpenAI(base_url=live.url, api_key="any", max_retries=0)
    with client.chat.completions.stream(
        model=take("prompt"), messages=[{"role": "user", "content": "letters, please"}]
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == TEXT
    assert completion.choices[0].finish_reason == "stop"


def test_another_endpoint_of_the_tier_goes_first(live: Gateway, local_upstream: Upstream) -> None:
    """The tier's other endpoint goes on, never the one that broke off."""
    answers = [streamed(live, "twins") for _ in range(6)]
    while not (broken := [answer for answer in answers if "continued-by" in answer.comments[-1]]):
        assert len(answers) < 60, "chance chooses between two endpoints"  # once in 2**60 runs
        answers.append(streamed(live, "twins"))
    for answer in broken:
        assert answer.text == TEXT
        assert answer.comments[-1].endswith(".pair")
    assert len(local_upstream.requests) == len(broken)


def test_a_weaker_tier_goes_on_rather_than_none(live: Gateway) -> None:
    """When the strongest tier breaks off, a weaker one finishes its sentence."""
    answer = streamed(live, "top")
    assert_one_answer(answer)
    assert answer.comments[-1].endswith(".prefill")


def test_the_next_one_takes_over_when_the_first_fails(live: Gateway, hosted_upstream: Upstream) -> None:
    """A tier that fails before its first token is passed over, and the client hears nothing of it."""
    hosted_upstream.queue(Reply(fault=Fault.CLOSE_BEFORE_HEADERS), Reply(text=REST))
    answer = streamed(live, "two")
    assert_one_answer(answer)
    assert "x-tierline-attempts=3" in answer.comments[-1]


LOOP = "It goes round and round and round it goes. " * 60


@pytest.mark.parametrize("kind", ["prefill", "error"])
def test_a_loop_is_ended(live: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, kind: str) -> None:
    """A text that goes round in circles ends long before its limit, and who goes on is not handed the circles."""
    local_upstream.default = Reply(text="Well. " + LOOP, between_s=0.001)
    hosted_upstream.default = Reply(text=" And then it stopped.")
    answer = streamed(live, kind)
    local_upstream.requests[0].wait_gone(2)
    assert answer.text.startswith("Well. It goes round")
    if kind == "error":
        assert (answer.error or {})["code"] == "repetition"
        return
    assert answer.error is None
    assert answer.text.endswith("And then it stopped.")
    assert len(answer.text.split()) < 300
    (request,) = hosted_upstream.requests
    handed = request.body["messages"][-1]["content"]
    assert handed.startswith("Well. It goes round")
    assert len(handed.split()) <= 11


def test_of_an_answer_that_has_said_nothing_nothing_is_lost(
    live: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """A stream that broke after its role is asked for once more, of anybody, as it was."""
    local_upstream.default = Reply(text=TEXT, fault=Fault.CLOSE_MID_STREAM, fault_after=0)
    hosted_upstream.default = Reply(text=TEXT)
    assert_one_answer(streamed(live, "top"))
    assert hosted_upstream.requests[0].body["messages"] == [{"role": "user", "content": "letters, please"}]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        pytest.param("none", {}, id="no-backend-can"),
        pytest.param("error", {}, id="not-wanted"),
        pytest.param("prefill", {"n": 2}, id="several-choices"),
        pytest.param("prefill", {"logprobs": True}, id="logprobs-asked-for"),
        pytest.param("prompt", {"response_format": {"type": "json_object"}}, id="json-by-prompt"),
    ],
)
def test_where_nobody_can_go_on(
    live: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, kind: str, more: dict[str, Any]
) -> None:
    """The stream ends in the error event, and nobody was asked."""
    answer = streamed(live, kind, **more)
    assert (answer.error or {})["code"] == "upstream_truncated"
    assert answer.ended
    assert not answer.done
    assert hosted_upstream.requests == []


def test_a_tool_call_cannot_be_gone_on_with(live: Gateway, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """Half a tool call is the error event."""
    call = ToolCall("look_up", '{"word": "alpha", "language": "Greek", "more": "' + "x" * 80 + '"}')
    local_upstream.default = Reply(tool_calls=(call,), fault=Fault.CLOSE_MID_STREAM, fault_after=6, between_s=0.005)
    answer = streamed(live, "prefill", tools=[{"type": "function", "function": {"name": "look_up", "parameters": {}}}])
    assert (answer.error or {})["code"] == "upstream_truncated"
    assert hosted_upstream.requests == []


@pytest.mark.parametrize("way", ["prefill", "continue_final_message"])
def test_json_text_goes_on_where_a_beginning_is_taken(
    live: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, way: str
) -> None:
    """JSON is finished by who takes its beginning for its own."""
    tokens = ('{"letters"', ":", " [", '"alpha"', ", ", '"beta"', "]", "}")
    local_upstream.default = Reply(tokens=tokens, fault=Fault.CLOSE_MID_STREAM, fault_after=5, between_s=0.005)
    hosted_upstream.default = Reply(tokens=tokens[5:])
    answer = streamed(live, way, response_format={"type": "json_object"})
    assert_one_answer(answer, "".join(tokens))


def test_once_and_no_more(live: Gateway, hosted_upstream: Upstream) -> None:
    """A continuation that breaks off itself is the end of it."""
    hosted_upstream.default = Reply(text=REST, fault=Fault.CLOSE_MID_STREAM, fault_after=2, between_s=0.005)
    answer = streamed(live, "two")
    assert (answer.error or {})["code"] == "upstream_truncated"
    assert answer.text == " ".join(WORDS[: SAID + 2])
    assert len(hosted_upstream.requests) == 1


def test_the_deadline_is_nobodys_to_go_on_with(
    live: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """A request whose time is over ends, however well another could go on."""
    local_upstream.default = Reply(text=TEXT * 20, between_s=0.05)
    answer = streamed(live, "lone")
    assert (answer.error or {})["code"] == "deadline_exceeded"
    assert hosted_upstream.requests == []


def test_a_continued_answer_is_not_kept(live: Gateway, local_upstream: Upstream) -> None:
    """The cache keeps no answer of two models."""
    surface = take("prefill")
    assert_one_answer(read_stream(live, chat_body("letters, please", surface)))
    assert_one_answer(read_stream(live, chat_body("letters, please", surface)))
    assert len(local_upstream.requests) == 2


def test_ids_stay_the_first_ones(live: Gateway, local_upstream: Upstream) -> None:
    """An upstream that changes its id, model or time in mid-stream changes nothing for the client."""
    head = '{"id":"%s","object":"chat.completion.chunk","created":%d,"model":"%s","choices":[%s]}'
    parts: Sequence[tuple[str, int, str, str]] = [
        ("", 0, "", ""),
        ("a", 1, "m", '{"index":0,"delta":{"role":"assistant","content":"one"},"finish_reason":null}'),
        ("b", 2, "m-2", '{"index":0,"delta":{"content":" two"},"finish_reason":null}'),
        ("c", 3, "m-3", '{"index":0,"delta":{},"finish_reason":"stop"}'),
    ]
    body = "".join(f"data: {head % part}\n\n" for part in parts) + "data: [DONE]\n\n"
    local_upstream.default = Reply(body=body.encode(), headers={"content-type": "text/event-stream"})
    answer = streamed(live, "none")
    assert {(c["id"], c["created"], c["model"]) for c in answer.chunks} == {("a", 1, "m")}
    assert answer.text == "one two"
