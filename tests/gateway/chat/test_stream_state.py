"""One pass over a stream's chunks, and every view of it: tokens, end, text, usage, the way out, the whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from gateway.chat.completions import assemble
from gateway.chat.stream_state import LOOP_CHECK_TOKENS, StreamState
from gateway.chat.usage import Usage

HEAD = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunk(delta: dict[str, Any] | None = None, *, index: int | None = 0, **choice: Any) -> dict[str, Any]:
    """A chunk of one choice."""
    return {**HEAD, "choices": [{"index": index, "delta": delta or {}, "finish_reason": None, **choice}]}


def through(*chunks: dict[str, Any], **options: Any) -> StreamState:
    """The state after these chunks."""
    state = StreamState(**options)
    for one in chunks:
        state.add(one)
    return state


def sent(state: StreamState, chunks: Sequence[dict[str, Any]], *, strip: bool = False) -> list[bytes]:
    """What goes out of a stream that is committed after its first chunk; each came in JSON with odd spacing."""
    events: list[bytes] = []
    for number, one in enumerate(chunks):
        state.add(one)
        if not number:
            state.commit([one], "configured", strip_logprobs=strip)
        events.append(state.outgoing(one, b" " + orjson.dumps(one)))
    return events


@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        ({"role": "assistant", "content": ""}, 0),
        ({"content": "word"}, 1),
        ({"role": "assistant", "content": "word"}, 1),
        ({"reasoning_content": "hm"}, 1),
        ({"reasoning": "hm"}, 1),
        ({"refusal": "no"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, 1),
        ({"audio": {"data": "UklG"}}, 1),
        ({"content": [{"type": "text"}]}, 1),
        ({}, 0),
    ],
)
def test_a_stream_has_begun_with_its_first_token(delta: dict[str, Any], tokens: int) -> None:
    """Whatever the model generates counts, and a role or an empty chunk does not."""
    assert through(chunk(delta)).tokens == tokens


@pytest.mark.parametrize("judged", [False, True])
def test_tokens_are_counted_by_their_logprobs(judged: bool) -> None:
    """A chunk of several tokens counts as so many, before the commit and after."""
    two = chunk({"content": "ab"}, logprobs={"content": [{"logprob": -1.0}, {"logprob": -2}]})
    state = through(two, judged=judged)
    assert state.tokens == 2
    evidence = state.evidence(wants_json=False, own_limit=False, complete=False)
    assert evidence.logprobs == ([-1.0, -2.0] if judged else None)
    assert evidence.text == "ab"


@pytest.mark.parametrize(
    ("order", "whole"),
    [("", False), ("a", False), ("aA", True), ("abA", False), ("abAB", True), ("aAb", False), ("aAa", True)],
)
def test_an_answer_is_whole_when_every_choice_has_finished(order: str, whole: bool) -> None:
    """A small letter is a part of that choice, a capital its finish."""
    parts = [chunk(index=ord(one.lower()) - ord("a"), finish_reason="stop" if one.isupper() else None) for one in order]
    state = through(*parts)
    assert state.finished is whole
    assert state.has_choice is bool(order)


@pytest.mark.parametrize(("more", "out"), [({"timings": {"predicted_n": 2}}, 4), ({}, 2)], ids=["apart", "so far"])
def test_a_usage_of_each_choice_is_added_up(more: dict[str, Any], out: int) -> None:
    """llama.cpp tells what each choice took when it ends; others tell a stream's usage so far, with every chunk."""
    ends = {**HEAD, "choices": [], "usage": USAGE, **more}
    both = [chunk({"content": "a"}, index=number) for number in (0, 1)]
    state = through(*both, chunk(index=1, finish_reason="stop"), ends, chunk(finish_reason="stop"), ends)
    assert state.usage == Usage(3, out)
    assert state.reported == {"prompt_tokens": 3, "completion_tokens": out, "total_tokens": 3 + out}
    one = through(both[0], ends, ends)
    assert one.usage == Usage(3, 2), "of one choice the last word counts"


def test_usage_that_makes_no_sense_is_none() -> None:
    """The last report that makes sense holds; the other is noted."""
    state = through({**HEAD, "choices": [], "usage": USAGE}, {**HEAD, "choices": [], "usage": {"prompt_tokens": -1}})
    assert (state.usage, state.reported, state.miscounted) == (Usage(3, 2), USAGE, True)


def test_the_usage_of_a_beginning_is_not_that_of_the_whole() -> None:
    """It tells the prompt where nothing comes after it, and a client is never told it for an answer's."""
    begun = {**HEAD, "choices": [], "usage": {**USAGE, "begun": True, "estimated": True}}
    state = through(begun)
    assert (state.usage, state.reported, state.miscounted) == (None, None, False)
    assert state.prompt_usage == Usage(3, 2, estimated=True)
    assert through(begun, {**HEAD, "choices": [], "usage": USAGE}).usage == Usage(3, 2)


