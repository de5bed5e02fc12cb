"""Adapt a body to what one model's API wants otherwise than chat completions have it, as data in its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.backends.base import Backend, BackendRequest, Completion, EventStream
from gateway.dialects.native import Native, client_paths

_ASKS_NOTHING: Final = frozenset({"auto", "default"})
_IN_MESSAGES: Final = "messages."


class AdaptedBackend:
    """A backend whose model takes some fields under another name (`rename`), and refuses or ignores others (`omit`).

    `messages.NAME` in `omit` is a member of messages.
    """

    def __init__(self, inner: Backend, rename: Mapping[str, str], omit: frozenset[str]) -> None:
        self._inner = inner
        self._rename = rename
        self._omit = frozenset(name for name in omit if not name.startswith(_IN_MESSAGES))
        self._members = frozenset(name.removeprefix(_IN_MESSAGES) for name in omit - self._omit)

    async def complete(self, request: BackendRequest) -> Completion:
        """See `Backend.complete`."""
        body, omitted = self._adapted(request.body, request.native)
        completion = await self._inner.complete(replace(request, body=body))
        return completion._replace(dropped=(*omitted, *completion.dropped)) if omitted else completion

    async def stream(self, request: BackendRequest) -> EventStream:
        """See `Backend.stream`."""
        body, omitted = self._adapted(request.body, request.native)
        stream = await self._inner.stream(replace(request, body=body))
        stream.dropped = (*omitted, *stream.dropped)
        return stream

    def rekey(self, key: str | None) -> None:
        """Send another key from now on, None for none."""
        self._inner.rekey(key)

    async def aclose(self) -> None:
        """Close the backend."""
        await self._inner.aclose()

    def _adapted(self, body: Mapping[str, Any], native: Native | None) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the body for this model, and the names of the fields that were left out.

        A field at a value that asks for nothing (null, false, `auto`, `default`, one choice) is left out without being
        named. Of a field and its other name, the client's own use of the other name counts.
        """
        adapted: Mapping[str, Any] = body
        omitted: tuple[str, ...] = ()
        if not self._omit.isdisjoint(body) or any(name in body for name in self._rename):
            omitted = tuple(name for name in body if name in self._omit and _asks(body[name], name))
            kept = body.keys() - self._omit - self._rename.keys()
            renamed = {other: body[name] for name, other in self._rename.items() if body.get(name) is not None}
            adapted = {**renamed, **{name: value for name, value in body.items() if name in kept}}
        if self._members:
            messages, lost = self._without_members(body["messages"])
            if messages is not None:
                adapted, omitted = {**adapted, "messages": messages}, (*omitted, *lost)
        return adapted, client_paths(native, omitted) if omitted else ()

    def _without_members(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]] | None, Sequence[str]]:
        """Return the messages without the members that are left out, and their paths; None if there are none."""
        if all(self._members.isdisjoint(message) for message in messages):
            return None, ()
        lost: dict[str, None] = {}
        kept: list[Mapping[str, Any]] = []
        for message in messages:
            kept.append({name: value for name, value in message.items() if name not in self._members})
            lost.update({f"messages[].{name}": None for name in message if name in self._members and message[name]})
        return kept, tuple(lost)


def _asks(value: object, name: str) -> bool:
    """Return whether a field at this value asks for anything."""
    if value is None or value is False or (isinstance(value, str) and value in _ASKS_NOTHING):
        return False
    return not (name == "n" and value == 1)
