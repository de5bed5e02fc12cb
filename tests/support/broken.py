"""Broken answers, as many as one likes, none of which may ever be stored: what models and networks really send.

`broken(number)` is the same for a number every time. Each is a whole answer with one thing wrong: cut off anywhere,
ended by anything but `stop`, empty, refused, filtered, an error in a 200, of a wrong type, with counts that cannot be,
with a choice too few. A `good` one has nothing wrong with it, so that a check which stores nothing at all is found
out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

JSON_TYPE: Final = "application/json"
SSE_TYPE: Final = "text/event-stream"
_WORDS: Final = ("spring", "snow", "plan", "rises", "falls", "both", "gone", "when", "early", "late", "north")
_CUT_SHORT: Final = ("length", "content_filter", None, "", "error", "abort")
_FINISHES: Final = (*_CUT_SHORT, 7, ["stop"], True)
_CONTENTS: Final[tuple[Any, ...]] = ("", None, " ", "\n\t", [], ["text"], {"text": "x"}, 7, False)
_FILTERED: Final = {"violence": {"filtered": True, "severity": "high"}}
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
_USAGES: Final = (
    {"prompt_tokens": -1, "completion_tokens": 5},
    {"prompt_tokens": "9", "completion_tokens": "5"},
    {"prompt_tokens": 9.5, "completion_tokens": 1e300},
    {"prompt_tokens": True, "completion_tokens": None},
    {"completion_tokens": 5},
    [9, 5],
    "14",
)
_ERRORS: Final = ({"message": "overloaded", "type": "server_error", "code": None}, "overloaded", {"message": ""}, [1])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a backend sends. `n`: so many choices were asked for. `cut`: the connection breaks off behind the body."""

    kind: str
    stream: bool
    body: bytes
    content_type: str = JSON_TYPE
    status: int = 200
    n: int = 1
    cut: bool = False


def good(number: int, *, stream: bool, done: bool = True) -> Answer:
    """An answer to keep; a stream without [DONE] behind its finish is one too."""
    chance = random.Random(number)
    if not stream:
        return Answer("good", False, json.dumps(_completion(chance, number)).encode())
    return Answer("good", True, _events(_chunks(chance, number), done=done), SSE_TYPE)


def broken(number: int) -> Answer:
    """An answer with one thing wrong."""
    chance = random.Random(number)
    kinds = _JSON_FAULTS if number % 2 == 0 else _STREAM_FAULTS
    name = list(kinds)[number // 2 % len(kinds)]
    return kinds[name](chance, number)


# --- whole answers ------------------------------------------------------------------------------------------------


def _text(chance: random.Random) -> list[str]:
    return [f"{chance.choice(_WORDS)} " for _ in range(chance.randint(2, 12))]


def _head(number: int, kind: str) -> Json:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1760000000, "model": "small"}


def _completion(chance: random.Random, number: int) -> Json:
    message = {"role": "assistant", "content": "".join(_text(chance)), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    return {**_head(number, "chat.completion"), "choices": [choice], "usage": usage}


def _chunks(chance: random.Random, number: int) -> list[Json]:
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in _text(chance)), {}]
    head = _head(number, "chat.completion.chunk")
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    usage = {"prompt_tokens": 9, "completion_tokens": len(deltas), "total_tokens": 9 + len(deltas)}
    return [*chunks, {**head, "choices": [], "usage": usage}]


def _events(chunks: list[Any], *, done: bool = True) -> bytes:
    data = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return "".join(f"data: {one}\n\n" for one in [*data, *(["[DONE]"] if done else [])]).encode()


# --- what can be wrong with JSON ------------------------------------------------------------------------------------

Make = Callable[[random.Random, int], Answer]


def _json(kind: str, change: Callable[[random.Random, Json], Any], n: int = 1, status: int = 200) -> Make:
    """A fault that is a change of the whole answer."""

    def make(chance: random.Random, number: int) -> Answer:
        completion = _completion(chance, number)
        change(chance, completion)
        return Answer(kind, False, json.dumps(completion).encode(), status=status, n=n)

    return make


def _in_message(name: str, values: tuple[Any, ...]) -> Callable[[random.Random, Json], Any]:
    return lambda chance, whole: whole["choices"][0]["message"].update({name: chance.choice(values)})


def _in_choice(name: str, values: tuple[Any, ...]) -> Callable[[random.Random, Json], Any]:
    return lambda chance, whole: whole["choices"][0].update({name: chance.choice(values)})


def _at_top(name: str, values: tuple[Any, ...]) -> Callable[[random.Random, Json], Any]:
    return lambda chance, whole: whole.update({name: chance.choice(values)})


def _only_an_error(chance: random.Random, whole: Json) -> None:
    whole.clear()
    whole["error"] = chance.choice(_ERRORS)


