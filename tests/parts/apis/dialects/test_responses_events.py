"""Chunks of chat completions as the events of the Responses API, each checked by the SDK's types and by its order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.completions import assemble, chunks_of
from gateway.dialects.native import NATIVE
from gateway.parts.apis.dialects.responses.events import ResponseEvents
from gateway.parts.apis.dialects.responses.items import details_of_item, reasoning_item
from gateway.parts.apis.dialects.responses.reading import chat_request
from gateway.parts.apis.dialects.responses.response_object import (
    ItemIds,
    ResponseHead,
    response_of_item,
    whole_response,
)
from tests.support.response_events import check_response, checked, events_of

Json = dict[str, Any]
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    """One chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def usage(**more: Any) -> Json:
    return {**chunk(), "choices": [], "usage": {**USAGE, **more}}


def tool(index: int, call_id: str | None, name: str | None, arguments: str) -> Json:
    """A piece of a call."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"index": index, "function": function} | ({} if call_id is None else {"id": call_id, "type": "function"})


def head(**body: Any) -> ResponseHead:
    return ResponseHead({"model": "chat", **body}, ItemIds(), store=False)


class Stream:
    """A stream that is written: its events, and what is kept of it."""

    def __init__(self, *chunks: Json, error: Json | None = None, **options: bool) -> None:
        self.kept: list[Json] = []
        writer = ResponseEvents(head(), self.kept.append, **options)
        written = [writer.chunk(one) for one in chunks]
        self.data = b"".join(written) + (writer.done() if error is None else writer.error(error))
        self.events = checked(self.data)
        self.last = self.events[-1]["response"]
        self.output: list[Json] = self.last["output"]

    def of(self, kind: str) -> list[Json]:
        return [event for event in self.events if event["type"] == f"response.{kind}"]

    def kinds(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]


def test_a_text() -> None:
    """The whole sequence, one by one."""
    stream = Stream(
        chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}), chunk({"content": "lo"}),
        chunk(finish="stop"), usage(),
    )  # fmt: skip
    assert stream.kinds() == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["delta"] for event in stream.of("output_text.delta")] == ["Hel", "lo"]
    assert stream.output[0]["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Hello"}]
    assert stream.last["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    assert stream.last["model"] == "m"
    assert stream.kept == [stream.last]


def test_an_answer_without_anything_is_an_empty_message() -> None:
    stream = Stream(chunk({"role": "assistant", "content": ""}), chunk(finish="stop"))
    assert [item["content"][0]["text"] for item in stream.output] == [""]
    assert stream.last["usage"] is None


def test_the_cached_and_reasoning_tokens() -> None:
    stream = Stream(
        chunk({"content": "a"}, "stop"),
        usage(
            prompt_tokens_details={"cached_tokens": 2, "audio_tokens": 0},
            completion_tokens_details={"reasoning_tokens": 1},
        ),
    )
    assert stream.last["usage"]["input_tokens_details"]["cached_tokens"] == 2
    assert stream.last["usage"]["output_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("tool_calls", "completed", None),
    ],
)
def test_how_it_ended(finish: str, status: str, reason: str | None) -> None:
    stream = Stream(chunk({"content": "a"}), chunk(finish=finish))
    assert stream.last["status"] == stream.output[0]["status"] == status
    assert (stream.last["incomplete_details"] or {}).get("reason") == reason


def test_calls_one_after_the_other_and_mixed() -> None:
    """A call's pieces may come between another's; a text before closes when they begin."""
    stream = Stream(
        chunk({"content": "I look."}),
        chunk({"tool_calls": [tool(0, "call_a", "look", "")]}),
        chunk({"tool_calls": [tool(0, None, None, '{"q"'), tool(1, "call_b", "see", "{")]}),
        chunk({"tool_calls": [tool(0, None, None, ":1}"), tool(1, None, None, "}")]}),
        chunk(finish="tool_calls"),
    )
    assert [(item["type"], item.get("call_id"), item.get("arguments")) for item in stream.output] == [
        ("message", None, None),
        ("function_call", "call_a", '{"q":1}'),
        ("function_call", "call_b", "{}"),
    ]
    assert [event["arguments"] for event in stream.of("function_call_arguments.done")] == ['{"q":1}', "{}"]
    assert stream.kinds().index("output_item.done") < stream.kinds().index("function_call_arguments.delta")


def test_what_a_backend_must_see_of_its_call_again() -> None:
    """Gemini's signature of a call is a member of the item, and comes back as a member of the call."""
    extra = {"google": {"thought_signature": "tl1.a.b.c"}}
    signed = {**tool(0, "call_a", "look", "{}"), "extra_content": extra}
    stream = Stream(chunk({"tool_calls": [signed]}), chunk(finish="tool_calls"))
    assert stream.output[0]["extra_content"] == extra
    completion = assemble([chunk({"tool_calls": [signed]}), chunk(finish="tool_calls")])
    (item,) = whole_response(completion, head(), logprobs=False)["output"]
    assert item["extra_content"] == extra
    chat, native, _ = chat_request({"model": "m"}, [("input[0]", item)], hosted=False, kept=False)
    assert chat["messages"][0]["tool_calls"][0]["extra_content"] == extra
    assert native.lost == {}


