"""Add the index and id that some backends leave out of the tool calls in a stream's deltas.

Clients put a call together by its `index`, and answer it by its `id`, which comes in its first delta. What is missing
is filled in where only one reading is possible:

    index   the stream's only call: 0 where it begins, and its own where a delta goes on with it. A delta may begin a
            second call (several calls at once, another id, a name once more): then this and all later ones pass as they
            came, for which call they belong to is anybody's guess
    id      of a call with an index: made when its first delta has none, and kept: a later delta's own id is left out,
            since clients join the pieces of a text
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.chat.completions import new_call_id


@dataclass(slots=True)
class _Begun:
    """The calls of one choice so far: their ids by index, and which of those ids were generated here."""

    ids: dict[int, str] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)
    unclear: bool = False


class ToolCallDeltas:
    """Fill in missing ids and indexes in the tool call deltas of one stream, in order."""

    __slots__ = ("_choices",)

    def __init__(self) -> None:
        self._choices: dict[int, _Begun] = {}

    def mend(self, choices: Iterable[dict[str, Any]]) -> bool:
        """Fill in, in place, what one chunk's choices lack; return whether anything was missing."""
        changed = False
        for choice in choices:
            delta = choice.get("delta")
            parts = delta.get("tool_calls") if delta else None
            if not isinstance(parts, list):
                continue
            begun = self._choices.setdefault(choice.get("index") or 0, _Begun())
            for part in parts:
                if isinstance(part, dict):
                    changed = _with_index(part, begun, alone=len(parts) == 1) or changed
                    changed = _with_id(part, begun) or changed
        return changed


def _with_index(part: dict[str, Any], begun: _Begun, *, alone: bool) -> bool:
    if type(part.get("index")) is int:
        return False
    if not alone or begun.unclear or len(begun.ids) > 1 or (begun.ids and not _goes_on(part, begun)):
        begun.unclear = True
        return False
    part["index"] = next(iter(begun.ids), 0)
    return True


def _goes_on(part: dict[str, Any], begun: _Begun) -> bool:
    """Return whether the delta can only belong to the one call that has begun."""
    (ident,) = begun.ids.values()
    function = part.get("function")
    if part.get("id"):
        return bool(part["id"] == ident)
    return not (isinstance(function, dict) and function.get("name"))


def _with_id(part: dict[str, Any], begun: _Begun) -> bool:
    index, ident = part.get("index"), part.get("id")
    if type(index) is not int:
        return False
    if index in begun.ids:
        if index not in begun.made or not ident:
            return False
        del part["id"]
        return True
    if isinstance(ident, str) and ident:
        begun.ids[index] = ident
        return False
    part["id"] = begun.ids[index] = new_call_id()
    begun.made.add(index)
    return True
