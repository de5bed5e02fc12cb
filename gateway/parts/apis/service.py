"""Call a server for what is not a chat: any method and path, with bodies of any kind streamed in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from gateway.backends.base import (
    BadStatus,
    InvalidReply,
    Response,
    Saturated,
    TimedOut,
    Truncated,
    Unreachable,
    error_start,
    whole_body,
)
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.http_backend import retry_after_s
from gateway.parts.servers.refused_fields import RefusedFields
from gateway.tiers.endpoint import KeyRenewal

if TYPE_CHECKING:
    from gateway.backends.base import Identity

_WAIT_S: Final = 2.0
"""Longest wait in seconds for one of the service's `max_in_flight` places."""
_PAUSE_S: Final = 1.0
"""Seconds without a part of a streamed body after which its call gives its place to others."""
_UNLIMITED: Final = 1 << 30
_REPEATED: Final = frozenset({"GET", "DELETE"})
"""Methods whose requests may be sent again where a kept connection turns out to be closed."""
_BAD_KEY: Final = 401
_IDENTITY: Final = (None, "identity")


def _nobody() -> None:
    """Do nothing: it is not asked when a request is sent."""


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

    def __init__(self, response: Response, place: _Place, idle_timeout_s: float) -> None:
        self._response = response
        self._place = place
        self._idle_s = idle_timeout_s
        self.status = response.status
        self.header = response.header

    async def chunk(self) -> bytes:
        """Return the next bytes, b'' at the end. Raises BackendError."""
        try:
            async with asyncio.timeout(self._idle_s):
                return await self._response.chunk()
        except TimeoutError as error:
            raise TimedOut("the service was silent for too long") from error
        except Unreachable as error:
            raise Truncated(str(error)) from error

    async def read(self) -> bytes:
        """Return the whole body. Raises BackendError."""
        return await whole_body(self.chunk)

    def close(self) -> None:
        """End the call; the connection is kept only if the reply was read to its end. Safe to call twice."""
        self._place.end()
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
        kind: Literal["openai", "anthropic"] = "openai",
        identity: Identity | None = None,
    ) -> None:
        """Prepare at most `max_in_flight` calls at a time. `idle_timeout_s` is the longest silence of the service.

        `kind`: whose API it speaks, and so how it is sent the key. `identity`: of a cloud, in place of a key.
        """
        self._kind = kind
        self.renewal = KeyRenewal()
        """How often its key has changed, and what looks for another."""
        self.rekey(key)
        self.identity = identity
        """The identity of a cloud that its requests are sent with."""
        self._max_in_flight = max_in_flight
        self._idle_s = idle_timeout_s
        self._places = asyncio.Semaphore(max_in_flight)
        self.refused = RefusedFields(base_url)
        """The optional fields that the service has refused, and that it is not sent for some hours."""
        self._transport = Http1Transport(
            base_url, max_in_flight=_UNLIMITED, connect_timeout_s=connect_timeout_s, max_reply=max_reply
        )

    def rekey(self, key: str | None) -> None:
        """Send another key from now on."""
        self.renewal.changes += 1
        self._key = key or ""
        self._auth = {"X-Api-Key": self._key} if self._kind == "anthropic" else {"Authorization": f"Bearer {self._key}"}

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        query: str = "",
        clients_path: bool = False,
        sent: Callable[[], None] = _nobody,
    ) -> ServiceReply:
        """Return the reply of status 2xx, its body unread. Raises BackendError; BadStatus for any other status.

        `clients_path`: the client has chosen the path, and what is not there is the client's mistake. `sent` is called
        when all of the request is on its way: from then on the service may bill it.

        `path` follows the base URL, percent-encoded as it came. What `body` raises while it is read is raised here. The
        time that `body` takes for a part is not the service's silence, and the call holds no place for most of it.
        """
        place = _Place(self._places, f"the service has {self._max_in_flight} calls in flight")
        await place.take()
        try:
            changes = self.renewal.changes
            response = await self._request(method, path, headers, body, query, place, sent)
            may_repeat = response.status == _BAD_KEY and not isinstance(body, AsyncIterator)
            if may_repeat and await self.renewal.renewed(changes):
                response.close()
                response = await self._request(method, path, headers, body, query, place, sent)
            try:
                if not 200 <= response.status < 300:
                    refusal = await self._refusal(response)
                    if clients_path and refusal.blame == "model":
                        refusal.blame = "request"
                    raise refusal
                if response.header("Content-Encoding") not in _IDENTITY:
                    raise InvalidReply("a content encoding that was not asked for")
            except BaseException:
                response.close()
                raise
        except BaseException:
            place.end()
            raise
        return ServiceReply(response, place, self._idle_s)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()
        if self.identity is not None:
            await self.identity.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes] | None,
        query: str,
        place: _Place,
        sent: Callable[[], None],
    ) -> Response:
        all_headers = {**headers, "Accept-Encoding": "identity", "User-Agent": "tierline"}
        if self._key:
            all_headers |= self._auth
        if self.identity is not None:
            all_headers = await self.identity.signed(method, path, all_headers, b"")
        chunked = isinstance(body, AsyncIterator) and "Content-Length" not in all_headers
        if isinstance(body, AsyncIterator):
            all_headers["Connection"] = "close"
            if chunked:
                all_headers["Transfer-Encoding"] = "chunked"
        elif body is not None or method == "POST":
            all_headers["Content-Length"] = str(len(body or b""))
        head = self._transport.head(method, f"{path}{'?' if query else ''}{query}", all_headers) + b"\r\n\r\n"
        try:
            async with asyncio.timeout(self._idle_s) as limit:
                if isinstance(body, AsyncIterator):
                    parts = _parts(body, limit, self._idle_s, place, sent)
                    return await self._transport.upload(head, _in_chunks(parts) if chunked else parts)
                sent()
                return await self._transport.exchange(head + (body or b""), may_repeat=method in _REPEATED)
        except TimeoutError as error:
            raise TimedOut("no answer in time") from error

    async def _refusal(self, response: Response) -> BadStatus:
        """Return the error of a status that is not 2xx, with the start of its body, less our key where it quotes it."""
        body = await error_start(response)
        if self._key:
            body = body.replace(self._key.encode(), b"***")
        if self.identity is not None:
            body = self.identity.without_secrets(body)
            if response.status == 401:
                self.identity.refused()
        return BadStatus(response.status, body, retry_after_s(response.header))


async def _parts(
    source: AsyncIterator[bytes], limit: asyncio.Timeout, idle_s: float, place: _Place, sent: Callable[[], None]
) -> AsyncGenerator[bytes]:
    """Yield the parts of a body. The service's time limit stands still while a part is awaited, and the call's place is
    lent to others meanwhile.
    """
    loop = asyncio.get_running_loop()
    while True:
        _move(limit, None)
        pause = loop.call_later(_PAUSE_S, place.lend)
        try:
            part = await anext(source, None)
        finally:
            pause.cancel()
        await place.take()
        _move(limit, loop.time() + idle_s)
        if part is None:
            sent()
            return
        yield part


async def _in_chunks(parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Frame the parts of a body whose length is not known (RFC 9112, section 7.1)."""
    async with contextlib.aclosing(parts):
        async for part in parts:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def _move(limit: asyncio.Timeout, when: float | None) -> None:
    """Move a time limit, unless it has ended: the reply may come before the end of the body."""
    with contextlib.suppress(RuntimeError):
        limit.reschedule(when)