def test_a_loop_takes_three_looks() -> None:
    """The text of all looks stays in order, and a loop counts only if it is looked for."""
    state, blind = StreamState(looks_for_loops=True), StreamState()
    looks: list[bool] = []
    for number in range(LOOP_CHECK_TOKENS * 3):
        for one in (state, blind):
            one.add(chunk({"content": " word"}))
        if (number + 1) % LOOP_CHECK_TOKENS == 0:
            looks.append(state.is_looping())
            assert not blind.is_looping()
    assert looks == [False, False, True]
    assert state.text == blind.text == " word" * LOOP_CHECK_TOKENS * 3
    assert state.text_tokens == LOOP_CHECK_TOKENS * 3


def test_a_chunk_that_needs_no_change_goes_out_as_it_came() -> None:
    """Byte for byte, and so does one without log-probabilities where they would be removed."""
    for one in (chunk({"content": "a"}), {**chunk({"content": "a"}), "usage": None}):
        for strip in (False, True):
            assert sent(StreamState(), [one], strip=strip) == [b"data:  %b\n\n" % orjson.dumps(one)]


def test_what_the_client_did_not_ask_for_is_removed() -> None:
    """Log-probabilities that only the gateway wanted, totals beside a finish, and the chunk of the totals."""
    beside = {**chunk({}, finish_reason="stop"), "usage": dict(USAGE)}
    chunks = [chunk({"content": "a"}, logprobs={"content": []}), beside, {**HEAD, "choices": [], "usage": USAGE}]
    state = StreamState()
    first, second, third = sent(state, chunks, strip=True)
    assert orjson.loads(first[6:])["choices"][0]["logprobs"] is None
    assert orjson.loads(second[6:])["usage"] is None
    assert third == b""
    assert state.usage == Usage(3, 2)


def test_one_id_model_and_time_in_all() -> None:
    """The first that are named hold, and what none names is made up."""
    chunks = [{**chunk({"content": "a"}), **HEAD, "model": ""}, {**chunk({"content": "b"}), "id": "z", "created": 9}]
    events = [orjson.loads(event[6:]) for event in sent(StreamState(), chunks)]
    assert {(one["id"], one["model"], one["created"], one["object"]) for one in events} == {
        ("a", "configured", 1, "chat.completion.chunk")
    }


STREAMS: dict[str, list[dict[str, Any]]] = {
    "text": [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({}, finish_reason="stop"),
    ],
    "text at once": [chunk({"content": "a"}), chunk({"content": "b"}, finish_reason="length")],
    "nothing": [chunk({"role": "assistant", "content": ""}), chunk({}, finish_reason="stop")],
    "null": [chunk({"role": "assistant", "content": None}), chunk({}, finish_reason="stop")],
    "no index": [chunk({"content": "a"}, index=None), chunk({"content": "b"}, index=None, finish_reason="stop")],
    "choices": [
        chunk({"content": "a"}),
        chunk({"content": "x"}, index=1),
        chunk({"content": "b"}),
        chunk({"content": "y"}, index=1, finish_reason="stop"),
        chunk({}, finish_reason="stop"),
    ],
    "thoughts": [
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning_content": "m", "content": None}),
        chunk({"content": "a", "reasoning_content": None}),
        chunk({"content": "b"}),
        chunk({}, finish_reason="stop"),
    ],
    "tool call": [
        chunk({"content": "a"}),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}, finish_reason="tool_calls"),
    ],
    "logprobs": [
        chunk({"content": "a"}, logprobs={"content": [{"token": "a", "logprob": -1.0}]}),
        chunk({"content": "b"}, logprobs=None),
        chunk({"content": "c"}, logprobs={"content": [{"token": "c", "logprob": -1.0}]}, finish_reason="stop"),
    ],
    "content that is no text": [chunk({"content": "a"}), chunk({"content": [1]}), chunk({"content": "b"})],
    "more of a choice": [chunk({"content": "a"}, stop_reason=1), chunk({"content": "b"}, stop_reason=2)],
    "usage": [chunk({"content": "a"}, finish_reason="stop"), {**HEAD, "choices": [], "usage": USAGE}],
    "more of a chunk": [{**chunk({"content": "a"}), "service_tier": None}, {**chunk({}), "service_tier": "x"}],
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_whole_answer_is_what_its_chunks_spell(name: str) -> None:
    """Text that is kept once for all views comes to the same completion as the chunks put together one by one."""
    expected = assemble(STREAMS[name])
    state = StreamState()
    state.collect()
    sent(state, orjson.loads(orjson.dumps(STREAMS[name])))
    assert state.completion() == expected


def test_a_draft_that_is_read_whole_holds_nothing_of_a_hidden_prompt_cache() -> None:
    """Its chunks are assembled as they come, and never sent."""
    state = StreamState()
    state.hides_cache = True
    state.collect()
    for one in (chunk({"content": "hi"}), {**chunk(finish_reason="stop"), "timings": {"cache_n": 9}, "usage": USAGE}):
        state.add(one)
        state.assemble(one)
    assert state.completion().keys() == {*HEAD, "choices", "usage"}
