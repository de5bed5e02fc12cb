from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.http_backend import AnswerFailed
from gateway.parts.servers.normalised import DeltaNormaliser, finish_reason_of, json_text, normalise

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


def part(name: str | None = None, arguments: Any = "", **members: Any) -> dict[str, Any]:
    """A piece of a call, as a delta has it."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"function": function, **members}


def folded(*deltas: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Name and arguments of each call that a client puts together from the mended deltas, joining all texts."""
    normaliser = DeltaNormaliser()
    calls: dict[int, dict[str, str]] = {}
    for parts in deltas:
        choice = {"index": 0, "delta": {"tool_calls": json.loads(json.dumps(parts))}, "finish_reason": None}
        normaliser.mend([choice])
        for one in choice["delta"].get("tool_calls", ()):  # type: ignore[attr-defined]
            call = calls.setdefault(one["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += one.get("id", "")
            call["name"] += one["function"].get("name", "")
            call["arguments"] += one["function"].get("arguments", "")
    assert all(call["id"] for call in calls.values())
    assert len({call["id"] for call in calls.values()}) == len(calls)
    return [(call["name"], call["arguments"]) for call in calls.values()]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [[part("f", PARIS, index=0, id="a")], [part("f", ROME, index=0, id="b")]],
            [("f", PARIS), ("f", ROME)],
            id="one index, two ids",
        ),
        pytest.param(
            [[part("f", PARIS, index=0, id="a"), part("g", ROME, index=0, id="b")]],
            [("f", PARIS), ("g", ROME)],
            id="both in one delta",
        ),
        pytest.param(
            [[part("f", PARIS, index=0)], [part("g", ROME, index=0)]],
            [("f", PARIS), ("g", ROME)],
            id="one index, another name",
        ),
        pytest.param(
            [[part("f", PARIS, index=0)], [part("f", ROME, index=0)]],
            [("f", PARIS), ("f", ROME)],
            id="one index, no ids, the same name after whole arguments",
        ),
        pytest.param(
            [[part("f", PARIS[:5], index=0, id="a")], [part("f", PARIS[5:], index=0, id="a")]],
            [("f", PARIS)],
            id="id and name in each piece",
        ),
        pytest.param(
            [[part("f", PARIS[:5], index=0)], [part("f", PARIS[5:], index=0)], [part("f", "", index=0)]],
            [("f", PARIS)],
            id="the name in each piece",
        ),
        pytest.param(
            [[part("f", PARIS[:5], index=0, id="a")], [part(None, PARIS[5:], index=0, id="b")]],
            [("f", PARIS)],
            id="another id in each piece",
        ),
        pytest.param(
            [
                [part("f", PARIS, index=0, id="a")],
                [part("f", ROME, index=0, id="b")],
                [part("g", "{}", index=1, id="c")],
            ],
            [("f", PARIS), ("f", ROME), ("g", "{}")],
            id="an index that is taken by now",
        ),
        pytest.param(
            [[part("f", PARIS, id="a")], [part("f", ROME, id="b")]], [("f", PARIS), ("f", ROME)], id="no index"
        ),
        pytest.param(
            [[part("f", "", id="a")], [part("g", "", id="b")], [part(None, PARIS, id="a")], [part(None, ROME, id="b")]],
            [("f", PARIS), ("g", ROME)],
            id="no index, and turns told by ids",
        ),
        pytest.param(
            [[part("f", "", index="0", id="a"), part("g", "", index="1", id="b")], [part(None, PARIS, index="0")]],
            [("f", PARIS), ("g", "")],
            id="indexes as texts",
        ),
        pytest.param(
            [[part("f", PARIS, index=0, id="a")], [part("g", ROME, index=0, id="a")]],
            [("f", PARIS), ("g", ROME)],
            id="one id for two",
        ),
        pytest.param(
            [[part(None, "", index=0, id="a")], [part("f", PARIS, index=0)]], [("f", PARIS)], id="a late name"
        ),
        pytest.param([[part("f", {"city": "Paris"}, index=0)]], [("f", '{"city":"Paris"}')], id="an object"),
        pytest.param([[part("f", ["Paris"], index=0)]], [("f", '["Paris"]')], id="a list"),
        pytest.param([[part("f", None, index=0)], [part(None, PARIS, index=0)]], [("f", PARIS)], id="null at first"),
        pytest.param(
            [[part("f", {"a": 1}, index=0, id="a")], [part("f", {"a": 2}, index=0, id="b")]],
            [("f", '{"a":1}'), ("f", '{"a":2}')],
            id="objects, one index",
        ),
        pytest.param([[part("f", PARIS, index=-1)], [part("g", "", index=4096)]], [("f", PARIS), ("g", "")], id="odd"),
    ],
)
def test_calls_of_a_stream(deltas: list[list[dict[str, Any]]], expected: list[tuple[str, str]]) -> None:
    """A client that joins pieces by their index gets each call once, its id and name once, and arguments as text."""
    assert folded(*deltas) == expected


