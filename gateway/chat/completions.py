"""Read evidence for the judge from chat completions; convert between completions and stream chunks.

`assemble` and `chunks_of` are each other's inverse for everything a client sees, so that an answer stored from a stream
replays as JSON, and one stored from JSON replays as a stream.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from routing.confidence.calls import CallRules
from routing.confidence.judge import Evidence
from routing.features import text_of as text_of_content

DONE_EVENT: Final = b"data: [DONE]\n\n"
"""The server-sent event that ends a complete stream."""
NUMBER: Final = (float, int)
"""Python types of a JSON number, which a bool is not."""
LOGPROB: Final = itemgetter("logprob")
"""Returns the log-probability of an entry."""
READ_CHARS: Final = 6_000
"""Characters of each answer, and of the end of the conversation, that a judge reads."""
_MAX_TOOL_CALLS = 1024
_OWN_CHUNK_KEYS = frozenset({"choices", "object", "usage", "obfuscation"})
_OWN_CHOICE_KEYS = frozenset({"index", "message"})
_NAMES = frozenset({"id", "role", "type"})  # fields that every part repeats whole


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Return whether the client asked for its stream's usage (`stream_options.include_usage`)."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def entries_in(choice: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a choice's log-probabilities, one a token; empty if there are none."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else []


def is_told(entry: Mapping[str, Any], *, tops_asked: bool) -> bool:
    """Return whether an entry says how sure its token is; `tops_asked`: alternatives were asked for beside it.

    Servers that speculate, as llama.cpp does, give each proposed token that they take as sure, without alternatives.
    """
    return bool(entry["logprob"] or entry.get("top_logprobs") or not tops_asked)


def told_entries(entries: Sequence[Any], text: str = "", *, tops_asked: bool = False) -> list[dict[str, Any]]:
    """Return the entries that say how sure an answer is; none where less than half of its tokens are told of.

    `entries` are those of a whole answer or of a stream, and pieces of a stream's text (str) that came without one.
    Entries of no text count nowhere: the end of the text, or a piece that is held back, which streams have not. With
    the `text` of an answer that is nothing else, neither do those of what a server leaves out of it, where this is told
    by their tokens.
    """
    texts: list[str] = []
    of: list[Any] = []  # the entry of each text; None for a piece of a stream that came without
    for entry in entries:  # loops and no calls: every judged answer passes here
        if type(entry) is str:
            texts.append(entry)
            of.append(None)
        elif isinstance(entry, dict) and type(entry.get("logprob")) in NUMBER:
            token = entry.get("token")
            if not isinstance(token, str):
                token, text = "?", ""
            if token:
                texts.append(token)
                of.append(entry)
            tops_asked = tops_asked or bool(entry.get("top_logprobs"))
    whole = "".join(texts) if text else ""
    if 2 * len(whole) < len(text):  # some servers that speculate (SGLang) have told of the first token alone
        return []
    begins, ends = 0, len(whole)
    if whole != text and (found := whole.rfind(text)) >= 0:
        begins, ends = found, found + len(text)
    told: list[dict[str, Any]] = []
    at = untold = 0
    for piece, entry in zip(texts, of, strict=True):
        before, at = at, at + len(piece)
        if text and (at <= begins or before >= ends):
            continue
        if entry is not None and (entry["logprob"] or entry.get("top_logprobs") or not tops_asked):  # `is_told`
            told.append(entry)
        else:
            untold += 1
    return told if len(told) >= untold else []


def completion_text(completion: Mapping[str, Any]) -> str:
    """Return the text of the first choice, or its tool calls where it has none: `name(arguments)`."""
    message = completion["choices"][0]["message"]
    return _plain(message.get("content")) or _calls_shown(message)


def _calls_shown(message: Mapping[str, Any]) -> str:
    return " ".join(f"{name}({arguments})" for _, name, arguments in function_pieces(message))


def top_logprobs(entries: Iterable[Mapping[str, Any]], most: int) -> list[list[float]]:
    """Return the log-probabilities of the likeliest alternatives, at most `most`, for each of these entries."""
    return [
        [
            float(logprob["logprob"])
            for logprob in (entry["top_logprobs"] if isinstance(entry.get("top_logprobs"), list) else ())[:most]
            if isinstance(logprob, dict) and type(logprob.get("logprob")) in NUMBER
        ]
        for entry in entries
    ]


def evidence_of(
    completion: Mapping[str, Any],
    *,
    wants_json: bool = False,
    own_limit: bool = False,
    alternatives: int = 0,
    tops_asked: bool = False,
    call_rules: CallRules | None = None,
) -> Evidence:
    """Return the evidence for the judge in a whole completion: the first choice's text, all tokens and calls.

    `wants_json` and `own_limit`: whether the request asks for JSON, and whether it limits the output itself.
    `alternatives` is the number of alternatives per token to read, at ten times the cost of reading the token alone;
    `tops_asked` says whether any were asked for.
    `call_rules` are the calls that the request allows, if they are to be checked.
    """
    choices = completion["choices"]
    message = choices[0]["message"]
    has_other_output = says_more_than_text(message)
    functions = function_pieces(message) if has_other_output else []
    for choice in choices[1:]:
        functions += function_pieces(choice["message"])
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    entries: list[Any] = []
    for choice in choices:
        if choice.get("logprobs"):
            entries += entries_in(choice)
    alone = len(choices) == 1 and not has_other_output
    alone = alone and not (message.get("reasoning_content") or message.get("reasoning"))
    told = told_entries(entries, text if alone else "", tops_asked=tops_asked) if entries else entries
    return Evidence(
        text=text,
        logprobs=list(map(float, map(LOGPROB, told))) or None,
        top_logprobs=(top_logprobs(told, alternatives) if alternatives else None) or None,
        finish_reason=choices[0].get("finish_reason"),
        tool_names=[name for _, name, _ in functions] if functions else [],
        tool_arguments=[arguments for _, _, arguments in functions] if functions else [],
        has_other_output=has_other_output,
        refused=bool(message.get("refusal")),
        wants_json=wants_json,
        own_limit=own_limit,
        call_rules=call_rules,
    )


def token_entries(completion: Mapping[str, Any], *, tops_asked: bool) -> list[dict[str, Any]]:
    """Return the entries that `evidence_of` reads of a whole completion."""
    choices = completion["choices"]
    message = choices[0]["message"]
    thinks = bool(message.get("reasoning_content") or message.get("reasoning"))
    alone = len(choices) == 1 and not thinks and not says_more_than_text(message)
    entries = [entry for choice in choices for entry in entries_in(choice)]
    return told_entries(entries, _plain(message.get("content")) if alone else "", tops_asked=tops_asked)


def says_more_than_text(holder: Mapping[str, Any]) -> bool:
    """Return whether a message or delta calls a tool, in the new form or the old, or holds audio."""
    return bool(holder.get("tool_calls") or holder.get("function_call") or holder.get("audio"))


def function_pieces(holder: Mapping[str, Any]) -> list[tuple[object, str, str]]:
    """Return (key of the call, name, arguments) of each call in a message or delta; custom tools' have no arguments.

    In a delta, name and arguments may be pieces, to be joined with those of the same key in other chunks.
    """
    calls = holder.get("tool_calls")
    listed = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else ()
    found = [(_index(call.get("index")), call.get("function") or call.get("custom")) for call in listed]
    found.append(("function_call", holder.get("function_call")))
    return [
        (which, _plain(function.get("name")), _plain(function.get("arguments")))
        for which, function in found
        if isinstance(function, dict)
    ]


def _index(index: object) -> object:
    return index if isinstance(index, int) else None  # other values may not even be hashable


def _plain(content: object) -> str:
    return content if isinstance(content, str) else ""


def new_completion_id() -> str:
    """Return a new random id for an answer without one."""
    return f"chatcmpl-{uuid.uuid4().hex}"


def fill_in(completion: dict[str, Any], model: str) -> None:
    """Add what clients rely on of a completion that was joined from chunks, where these lack it."""
    head = {"id": new_completion_id(), "object": "chat.completion", "created": int(time.time()), "model": model}
    for name, value in head.items():
        if completion.get(name) in (None, ""):
            completion[name] = value


def strip_logprobs(value: Mapping[str, Any]) -> None:
    """Set to null, in place, the log-probabilities that the client did not ask for."""
    for choice in value["choices"]:
        if isinstance(choice, dict):
            choice["logprobs"] = None


def chunks_of(completion: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks that stream a completion: role, content and tool calls, finish, and the usage last, if known.

    As in a live stream, the usage has a chunk of its own without choices, only for clients that asked for it
    (`wants_usage`). They expect `usage: null` in all other chunks; `gateway.http.messages` adds that.
    """
    head = {key: completion[key] for key in completion if key not in _OWN_CHUNK_KEYS}
    head["object"] = "chat.completion.chunk"
    for position, choice in enumerate(completion["choices"]):
        index = choice.get("index", position)
        extra = {key: value for key, value in choice.items() if key not in ("index", "message", "finish_reason")}
        delta = _delta(choice["message"])
        yield {**head, "choices": [{"index": index, "delta": delta, **extra, "finish_reason": None}]}
        yield {**head, "choices": [{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}]}
    if completion.get("usage") is not None:
        yield {**head, "choices": [], "usage": completion["usage"]}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    delta = {key: value for key, value in message.items() if value is not None or key == "content"}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)]
    return {"role": "assistant", **delta}


