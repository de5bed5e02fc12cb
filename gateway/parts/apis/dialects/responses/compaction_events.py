"""Write the stream of a request that asks for a compaction: its one item, once the summary is whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import UpstreamFailed
from gateway.parts.apis.dialects.responses.events import ResponseEvents
from gateway.parts.apis.dialects.responses.items import Json


class CompactionEvents:
    """Write one stream. It implements `gateway.parts.apis.dialects.client.StreamWriter`."""

    def __init__(self, events: ResponseEvents, item_of: Callable[[str], Json]) -> None:
        """Write by `events`. `item_of` returns the item for a summary, or raises UpstreamFailed."""
        self._events = events
        self._item_of = item_of
        self._pieces: list[str] = []

    def begin(self) -> bytes:
        """See `StreamWriter.begin`."""
        return self._events.begin()

    def alive(self) -> bytes:
        """See `StreamWriter.alive`."""
        return self._events.alive()

    def chunk(self, value: Mapping[str, Any]) -> bytes:
        """Return the events that begin the stream; the summary's text is kept."""
        choices = []
        for choice in value["choices"][:1]:
            text = (choice.get("delta") or {}).get("content")
            if isinstance(text, str):
                self._pieces.append(text)
            choices.append({**choice, "delta": {}})
        return self._events.chunk({**value, "choices": choices})

    def done(self) -> bytes:
        """Return the events of the item, and the last one."""
        try:
            item = self._item_of("".join(self._pieces))
        except UpstreamFailed as failed:
            return self.error({"message": failed.message, "code": failed.code})
        written: list[bytes] = []
        self._events.add_item(item, written)
        return b"".join(written) + self._events.done()

    def prepared(self) -> bytes:
        """Return all events of a response that is to have no output."""
        return self._events.prepared()

    def error(self, error: Mapping[str, Any]) -> bytes:
        """See `StreamWriter.error`."""
        return self._events.error(error)
