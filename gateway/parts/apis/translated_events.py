"""Turn a stream of chat completions, as the pipeline sends it, into one in the client's dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import monotonic
from typing import TYPE_CHECKING, Final

import orjson

from gateway.request.context import QUIET_S, STILL_ALIVE, is_error_event

if TYPE_CHECKING:
    from gateway.parts.apis.dialects.client import StreamWriter

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


async def translated(events: AsyncGenerator[bytes], writer: StreamWriter) -> AsyncGenerator[bytes]:
    """Yield the events of a stream in the client's dialect, each in one write; comments go out before their event.

    A client that gets nothing of what the model writes, such as thinking that it has not asked for, is shown every two
    seconds that the stream lives: by an event, where its API has one for that.
    """
    quiet_since = 0.0
    try:
        async for event in events:
            comment, data = _parts(event)
            if data == _DONE:
                written = writer.done()
            elif event == STILL_ALIVE:
                comment, written = b"", writer.alive() or event
            elif not data:
                written = b""
            elif is_error_event(_DATA + data):
                written = writer.error(orjson.loads(data)["error"])
            else:
                written = writer.chunk(orjson.loads(data))
            if comment or written:
                quiet_since = 0.0
                yield comment + written
            elif not quiet_since:
                quiet_since = monotonic()
            elif monotonic() - quiet_since >= QUIET_S:
                quiet_since = 0.0
                yield writer.alive() or STILL_ALIVE
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
