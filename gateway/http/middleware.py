"""The door: what requests meet before a route sees them, and our headers on what goes out again.

`Door` is the ASGI middleware of every route but chat completions: none of those calls a model, so none has a trace, and
what there is to say of it is known when the reply starts. The hot route says the same and more from its trace (see
`gateway.http.responses.explain`), and calls what it shares with the others, here, directly: the request id, the tenant
a key stands for, the body within its limit. A wrapped `send` costs a coroutine for every chunk of a stream.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import time
from collections.abc import Mapping
from typing import Any, Final

from gateway.config.addresses import is_loopback
from gateway.config.schema import DEFAULT_TENANT, Deployment, TenantConfig, key_digest
from gateway.errors import ApiError, Forbidden, RequestTooLarge, Unauthorized, UnsupportedMediaType
from gateway.request.disconnect import ClientGone
from gateway.request.options import known_headers, valid_request_id

# See telemetry.trace: ids must differ, not be secret.
_ids = random.Random()  # noqa: S311
_BEARER = b"bearer "
_LINGER_S = 1.0
_TO_ALLOW: Final = "access.hosts in its config allows more names, and with tenants any name will do"
_NOBODY: Final = (bytes(32), "")
"""What an unknown key is compared with, so that it takes as long as a known one."""
_NOTHING_CALLED: Final = ((b"x-tierline-attempts", b"0"), (b"x-tierline-cost-usd", b"0.00000000"))


class Door:
    """ASGI middleware: the request id, our own time, and that no backend was called, on every reply of `app`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one HTTP request."""
        request_id = request_id_of(known_headers(scope["headers"])).encode("latin-1")
        started = time.perf_counter_ns()

        async def explained(message: Any) -> None:
            if message["type"] == "http.response.start":
                overhead_ms = (time.perf_counter_ns() - started) / 1e6
                headers = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id),
                    (b"openai-processing-ms", b"%d" % overhead_ms),
                    (b"x-tierline-overhead-ms", b"%.2f" % overhead_ms),
                    *_NOTHING_CALLED,
                ]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, explained)


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id where it may be echoed, else a new one."""
    return valid_request_id(headers.get(b"x-request-id")) or f"req_{_ids.getrandbits(96):024x}"


def bearer_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request was sent with; empty if there is none."""
    value = headers.get(b"authorization", b"")
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""


class Tenants:
    """Who a key stands for. Keys are known by their SHA-256 alone; without tenants everyone is `default`.

    A key costs one hash and one lookup, however many tenants there are, and an unknown key costs the same.
    """

    def __init__(self, tenants: Mapping[str, TenantConfig]) -> None:
        self._by_digest = {digest: (digest, name) for name, tenant in tenants.items() for digest in tenant.key_digests}
        self._open = not tenants

    def of(self, headers: Mapping[bytes, bytes]) -> str:
        """The tenant of a request; raises Unauthorized."""
        if self._open:
            return DEFAULT_TENANT
        digest = key_digest(bearer_key(headers))
        known, tenant = self._by_digest.get(digest, _NOBODY)
        if not hmac.compare_digest(known, digest):
            raise Unauthorized("The API key is missing or unknown. Send it as 'Authorization: Bearer KEY'.")
        return tenant


class LoopbackGuard:
    """Refuse what a web page sends to a gateway that asks for no key because it listens on loopback.

    Any page that a person on this machine opens can send requests to 127.0.0.1, or to a name of its own that resolves
    there (DNS rebinding), and would spend the gateway's keys. A browser names both in headers that no page can forge.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.active = deployment.keyless and is_loopback(deployment.host)
        """Where it is not, every request has a key, or the config says that strangers are kept out."""
        self._names = frozenset(deployment.access.hosts)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Forbidden for a request to a name that is not this machine's, or from another site's page."""
        if not self.active:
            return
        host = headers.get(b"host")
        if host is not None and not self._allows(host):
            raise Forbidden(f"This gateway asks for no key, so it answers to names of this machine alone; {_TO_ALLOW}.")
        origin = headers.get(b"origin")
        if origin is not None and not self._allows(origin.partition(b"://")[2]):
            message = f"This gateway asks for no key, so no page of another site may use it; {_TO_ALLOW}."
            raise Forbidden(message, code="origin_not_allowed")

    def _allows(self, authority: bytes) -> bool:
        """Whether `authority`, a name or an address with or without a port, is loopback or named by the config."""
        text = authority.decode("latin-1").lower()
        name = text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]
        return name in self._names or is_loopback(name)


def is_operator(headers: Mapping[bytes, bytes], deployment: Deployment) -> bool:
    """Whether the sender may read what the gateway knows of all tenants: metrics, models, and what is degraded."""
    if deployment.keyless or deployment.access.public_metrics:
        return True
    admin, key = deployment.admin, bearer_key(headers)
    return admin is not None and admin.key is not None and bool(key) and _same(key, admin.key.get_secret_value())


def _same(key: bytes, known: str) -> bool:
    return hmac.compare_digest(key_digest(key), key_digest(known.encode()))


async def read_body(receive: Any, headers: Mapping[bytes, bytes], limit: int, *, typed: bool = False) -> bytes:
    """Read the whole body. Raises ApiError before reading what would be too much, or is not JSON.

    `typed`: a body without a content type is refused too; else it is taken for JSON.
    """
    content_type = headers.get(b"content-type", b"" if typed else None)
    if content_type is not None and content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMediaType("Send the body as application/json.")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise UnsupportedMediaType("Send the body without a content encoding.")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    left = limit
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def linger(receive: Any) -> None:
    """Reads on for a moment, to nowhere, after a refusal: a client that is still sending would otherwise find the
    connection reset, and never see why.
    """
    try:
        async with asyncio.timeout(_LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    except TimeoutError:
        pass


def _too_large(limit: int) -> ApiError:
    # Closing is the only way not to read the rest.
    return RequestTooLarge(f"The body is larger than {limit} bytes.", headers=((b"connection", b"close"),))
