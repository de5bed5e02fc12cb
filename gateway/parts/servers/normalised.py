"""Bring what servers really send into the form that chat completions have: finish reasons, tool calls, missing members.

Every backend does so with each reply and chunk where it enters, before anything judges, stores or translates it:

    finish_reason     one of OpenAI's five words, by the table below; "" is none yet. One that says that the model's
                      server failed raises AnswerFailed; unknown words stay. A turn that a server of Anthropic's API
                      has paused is `length`: it is not whole, and so is neither stored nor taken for an answer
    stop, with calls  `tool_calls`, or `function_call`; and `tool_calls` without a call is `stop`
    finish reasons    of a stream: one, in the choice's last chunk. Some servers set it on every chunk of a call, or
                      twice: one beside a piece of the answer is held until the stream's end, a second is left out
    no message        of a choice that was cut off or filtered before its first word: an empty one
    arguments         as an object, a list or null: their JSON text
    index of a call   the server's own, unless it is missing or another call's: then the next one that is free. A new id
                      with a name, another name, or the same name after whole arguments begins a call; all else goes on
                      with the call of the same index or, without one, of the same id, or with the last
    id of a call      made where its first delta has none; said once, and its name too: clients join pieces of a text
    content           as a list of texts: one text. Mistral's thinking models answer so, with parts of type `thinking`,
                      whose texts are the reasoning
    name of a call    its pieces wait until it comes. One without a name and arguments is no call; one without a name
                      alone is an answer that failed
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.backends.http_backend import AnswerFailed
from gateway.chat.completions import new_completion_id

STOPPED_BY: Final = "stop_reason"
"""Member of a choice that names the stop sequence that ended it, as vLLM has it."""
_FAILED: Final = "error"
_WORDS: Final = {
    "stop": "stop eos eos_token end_turn end stop_sequence stop_token complete completed done finished",
    "length": "length max_tokens max_output_tokens max_length model_length token_limit model_context_window_exceeded "
    "pause_turn",
    "tool_calls": "tool_calls tool_call tool_use function_calls",
    "function_call": "function_call",
    "content_filter": "content_filter content_filtered refusal safety sensitive recitation blocklist spii "
    "prohibited_content image_safety guardrail_intervened",
    _FAILED: "error failed abort aborted cancelled network_error server_error insufficient_system_resource "
    "malformed_function_call unexpected_tool_call",
}
"""What servers call each of the API's finish reasons, in any case of letters; `error` is a failed call."""
_FINISH: Final = {word: finish for finish, words in _WORDS.items() for word in words.split()}
_STANDARD: Final = frozenset(_WORDS) - {_FAILED}
_OF_CALLS: Final = frozenset({"stop", "tool_calls", "function_call"})
"""Finish reasons that depend on whether there are calls."""
_NAMELESS: Final = "malformed_function_call"
_CUT: Final = frozenset({"length", "content_filter"})
_LACK_A_MESSAGE: Final = frozenset({"length", "content_filter"})
_NOTHING: Final = (None, "")
_INNER: Final = (("function", "arguments"), ("custom", "input"))
_MOST_CALLS: Final = 1024
_THOUGHTS: Final = "reasoning_content"


def finish_reason_of(word: object, unknown: str = "") -> str | None:
    """Return the finish reason of chat completions for a server's own; None for none. Raises AnswerFailed.

    A word that is in no table stays, or becomes `unknown`.
    """
    if not isinstance(word, str) or not word:
        return None
    finish = _FINISH.get(word) or _FINISH.get(word.lower(), unknown or word)
    if finish == _FAILED:
        raise AnswerFailed({"code": word})
    return finish


def json_text(value: object) -> str:
    """Return the arguments of a whole call as JSON text: a text as it is, any other value encoded; null is `{}`."""
    if isinstance(value, str):
        return value
    return "{}" if value is None else orjson.dumps(value).decode()


def new_call_id() -> str:
    """Return a new random id for a tool call without one."""
    return f"call_{uuid.uuid4().hex[:24]}"


