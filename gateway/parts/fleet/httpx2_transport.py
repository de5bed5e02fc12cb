"""Transport on httpx2, used where HTTP/2 or a proxy is configured."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial

import httpx2

from gateway.backends.base import (
    InvalidReply,
    Payload,
    Response,
    TimedOut,
    Unreachable,
    drain,
    in_one_piece,
    in_words,
    whole_body,
)


class Httpx2Transport:
    """Send requests as Http1Transport does, over HTTP/2 or through a proxy too."""

    def __init__(
        self,
        url: str,
        *,
        max_in_flight: int,
        connect_timeout_s: float,
        max_reply: int,
        http2: bool = False,
        proxy: str | None = None,
    ) -> None:
        self._url = url
        self._max_reply = max_reply
        self._open = partial(
            httpx2.AsyncClient,
            verify=verifying_context_of(http2=http2),
            http2=http2,
            proxy=proxy,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(None, connect=connect_timeout_s),
        )
        self._client = self._open(
            limits=httpx2.Limits(max_connections=max_in_flight, max_keepalive_connections=max_in_flight)
        )
        self._poolless: httpx2.AsyncClient | None = None

    async def send(
        self, headers: Mapping[str, str], body: Payload, traceparent: str = "", tracestate: str = ""
    ) -> Response:
        """See `Transport.send`."""
        if traceparent:
            headers = {**headers, "traceparent": traceparent, **({"tracestate": tracestate} if tracestate else {})}
        try:
            response = await self._post(headers, in_one_piece(body))
        except httpx2.TimeoutException as error:
            raise TimedOut("no connection in time") from error
        except httpx2.RemoteProtocolError as error:
            ended = _ended_without_a_word(error)
            words = "the connection was closed before a reply" if ended else "the reply is not valid HTTP"
            raise Unreachable(words) from error
        except httpx2.TransportError as error:
            raise Unreachable(in_words(error, "no connection could be made")) from error
        return _Httpx2Response(response, self._max_reply)

    async def aclose(self) -> None:
        """Close every connection."""
        for client in (self._client, self._poolless):
            if client is not None:
                await client.aclose()

    async def _post(self, headers: Mapping[str, str], body: bytes) -> httpx2.Response:
        connected = False

        async def trace(event: str, _: Mapping[str, object]) -> None:
            nonlocal connected
            connected = connected or event.endswith("connect_tcp.started")

        # Not `build_request`, which adds the cookies that earlier replies have set, and headers of the library's own.
        request = partial(httpx2.Request, "POST", self._url, headers={"Accept": "*/*", **headers}, content=body)
        try:
            return await self._client.send(request(extensions={"trace": trace}), stream=True)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
            if connected or not _ended_without_a_word(error):
                raise
        # A new connection, not one from the pool: the server may have dropped the other idle ones too.
        if self._poolless is None:
            self._poolless = self._open(limits=httpx2.Limits(max_keepalive_connections=0))
        return await self._poolless.send(request(), stream=True)


def _ended_without_a_word(error: httpx2.TransportError) -> bool:
    # Invalid HTTP raises the same exception type; only the message distinguishes it from a closed connection.
    return not isinstance(error, httpx2.RemoteProtocolError) or str(error).startswith("Server disconnected")


@cache
def verifying_context_of(*, http2: bool) -> ssl.SSLContext:
    """Return the context of all backends with, or without, HTTP/2: httpx2 sets on it which of them a handshake offers.

    To make one takes 60 ms: it reads the certificates of the machine, or of SSL_CERT_FILE, as the other client does.
    """
    return ssl.create_default_context()


class _Httpx2Response:
    """A response whose reads run as tasks that survive their caller's cancellation; httpx2's iterators do not."""

    def __init__(self, response: httpx2.Response, max_reply: int) -> None:
        self._response = response
        self._bytes: AsyncIterator[bytes] = response.aiter_raw()
        self._pending: asyncio.Task[bytes] | None = None
        self._closed = False
        self._left = max_reply
        self.status = response.status_code

    def header(self, name: str) -> str | None:
        value: str | None = self._response.headers.get(name)
        return value

    async def read(self) -> bytes:
        return await whole_body(self.chunk)

    async def chunk(self) -> bytes:
        if self._closed:
            raise Unreachable("the call was closed")
        part = await self._chunk()
        self._left -= len(part)
        if self._left < 0:
            raise InvalidReply("the reply is larger than max_reply")
        return part

    async def _chunk(self) -> bytes:
        pending = self._pending
        if pending is None:
            pending = self._pending = asyncio.create_task(self._next())
        # Not shield(): the reader must get a cancelled read as an error, not as a cancellation of its own.
        await asyncio.wait([pending])
        self._pending = None
        if pending.cancelled():
            raise Unreachable("the call was closed")
        return pending.result()

    async def _next(self) -> bytes:
        try:
            return await anext(self._bytes, b"")
        except httpx2.TransportError as error:
            raise Unreachable(in_words(error, "the connection ended before the reply did")) from error

    def close(self, *, end_is_due: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pending is not None and not end_is_due:
            self._pending.cancel()
        drain(self._end(wait=end_is_due), None)

    async def _end(self, *, wait: bool) -> None:
        try:
            while wait and await self._chunk():
                pass
        finally:
            await self._abandon()
            with contextlib.suppress(httpx2.TransportError):
                await self._response.aclose()

    async def _abandon(self) -> None:
        """Cancel a read that no caller waits for any more, and retrieve its result."""
        if (pending := self._pending) is not None:
            pending.cancel()
            await asyncio.wait([pending])
            if not pending.cancelled():
                pending.exception()