def _cut_json(chance: random.Random, number: int) -> Answer:
    body = json.dumps(_completion(chance, number)).encode()
    return Answer("cut", False, body[: chance.randrange(len(body) - 1)], cut=chance.random() < 0.5)


def _no_json(chance: random.Random, number: int) -> Answer:
    body = json.dumps(_completion(chance, number)).encode()
    bodies = (b"", b"null", b"[]", b"{}", b"7", b'"Rome."', b"<html>busy</html>", b"\xff\xfe" + body, body + body)
    return Answer("no JSON", False, chance.choice(bodies))


def _nan(chance: random.Random, number: int) -> Answer:
    body = json.dumps(_completion(chance, number))
    count = chance.choice(("NaN", "Infinity", "-Infinity", "1e999"))
    return Answer("NaN", False, body.replace('"completion_tokens": 5', f'"completion_tokens": {count}').encode())


def _html(chance: random.Random, number: int) -> Answer:
    body = json.dumps(_completion(chance, number)).encode()
    return Answer("content type", False, body, chance.choice(("text/html", "text/plain", "application/x-ndjson")))


def _status(chance: random.Random, number: int) -> Answer:
    body = json.dumps(_completion(chance, number)).encode()
    return Answer("status", False, body, status=chance.choice((201, 203, 206, 302, 422, 500, 502)))


def _sse_cut(chance: random.Random, number: int) -> Answer:
    chunks = _chunks(chance, number)[: -1 - chance.randint(1, 3)]
    return Answer("SSE for JSON, cut", False, _events(chunks, done=chance.random() < 0.5), SSE_TYPE)


_JSON_FAULTS: Final[dict[str, Make]] = {
    "cut": _cut_json,
    "no JSON": _no_json,
    "NaN": _nan,
    "content type": _html,
    "status": _status,
    "SSE cut": _sse_cut,
    "finish": _json("finish", _in_choice("finish_reason", _FINISHES)),
    "no finish": _json("no finish", lambda _, whole: whole["choices"][0].pop("finish_reason")),
    "content": _json("content", _in_message("content", _CONTENTS)),
    "no content": _json("no content", lambda _, whole: whole["choices"][0]["message"].pop("content")),
    "refusal": _json("refusal", _in_message("refusal", ("I cannot help with that.", "No", ["no"]))),
    "refusal in words": _json(
        "refusal in words",
        _in_message("content", ("I'm sorry, but I can't help with that.", "I cannot assist with that.")),
    ),
    "loop": _json("loop", _in_message("content", ("the same words again " * 40,))),
    "filter": _json("filter", _in_choice("content_filter_results", (_FILTERED,))),
    "prompt filter": _json("filter", _at_top("prompt_filter_results", ([{"content_filter_results": _FILTERED}],))),
    "error beside": _json("error", _at_top("error", _ERRORS)),
    "error alone": _json("error", _only_an_error),
    "usage": _json("usage", _at_top("usage", _USAGES)),
    "id": _json("id", _at_top("id", (7, ["x"], {}, True))),
    "created": _json("created", _at_top("created", ("now", [1], {}))),
    "model": _json("model", _at_top("model", (7, ["x"], {}))),
    "object": _json("object", _at_top("object", ("chat.completion.chunk", "text_completion", "error", 7))),
    "choices": _json("choices", _at_top("choices", ([], None, {}, [None], ["x"], "Rome.", 7))),
    "message": _json("message", _in_choice("message", (None, "Rome.", [], 7, {}))),
    "role": _json("role", _in_message("role", ("user", "system", 7, ["assistant"]))),
    "index": _json("index", _in_choice("index", (1, -1, "0", [0], 99))),
    "logprobs": _json("logprobs", _in_choice("logprobs", ("none", [1], 7))),
    "tool calls": _json("tool calls", _in_message("tool_calls", ([_CALL], [{}], "weather", {"id": 1}))),
    "function call": _json("function call", _in_message("function_call", ({"name": "f", "arguments": "{}"},))),
    "reasoning": _json("reasoning", _in_message("reasoning_content", (7, ["x"], {"a": 1}))),
    "a choice too few": _json("choice too few", lambda *_: None, n=2),
    "a choice too many": _json("choice too many", lambda _, whole: whole["choices"].append(whole["choices"][0])),
}


# --- what can be wrong with a stream --------------------------------------------------------------------------------


def _sse(kind: str, change: Callable[[random.Random, list[Any]], Any], n: int = 1) -> Make:
    """A fault that is a change of the events."""

    def make(chance: random.Random, number: int) -> Answer:
        chunks: list[Any] = _chunks(chance, number)
        change(chance, chunks)
        return Answer(kind, True, _events(chunks), SSE_TYPE, n=n)

    return make


def _cut_sse(chance: random.Random, number: int) -> Answer:
    """Anywhere before the end of the event that says how it ended."""
    chunks = _chunks(chance, number)
    body = _events(chunks)
    whole = len(_events(chunks[:-2], done=False))
    return Answer("cut", True, body[: chance.randrange(whole + 20)], SSE_TYPE, cut=chance.random() < 0.5)


