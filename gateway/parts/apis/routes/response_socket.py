"""Serve the Responses API over WebSockets: each message of a client is a request, its answer's events are messages.

A message `response.create` has the members of a body of `POST /v1/responses`, and is answered as that is, by the same
exchange; each event is a text of its own. A connection answers one request at a time; further ones wait for their turn.
What it holds counts among the bodies.

handshake   load, sender and key as of any request; it counts against the key's limits as the first request that the
            connection will send, and against the most connections of one sender (`limits.sockets`)
each second its key is checked again: one that was revoked, disabled or has expired ends the connection

A connection ends with an event of type `error` that says why, and then with

    1000   it has been open for an hour, or idle for ten minutes
    1008   its key was revoked, disabled or has expired
    1012   the gateway stops
    1013   its place, or the room that its messages need, is needed by others
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.errors import ApiError, Draining, LimitReached, Overloaded, Unauthorized, retry_after
from gateway.http.error_replies import body_of
from gateway.http.messages import send_json
from gateway.request.load_shedding import BodyClaim
from gateway.request.options import known_headers
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace

if TYPE_CHECKING:
    from gateway.caller import Caller, LoopbackGuard
    from gateway.config.schema import Limits
    from gateway.parts.apis.routes.responses import ResponsesEndpoint
    from gateway.request.context import CallerLimits
    from gateway.request.load_shedding import LoadShedder
    from gateway.steps import Authenticator, Steps

_CHECKED_EACH_S: Final = 1.0


class OpenConnection:
    """One connection that was let in. Close it once."""

    __slots__ = ("_door", "_headers", "claim", "first", "on_refused", "refused")

    def __init__(self, door: Door, headers: Mapping[bytes, bytes], claim: BodyClaim) -> None:
        self._door = door
        self._headers = headers
        self.claim = claim
        """What it holds of the room for bodies."""
        self.first = True
        """Whether its next request was counted with the handshake."""
        self.refused: Unauthorized | None = None
        """Why its key is valid no more; None while it is."""
        self.on_refused: Callable[[], None] = lambda: None
        """Called when its key is valid no more."""

    async def check(self, authenticator: Authenticator) -> None:
        """Find out whether its key is still valid; while nobody can say, it is."""
        if self.refused is None:
            with contextlib.suppress(Overloaded):
                try:
                    await authenticator.find(self._headers)
                except Unauthorized as error:
                    self.refused = error
                    self.on_refused()

    def close(self) -> None:
        """Remove the connection from the counts of its sender."""
        self.claim.release()
        self._door.leave(self)


class Door:
    """Decide whether connections and requests of one worker are let in, and count those that are open."""

    def __init__(
        self,
        gate: LoadShedder,
        guard: LoopbackGuard,
        authenticator: Authenticator,
        counts: CallerLimits | None,
        limits: Limits,
    ) -> None:
        self._gate = gate
        self._guard = guard
        self._authenticator = authenticator
        self._counts = counts
        self._most = max(1, limits.connections // 2)
        self._most_of_sender = limits.sockets
        self._open: dict[OpenConnection, None] = {}
        self._by_sender: Counter[str] = Counter()
        self._checking: asyncio.Task[None] | None = None

    async def enter(self, headers: Mapping[bytes, bytes]) -> OpenConnection:
        """Let a connection in by the headers of its handshake. Raises ApiError."""
        self._gate.check()
        self._guard.check(headers)
        caller = await self._authenticator.find(headers)
        self._check_room(caller.sender)
        connection = OpenConnection(self, headers, BodyClaim(self._gate.bodies, caller.sender))
        self._open[connection] = None
        self._by_sender[caller.sender] += 1
        try:
            await self._count(caller)
        except ApiError:
            connection.close()
            raise
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_keys(), name="tierline.door")
        return connection

    def leave(self, connection: OpenConnection) -> None:
        """Count a connection no more."""
        if connection in self._open:
            del self._open[connection]
            self._by_sender[connection.claim.sender] -= 1
            self._by_sender += Counter()  # without those that have none

    def _check_room(self, sender: str) -> None:
        if sender and self._by_sender[sender] >= self._most_of_sender:
            message = f"This key has {self._most_of_sender} WebSockets open, as many as it may (limits.sockets)."
            raise LimitReached(message, headers=retry_after(60))
        if len(self._open) >= self._most:
            message = "Half of the connections that this gateway may have open (limits.connections) are WebSockets."
            raise Overloaded(message, headers=retry_after(1))

    async def _count(self, caller: Caller) -> None:
        """Count a request of the caller, one of no tokens that has ended. Raises ApiError if it has had too many."""
        counts = self._counts
        hold = None if counts is None else counts.hold(caller, Trace(names.REQUEST), Ledger("", caller.tenant))
        if hold is not None:
            await hold.enter(0)
            hold.end()

    async def _check_keys(self) -> None:
        try:
            while self._open:
                await asyncio.sleep(_CHECKED_EACH_S)
                for connection in list(self._open):
                    await connection.check(self._authenticator)
        finally:
            self._checking = None


_LONGEST_S: Final = 3600.0
"""Life of a connection, as the provider has it."""
_IDLE_S: Final = 600.0
_MOST_WAITING: Final = 8
_DATA: Final = b"\ndata: "
_OWN: Final = frozenset({b"x-request-id", b"content-length", b"content-type", b"content-encoding"})
"""Headers that say something of one request, and nothing of those of a connection."""
_OVER: Final = Draining(
    "This connection has been open for an hour, or idle for ten minutes. Open a new one.",
    code="websocket_connection_limit_reached",
)
_STOPS: Final = Draining("The gateway is stopping. Connect again.")
_PLACE: Final = Overloaded("This gateway is at its limit of open connections. Connect again for your next request.")
_ENDS: Final[dict[str, tuple[int, ApiError]]] = {"websocket.stop": (1012, _STOPS), "websocket.give_way": (1013, _PLACE)}
"""Code and error by what the server says of a connection."""


class SocketLine(Protocol):
    """A WebSocket connection as its requests see it; `web_socket.WebSocketProtocol` implements it."""

    writable: asyncio.Event
    """Set while the client has read most of what it was sent."""
    weigh: Callable[[int], bool] | None
    """Called with the bytes that came and are not `taken` yet, whenever they change; False refuses what came last."""

    def taken(self, size: int) -> None:
        """Uncount `size` bytes of a message that has been taken over, for `weigh`."""

    def rests(self, *, resting: bool) -> None:
        """Say whether the connection waits for its client's next message."""

    def until_read(self, limit_s: float) -> Awaitable[None]:
        """Wait until the client has read what it was sent; cut it off where it takes longer than `limit_s` seconds."""