def test_calls_of_tools_in_a_namespace() -> None:
    """They have the names that the client gave, wherever a backend puts the name together."""
    named = ResponseHead({}, ItemIds(), store=False, names={"crm__find": ("crm", "find")})
    pieces = [tool(0, "a", "crm__find", "{"), tool(0, None, None, "}"), tool(1, "b", "find", "{}")]
    chunks = [*(chunk({"tool_calls": [piece]}) for piece in pieces), chunk(finish="tool_calls")]
    writer = ResponseEvents(named, lambda _: None)
    events = checked(b"".join(map(writer.chunk, chunks)) + writer.done())
    whole = whole_response(assemble(chunks), named, logprobs=False)
    for output in (events[-1]["response"]["output"], whole["output"]):
        assert [(item.get("namespace"), item["name"]) for item in output] == [("crm", "find"), (None, "find")]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert (added[0]["namespace"], added[0]["name"]) == ("crm", "find")


def test_moderations_and_the_service_tier() -> None:
    scores: Json = {"categories": {}, "category_scores": {}, "category_applied_input_types": {}}
    result = {"type": "moderation_result", "model": "o", "flagged": False, **scores}
    results = {"type": "moderation_results", "model": "o", "results": [result]}
    last = {**chunk(finish="stop"), "moderation": {"input": results, "output": results}}
    stream = Stream({**chunk({"content": "a"}), "service_tier": "flex"}, last)
    assert stream.last["service_tier"] == "flex"
    assert stream.last["moderation"] == {"input": result, "output": result}


def test_custom_calls() -> None:
    stream = Stream(
        chunk({"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "patch", "input": "x"}}]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "y"}}]}),
        chunk(finish="tool_calls"),
    )
    assert (stream.output[0]["type"], stream.output[0]["name"], stream.output[0]["input"]) == (
        "custom_tool_call",
        "patch",
        "xy",
    )
    assert [event["delta"] for event in stream.of("custom_tool_call_input.delta")] == ["x", "y"]


def test_a_refusal_is_a_part_of_its_own() -> None:
    stream = Stream(chunk({"content": "Hm. "}), chunk({"refusal": "I can"}), chunk({"refusal": "not."}, "stop"))
    assert [part["type"] for part in stream.output[0]["content"]] == ["output_text", "refusal"]
    assert stream.of("refusal.done")[0]["refusal"] == "I cannot."


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
def test_readable_reasoning(member: str) -> None:
    stream = Stream(
        chunk({member: "Let me "}), chunk({member: "think."}), chunk({"content": "4"}), chunk(finish="stop")
    )
    assert [item["type"] for item in stream.output] == ["reasoning", "message"]
    assert stream.output[0]["content"] == [{"type": "reasoning_text", "text": "Let me think."}]
    assert stream.of("reasoning_text.done")[0]["text"] == "Let me think."


def test_summaries_and_encrypted_reasoning() -> None:
    """What is encrypted is for clients that ask for it; what is kept has it always."""
    chunks = (
        chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "One", "index": 0}]}),
        chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": " two", "index": 0}]}),
        chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "Three", "index": 1}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "tl1.a.b.c"}]}),
        chunk({"content": "4"}),
        chunk(finish="stop"),
    )
    stream = Stream(*chunks)
    assert [part["text"] for part in stream.output[0]["summary"]] == ["One two", "Three"]
    assert [event["summary_index"] for event in stream.of("reasoning_summary_part.done")] == [0, 1]
    assert "tl1.a.b.c" not in stream.data.decode()
    assert stream.kept[0]["output"][0]["encrypted_content"] == "tl1.a.b.c"
    assert Stream(*chunks, encrypted=True).output[0]["encrypted_content"] == "tl1.a.b.c"


def test_reasoning_that_is_said_twice_is_written_once() -> None:
    """Some backends give a text both as details and as plain text."""
    detail = {"type": "reasoning.text", "text": "Think.", "index": 0}
    stream = Stream(chunk({"reasoning": "Think.", "reasoning_details": [detail]}), chunk({"content": "4"}, "stop"))
    assert stream.output[0]["content"] == [{"type": "reasoning_text", "text": "Think."}]


