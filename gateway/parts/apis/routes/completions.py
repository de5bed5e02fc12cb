"""`POST /v1/completions`: text completions, each prompt an exchange of its own through the pipeline of chats.

Of a request with several prompts, each is answered as if it had come alone: routed, judged, cached and recorded by
itself, under the request's id with its place behind a dot. Their answers are one reply; the first error ends it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import ApiError, InvalidRequest
from gateway.http.messages import read_body, request_id_of, send_json, start_events
from gateway.off_loop import off_loop
from gateway.parts.apis.dialects.completions import CompletionsClient, prompts_of
from gateway.parts.apis.translated_exchange import TranslatedExchange
from gateway.request.body import ChatBodies
from gateway.request.context import ClientConnection, ClientGone
from gateway.request.options import known_headers

if TYPE_CHECKING:
    from gateway.request.context import Header
    from gateway.steps import Steps

_MOST_PROMPTS: Final = 128
_AT_ONCE: Final = 8
"""Most prompts of one request that are answered at the same time, so that it does not fill the backends' queues."""
_MOST_ID: Final = 120
"""Most characters of the request's id before the dot."""
_SUMS: Final = {b"x-tierline-cost-usd": 8, b"x-tierline-attempts": 0}
"""Headers whose values are added up over the prompts, with their digits after the point."""
_UNKNOWN: Final = b"unknown"
"""A cost that nobody states the price for."""
_DROPPED: Final = b"x-tierline-dropped"
_LISTED: Final = {b"x-tierline-path", b"x-tierline-tier", b"x-tierline-model", b"x-tierline-continued-by", _DROPPED}
"""Headers of which the reply has each value that a prompt's reply has."""
_NAME: Final = b" x-tierline-"
"""How a name begins in a stream's comments, `=` and its value follow."""
_OF_REQUEST: Final = frozenset({b"x-request-id", b"content-length"})
_OF_ONE: Final = frozenset(
    {b"x-request-id", b"content-length", b"content-type", b"cache-control", b"x-accel-buffering", b"server-timing"}
)
"""Headers of one prompt's reply that the reply of all has with values of its own, or not at all."""
_DATA: Final = b"data: "


class TextCompletions:
    """Answer text completions with one worker's steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        given = GivenBody(receive)
        prompts = await self._prompts(scope, given)
        if given.model is not None and (passed := self.passed_on(given.model, scope, given, send)) is not None:
            await passed
        elif prompts is None or len(prompts) == 1:
            # Whatever is wrong with the body, the exchange finds it again and records the request.
            await TranslatedExchange(self._steps, self._bodies, scope, given.receive, send, CompletionsClient()).run()
        else:
            await _Batch(self._steps, self._bodies, scope, given, send).run(prompts)

    def passed_on(self, model: str, scope: Any, given: GivenBody, send: Any) -> Coroutine[Any, Any, None] | None:
        """Return what answers a request for this model in another way than as chats; None if nothing does."""
        return None

    async def _prompts(self, scope: Any, given: GivenBody) -> list[str] | None:
        """Return the prompts of a request that may be read; None for one that the exchange refuses, or is gone."""
        headers = known_headers(scope["headers"])
        try:
            self._steps.gate.check()
            self._steps.guard.check(headers)
            caller = await self._steps.authenticator.find(headers)
            limit, gate = self._steps.deployment.limits.body, self._steps.gate
            raw = await read_body(given.receive, headers, limit, gate, typed=self._steps.guard.active, caller=caller)
            given.body, given.large = await self._bodies.read_object(raw)
            model = given.body.get("model")
            given.model = model if isinstance(model, str) else None
            return prompts_of(given.body)
        except (ApiError, ClientGone):
            return None
        finally:
            given.rewind()


class GivenBody:
    """The messages of a request, which can be received once more: those that were read, then the rest.

    `receive` is bound to this object, so it also stands for the connection: see `ClientConnection`.
    """

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._connection: ClientConnection | None = getattr(receive, "__self__", None)
        self._read: list[Any] = []
        self._again = 0
        self._rewound = False
        self.body: dict[str, Any] = {}
        self.large = False
        self.model: str | None = None
        """The body's model, once it was read."""

    @property
    def transport(self) -> Any:
        """The connection's transport, by which a reply that breaks off is ended; None where there is no socket."""
        return getattr(self._connection, "transport", None)

    async def receive(self) -> Any:
        if self._rewound and self._again < len(self._read):
            self._again += 1
            return self._read[self._again - 1]
        message = await self._receive()
        if not self._rewound:
            self._read.append(message)
        return message

    def rewind(self) -> None:
        self._rewound = True

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """See `ClientConnection.when_gone`."""
        if self._connection is not None and hasattr(self._connection, "when_gone"):
            self._connection.when_gone(callback)


