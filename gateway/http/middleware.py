"""Handle what all routes share: the request id, the body and its limit, and the gateway's reply headers.

`RequestIdMiddleware` wraps every route but chat completions. Those routes call no model and have no trace, so their
headers are known when the reply starts. The chat route makes its headers from its trace (see
`gateway.http.responses.explain`) and calls the functions here directly: wrapping `send` would cost a coroutine for
every chunk of a stream.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, Final

from gateway.errors import ApiError, RequestTooLarge, UnsupportedMediaType
from gateway.request.context import ClientGone
from gateway.request.options import known_headers, valid_request_id

# Ids must be unique but not secret; see telemetry.trace.
_ids = random.Random()  # noqa: S311
_LINGER_S = 1.0
_NOTHING_CALLED: Final = ((b"x-tierline-attempts", b"0"), (b"x-tierline-cost-usd", b"0.00000000"))


class RequestIdMiddleware:
    """Add to every reply of `app` the request id, the gateway's own time, and that no backend was called."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one HTTP request."""
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
    """Return the client's own request id if it is valid, else a new one."""
    return valid_request_id(headers.get(b"x-request-id")) or f"req_{_ids.getrandbits(96):024x}"


async def read_body(receive: Any, headers: Mapping[bytes, bytes], limit: int, *, typed: bool = False) -> bytes:
    """Read the whole body. Raises ApiError, without reading on, if it exceeds `limit` bytes or is not declared as JSON.

    Raises ClientGone if the client disconnects. `typed`: refuse a body without a content type, instead of taking it for
    JSON.
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
    """Read and discard the rest of a refused body for up to 1 s.

    A client that is still sending would otherwise get a connection reset and could not read the refusal.
    """
    try:
        async with asyncio.timeout(_LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    except TimeoutError:
        pass


def _too_large(limit: int) -> ApiError:
    # Closing the connection is the only way not to read the rest of the body.
    return RequestTooLarge(f"The body is larger than {limit} bytes.", headers=((b"connection", b"close"),))
