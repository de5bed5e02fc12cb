"""Adapt a body to what one model's API wants otherwise than chat completions have it, as data in its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.backends.base import Backend, BackendRequest, Completion, EventStream
from gateway.dialects.client_paths import client_paths

_ASKS_NOTHING: Final = frozenset({"auto", "default"})


class AdaptedBackend:
    """A backend whose model takes some fields under another name (`rename`), and refuses or ignores others (`omit`)."""

    def __init__(self, inner: Backend, rename: Mapping[str, str], omit: frozenset[str]) -> None:
        self._inner = inner
        self._rename = rename
        self._omit = omit

    async def complete(self, request: BackendRequest) -> Completion:
        """See `Backend.complete`."""
        body, omitted = self._adapted(request.body)
        completion = await self._inner.complete(replace(request, body=body))
        return replace(completion, dropped=(*omitted, *completion.dropped)) if omitted else completion

    async def stream(self, request: BackendRequest) -> EventStream:
        """See `Backend.stream`."""
        body, omitted = self._adapted(request.body)
        stream = await self._inner.stream(replace(request, body=body))
        stream.dropped = (*omitted, *stream.dropped)
        return stream

    async def aclose(self) -> None:
        """Close the backend."""
        await self._inner.aclose()

    def _adapted(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the body for this model, and the names of the fields that were left out.

        A field at a value that asks for nothing (null, false, `auto`, `default`) is left out without being named. Of a
        field and its other name, the client's own use of the other name counts.
        """
        if self._omit.isdisjoint(body) and not any(name in body for name in self._rename):
            return body, ()
        omitted = client_paths(body, (name for name in body if name in self._omit and _asks(body[name])))
        adapted = {name: value for name, value in body.items() if name not in self._omit and name not in self._rename}
        for name, other in self._rename.items():
            if body.get(name) is not None:
                adapted.setdefault(other, body[name])
        return adapted, omitted


def _asks(value: object) -> bool:
    """Return whether a field at this value asks for anything."""
    return not (value is None or value is False or (isinstance(value, str) and value in _ASKS_NOTHING))
