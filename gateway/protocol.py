"""The last word of the front door's HTTP: limits on a request's head, and refusals in the envelope.

httptools takes a head of any size and with any number of headers, all of it held in memory before the application hears
of the request, and takes two Hosts or keys, of which another proxy may read the other one. uvicorn refuses in
text/plain what does not parse. Everything else of HTTP is theirs.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import envelope
from gateway.gate import Gate
from gateway.middleware import request_id_of

_MAX_HEAD: Final = 64 << 10
_MAX_HEADERS: Final = 100
_MAX_URL: Final = 8 << 10
_LINGER_S: Final = 1.0

_Refusal = tuple[int, str, str]
_INVALID: Final[_Refusal] = (400, "invalid_http", "This is not a valid HTTP request.")
_TWICE: Final[_Refusal] = (400, "invalid_http", "Host and Authorization may come only once.")
_LONG_URL: Final[_Refusal] = (414, "url_too_long", f"The URL is longer than {_MAX_URL} bytes.")
_MANY: Final[_Refusal] = (431, "headers_too_large", f"The request has more than {_MAX_HEADERS} headers.")
_LARGE: Final[_Refusal] = (431, "headers_too_large", f"The request's headers are larger than {_MAX_HEAD} bytes.")


class HttpProtocol(HttpToolsProtocol):
    """One connection of the gateway's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gate: Gate = self.app_state["gate"]
        self._in_head = False
        self._read = 0
        self._late = 0
        """Bytes of a head that came after the read in which it began."""
        self._refusal = _INVALID
        self._refused = False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began = not self._in_head
        self._read = len(data)
        super().data_received(data)
        if self._in_head and not self._refused:
            self._late = 0 if began else self._late + len(data)
            if (fault := self._fault(self._late)) is not None:
                self._refusal = fault
                self.send_400_response(fault[1])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._late = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        # Added up only where it may be too much: a head is seldom larger than one read.
        size = self._late + self._read
        if size > _MAX_HEAD:
            size = sum(len(name) + len(value) for name, value in self.headers)
        if (fault := self._fault(size)) is not None:
            self._refusal = fault
            raise ValueError(fault)  # to the parser, which gives up, and so to send_400_response
        super().on_headers_complete()
        if not self._gate.keeps_alive:
            self.cycle.keep_alive = False

    def _fault(self, head: int) -> _Refusal | None:
        if len(self.url) > _MAX_URL:
            return _LONG_URL
        if len(self.headers) > _MAX_HEADERS:
            return _MANY
        if head > _MAX_HEAD:
            return _LARGE
        names = [name for name, _ in self.headers]
        return _TWICE if names.count(b"host") > 1 or names.count(b"authorization") > 1 else None

    def send_400_response(self, msg: str) -> None:
        """Refuses the request, and whatever else comes on this connection."""
        self._refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                # In the middle of an answer there is no place for another.
                self.transport.close()
                return
        self.transport.write(self._refusing())
        # A client that is still sending would find the connection reset, and never see why.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _refusing(self) -> bytes:
        status, code, message = self._refusal
        body = envelope(message, "invalid_request_error", None, code)
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id_of({})}\r\nconnection: close\r\n\r\n"
        )
        return STATUS_LINE[status] + head.encode() + body