def assemble(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the completion that a finished stream's chunks make up; unknown fields keep their last value."""
    assembler = Assembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler.completion()


class Assembler:
    """Join the chunks of a stream into a completion as they come: some 60 bytes a token; stored chunks take 1,000."""

    __slots__ = ("_completion", "choices")

    def __init__(self) -> None:
        self._completion: dict[str, Any] = {"object": "chat.completion"}
        self.choices: dict[int, ChoiceParts] = {}
        """The choices so far, by index."""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add the next chunk; the caller may change it afterwards."""
        self.add_head(chunk)
        if chunk.get("usage") is not None:
            self._completion["usage"] = chunk["usage"]
        for part in chunk["choices"]:
            self.add_choice(part)

    def add_head(self, chunk: Mapping[str, Any]) -> None:
        """Add the members of a chunk other than its choices and its usage."""
        completion = self._completion
        for key, value in chunk.items():
            if key not in _OWN_CHUNK_KEYS and (value is not None or key not in completion):
                completion[key] = value

    def add_choice(self, part: Mapping[str, Any]) -> None:
        """Add one choice of a chunk."""
        index = part.get("index") or 0
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = ChoiceParts(index)
        choice.add(part)

    def completion(self) -> dict[str, Any]:
        """Return the completion. Call this once, after the last chunk."""
        return {**self._completion, "choices": [self.choices[index].value() for index in sorted(self.choices)]}


class ChoiceParts:
    """Join one choice from its parts in many chunks."""

    __slots__ = ("_calls", "_logprobs", "_message", "_rest")

    def __init__(self, index: int) -> None:
        self._rest: dict[str, Any] = {"index": index, "finish_reason": None}
        self._message = _Pieces({"role": "assistant", "content": None, "refusal": None})
        self._calls: dict[int, _Pieces] = {}
        self._logprobs: _Pieces | None = None

    def add(self, part: Mapping[str, Any]) -> None:
        """Add the choice's part in one chunk."""
        for key, value in part.items():
            if key == "delta":
                if value:
                    self._add_delta(value)
            elif key == "logprobs":
                if isinstance(value, dict):
                    self._add_logprobs(value)
            elif key == "finish_reason" and self._rest[key] not in (None, "stop"):
                continue  # a choice once cut short stays so, whatever later chunks report
            elif value is not None and key not in _OWN_CHOICE_KEYS:
                self._rest[key] = value

    def value(self) -> dict[str, Any]:
        """Return the choice joined from its parts."""
        message = self._message.value()
        if self._calls:
            message["tool_calls"] = [self._calls[index].value() for index in sorted(self._calls)]
        return {**self._rest, "message": message, "logprobs": self._logprobs and self._logprobs.value()}

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                self._add_calls(value)
            else:
                self._message.add(key, value)

    def _add_logprobs(self, part: Mapping[str, Any]) -> None:
        if self._logprobs is None:
            self._logprobs = _Pieces(dict.fromkeys(part))
        self._logprobs.add_all(part)

    def _add_calls(self, parts: Any) -> None:
        for part in parts if isinstance(parts, list) else ():
            index = part.get("index") if isinstance(part, dict) else None
            if type(index) is not int or not 0 <= index < _MAX_TOOL_CALLS:
                continue
            call = self._calls.get(index)
            if call is None:
                call = self._calls[index] = _Pieces({"id": None, "type": "function"})
                if "function" in part:
                    call.add("function", {"name": "", "arguments": ""})
            for key, value in part.items():
                if key != "index":
                    call.add(key, value)


class _Text(list[str]):
    """A text in pieces, joined once when it is read."""

    __slots__ = ()


class _Pieces:
    """Join an object's pieces: texts, lists and objects are continued; other members keep their last non-null value."""

    __slots__ = ("_inner", "_values")

    def __init__(self, values: dict[str, Any], *, inner: bool = False) -> None:
        self._values = values
        self._inner = inner

    def add(self, key: str, value: Any) -> None:
        """Add the next piece of one member."""
        have = self._values.get(key)
        if isinstance(value, str):
            if type(have) is _Text:
                have.append(value)
            elif key not in _NAMES:
                if have is None or isinstance(have, str):
                    self._values[key] = _Text((value,))
                # Keep the odd type of a value that was not a text, so that the fault stays visible.
            elif value:
                self._values[key] = value
        elif isinstance(value, list):
            if type(have) is list:
                have += value
            else:
                self._values[key] = value[:]
        elif isinstance(value, dict) and not self._inner:
            # One level only (audio, a function): deeper nesting by a backend must not cause deep recursion here.
            if type(have) is not _Pieces:
                have = self._values[key] = _Pieces({}, inner=True)
            have.add_all(value)
        elif value is not None:
            self._values[key] = value

    def add_all(self, pieces: Mapping[str, Any]) -> None:
        """Add the next piece of every member of the object."""
        for key, value in pieces.items():
            self.add(key, value)

    def value(self) -> dict[str, Any]:
        """Return the joined object."""
        return {key: _whole(value) for key, value in self._values.items()}


def _whole(value: Any) -> Any:
    if type(value) is _Text:
        return "".join(value)
    return value.value() if type(value) is _Pieces else value


def conversation_shown(messages: Sequence[Mapping[str, Any]], most: int = READ_CHARS) -> list[dict[str, str]]:
    """Return the end of a conversation, in at most so many characters."""
    shown: list[dict[str, str]] = []
    left = most
    for message in reversed(messages):
        if left <= 0:
            break
        text, _ = text_of_content(message.get("content"))
        if message.get("tool_calls"):
            text = "\n".join((text, _calls_shown(message))).lstrip()
        shown.append({"role": str(message.get("role")), "content": text[-left:] if len(text) > left else text})
        left -= len(text)
    return shown[::-1]
