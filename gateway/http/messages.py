"""Read requests' bodies and send replies (step 10), JSON or server-sent events, with the headers that explain them.

The chat route makes its headers from its trace (see `explain`) and calls the functions here directly: wrapping `send`
would cost a coroutine for every chunk of a stream. `RequestIdMiddleware` wraps every other route. Those call no model
and have no trace, so their headers are known when the reply starts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.caller import ANYBODY, Caller
from gateway.errors import ApiError, RequestTooLarge, UnsupportedMediaType
from gateway.off_loop import off_loop
from gateway.request.context import ClientGone, Header, is_error_event
from gateway.request.load_shedding import SMALL_BODY, LoadShedder
from gateway.request.options import known_headers, valid_request_id
from gateway.telemetry import names
from gateway.telemetry.trace import new_request_id

if TYPE_CHECKING:
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace


_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_MOST_DROPPED: Final = 2048
"""Most bytes in x-tierline-dropped: some clients refuse a head of 8 KiB."""
_LONGEST_END: Final = 24
_MORE: Final = b", and %d more"
_CHUNK: Final = b"data: {"
_NULL_USAGE: Final = b'"usage":null}\n\n'


def explain(trace: Trace, ledger: Ledger) -> list[Header]:
    """Return the x-tierline-* headers and server-timing, with the values known so far.

    `openai-processing-ms` is in whole milliseconds from the request to the reply's head, as in OpenAI's API.
    """
    now, root = time.perf_counter_ns(), trace.root
    headers: list[Header] = [
        (b"x-request-id", ledger.request_id.encode("latin-1")),
        (b"openai-processing-ms", b"%d" % (((root.end_ns or now) - root.start_ns) // 1_000_000)),
    ]
    add = headers.append
    if ledger.surface:
        add((b"x-tierline-surface", ledger.surface.encode()))
        add((b"x-tierline-policy", ledger.policy.encode()))
    if ledger.path:
        add((b"x-tierline-path", ledger.path.encode()))
    if ledger.tier:
        add((b"x-tierline-tier", ledger.tier.encode()))
        add((b"x-tierline-model", ledger.model.encode("latin-1", "replace")))
    if ledger.difficulty is not None:
        add((b"x-tierline-difficulty", b"%.3f" % ledger.difficulty))
    if ledger.confidence is not None:
        add((b"x-tierline-confidence", b"%.3f" % ledger.confidence))
    if ledger.similarity is not None:
        add((b"x-tierline-similarity", b"%.3f" % ledger.similarity))
    if ledger.dropped:
        add((b"x-tierline-dropped", _dropped(ledger.dropped)))
    if (limit := root.attributes.get(names.OUTPUT_LIMIT)) is not None:
        add((b"x-tierline-output-limit", b"%d" % limit))
    if ledger.steered_from:
        add((b"x-tierline-budget", str(root.attributes[names.BUDGET]).encode("ascii", "replace")))
    add((b"x-tierline-attempts", b"%d" % ledger.attempts))
    add((b"x-tierline-overhead-ms", b"%.2f" % trace.overhead_ms()))
    if not ledger.stream:
        add((b"x-tierline-cost-usd", ledger.cost_shown.encode()))
    if len(trace.hops) > 1:
        times = ""
        for hop in trace.hops[1:]:
            times += f", {hop.name};dur={((hop.end_ns or now) - hop.start_ns) / 1e6:.2f}"
        add((b"server-timing", times[2:].encode()))
    return headers


def _dropped(paths: Sequence[str]) -> bytes:
    """Return paths for a header. The names in them may be the client's own, with any characters."""
    named = (path if path.isprintable() else ascii(path) for path in paths)
    listed = ", ".join(named).encode("ascii", "backslashreplace")
    if len(listed) <= _MOST_DROPPED:
        return listed
    kept = listed[: _MOST_DROPPED - _LONGEST_END]
    kept = kept[: max(0, kept.rfind(b", "))] or kept
    return kept + _MORE % (len(paths) - kept.count(b", ") - 1)


def reasons(trace: Trace) -> Header:
    """Return the header that `x-tierline-debug: 1` requests: each hop that has a reason, with that reason."""
    reasons_given = (
        f"{hop.name}: {reason}"
        for hop in trace.hops
        if (reason := hop.attributes.get(names.REASON) or hop.attributes.get(names.CACHE_REASON))
    )
    return b"x-tierline-reason", " ".join("; ".join(reasons_given).split()).encode("ascii", "replace")


async def send_json(
    send: Any,
    status: int,
    headers: list[Header],
    body: bytes,
    before_end: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send a JSON reply, in two messages that the server writes at once. `before_end` is awaited before its end."""
    headers.append(_JSON)
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if before_end is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await before_end()
        body = b""
    await send({"type": "http.response.body", "body": body})


async def start_events(send: Any, headers: list[Header]) -> None:
    """Send the head of an event stream; every event follows in a message of its own."""
    headers.extend(_EVENTS)
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def with_null_usage(event: bytes) -> bytes:
    """Return an event with `"usage":null` added if it is a chunk without usage.

    With `stream_options.include_usage`, OpenAI's API sends that in every chunk but the last; some backends leave it
    out.
    """
    if event.endswith(_NULL_USAGE) or not event.startswith(_CHUNK) or is_error_event(event):
        return event
    if b'"usage"' not in event and event.endswith(b"}\n\n"):
        return event[:-3] + b"," + _NULL_USAGE
    value = orjson.loads(event[len(b"data: ") :])
    if "usage" in value:
        return event
    return b"data: " + orjson.dumps({**value, "usage": None}) + b"\n\n"


_LINGER_S = 1.0
_JOINED_HERE: Final = 2 << 20
"""Most bytes of a body whose parts are joined on the event loop."""
_NOTHING_CALLED: Final = ((b"x-tierline-attempts", b"0"), (b"x-tierline-cost-usd", b"0.00000000"))


MESSAGES: Final = "/v1/messages"
"""The beginning of the paths whose clients are Anthropic's."""
REQUEST_ID: Final = "tierline.request_id"
"""The key of a scope under which RequestIdMiddleware puts the request's id."""


class RequestIdMiddleware:
    """Add to every reply of `app` the request id, the gateway's own time, and that no backend was called."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one HTTP request."""
        named = request_id_of(known_headers(scope["headers"]))
        request_id = named.encode("latin-1")
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
                if scope["path"].startswith(MESSAGES):
                    headers.append((b"request-id", request_id))
                message = {**message, "headers": headers}
            await send(message)

        await self._app({**scope, REQUEST_ID: named}, receive, explained)


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the client's own request id if it is valid, else a new one."""
    own = headers.get(b"x-request-id")
    return (valid_request_id(own) if own else None) or new_request_id()


async def read_body(
    receive: Any,
    headers: Mapping[bytes, bytes],
    limit: int,
    gate: LoadShedder,
    *,
    typed: bool = False,
    caller: Caller = ANYBODY,
) -> bytes:
    """Read the whole body. Raises ApiError, without reading on, if it exceeds `limit` bytes, is not declared as JSON,
    or has no room beside the bodies that the gate holds, of all or of this `caller`.

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
    if length.isdigit() and int(length) > SMALL_BODY:
        gate.hold(int(length), caller.sender, announced=True)
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
        if limit - left > SMALL_BODY:
            gate.hold(limit - left, caller.sender)
        more = message.get("more_body", False)
    if limit - left > _JOINED_HERE:  # Python's lock is not held for so long a copy
        return await off_loop(partial(b"".join, parts))
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
