"""Server-sent events, as model endpoints send them: bytes in, the data of whole events out."""

from __future__ import annotations

from typing import Final

from gateway.backends.base import InvalidReply

DONE: Final = b"[DONE]"
_MAX_EVENT = 4 << 20


class EventParser:
    """Feeds on bytes cut anywhere; takes LF, CRLF and CR line ends, comments, and data with or without a space."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes, in order; raises InvalidReply for an event over 4 MiB."""
        rest = self._rest + chunk if self._rest else chunk
        if b"\r" in rest:
            rest = _with_lf(rest)
        blocks = rest.split(b"\n\n")
        self._rest = blocks.pop()
        if len(self._rest) > _MAX_EVENT:
            raise InvalidReply("an event is larger than 4 MiB")
        return [data for block in blocks if (data := _data(block))]


def _with_lf(rest: bytes) -> bytes:
    # A CR at the very end may be half of a CRLF: it waits for what comes next.
    tail = b"\r" if rest.endswith(b"\r") else b""
    whole = rest[: len(rest) - len(tail)]
    return whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail


def _data(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