def normalise(completion: dict[str, Any], model: str) -> bool:
    """Bring a whole completion, with a list of objects as its choices, into form; return whether anything changed.

    What clients rely on and can be generated is added. A `finish_reason` never is, because only the backend can say
    whether the answer is complete. Members of a wrong type stay, so that an invalid answer does not appear valid.
    Raises AnswerFailed.
    """
    changes: list[tuple[dict[str, Any], str, Any]] = []
    if completion.get("id") in _NOTHING:
        changes.append((completion, "id", new_completion_id()))
    if completion.get("object") in _NOTHING:
        changes.append((completion, "object", "chat.completion"))
    if completion.get("created") is None:
        changes.append((completion, "created", int(time.time())))
    if completion.get("model") in _NOTHING:
        changes.append((completion, "model", model))
    for position, choice in enumerate(completion["choices"]):
        if choice.get("index") is None:
            changes.append((choice, "index", position))
        if "logprobs" not in choice:
            changes.append((choice, "logprobs", None))
        told = choice.get("finish_reason")
        finish = told if type(told) is str and told in _STANDARD and "error" not in choice else _finish_of(choice, told)
        message = choice.get("message")
        if message is None and finish in _LACK_A_MESSAGE:
            message = {}
            changes.append((choice, "message", message))
        if isinstance(message, dict):
            finish = _in_message(message, finish, changes)
        if finish != told:
            changes.append((choice, "finish_reason", finish))
    for holder, name, value in changes:
        holder[name] = value
    return bool(changes)


def _finish_of(choice: dict[str, Any], reason: object) -> str | None:
    """Return the finish reason of a choice. Raises AnswerFailed, with the error that stands beside it, if any."""
    if error := choice.get("error"):
        raise AnswerFailed(error)
    return finish_reason_of(reason)


def _in_message(
    message: dict[str, Any], finish: str | None, changes: list[tuple[dict[str, Any], str, Any]]
) -> str | None:
    """Add the changes to a whole message; return the finish reason of its choice."""
    if type(message.get("content")) is list:
        joined = {**message}
        join_parts(joined)
        changes += [(message, name, joined[name]) for name in joined if joined[name] is not message.get(name)]
    if message.get("role") is None:
        changes.append((message, "role", "assistant"))
    if "content" not in message:
        changes.append((message, "content", None))
    if "refusal" not in message:
        changes.append((message, "refusal", None))
    tools, function = bool(message.get("tool_calls")), bool(message.get("function_call"))
    if tools or function:
        made = _of_calls(message)
        tools = tools and (message, "tool_calls", []) not in made
        changes += made
    if finish == "stop" and not tools and not function:  # as nearly all are, so without a call
        return finish
    return _fitting(finish, tools=tools, function=function)


def _is_named(call: object) -> bool:
    """Return whether a whole call names its tool, or is no call at all. Raises AnswerFailed for arguments alone."""
    if not isinstance(call, dict):
        return True
    for kind, member in _INNER:
        if isinstance(inner := call.get(kind), dict):
            if inner.get("name"):
                return True
            if inner.get(member) not in (None, "", {}):
                raise AnswerFailed({"code": _NAMELESS})
            return False
    return True


def _fitting(finish: str | None, *, tools: bool, function: bool) -> str | None:
    """Return the finish reason of a choice that calls `tools`, or a `function` in the old form, or neither.

    Servers say `stop` beside calls, and that there are calls where there are none.
    """
    if finish not in _OF_CALLS:
        return finish
    return "tool_calls" if tools else "function_call" if function else "stop"