@pytest.mark.parametrize(
    "details",
    [
        [{"type": "reasoning.summary", "summary": "a", "index": 0}, {"type": "reasoning.encrypted", "data": "tl1.x"}],
        [{"type": "reasoning.text", "text": "a", "index": 0}],
        [{"type": "reasoning.text", "text": "a", "signature": "tl1.s", "index": 0}],
        [
            {"type": "reasoning.encrypted", "data": "tl1.x"},
            {"type": "reasoning.encrypted", "data": "tl1.y", "index": 1},
        ],
    ],
)
def test_reasoning_comes_back_as_it_was(details: list[Json]) -> None:
    """From a backend to the client and back: texts, summaries, signatures and what is encrypted."""
    item = json.loads(json.dumps(reasoning_item(details, "rs_1", encrypted=True)))
    back = [
        {name: value for name, value in detail.items() if name not in ("format", "id")}
        for detail in details_of_item(item)
    ]
    assert back == details


@pytest.mark.parametrize("encrypted", ["tlr1.", "tlr1.!!", "tlr1.AAAA", "tlr1.MQ==", "tlr1.WzFd"])
def test_a_damaged_carrier_is_no_reasoning(encrypted: str) -> None:
    assert details_of_item({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted}) == []


def test_log_probabilities_for_those_who_ask() -> None:
    entry = {"token": "hé", "logprob": -0.1, "bytes": None, "top_logprobs": [{"token": "ho", "logprob": -2.0}]}
    chunks = chunk({"content": "hé"}, logprobs={"content": [entry]}), chunk(finish="stop")
    stream = Stream(*chunks, logprobs=True)
    assert stream.of("output_text.delta")[0]["logprobs"] == [
        {"token": "hé", "logprob": -0.1, "top_logprobs": [{"token": "ho", "logprob": -2.0}]}
    ]
    assert stream.output[0]["content"][0]["logprobs"][0]["bytes"] == [104, 195, 169]
    assert Stream(*chunks).output[0]["content"][0]["logprobs"] == []


def test_citations() -> None:
    cited = {
        "type": "url_citation",
        "url_citation": {"url": "https://x", "title": "X", "start_index": 0, "end_index": 1},
    }
    stream = Stream(chunk({"content": "a"}), chunk({"annotations": [cited, {"type": "odd"}]}), chunk(finish="stop"))
    assert stream.output[0]["content"][0]["annotations"] == [
        {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "X", "url": "https://x"}
    ]
    assert len(stream.of("output_text.annotation.added")) == 1


def test_padding_is_passed_on() -> None:
    stream = Stream({**chunk({"content": "a"}), "obfuscation": "xyz"}, chunk({"content": "b"}, "stop"))
    assert [event.get("obfuscation") for event in stream.of("output_text.delta")] == ["xyz", None]


# --- streams that break -----------------------------------------------------------------------------------------------

LONG = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm"}),
    chunk({"content": "I "}),
    chunk({"content": "look."}),
    chunk({"tool_calls": [tool(0, "a", "look", "{")]}),
    chunk({"tool_calls": [tool(0, None, None, "}")]}),
    chunk(finish="tool_calls"),
    usage(),
)
ERROR = {"message": "The answer broke off.", "type": "upstream_error", "param": None, "code": "upstream_truncated"}


@pytest.mark.parametrize("after", range(len(LONG) + 1))
def test_a_stream_that_breaks_fails(after: int) -> None:
    """Wherever it breaks, it ends in an error event and a failed response that has what was written so far."""
    stream = Stream(*LONG[:after], error=ERROR)
    assert stream.kinds()[-2:] == ["error", "failed"]
    assert (stream.events[-2]["code"], stream.events[-2]["message"]) == ("upstream_truncated", ERROR["message"])
    assert stream.last["error"] == {"code": "server_error", "message": ERROR["message"]}
    assert [one["status"] for one in stream.kept] == ["failed"]
    done = stream.of("output_item.done")
    assert [item for item in stream.output if item["status"] == "completed"] == [event["item"] for event in done]


def test_an_errors_code_is_one_that_the_schema_has() -> None:
    limited = Stream(error={"message": "Wait.", "type": "rate_limit_error", "code": "rate_limit_exceeded"})
    assert limited.last["error"]["code"] == "rate_limit_exceeded"
    assert limited.events[-2]["code"] == "rate_limit_exceeded"


# --- whole replies and streams say the same ---------------------------------------------------------------------------


