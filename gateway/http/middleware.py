"""The door: what requests meet before a route sees them, and our headers on what goes out again.

`RequestIdMiddleware` is the ASGI middleware of every route but chat completions: none of those calls a model, so none
has a trace, and what there is to say of it is known when the reply starts. The hot route says the same and more from
its trace (see `gateway.http.responses.explain`), and calls what it shares with the others, here, directly: the request
id, the tenant a key stands for, the body within its limit. A wrapped `send` costs a coroutine for every chunk of a
stream.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, Final

from gateway.errors import ApiError, RequestTooLarge, UnsupportedMediaType
from gateway.request.disconnect import ClientGone
from gateway.request.options import known_headers, valid_request_id

# See telemetry.trace: ids must differ, not be secret.
_ids = random.Random()  # noqa: S311
_LINGER_S = 1.0
_NOTHING_CALLED: Final = ((b"x-tierline-attempts", b"0"), (b"x-tierline-cost-usd", b"0.00000000"))


class RequestIdMiddleware:
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