class ResponseSockets:
    """Answer the connections of one worker."""

    def __init__(self, steps: Steps, endpoint: ResponsesEndpoint) -> None:
        self._steps = steps
        self._endpoint = endpoint
        self._door = Door(steps.gate, steps.guard, steps.authenticator, steps.limits, steps.deployment.limits)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, or refuse it as a request would be."""
        await receive()
        try:
            opened = await self._door.enter(known_headers(scope["headers"]))
        except ApiError as refused:

            async def reply(message: Any) -> None:
                await send({**message, "type": f"websocket.{message['type']}"})

            await send_json(reply, refused.status, [*refused.headers], body_of(refused, scope))
            return
        try:
            await send({"type": "websocket.accept"})
            await _Socket(self._steps, self._endpoint, opened, scope, receive, send).run()
        finally:
            opened.close()


class _Socket:
    """One connection; for each request it is what the server's connection is for one of HTTP."""

    def __init__(
        self, steps: Steps, endpoint: ResponsesEndpoint, opened: OpenConnection, scope: Any, receive: Any, send: Any
    ) -> None:
        self._steps = steps
        self._endpoint = endpoint
        self._opened = opened
        headers = [pair for pair in scope["headers"] if pair[0] not in _OWN] + [(b"content-type", b"application/json")]
        self._scope = {**scope, "type": "http", "method": "POST", "headers": headers}
        self._from_client = receive
        self._to_client = send
        self._line: SocketLine = receive.__self__
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._when_gone: Callable[[], None] | None = None
        self._gone = False
        self._end: tuple[int, ApiError] | None = None
        """Code and reason by which the connection is to be closed, once its request is answered."""
        self._body: bytes | None = None
        self._status = 200
        self._recent: dict[str, list[dict[str, Any]]] = {}
        """Items up to the last response that is not kept, by its id."""
        self._recent_size = 0

    async def run(self) -> None:
        """Answer requests until either side ends the connection."""
        self._line.weigh = self._weigh
        self._opened.on_refused = self._refuse
        reading = asyncio.create_task(self._read(), name="tierline.socket")
        ends = monotonic() + _LONGEST_S
        try:
            while (message := await self._next(ends)) is not None:
                await self._answer(message)
            if not self._gone:
                await self._close(*(self._end or (1012, _STOPS)))
        finally:
            self._line.weigh = None
            reading.cancel()

    async def _next(self, ends: float) -> bytes | None:
        """Return the next message; None if the connection is to end."""
        if self._is_over():
            return None
        self._line.rests(resting=self._waiting.empty())
        try:
            async with asyncio.timeout(min(_IDLE_S, ends - monotonic())):
                message = await self._waiting.get()
        except TimeoutError:
            self._end = 1000, _OVER
            return None
        self._line.rests(resting=False)
        return None if self._is_over() else message

    def _is_over(self) -> bool:
        return self._gone or self._end is not None or not self._steps.gate.keeps_alive

    async def _answer(self, message: bytes) -> None:
        self._body, self._status = message, 200
        counted, self._opened.first = self._opened.first, False
        answering = self._endpoint.answer_message(self._scope, self.receive, self.send, self._recent, counted=counted)
        await answering
        if self._body is not None:  # it was refused before its body was read
            await self.receive()
        if (task := asyncio.current_task()) is not None:
            self._steps.gate.let_go(task)
        self._keep_recent()

    def _keep_recent(self) -> None:
        """Count what is remembered for the next request; without room for it, forget it."""
        held = self._opened.claim.size - self._recent_size
        self._recent_size = len(orjson.dumps(list(self._recent.values()))) if self._recent else 0
        try:
            self._opened.claim.resize(held + self._recent_size)
        except ApiError:
            self._recent.clear()
            self._recent_size = 0
            self._opened.claim.resize(held)

    async def _read(self) -> None:
        while (message := await self._from_client())["type"] != "websocket.disconnect":
            if message["type"] == "websocket.receive":
                await self._waiting.put(message["bytes"])
            else:
                self._end_with(*_ENDS.get(message["type"], self._end or (1013, _PLACE)))
        self._gone = True
        if (callback := self._when_gone) is not None:
            callback()
        self._wake()

    def _weigh(self, unread: int) -> bool:
        """Count the bytes of messages that wait; return whether there is room for them."""
        try:
            self._opened.claim.resize(unread + self._recent_size)
        except ApiError as error:
            self._end = self._end or (1013, error)
            return False
        return True

    def _refuse(self) -> None:
        if self._opened.refused is not None:
            self._end_with(1008, self._opened.refused)

    def _end_with(self, code: int, why: ApiError) -> None:
        self._end = self._end or (code, why)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # then nobody waits
            self._waiting.put_nowait(None)

    async def _close(self, code: int, why: ApiError) -> None:
        self._status = why.status
        await self.send({"type": "http.response.body", "body": why.body()})
        with contextlib.suppress(OSError):
            await self._to_client({"type": "websocket.close", "code": code})

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """See `request.context.ClientConnection`."""
        self._when_gone = callback
        if callback is not None and self._gone:
            asyncio.get_running_loop().call_soon(callback)

    async def receive(self) -> Any:
        """Return the request's body, once, as ASGI has it."""
        body, self._body = self._body, None
        if body is None:
            return {"type": "http.disconnect"}
        self._line.taken(len(body))
        return {"type": "http.request", "body": body}

    async def send(self, message: Any) -> None:
        """Send a part of the reply: the events in it, or an error's envelope as the event of an error.

        A client that leaves events unread for `limits.stall` is cut off.
        """
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        data = message.get("body", b"")
        if self._status != 200 and data:
            error = {"type": "error", "status": self._status, **orjson.loads(data)}
            data = _DATA + orjson.dumps(error) + b"\n\n"
        with contextlib.suppress(OSError):  # the client has left
            for event in data.split(b"\n\n"):
                if (at := event.find(_DATA)) >= 0:
                    if not self._line.writable.is_set():
                        await self._line.until_read(self._steps.deployment.limits.stall)
                    await self._to_client({"type": "websocket.send", "text": event[at + len(_DATA) :].decode()})
