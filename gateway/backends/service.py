"""Call a server for what is not a chat: any method and path, with bodies of any kind streamed in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
from yarl import URL

from gateway.backends.base import (
    BackendError,
    BadStatus,
    InvalidReply,
    Saturated,
    TimedOut,
    Truncated,
    Unreachable,
    in_words,
)
from gateway.backends.quota import number_in
from gateway.backends.refused_fields import RefusedFields

_ERROR_BODY: Final = 64 << 10
_ERROR_BODY_S: Final = 1.0
_WAIT_S: Final = 2.0
"""Longest wait in seconds for one of the service's `max_in_flight` places."""
_PAUSE_S: Final = 1.0
"""Seconds without a part of a streamed body after which its call gives its place to others."""
_BUFFER: Final = 1 << 17
_IDENTITY: Final = (None, "identity")


class _Place:
    """One call's place among the service's `max_in_flight`: taken, given to others for a while, or ended."""

    def __init__(self, places: asyncio.Semaphore, full: str) -> None:
        self._places = places
        self._full = full
        self._taken = self._ended = False

    async def take(self) -> None:
        """Wait for a place, unless the call has one or has ended. Raises Saturated."""
        if self._taken or self._ended:
            return
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise Saturated(self._full, 1.0) from None
        if self._ended:
            self._places.release()
        else:
            self._taken = True

    def lend(self) -> None:
        """Let others have the place until `take` is called again."""
        if self._taken:
            self._taken = False
            self._places.release()

    def end(self) -> None:
        """Give the place back for good."""
        self.lend()
        self._ended = True


class ServiceReply:
    """A reply of status 2xx whose head has come. Close it."""

    def __init__(
        self, response: aiohttp.ClientResponse, place: _Place, *, max_reply: int, idle_timeout_s: float
    ) -> None:
        self._response = response
        self._place = place
        self._left = max_reply
        self._idle_s = idle_timeout_s
        self._open = True
        self.status = response.status
        self.headers = response.headers

    async def chunk(self) -> bytes:
        """Return the next bytes, b'' at the end. Raises BackendError."""
        try:
            async with asyncio.timeout(self._idle_s):
                part = await self._response.content.readany()
        except TimeoutError as error:
            raise TimedOut("the service was silent for too long") from error
        except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
            raise Truncated(in_words(error, "the connection ended before the reply did")) from error
        self._left -= len(part)
        if self._left < 0:
            raise InvalidReply("the reply is larger than max_reply")
        return part

    async def read(self) -> bytes:
        """Return the whole body. Raises BackendError."""
        parts: list[bytes] = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """End the call; the connection is kept only if the reply was read to its end. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        self._place.end()
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class ServiceClient:
    """Call one service with the deployment's key for it. Redirects are not followed."""

    def __init__(
        self,
        base_url: str,
        key: str | None,
        *,
        max_in_flight: int,
        max_reply: int,
        connect_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        """Prepare at most `max_in_flight` calls at a time. `idle_timeout_s` is the longest silence of the service."""
        self._base_url = base_url
        self._key = key or ""
        self._max_in_flight = max_in_flight
        self._max_reply = max_reply
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_timeout_s
        self._places = asyncio.Semaphore(max_in_flight)
        self.refused = RefusedFields(base_url)
        """The optional fields that the service has refused, and that it is not sent for some hours."""
        # Created on first use: aiohttp needs a running event loop, and each worker process has its own.
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        query: str = "",
        clients_path: bool = False,
    ) -> ServiceReply:
        """Return the reply of status 2xx, its body unread. Raises BackendError; BadStatus for any other status.

        `clients_path`: the client has chosen the path, and what is not there is the client's mistake.

        `path` follows the base URL, percent-encoded as it came. What `body` raises while it is read is raised here. The
        time that `body` takes for a part is not the service's silence, and the call holds no place for most of it.
        """
        place = _Place(self._places, f"the service has {self._max_in_flight} calls in flight")
        await place.take()
        try:
            response = await self._request(method, path, headers, body, query, place)
            try:
                if not 200 <= response.status < 300:
                    refusal = await self._refusal(response)
                    if clients_path and refusal.blame == "model":
                        refusal.blame = "request"
                    raise refusal
                if response.headers.get("Content-Encoding") not in _IDENTITY:
                    raise InvalidReply("a content encoding that was not asked for")
            except BaseException:
                response.close()
                raise
        except BaseException:
            place.end()
            raise
        return ServiceReply(response, place, max_reply=self._max_reply, idle_timeout_s=self._idle_s)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes] | None,
        query: str,
        place: _Place,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s, sock_read=None),
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_BUFFER,
                skip_auto_headers=("Content-Type", "User-Agent", "Accept"),
            )
        url = URL(f"{self._base_url}{path}{'?' if query else ''}{query}", encoded=True)
        sent = {**headers, "Accept-Encoding": "identity", "User-Agent": "tierline"}
        if self._key:
            sent["Authorization"] = f"Bearer {self._key}"
        if isinstance(body, AsyncIterator):
            # A connection of its own: one from the pool may be stale, and what was read of the body cannot be repeated.
            sent["Connection"] = "close"
        given = _StreamedBody(body, self._idle_s, place) if isinstance(body, AsyncIterator) else None
        try:
            async with asyncio.timeout(self._idle_s) as limit:
                data: object = body
                if given is not None:
                    data = given.parts(limit)
                return await self._session.request(method, url, data=data, headers=sent, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            if given is not None and given.error is not None:
                raise given.error from None
            raise _failure(error) from (error if isinstance(error, aiohttp.ClientConnectionError) else None)

    async def _refusal(self, response: aiohttp.ClientResponse) -> BadStatus:
        """Return the error of a status that is not 2xx, with the start of its body, less our key where it quotes it."""
        body = b""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_ERROR_BODY_S):
                while len(body) < _ERROR_BODY and (part := await response.content.readany()):
                    body += part
        if self._key:
            body = body.replace(self._key.encode(), b"***")
        return BadStatus(response.status, body[:_ERROR_BODY], _retry_after_s(response.headers))


