"""Remember the reasoning of tool calls, for clients that send calls and results back without it.

A thinking model's server wants with a call's result the reasoning that led to the call. Many clients keep none of it:
those of APIs that have no place for it, and those that did not ask for it. So a backend notes each answer that calls
tools by the id of its first call, and puts back what a later request of the conversation lacks (`AnswerNotes`,
`with_reasoning`). Ids are compared as Anthropic's API takes them, as clients of that API are shown no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.servers.readable_reasoning import NAMES

if TYPE_CHECKING:
    from gateway.backends.server_forms import CallMemory, Note
from gateway.dialects.reasoning import DETAILS, joined_details

EXTRA: Final = "extra_content"
_BLOCKS: Final = "thinking_blocks"
NOTED: Final = frozenset({*NAMES, DETAILS, _BLOCKS, "tool_calls"})
"""Members of a delta that are noted."""
_REASONING: Final = (*NAMES, DETAILS, _BLOCKS)
_NOT_IN_AN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NUMBERED: Final = re.compile(r"(.+)_\d+")
_MOST_CALLS: Final = 256
"""Messages with calls, the latest ones, whose reasoning is looked for."""


class AnswerNotes:
    """Collect the reasoning of one answer: `add` each delta, or the whole message, before anything changes it."""

    __slots__ = ("_extras", "_first", "_pieces")

    def __init__(self) -> None:
        self._pieces: dict[str, list[Any]] = {}
        self._extras: list[tuple[Mapping[str, Any], Any]] = []
        """Calls, and what they carry: their places are known once the stream's calls are in form."""
        self._first = ""

    def add(self, holder: Mapping[str, Any]) -> None:
        """Note what a message or delta has of reasoning."""
        for name in _REASONING:
            value = holder.get(name)
            if value and isinstance(value, list):
                self._pieces.setdefault(name, []).extend(deepcopy(value))
            elif value and isinstance(value, str):
                self._pieces.setdefault(name, []).append(value)
        calls = holder.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and call.get(EXTRA):
                self._extras.append((call, deepcopy(call[EXTRA])))

    def called(self, holder: Mapping[str, Any]) -> None:
        """Note the id of the answer's first call, once `holder` is in form."""
        calls = holder.get("tool_calls")
        if not self._first and isinstance(calls, list) and calls and isinstance(calls[0], dict):
            self._first = str(calls[0].get("id") or "")

    def keep(self, memory: CallMemory, space: str) -> None:
        """Keep the answer's note, if it calls a tool."""
        if self._first:
            memory.keep(space, known_id(self._first), self._note())
            self._first = ""

    def _note(self) -> Note | None:
        message = {name: _joined(name, pieces) for name, pieces in self._pieces.items()}
        places: dict[str, Any] = {}
        for at, (call, extra) in enumerate(self._extras):
            index = call.get("index")
            places[str(index if isinstance(index, int) else at)] = extra
        return {"message": message, "calls": places} if message or places else None


def _joined(name: str, pieces: list[Any]) -> Any:
    if isinstance(pieces[0], str):
        return "".join(piece for piece in pieces if isinstance(piece, str))
    return joined_details(pieces) if name == DETAILS else _blocks(pieces)


def _blocks(pieces: list[Any]) -> list[Any]:
    """Return thinking blocks joined from their pieces: a block ends with its signature."""
    joined: list[Any] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and piece.get("type") == last.get("type") == "thinking" and not last.get("signature"):
            joined[-1] = {**last, **piece, "thinking": (last.get("thinking") or "") + (piece.get("thinking") or "")}
        else:
            joined.append(piece)
    return joined


def known_id(call_id: str) -> str:
    """Return the id of a call by which its reasoning is known."""
    return _NOT_IN_AN_ID.sub("_", call_id)


def lacking(messages: Sequence[Any]) -> dict[int, str]:
    """Return the id of the first call of each message that calls tools and has no reasoning, by the message's place."""
    found: dict[int, str] = {}
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls or not isinstance(first := calls[0], dict):
            continue
        whole = EXTRA in first and _has_reasoning(message)
        if not whole and isinstance(ident := first.get("id"), str):
            found[at] = known_id(ident)
            if len(found) == _MOST_CALLS:
                break
    return found


def _has_reasoning(message: Mapping[str, Any]) -> bool:
    """Return whether a message has reasoning as its server gave it. Of details, clients may have the texts alone."""
    details = message.get(DETAILS)
    given = [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else ()
    if any("signature" in detail or "data" in detail for detail in given):
        return True
    return any(message.get(name) for name in (*NAMES, _BLOCKS))


async def with_reasoning(messages: Sequence[Any], memory: CallMemory, space: str) -> list[Any] | None:
    """Return the messages with what they lack of the reasoning of their calls; None if nothing is known of it.

    A client may have numbered an id that came twice in its conversation; then the number is left out.
    """
    places = lacking(messages)
    if not places:
        return None
    also = {match[1] for place in places.values() if (match := _NUMBERED.fullmatch(place))}
    notes = await memory.find(space, [*dict.fromkeys((*places.values(), *also))])
    if not notes:
        return None
    made = list(messages)
    for at, ident in places.items():
        match = _NUMBERED.fullmatch(ident)
        if note := notes.get(ident) or (notes.get(match[1]) if match else None):
            made[at] = _put_back(made[at], note)
    return made


def _put_back(message: Mapping[str, Any], note: Note) -> dict[str, Any]:
    made = dict(message)
    if note["message"] and not _has_reasoning(message):
        made.pop(DETAILS, None)
        made |= note["message"]
    places = note["calls"]
    if places and EXTRA not in message["tool_calls"][0]:
        made["tool_calls"] = [
            {**call, EXTRA: places[str(at)]} if str(at) in places and isinstance(call, dict) else call
            for at, call in enumerate(message["tool_calls"])
        ]
    return made
