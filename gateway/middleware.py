"""The door: what every request gets before a route sees it, as plain ASGI.

A request id and a trace, the tenant its key stands for, the body within its limit; and at the way out, one envelope for
every error, whatever raised it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final

from gateway.client import ClientGone
from gateway.errors import ApiError, RequestTooLarge, Unauthorized, UnsupportedMediaType
from gateway.settings import TenantConfig
from gateway.wishes import valid_request_id

DEFAULT_TENANT: Final = "default"
_BEARER = b"bearer "
_LINGER_S = 1.0


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id where it may be echoed, else a new one."""
    return valid_request_id(headers.get(b"x-request-id")) or f"req_{secrets.token_hex(12)}"


class Tenants:
    """Who a key stands for. Keys are known by their SHA-256 alone; without tenants everyone is `default`."""

    def __init__(self, tenants: Mapping[str, TenantConfig]) -> None:
        self._by_hash = {
            hashlib.sha256(key.get_secret_value().encode()).digest(): name
            for name, tenant in tenants.items()
            for key in tenant.keys
        }
        self._open = not tenants

    def of(self, headers: Mapping[bytes, bytes]) -> str:
        """The tenant of a request; raises Unauthorized."""
        if self._open:
            return DEFAULT_TENANT
        value = headers.get(b"authorization", b"")
        key = value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""
        digest = hashlib.sha256(key).digest()
        found = ""
        for known, tenant in self._by_hash.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        if not found:
            raise Unauthorized("The API key is missing or unknown. Send it as 'Authorization: Bearer KEY'.")
        return found


async def read_body(receive: Any, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """The whole body; raises ApiError before reading what would be too much, or is not JSON."""
    content_type = headers.get(b"content-type")
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