class _StreamedBody:
    """A request body that is streamed from `source`; what that raises is kept in `error`.

    The service's time limit stands still while a part is awaited, and the call's place is lent to others meanwhile.
    """

    def __init__(self, source: AsyncIterator[bytes], idle_s: float, place: _Place) -> None:
        self._source = source
        self._idle_s = idle_s
        self._place = place
        self.error: Exception | None = None

    async def parts(self, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
        """Yield the parts."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                _move(limit, None)
                pause = loop.call_later(_PAUSE_S, self._place.lend)
                try:
                    part = await anext(self._source, None)
                finally:
                    pause.cancel()
                await self._place.take()
                _move(limit, loop.time() + self._idle_s)
                if part is None:
                    return
                yield part
        except Exception as error:
            self.error = error
            raise


def _move(limit: asyncio.Timeout, when: float | None) -> None:
    """Move a time limit, unless it has ended: the reply may come before the end of the body."""
    with contextlib.suppress(RuntimeError):
        limit.reschedule(when)


def _failure(error: Exception) -> BackendError:
    """Return our error for one of aiohttp's. Its text is not used: it may hold the request's headers, with our key."""
    if isinstance(error, TimeoutError):  # aiohttp's own time limits are of this class too
        return TimedOut("no answer in time")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return Unreachable("the connection was closed before a reply")
    if isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientSSLError)):
        return Unreachable(in_words(error, "no connection could be made"))
    return InvalidReply("the reply is not valid HTTP")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the service asks us to wait; None if it does not say, or as a date."""
    milliseconds = number_in(headers.get("retry-after-ms"))
    return number_in(headers.get("Retry-After")) if milliseconds is None else milliseconds / 1000
