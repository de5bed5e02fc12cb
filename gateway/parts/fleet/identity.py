"""Add the identity of a cloud account to requests: credentials that end, renewed in a thread before they do.

The providers' own libraries find and fetch the credentials (module `clouds`), one fetch at a time. Requests
use those at hand and never wait for a renewal; they wait where there are none yet, and are refused, as by a server
that refuses our key, where none can be had.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from gateway.backends.base import BadStatus, Payload, Response, Transport, error_start, in_one_piece
from gateway.off_loop import off_loop
from policies.value_type import value_type

log = logging.getLogger("tierline.backends")
T = TypeVar("T")

_USED_OF_LIFE: Final = 0.75
"""Share of its life after which a credential is renewed."""
_LEAST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
"""Shortest and longest pause after a renewal that failed, in seconds; it doubles from one to the other."""
_LARGE: Final = 256 << 10
"""Size in bytes from which a request is signed off the event loop."""
_WORDS: Final = 300
_STALE: Final = frozenset({"ExpiredTokenException", "InvalidSignatureException", "UnrecognizedClientException"})
"""What AWS calls the refusal of credentials that ended or were revoked; others answer with status 401."""


class NoCredentials(Exception):
    """No credentials can be had. The message says why, in the words of the provider's library."""


def refusal_for(reason: str) -> BadStatus:
    """Return the error of a request that cannot be signed: that of a server which refuses our key."""
    error = {"message": f"no credentials: {reason}", "type": "authentication_error"}
    return BadStatus(401, orjson.dumps({"error": error}))


@value_type
class Credential:
    """Headers or keys that sign a request. `secrets` are its texts that are masked in errors and logs."""

    value: Any
    secrets: tuple[str, ...]
    ends: float = math.inf
    """Unix time at which it is of no use any more; infinite where that is not known."""
    renew_s: float | None = None
    """Seconds after which to renew it; None for a share of what it has to live."""


class CloudIdentity(ABC):
    """Hold one account's credential, and renew it from the first `renew` to `aclose`. Use it from one event loop."""

    def __init__(self) -> None:
        self.failure = ""
        """Why the last renewal failed, or is needed; '' if neither."""
        self._credential: Credential | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = 0.0

    @abstractmethod
    def fetch(self) -> Credential:
        """Return a credential. Called in a thread. Raises NoCredentials."""

    def tried(self) -> Credential | None:
        """Fetch a credential, and return it; None where there is none, for which `failure` is the reason."""
        try:
            credential = self.fetch()
        except Exception as error:  # noqa: BLE001  (of the library's making: whatever it is, the next try must come)
            first = next(iter(str(error).splitlines()), "")[:_WORDS]
            self.failure = first if isinstance(error, NoCredentials) else f"{type(error).__name__}: {first}"
            return None
        self.failure = ""
        return credential

    @abstractmethod
    def sign(self, credential: Credential, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        """Return the headers by which the request is this account's, as a mapping."""

    def reply(self, response: Response) -> Response:
        """Return a reply of status 200 in the form that backends read; here as it came."""
        return response

    def renew(self) -> asyncio.Task[None]:
        """Return the renewal that runs, or a new one."""
        if self._renewal is None or self._renewal.done():
            if self._timer is not None:
                self._timer.cancel()
            self._renewal = asyncio.create_task(self._renew(), name="tierline.identity")
        return self._renewal

    async def signed(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the headers to send with a request. Raises BadStatus where there are no credentials."""
        credential = self._credential
        if credential is None or credential.ends <= time.time():
            if not self.failure or self._renewal is None or not self._renewal.done():
                await asyncio.shield(self.renew())
            credential = self._credential
            if credential is None or credential.ends <= time.time():
                raise refusal_for(self.failure)
        sign = partial(self.sign, credential, method, url, headers, body)
        return {**headers, **(await off_loop(sign) if len(body) > _LARGE else sign())}

    def signing(self, transport: Transport, url: str) -> SignedTransport:
        """Return a transport that signs each request to `url` before `transport` sends it."""
        return SignedTransport(transport, url, self)

    def refused(self) -> None:
        """Fetch a new credential for later requests, as a server has refused the present one."""
        self.failure = "the server refuses them"
        self.renew()

    def without_secrets(self, body: bytes) -> bytes:
        """Return an error's body without what it may quote of the credential."""
        for secret in () if self._credential is None else self._credential.secrets:
            body = body.replace(secret.encode(), b"***")
        return body

    async def aclose(self) -> None:
        """Cancel the renewal of the token."""
        for task in (self._timer, self._renewal):
            if task is not None:
                task.cancel()

    async def _renew(self) -> None:
        before = self.failure
        credential = await _aside(self.tried)
        if credential is None:
            self._pause_s = pause_s = min(_LONGEST_PAUSE_S, max(_LEAST_PAUSE_S, self._pause_s * 2))
            if self.failure != before:
                kept = "" if self._credential is None else "; the old ones are used while they hold"
                log.warning("credentials cannot be renewed: %s%s", self.failure, kept)
        else:
            if before:
                log.warning("credentials were renewed")
            self._credential, self._pause_s = credential, 0.0
            left_s = (credential.ends - time.time()) * _USED_OF_LIFE
            pause_s = max(_LEAST_PAUSE_S, left_s if credential.renew_s is None else credential.renew_s)
        if pause_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self.renew)


async def _aside(call: Callable[[], T]) -> T:
    """Return what `call`, which raises nothing, returns: in a thread that nobody waits for when the process ends.

    Fetching credentials from a server that does not answer takes the libraries minutes.
    """
    loop, returned, results = asyncio.get_running_loop(), asyncio.Event(), list[T]()

    def run() -> None:
        results.append(call())
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(returned.set)

    threading.Thread(target=run, name="tierline.identity", daemon=True).start()
    await returned.wait()
    return results[0]


class SignedTransport:
    """Sign each request to `url` before `inner` sends it."""

    def __init__(self, inner: Transport, url: str, identity: CloudIdentity) -> None:
        self._inner = inner
        self._url = url
        self._identity = identity

    async def send(
        self, headers: Mapping[str, str], body: Payload, traceparent: str = "", tracestate: str = ""
    ) -> Response:
        """See `Transport.send`."""
        whole = in_one_piece(body)
        signed = await self._identity.signed("POST", self._url, headers, whole)
        response = await self._inner.send(signed, whole, traceparent, tracestate)
        if response.status == 200:
            return self._identity.reply(response)
        kind = (response.header("x-amzn-errortype") or "").partition(":")[0]
        if response.status == 401 or kind in _STALE:
            self._identity.refused()
        try:
            error = await error_start(response)
        finally:
            response.close()
        return _Refusal(response, self._identity.without_secrets(error), kind)

    async def aclose(self) -> None:
        """Close every connection. The identity may be others' too."""
        await self._inner.aclose()


class _Refusal:
    """An error whose body has been read. Its `kind`, which AWS names in a header alone, is put into the body."""

    def __init__(self, response: Response, body: bytes, kind: str) -> None:
        self.status = response.status
        self.header: Callable[[str], str | None] = response.header
        if kind:
            with suppress(orjson.JSONDecodeError, AttributeError):
                reply = orjson.loads(body)
                message = reply.get("message") or reply.get("Message")
                body = orjson.dumps({"error": {"message": message, "code": kind}})
        self._body = body

    async def read(self) -> bytes:
        return await self.chunk()

    async def chunk(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def close(self, *, end_is_due: bool = False) -> None:
        """Do nothing: the reply was closed when it had been read."""