class _Part:
    """One prompt of several: the ASGI messages of its exchange, and its place in the request's connection."""

    def __init__(self, on_event: Callable[[_Part, bytes], Coroutine[Any, Any, None]] | None) -> None:
        self.body = b""
        self._on_event = on_event
        self._on_gone: Callable[[], None] | None = None
        self.status = 0
        self.headers: list[Header] = []
        self.told: dict[bytes, bytes] = {}
        """Values of the headers, and of what the comments said of more."""
        self.late: dict[bytes, bytes] = {}
        """What the comments said."""
        self.sent = b""
        """The body of a whole reply or an error."""

    async def receive(self) -> Any:
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            self.told = dict(self.headers)
        elif self._on_event is not None and self.status == 200:
            if body := message.get("body"):
                await self._on_event(self, body)
        else:
            self.sent += message.get("body", b"")

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """See `ClientConnection.when_gone`."""
        self._on_gone = callback

    def gone(self) -> None:
        """Tell the exchange that the client has disconnected."""
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()


class _Batch:
    """The prompts of one request, answered beside each other, and the reply made of their answers."""

    def __init__(self, steps: Steps, bodies: ChatBodies, scope: Any, given: GivenBody, send: Any) -> None:
        self._steps = steps
        self._bodies = bodies
        self._scope = scope
        self._given = given
        self._send = send
        self._request_id = request_id_of(known_headers(scope["headers"]))
        self._parts: list[_Part] = []
        self._usage: dict[str, Any] | None = None
        self._usage_event: dict[str, Any] = {}
        self._sending = asyncio.Lock()
        self._head_sent = False
        self._failed = False
        self._gone = False

    async def run(self, prompts: list[str]) -> None:
        """Answer the request."""
        body = self._given.body
        if len(prompts) > _MOST_PROMPTS:
            message = f"prompt has {len(prompts)} texts; send at most {_MOST_PROMPTS}."
            error = InvalidRequest(message, code="unsupported_value", param="prompt")
            await send_json(
                self._send, error.status, [(b"x-request-id", self._request_id.encode("latin-1"))], error.body()
            )
            return
        count = body.get("n")
        n = count if isinstance(count, int) and count > 0 else 1
        stream = body.get("stream") is True
        on_event = self._event if stream else None
        self._parts = [_Part(on_event) for _ in prompts]
        self._given.when_gone(self._left)
        free = asyncio.Semaphore(_AT_ONCE)
        tasks = [asyncio.create_task(self._answer(place, prompt, n, free)) for place, prompt in enumerate(prompts)]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:  # the gateway stops: each exchange says so in its reply
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        finally:
            self._given.when_gone(None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._gone:
            await (self._end_stream() if self._head_sent else self._send_whole(stream=stream))

    async def _answer(self, place: int, prompt: str, n: int, free: asyncio.Semaphore) -> None:
        """Answer one prompt, unless another has failed before its turn."""
        part = self._parts[place]
        async with free:
            if self._failed or self._gone:
                return
            # Made now, not for all prompts at once: what is beside the prompt may be large.
            write = partial(orjson.dumps, {**self._given.body, "prompt": prompt})
            part.body = await off_loop(write) if self._given.large else write()
            headers = [(name, value) for name, value in self._scope["headers"] if name not in _OF_REQUEST]
            headers.append((b"x-request-id", f"{self._request_id[:_MOST_ID]}.{place}".encode("latin-1")))
            scope, dialect = {**self._scope, "headers": headers}, CompletionsClient(place * n)
            await TranslatedExchange(self._steps, self._bodies, scope, part.receive, part.send, dialect).run()
            part.body = b""
            self._failed = self._failed or part.status != 200

    def _left(self) -> None:
        self._gone = True
        for part in self._parts:
            part.gone()

    async def _event(self, part: _Part, data: bytes) -> None:
        """Send a piece of one prompt's stream; its end, usage and what it says there are kept for the end of all."""
        comment, event = _parted(data)
        for said in comment.rstrip().split(_NAME)[1:]:
            rest, _, value = said.partition(b"=")
            name = _NAME[1:] + rest
            if name == _DROPPED and name in part.told:
                value = part.told[name] + b"," + value
            part.told[name] = part.late[name] = value
        if event == b"[DONE]\n\n" or self._failed:
            return
        if event.startswith(b'{"error":'):
            self._failed = True
            event = self._comment() + _DATA + event
        elif b'"choices":[]' in event:
            self._usage_event = orjson.loads(event)
            self._usage = _added(self._usage, self._usage_event.get("usage"))
            return
        else:
            event = _DATA + event if event.strip() else comment
        async with self._sending:
            if not self._head_sent:
                self._head_sent = True
                await start_events(self._send, self._headers())
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    def _comment(self) -> bytes:
        """Return the comment line with what the prompts' streams have said at their ends."""
        late = dict.fromkeys([*_SUMS, *(name for part in self._parts for name in part.late)])
        trailers = [(name, self._merged(name)) for name in late]
        return b":" + b"".join(b" %b=%b" % (name, value) for name, value in trailers if value) + b"\n"

    async def _end_stream(self) -> None:
        """Send what the prompts' streams had at their ends: an error, or usage, costs and the end."""
        if refused := [part for part in self._parts if part.status not in (0, 200)]:
            last = self._comment() + _DATA + refused[0].sent + b"\n\n"
        elif self._failed:
            last = b""
        else:
            usage = self._usage_event | {"usage": self._usage}
            last = b"" if self._usage is None else _DATA + orjson.dumps(usage) + b"\n\n"
            last += self._comment() + _DATA + b"[DONE]\n\n"
        await self._send({"type": "http.response.body", "body": last})

    async def _send_whole(self, *, stream: bool) -> None:
        """Send the answers as one, or the first error."""
        refused = [part for part in self._parts if part.status not in (0, 200)]
        if refused or stream:
            part = (refused or self._parts)[0]
            headers = [header for header in part.headers if header[0] not in (b"content-length", b"content-type")]
            headers = [
                (name, self._request_id.encode("latin-1") if name == b"x-request-id" else value)
                for name, value in headers
            ]
            await send_json(self._send, part.status, headers, part.sent)
            return
        values = [orjson.loads(part.sent) for part in self._parts]
        reply = values[0] | {"choices": [choice for value in values for choice in value["choices"]]}
        usage: dict[str, Any] | None = None
        for value in values:
            usage = _added(usage, value.get("usage"))
        if usage is not None:
            reply["usage"] = usage
        await send_json(self._send, 200, self._headers(), orjson.dumps(reply))

    def _headers(self) -> list[Header]:
        """Return the headers of the reply so far. A stream's costs are in its last comment."""
        left_out = _OF_ONE | _SUMS.keys() if self._head_sent else _OF_ONE
        known = dict.fromkeys(name for part in self._parts for name in part.told if name not in left_out)
        headers = [(name, value) for name in known if (value := self._merged(name))]
        return [(b"x-request-id", self._request_id.encode("latin-1")), *headers]

    def _merged(self, name: bytes) -> bytes:
        """Return what all prompts' replies say so far: a sum, each value, or the one that all have; b'' for none."""
        begun = [part.told for part in self._parts if part.told]
        values = [told[name] for told in begun if name in told]
        if name in _SUMS:
            return _shown(name, sum(map(_amount, values)))
        if name in _LISTED:
            return b", ".join(dict.fromkeys(name.strip() for value in values for name in value.split(b",")))
        return values[0] if values == values[:1] * len(begun) else b""


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """Return the comment lines before an event, and the event's data with its end; either may be empty."""
    if data.startswith(_DATA):
        return b"", data[len(_DATA) :]
    at = data.find(b"\n" + _DATA)
    return (data, b"") if at < 0 else (data[:at], data[at + 1 + len(_DATA) :])


def _amount(value: bytes) -> float:
    """Return the number in a header or comment; NaN for an unknown cost, which makes a sum unknown."""
    return math.nan if value == _UNKNOWN else float(value)


def _shown(name: bytes, total: float) -> bytes:
    """Return a sum for its header or comment."""
    return _UNKNOWN if math.isnan(total) else b"%.*f" % (_SUMS[name], total)


def _added(total: dict[str, Any] | None, usage: Any) -> dict[str, Any] | None:
    """Return the sum of two usages, member by member; None where a usage is not known."""
    if not isinstance(usage, Mapping):
        return total
    added = dict(total or {})
    for name, value in usage.items():
        if isinstance(value, Mapping):
            added[name] = _added(added.get(name), value)
        elif isinstance(value, int | float):
            added[name] = added.get(name, 0) + value
    return added
