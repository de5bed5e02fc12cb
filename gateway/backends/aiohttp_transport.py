"""Transport on aiohttp, for deployments that need its HTTP parser or TLS instead of Http1Transport's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import WeakSet

import aiohttp
from yarl import URL

from gateway.backends.base import InvalidReply, Response, TimedOut, Unreachable, drain, in_words

_KEEPALIVE_S = 30.0
_TOO_LARGE = "the reply is larger than max_reply"
_CUT_SHORT = "the connection ended before the reply did"


class AiohttpTransport:
    """POST to one URL over at most `max_in_flight` connections; refuse replies of more than `max_reply` bytes."""

    def __init__(self, url: str, *, max_in_flight: int, connect_timeout_s: float, max_reply: int) -> None:
        self._url = URL(url)
        self._max_reply = max_reply
        self._max_in_flight = max_in_flight
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=None)
        # Created on first use: aiohttp needs a running event loop, and each worker process has its own.
        self._session: aiohttp.ClientSession | None = None
        self._poolless: aiohttp.ClientSession | None = None

    async def send(
        self, headers: Mapping[str, str], body: bytes, traceparent: str = "", tracestate: str = ""
    ) -> Response:
        """See `Transport.send`."""
        if traceparent:
            headers = {**headers, "traceparent": traceparent, **({"tracestate": tracestate} if tracestate else {})}
        try:
            response = await self._post(headers, body)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError) as error:
            raise TimedOut("no connection in time") from error
        except aiohttp.ServerDisconnectedError as error:
            raise Unreachable("the connection was closed before a reply") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientSSLError) as error:
            raise Unreachable(in_words(error, "no connection could be made")) from error
        except (aiohttp.ClientError, ValueError):
            # `from None`: the cause holds the request's headers and with them our key.
            raise InvalidReply("the reply is not valid HTTP") from None
        return _AiohttpResponse(response, self._max_reply)

    async def aclose(self) -> None:
        """Close every connection."""
        for session in (self._session, self._poolless):
            if session is not None:
                await session.close()

    async def _post(self, headers: Mapping[str, str], body: bytes) -> aiohttp.ClientResponse:
        session = self._session
        if session is None:
            session = self._session = self._open(keepalive_timeout=_KEEPALIVE_S)
        try:
            return await session.post(self._url, data=body, headers=headers, allow_redirects=False)
        except _Stale:
            # A new connection, not one from the pool: the server may have dropped the other idle ones too.
            session = self._poolless
            if session is None:
                session = self._poolless = self._open(force_close=True)
            return await session.post(self._url, data=body, headers=headers, allow_redirects=False)

    def _open(self, **pool: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_in_flight, **pool),
            response_class=_Answer,
            timeout=self._timeout,
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1 << 17,  # reading stops at twice this many bytes, so a slow client can make us hold no more
        )


class _Stale(aiohttp.ClientConnectionError):
    """A reused connection ended without a reply: the server had closed it before the request arrived."""


class _Answer(aiohttp.ClientResponse):
    """An aiohttp response class that notes whether its connection was used before.

    aiohttp itself retries only idempotent methods, and POST is not one. This costs 1.4 us of CPU time per request; a
    TraceConfig would cost 12.
    """

    _used: ClassVar[WeakSet[object]] = WeakSet()

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        used = protocol in self._used
        if not used:
            self._used.add(protocol)
        try:
            return await super().start(connection)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if used:
                raise _Stale from error
            raise


class _AiohttpResponse:
    def __init__(self, response: aiohttp.ClientResponse, max_reply: int) -> None:
        self._response = response
        self._left = max_reply
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    async def read(self) -> bytes:
        length = self._response.content_length
        if length is not None:
            if length > self._left:
                raise InvalidReply(_TOO_LARGE)
            try:
                return await self._response.read()
            except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
                raise Unreachable(in_words(error, _CUT_SHORT)) from error
        parts: list[bytes] = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def chunk(self) -> bytes:
        try:
            part = await self._response.content.readany()
        except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
            raise Unreachable(in_words(error, _CUT_SHORT)) from error
        self._left -= len(part)
        if self._left < 0:
            raise InvalidReply(_TOO_LARGE)
        return part

    def close(self, *, end_is_due: bool = False) -> None:
        if self._response.content.at_eof():
            self._response.release()
        elif end_is_due:
            drain(self._to_end(), self._response.close)
        else:
            self._response.close()

    async def _to_end(self) -> None:
        while await self.chunk():
            pass
