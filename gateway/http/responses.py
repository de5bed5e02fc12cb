"""Send replies (step 10) as JSON or server-sent events, with the headers that explain how they were made."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.request.reply import Header, is_error
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.errors import ApiError
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_CHUNK: Final = b"data: {"
_NULL_USAGE: Final = b'"usage":null}\n\n'


def explain(trace: Trace, ledger: Ledger) -> list[Header]:
    """Return the x-tierline-* headers and server-timing, with the values known so far.

    `openai-processing-ms` is in whole milliseconds from the request to the reply's head, as in OpenAI's API.
    """
    overhead = overhead_ms(trace)
    headers: list[Header] = [
        (b"x-request-id", ledger.request_id.encode("latin-1")),
        (b"openai-processing-ms", b"%d" % (trace.root.seconds * 1000)),
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
    add((b"x-tierline-attempts", b"%d" % ledger.attempts))
    add((b"x-tierline-overhead-ms", b"%.2f" % overhead))
    if not ledger.stream:
        add((b"x-tierline-cost-usd", b"%.8f" % ledger.cost_usd))
    if len(trace.hops) > 1:
        add((b"server-timing", _server_timing(trace)))
    return headers


def reasons(trace: Trace) -> Header:
    """Return the header that `x-tierline-debug: 1` requests: each hop that has a reason, with that reason."""
    reasons_given = (
        f"{hop.name}: {reason}"
        for hop in trace.hops
        if (reason := hop.attributes.get(names.REASON) or hop.attributes.get(names.CACHE_REASON))
    )
    return b"x-tierline-reason", " ".join("; ".join(reasons_given).split()).encode("ascii", "replace")


def _server_timing(trace: Trace) -> bytes:
    now = time.perf_counter_ns()
    return ", ".join(
        [f"{hop.name};dur={((hop.end_ns or now) - hop.start_ns) / 1e6:.2f}" for hop in trace.hops[1:]]
    ).encode()


def overhead_ms(trace: Trace) -> float:
    """Return the gateway's own milliseconds so far: the request's time less waits for backends and shared answers."""
    root = trace.root
    taken = (root.end_ns or time.perf_counter_ns()) - root.start_ns
    return max(0, taken - trace.waited_ns(names.ATTEMPT, names.CACHE_FOLLOW)) / 1e6


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


async def send_error(
    send: Any, error: ApiError, headers: list[Header], before_end: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Send an error envelope. `before_end` is awaited after the body was sent, before the response ends."""
    headers.extend(error.headers)
    await send_json(send, error.status, headers, error.body(), before_end)


async def start_events(send: Any, headers: list[Header]) -> None:
    """Send the head of an event stream; every event follows in a message of its own."""
    headers.extend(_EVENTS)
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def with_null_usage(event: bytes) -> bytes:
    """Return an event with `"usage":null` added if it is a chunk without usage.

    With `stream_options.include_usage`, OpenAI's API sends that in every chunk but the last; some backends leave it
    out.
    """
    if event.endswith(_NULL_USAGE) or not event.startswith(_CHUNK) or is_error(event):
        return event
    if b'"usage"' not in event and event.endswith(b"}\n\n"):
        return event[:-3] + b"," + _NULL_USAGE
    value = orjson.loads(event[len(b"data: ") :])
    if "usage" in value:
        return event
    return b"data: " + orjson.dumps({**value, "usage": None}) + b"\n\n"