def strip_ids(response: Json) -> Json:
    output = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    return {**response, "output": output, "id": "", "created_at": 0, "completed_at": 0}


PIECES = st.one_of(
    st.builds(lambda text: {"content": text}, st.text(max_size=5)),
    st.builds(lambda text: {"reasoning_content": text}, st.text(min_size=1, max_size=5)),
    st.builds(lambda text: {"refusal": text}, st.text(min_size=1, max_size=5)),
    st.builds(
        lambda index, text, named: {"tool_calls": [tool(index, f"c{index}" if named else None, named, text)]},
        st.integers(0, 2), st.text(max_size=5), st.sampled_from([None, "f"]),
    ),
    st.builds(lambda text: {"content": text, "reasoning": "r"}, st.text(max_size=3)),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(PIECES, max_size=12), st.sampled_from(["stop", "length", "tool_calls"]))
def test_any_stream_keeps_to_the_protocol(deltas: list[Json], finish: str) -> None:
    stream = Stream(*(chunk(delta) for delta in deltas), chunk(finish=finish), usage())
    for kind, member in (("output_text", "content"), ("refusal", "refusal")):
        told = "".join(event["delta"] for event in stream.of(f"{kind}.delta"))
        assert told == "".join(delta.get(member) or "" for delta in deltas)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_whole_reply_is_what_its_stream_ends_with(encrypted: bool) -> None:
    detail = {"type": "reasoning.encrypted", "data": "tl1.a", "index": 0}
    chunks = (
        chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "s", "index": 0}, detail]}),
        chunk({"content": "I look."}),
        chunk({"tool_calls": [tool(0, "a", "look", "{}"), tool(1, "b", "see", "{}")]}),
        chunk(finish="tool_calls"),
        usage(),
    )
    completion = assemble(chunks)
    whole = whole_response(completion, head(), logprobs=False)
    check_response(whole, "completed")
    streamed = Stream(*chunks, encrypted=encrypted)
    assert strip_ids(whole) == strip_ids(streamed.kept[0])
    replayed = Stream(*chunks_of(completion), encrypted=encrypted)
    assert strip_ids(replayed.last) == strip_ids(streamed.last)


def test_an_items_id_names_its_response() -> None:
    ids = ItemIds()
    assert response_of_item(ids.new("message")) == ids.response == response_of_item(ids.new("reasoning"))
    assert response_of_item("msg_1") is None


def test_a_response_repeats_what_was_asked() -> None:
    tools = [{"type": "function", "name": "f", "description": None, "parameters": {}, "strict": True}]
    body = {
        "instructions": "i", "tools": tools, "tool_choice": "required", "temperature": 0.2, "metadata": {"a": "b"},
        "text": {"verbosity": "low"}, "reasoning": {"effort": "low"}, "max_output_tokens": 5, "user": "u",
        "previous_response_id": "resp_0", "parallel_tool_calls": False, "truncation": "auto",
    }  # fmt: skip
    response = head(**body).of("completed")
    check_response(response, "completed")
    assert {name: response[name] for name in body if name not in ("text", "reasoning")} == {
        name: value for name, value in body.items() if name not in ("text", "reasoning")
    }
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert response["reasoning"] == {"effort": "low", "summary": None}


# --- replies of a backend that speaks this API ------------------------------------------------------------------------


def native_events() -> list[Json]:
    """The events of another gateway's writer, as a backend of this API would send them, with a hosted tool's."""
    chunks = (
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "I "}),
        chunk({"content": "know."}, "stop"),
        usage(),
    )
    events = events_of(Stream(*chunks).data)
    search = {
        "id": "ws_up",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    searched = [
        {"type": "response.output_item.added", "output_index": 2, "item": {**search, "status": "in_progress"}},
        {"type": "response.web_search_call.searching", "output_index": 2, "item_id": "ws_up"},
        {"type": "response.output_item.done", "output_index": 2, "item": search},
    ]
    events[-1]["response"]["output"].append(search)
    return [*events[:-1], *searched, events[-1]]


def mirrored(event: Json) -> Json:
    """The chunk of a native event: the pipeline reads what a chat completion can say of it."""
    delta: Json = {NATIVE: [event]}
    if event["type"] == "response.output_text.delta":
        delta["content"] = event["delta"]
    return chunk(delta)


def test_events_of_such_a_backend_are_passed_on() -> None:
    events = native_events()
    stream = Stream(*map(mirrored, events), chunk(finish="stop"), usage())
    assert stream.kinds() == [event["type"].removeprefix("response.") for event in events]
    assert [item["type"] for item in stream.output] == ["reasoning", "message", "web_search_call"]
    assert "ws_up" not in stream.data.decode()
    assert {response_of_item(item["id"]) for item in stream.output} == {stream.last["id"]}
    assert stream.of("web_search_call.searching")[0]["item_id"] == stream.output[2]["id"]
    assert stream.last["usage"]["total_tokens"] == 7


@pytest.mark.parametrize("kept", [1, 100])
def test_a_stored_reply_of_such_a_backend_is_a_whole_stream(kept: int) -> None:
    """Whether all its events were stored or only the last, a replay has every event and a whole reply every item."""
    events = native_events()[-kept:]
    message = {"role": "assistant", "content": "I know.", "refusal": None, NATIVE: events}
    completion = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    stream = Stream(*chunks_of(completion))
    assert "".join(event["delta"] for event in stream.of("output_text.delta")) == "I know."
    whole = whole_response(completion, head(), logprobs=False)
    check_response(whole, "completed")
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "web_search_call"]
    assert strip_ids(whole)["output"] == strip_ids(stream.last)["output"]
    assert {response_of_item(item["id"]) for item in whole["output"]} == {whole["id"]}