def _of_calls(message: dict[str, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the changes to a whole message's calls, each as (object, member, value)."""
    changes: list[tuple[dict[str, Any], str, Any]] = []
    calls = message.get("tool_calls")
    if isinstance(calls, list) and not all(map(_is_named, calls)):
        calls = [call for call in calls if _is_named(call)]
        changes.append((message, "tool_calls", calls))
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict):
            continue
        if call.get("id") in _NOTHING:
            changes.append((call, "id", new_call_id()))
        for kind, member in _INNER:
            if isinstance(inner := call.get(kind), dict):
                if call.get("type") is None:
                    changes.append((call, "type", kind))
                if not isinstance(inner.get(member), str):
                    changes.append((inner, member, json_text(inner.get(member))))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and not isinstance(legacy.get("arguments"), str):
        changes.append((legacy, "arguments", json_text(legacy.get("arguments"))))
    return changes


@dataclass(slots=True)
class _BegunCall:
    """A tool call of a stream, as far as it has come."""

    index: int
    id: str
    made: bool
    """Whether its id was generated here."""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    waits: dict[str, Any] | None = None
    """Members of the pieces that came before its name."""

    def begin(self, part: dict[str, Any], kind: str, name: str) -> bool:
        """Take the name, and give the piece that has it all that came before; return whether there was any."""
        self.name = name
        if self.waits is None:
            return False
        member = dict(_INNER)[kind]
        part[kind] = {**part[kind], member: "".join(self.pieces)}
        part |= {**self.waits, **part, "id": self.id}
        self.waits = None
        return True

    def wait(self, part: Mapping[str, Any]) -> None:
        """Note a piece that has no name yet."""
        members = {name: value for name, value in part.items() if name not in dict(_INNER)}
        self.waits = {**(self.waits or {}), **members}

    def is_whole(self) -> bool:
        """Return whether its arguments are a whole JSON value."""
        try:
            orjson.loads("".join(self.pieces))
        except orjson.JSONDecodeError:
            return False
        return True

    def ends_before(self, ident: str, name: str, text: str) -> bool:
        """Return whether a delta of the same index, with this id, name and arguments, begins another call."""
        other = bool(ident and not self.made and ident != self.id)
        if not name:
            return other and self.is_whole()
        if other or not self.name:
            return other
        # Some servers repeat the name in each delta.
        return name != self.name or bool(not ident and text.strip() and self.is_whole())


class DeltaNormaliser:
    """Bring the tool calls and finish reasons in one stream's deltas into form, in order."""

    __slots__ = ("_choices", "holds")

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self.holds = False
        """Whether `end` has something to give."""

    def mend(self, choices: list[dict[str, Any]]) -> bool:
        """Bring one chunk's choices into form, in place; return whether anything changed. Raises AnswerFailed."""
        changed = False
        for choice in choices:
            delta = choice.get("delta") or {}
            index = choice.get("index") or 0
            state = self._choices.get(index)
            if state is None:
                state = self._choices[index] = _Choice()
            if delta.get("tool_calls") or delta.get("function_call"):
                changed = state.add(delta) or changed
            reason = choice.get("finish_reason")
            if reason is not None or choice.get("error"):
                finish = state.finish(_finish_of(choice, reason), delta)
                if finish != reason:
                    choice["finish_reason"] = finish
                    changed = True
            self.holds = self.holds or state.held is not None
        return changed

    def end(self) -> list[dict[str, Any]]:
        """Return what the stream's last chunk says of its choices: the finish reasons that were held, once.

        Raises AnswerFailed for a call whose name never came.
        """
        self.holds = False
        return [
            {"index": index, "delta": {}, "finish_reason": finish}
            for index, state in self._choices.items()
            if (finish := state.last()) is not None
        ]


class _Choice:
    """One choice of a stream so far: its calls, and whether it has ended."""

    __slots__ = ("_by_key", "_ended", "_ids", "_last", "_legacy", "_used", "held")

    def __init__(self) -> None:
        self._by_key: dict[object, _BegunCall] = {}
        """The last call of each index of the server's."""
        self._ids: dict[str, _BegunCall] = {}
        self._used: set[int] = set()
        self._last: _BegunCall | None = None
        """The call that has last begun or gone on."""
        self._legacy = False
        """Whether there is a call of the old form."""
        self._ended = False
        self.held: str | None = None
        """A finish reason that came beside a piece of the answer."""

    def finish(self, finish: str | None, delta: Mapping[str, Any]) -> str | None:
        """Return the finish reason to send with this delta, None for none yet. Raises AnswerFailed."""
        if self._ended:  # that it was cut off after all is passed on: such an answer is not whole, and is not stored
            return finish if finish in _CUT else None
        if finish is None:
            return None
        self.held = self.held if self.held in _CUT else finish
        if any(value for name, value in delta.items() if name != "role"):
            return None
        return self.last()

    def last(self) -> str | None:
        """Return the finish reason that is held, which ends the choice. Raises AnswerFailed."""
        if self.held is None:
            return None
        for call in self._ids.values():
            if not call.name and "".join(call.pieces).strip():
                raise AnswerFailed({"code": _NAMELESS})
        tools = any(call.name for call in self._ids.values())
        finish, self.held, self._ended = _fitting(self.held, tools=tools, function=self._legacy), None, True
        return finish

    def add(self, delta: dict[str, Any]) -> bool:
        """Bring the pieces of calls in a delta into form, in place; return whether anything changed.

        Pieces of a call whose name has not come are taken out, and come with it.
        """
        changed = False
        parts, legacy = delta.get("tool_calls"), delta.get("function_call")
        if isinstance(parts, list):
            kept: list[Any] = []
            for part in parts:
                if not isinstance(part, dict):
                    kept.append(part)
                    continue
                changed = self._add(part) or changed
                if self._last is None or self._last.name:
                    kept.append(part)
            if len(kept) < len(parts):
                delta["tool_calls"], changed = kept, True
                if not kept:
                    del delta["tool_calls"]
        if isinstance(legacy, dict):
            self._legacy = True
            changed = _as_text(legacy, "arguments") or changed
        return changed

    def _add(self, part: dict[str, Any]) -> bool:
        """Bring the next piece of a call into form, in place; return whether anything changed."""
        index = part.get("index")
        key = index if isinstance(index, int | str) else None
        ident = part["id"] if isinstance(part.get("id"), str) else ""
        changed, name, text = False, "", ""
        inner: dict[str, Any] = {}
        of = ""
        for kind, member in _INNER:
            if isinstance(value := part.get(kind), dict):
                inner, of = value, kind
                changed = _as_text(inner, member) or changed
                name = inner["name"] if isinstance(inner.get("name"), str) else ""
                text = inner.get(member) or ""
        call = self._by_key.get(key) if key is not None else self._ids.get(ident, self._last)
        if call is None or call.ends_before(ident, name, text):
            call = self._begin(key, ident)
            if call.made:
                part["id"], changed = call.id, True
        else:
            if ident or part.get("id") == "":
                del part["id"]
                changed = True
            if name and call.name:
                del inner["name"]
                changed = True
        if text:
            call.pieces.append(text)
        if name and not call.name:
            changed = call.begin(part, of, name) or changed
        elif not call.name:
            call.wait(part)
        if index != call.index or type(index) is not int:
            part["index"], changed = call.index, True
        self._last = call
        return changed

    def _begin(self, key: object, ident: str) -> _BegunCall:
        index = key if type(key) is int and 0 <= key < _MOST_CALLS else -1
        if index < 0 or index in self._used:
            index = max(self._used, default=-1) + 1
        made = not ident or ident in self._ids
        call = _BegunCall(index, new_call_id() if made else ident, made)
        self._used.add(index)
        self._by_key[index if key is None else key] = self._ids[call.id] = call
        return call


def _as_text(holder: dict[str, Any], name: str) -> bool:
    """Make a piece of arguments a text, in place; return whether it was another value. Null is no piece."""
    value = holder.get(name, "")
    if isinstance(value, str):
        return False
    holder[name] = "" if value is None else orjson.dumps(value).decode()
    return True


def join_parts(holder: dict[str, Any]) -> bool:
    """Join the content of a message or delta in place; return whether it was a list of parts with texts alone.

    A list with any other part stays, so that nothing of an answer is lost.
    """
    said: list[str] = []
    thought: list[str] = []
    for part in holder["content"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            said.append(part["text"])
        elif kind == "thinking":
            thought.append(_thought_in(part.get("thinking")))
        else:
            return False
    holder["content"] = "".join(said)
    if thought and not holder.get(_THOUGHTS):
        holder[_THOUGHTS] = "".join(thought)
    return True


def _thought_in(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    listed = parts if isinstance(parts, list) else ()
    return "".join(str(part.get("text") or "") for part in listed if isinstance(part, dict))