def test_an_ordinary_call_is_not_touched() -> None:
    """Deltas in OpenAI's own form change in nothing."""
    normaliser = DeltaNormaliser()
    for parts in ([{"index": 0, "id": "a", "type": "function", **part("f")}], [part(None, PARIS, index=0)]):
        assert not normaliser.mend([{"index": 0, "delta": {"tool_calls": parts}, "finish_reason": None}])
    assert not normaliser.mend([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}])


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("", None), (None, None), (7, None), ("stop", "stop"), ("STOP", "stop"), ("eos", "stop"), ("end_turn", "stop"),
        ("MAX_TOKENS", "length"), ("max_tokens", "length"), ("model_length", "length"),
        ("SAFETY", "content_filter"), ("sensitive", "content_filter"), ("of a later version", "of a later version"),
    ],
)  # fmt: skip
def test_finish_reasons(word: object, finish: str | None) -> None:
    """What servers call a finish reason becomes OpenAI's word for it, whole and in a stream."""
    assert finish_reason_of("tool_use") == "tool_calls"
    assert finish_reason_of(word) == finish
    choice = {"index": 0, "delta": {}, "finish_reason": word}
    DeltaNormaliser().mend([choice])
    assert choice["finish_reason"] == finish
    completion = {"choices": [{"message": {"content": "x"}, "finish_reason": word}]}
    normalise(completion, "m")
    assert completion["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("word", ["error", "ERROR", "network_error", "MALFORMED_FUNCTION_CALL", "abort"])
def test_an_answer_that_failed(word: str) -> None:
    """A finish reason that says so is a failed call, and so is an error beside the choice."""
    for choice in ({"finish_reason": word}, {"finish_reason": "stop", "error": {"code": 502, "message": "x"}}):
        with pytest.raises(AnswerFailed):
            normalise({"choices": [{"message": {"content": "half"}, **choice}]}, "m")
        with pytest.raises(AnswerFailed):
            DeltaNormaliser().mend([{"index": 0, "delta": {}, **choice}])


def streamed(*chunks: tuple[dict[str, Any], Any]) -> tuple[list[Any], list[Any]]:
    """The deltas and finish reasons that clients get of these chunks' deltas and finish reasons, and of the end."""
    normaliser = DeltaNormaliser()
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": told} for delta, told in chunks]
    for choice in choices:
        normaliser.mend([choice])
    choices += normaliser.end()
    assert not normaliser.holds and normaliser.end() == []
    return [one["delta"] for one in choices], [one["finish_reason"] for one in choices]


def piece(text: str, **members: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": text, **members}}]}


@pytest.mark.parametrize(
    ("chunks", "finishes"),
    [
        pytest.param(
            [(piece('{"a":', name="f"), "tool_calls"), (piece("1}"), "tool_calls")],
            [None, None, "tool_calls"],
            id="on each piece of a call",
        ),
        pytest.param(
            [(piece('{"a":', name="f"), "tool_calls"), (piece("1}"), None), ({}, "stop")],
            [None, None, "tool_calls"],
            id="on the first piece, and at the end",
        ),
        pytest.param(
            [({"content": "a"}, "stop"), ({"content": "b"}, "stop")], [None, None, "stop"], id="on each piece of a text"
        ),
        pytest.param([({"content": "a"}, None), ({}, "stop"), ({}, "stop")], [None, "stop", None], id="twice"),
        pytest.param(
            [(piece("", name="f"), None), ({}, "tool_calls"), ({}, "stop")], [None, "tool_calls", None], id="two"
        ),
        pytest.param([({"content": "a"}, "length"), ({}, "stop")], [None, "length"], id="cut short, then stop"),
        pytest.param([({"content": "a"}, None), ({}, "tool_calls")], [None, "stop"], id="no call at all"),
        pytest.param([({"tool_calls": []}, "tool_calls")], ["stop"], id="an empty list"),
        pytest.param(
            [({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, "tool_calls")], ["stop"], id="no name"
        ),
        pytest.param([({"content": "a"}, None)], [None], id="cut off"),
        pytest.param([({"role": "assistant"}, "stop")], ["stop"], id="an empty answer"),
    ],
)
def test_a_choice_of_a_stream_ends_once_after_all_of_it(chunks: list[Any], finishes: list[Any]) -> None:
    """Whatever the server repeats. What came beside a piece of the answer is held until the stream's end."""
    assert streamed(*chunks)[1] == finishes


def test_pieces_of_a_call_wait_for_its_name() -> None:
    deltas, _ = streamed(
        ({"tool_calls": [{"index": 0, "id": "a", "type": "function"}]}, None),
        (piece('{"a":'), None),
        (piece("1", name="f"), None),
        (piece("}"), None),
        ({}, "tool_calls"),
    )
    first = {"index": 0, "id": "a", "type": "function", "function": {"arguments": '{"a":1', "name": "f"}}
    assert deltas == [{}, {}, {"tool_calls": [first]}, piece("}"), {}]


def test_arguments_of_a_call_without_a_name_are_a_failed_answer() -> None:
    """No client can do anything with them; an empty call without a name is none, and left out."""
    with pytest.raises(AnswerFailed):
        streamed((piece('{"a":1}'), None), ({}, "tool_calls"))
    calls = [{"id": "a", "type": "function", "function": {"name": None, "arguments": '{"a":1}'}}]
    with pytest.raises(AnswerFailed):
        normalise({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}, "m")
    calls[0]["function"]["arguments"] = ""  # type: ignore[index]
    value: dict[str, Any] = {"choices": [{"message": {"content": "x", "tool_calls": calls}, "finish_reason": "stop"}]}
    normalise(value, "m")
    assert value["choices"][0]["finish_reason"] == "stop" and value["choices"][0]["message"]["tool_calls"] == []


def test_calls_that_end_with_stop() -> None:
    """An answer that calls tools ends with `tool_calls`, or `function_call` in the old form, of each choice its own."""
    call = {"id": "a", "type": "function", **part("f", "{}")}
    old = {"name": "f", "arguments": "{}"}
    for message, finish in (
        ({"content": "x"}, "stop"),
        ({"tool_calls": [call]}, "tool_calls"),
        ({"function_call": old}, "function_call"),
        ({"tool_calls": []}, "stop"),
    ):
        completion = {"choices": [{"message": message, "finish_reason": "stop"}]}
        normalise(completion, "m")
        assert completion["choices"][0]["finish_reason"] == finish
    normaliser = DeltaNormaliser()
    choices = [{"index": 0, "delta": {"content": "x"}}, {"index": 1, "delta": {"tool_calls": [part("f", "{}")]}}]
    choices.append({"index": 2, "delta": {"function_call": {**old, "arguments": {}}}})
    assert normaliser.mend(choices)
    assert choices[2]["delta"]["function_call"]["arguments"] == "{}"  # type: ignore[index]
    ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(3)]
    normaliser.mend(ends)
    assert [end["finish_reason"] for end in ends] == ["stop", "tool_calls", "function_call"]


def test_calls_of_a_whole_message() -> None:
    """Arguments become text, and ids and types are added."""
    given = [{"function": {"name": "f", "arguments": value}} for value in ({"a": 1}, [1], None, PARIS)]
    completion = {"choices": [{"message": {"tool_calls": given}, "finish_reason": "tool_calls"}]}
    assert normalise(completion, "m")
    calls = completion["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a":1}', "[1]", "{}", PARIS]
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 4
    assert json_text("") == ""


def test_a_choice_without_a_message() -> None:
    """One that was cut off before its first word is an empty answer; one that says it is whole stays no answer."""
    for word, cut in (("length", True), ("MAX_TOKENS", True), ("content_filter", True), ("stop", False)):
        completion: dict[str, Any] = {"choices": [{"finish_reason": word, "index": 0}]}
        normalise(completion, "m")
        assert ("message" in completion["choices"][0]) is cut
    message = {"role": "assistant", "content": None, "refusal": None}
    completion = {"choices": [{"finish_reason": "length", "index": 0}]}
    normalise(completion, "m")
    assert completion["choices"][0]["message"] == message