def _insert(values: tuple[Any, ...]) -> Callable[[random.Random, list[Any]], Any]:
    """Between two events, the finish and the totals included; before the finish half of the time."""
    return lambda chance, chunks: chunks.insert(chance.randint(1, len(chunks) - 1), chance.choice(values))


def _in_delta(name: str, values: tuple[Any, ...]) -> Callable[[random.Random, list[Any]], Any]:
    def change(chance: random.Random, chunks: list[Any]) -> None:
        at = chance.randint(1, len(chunks) - 3)
        chunks[at]["choices"][0]["delta"][name] = chance.choice(values)

    return change


def _in_part(name: str, values: tuple[Any, ...], at: int | None = None) -> Callable[[random.Random, list[Any]], Any]:
    def change(chance: random.Random, chunks: list[Any]) -> None:
        place = chance.randint(1, len(chunks) - 3) if at is None else at
        chunks[place]["choices"][0][name] = chance.choice(values)

    return change


def _every_text(values: tuple[str, ...]) -> Callable[[random.Random, list[Any]], Any]:
    def change(chance: random.Random, chunks: list[Any]) -> None:
        value = chance.choice(values)
        for chunk in chunks[1:-2]:
            chunk["choices"][0]["delta"]["content"] = value

    return change


def _words(text: str) -> Callable[[random.Random, list[Any]], Any]:
    def change(chance: random.Random, chunks: list[Any]) -> None:
        made = [{**chunks[1], "choices": [{"index": 0, "delta": {"content": f"{word} "}}]} for word in text.split()]
        chunks[1:-2] = made

    return change


def _whole_for_sse(chance: random.Random, number: int) -> Answer:
    """JSON where a stream was asked for, cut short of its end by the model."""
    completion = _completion(chance, number)
    completion["choices"][0]["finish_reason"] = chance.choice(_CUT_SHORT)
    return Answer("JSON for SSE", True, json.dumps(completion).encode())


_ERROR_EVENTS: Final = tuple({"error": error} for error in _ERRORS[:3])
_STREAM_FAULTS: Final[dict[str, Make]] = {
    "cut": _cut_sse,
    "JSON for SSE": _whole_for_sse,
    "no finish": _sse("no finish", lambda _, chunks: chunks.pop(-2)),
    "finish": _sse("finish", _in_part("finish_reason", _FINISHES, at=-2)),
    "two finishes": _sse(
        "two finishes",
        lambda chance, chunks: chunks.insert(
            chance.choice((-1, -2)), {**chunks[-2], "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        ),
    ),
    "error": _sse("error", _insert(_ERROR_EVENTS)),
    "no JSON": _sse("no JSON", _insert(('{"choices":[{"index":0,"delta":{"con', "Rome.", "{]"))),
    "NaN": _sse("NaN", _insert(('{"choices":[],"usage":{"prompt_tokens":NaN,"completion_tokens":1}}',))),
    "no object": _sse("no object", _insert(("[]", "7", '"Rome."', "null"))),
    "choices": _sse("choices", _insert(({"choices": {}}, {"choices": "x"}, {"choices": [None]}, {"choices": [7]}))),
    "delta": _sse("delta", _in_part("delta", ("Rome.", [], 7))),
    "index": _sse("index", _in_part("index", ("0", 1, 7, [0]))),
    "empty": _sse("empty", _every_text(("", " ", "\n"))),
    "refusal": _sse("refusal", _in_delta("refusal", ("I cannot", "No."))),
    "refusal in words": _sse("refusal in words", _words("I'm sorry, but I can't help with that request.")),
    "loop": _sse("loop", _words("the same words again " * 40)),
    "content": _sse("content", _in_delta("content", (7, ["x"], {"text": "x"}, True))),
    "reasoning": _sse("reasoning", _in_delta("reasoning_content", (7, ["x"], {"a": 1}))),
    "filter": _sse("filter", _in_part("content_filter_results", (_FILTERED,))),
    "role": _sse("role", _in_delta("role", ("user", "system"))),
    "tool call": _sse("tool call", _in_delta("tool_calls", ([{"index": 0, **_CALL}],))),
    "half a tool call": _sse("tool call", _in_delta("tool_calls", ([{"index": 0, "function": {"arguments": '{"'}}],))),
    "function call": _sse("function call", _in_delta("function_call", ({"name": "f", "arguments": "{"},))),
    "usage": _sse("usage", lambda chance, chunks: chunks[-1].update(usage=chance.choice(_USAGES))),
    "a choice too few": _sse("choice too few", lambda *_: None, n=2),
    "half of two": _sse(
        "half of two",
        lambda _, chunks: chunks.insert(1, {**chunks[1], "choices": [{"index": 1, "delta": {"content": "x"}}]}),
        n=2,
    ),
}