def test_an_incomplete_reply_of_such_a_backend() -> None:
    events = native_events()
    ended = {**events[-1]["response"], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    last = {"type": "response.incomplete", "sequence_number": 1, "response": ended}
    stream = Stream(*map(mirrored, [*events[:-1], last]), chunk(finish="length"))
    assert stream.kinds()[-1] == "incomplete"
    assert stream.last["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("after", range(1, 17))
def test_a_broken_stream_of_such_a_backend_fails(after: int) -> None:
    stream = Stream(*map(mirrored, native_events()[:after]), error=ERROR)
    assert stream.kinds()[-1] == "failed"


def test_another_backend_goes_on_where_such_a_one_broke_off() -> None:
    """The text goes on in the same message."""
    events = native_events()
    cut = next(at for at, event in enumerate(events) if event["type"] == "response.output_text.delta") + 1
    stream = Stream(*map(mirrored, events[:cut]), chunk({"content": "think."}), chunk(finish="stop"), usage())
    assert [item["type"] for item in stream.output] == ["reasoning", "message"]
    assert stream.output[1]["content"][0]["text"] == "I think."


# --- odd values of backends -------------------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (None, 5, "x", [5], {"type": []})
FULL: Json = {
    "reasoning_details": [
        {"type": "reasoning.text", "text": "t", "index": 0}, {"type": "reasoning.encrypted", "data": "d"},
    ],
    "reasoning_content": "r",
    "content": "c",
    "refusal": "f",
    "annotations": [{"url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1}}],
    "tool_calls": [tool(0, "a", "f", "{}"), {"index": 1, "id": "b", "custom": {"name": "n", "input": ""}}],
}  # fmt: skip


def changed(value: Any) -> Iterator[Any]:
    """The value with an odd one in the place of each value in it."""
    inside = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in inside:
        for other in (*ODD, *changed(inner)):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = other
            yield copy


EVERY = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])


@EVERY
def test_no_value_of_a_backend_is_a_bug_of_ours(step: int) -> None:
    """Whatever a delta has in the place of any value, the stream keeps to the protocol, and a whole reply is one."""
    logprobs = {"content": [{"token": "c", "logprob": -1.0, "top_logprobs": []}]}
    for delta in islice(changed(FULL), 0, None, step):
        stream = Stream(chunk(delta, logprobs=logprobs), chunk({"content": "."}), chunk(finish="stop"), logprobs=True)
        assert stream.kinds()[-1] == "completed"
        message = {"role": "assistant", "content": None, **delta}
        completion = {"model": "m", "choices": [{"message": message, "logprobs": logprobs, "finish_reason": "stop"}]}
        check_response(whole_response(completion, head(), logprobs=True), "completed")
    for odd in changed({"logprobs": logprobs}):
        stream = Stream(chunk({"content": "c"}, **odd), chunk(finish="stop"), logprobs=True)
        assert stream.output[0]["content"][0]["text"] == "c"


@EVERY
def test_no_event_of_a_backend_is_a_bug_of_ours(step: int) -> None:
    """Nor one of its events: it ends in an answer, though its items may be as odd as the backend made them."""
    events = native_events()
    for at, event in enumerate(events):
        for odd in islice(changed(event), at % step, None, step):
            writer = ResponseEvents(head(), lambda _: None)
            for one in (*events[:at], odd, *events[at + 1 :]):
                writer.chunk(chunk({NATIVE: [one]}))
            writer.chunk(chunk(finish="stop"))
            assert events_of(writer.done())[-1]["type"] in (
                "response.completed",
                "response.incomplete",
                "response.failed",
            )
