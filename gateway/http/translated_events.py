"""Turn a stream of chat completions, as the pipeline sends it, into one in the client's dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

import orjson

from gateway.request.reply import is_error

if TYPE_CHECKING:
    from gateway.dialects.client import StreamWriter

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


async def translated(events: AsyncGenerator[bytes], writer: StreamWriter) -> AsyncGenerator[bytes]:
    """Yield the events of a stream in the client's dialect, each in one write; comments go out before their event."""
    try:
        async for event in events:
            comment, data = _parts(event)
            if data == _DONE:
                written = writer.done()
            elif not data:
                written = b""
            elif is_error(_DATA + data):
                written = writer.error(orjson.loads(data)["error"])
            else:
                written = writer.chunk(orjson.loads(data))
            if comment or written:
                yield comment + written
    finally:
        await events.aclose()


def _parts(event: bytes) -> tuple[bytes, bytes]:
    """Return the comment lines before an event, if any, and the event's data without `data: ` and line breaks."""
    if event.startswith(_DATA):
        return b"", event[len(_DATA) : -2]
    at = event.find(b"\n" + _DATA)
    if at < 0:
        return event, b""
    return event[: at + 1], event[at + 1 + len(_DATA) : -2]
