"""Serve the Responses API over WebSockets: each message of a client is a request, its answer's events are messages.

A message `response.create` has the members of a body of `POST /v1/responses`, and is answered as that is, by the same
exchange; each event is a text of its own. A connection answers one request at a time; further ones wait for their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import ApiError, Draining
from gateway.http.error_replies import body_of
from gateway.http.messages import send_json
from gateway.request.options import known_headers

if TYPE_CHECKING:
    from gateway.http.routes.responses import ResponsesEndpoint
    from gateway.steps import Steps

_LONGEST_S: Final = 3600.0
"""Life of a connection, as the provider has it."""
_IDLE_S: Final = 600.0
_MOST_WAITING: Final = 8
_DATA: Final = b"\ndata: "
_OWN: Final = frozenset({b"x-request-id", b"content-length", b"content-type", b"content-encoding"})
"""Headers that say something of one request, and nothing of those of a connection."""
_OVER: Final = "This connection has been open for an hour, or idle for ten minutes. Open a new one."


class ResponseSockets:
    """Answer the connections of one worker."""

    def __init__(self, steps: Steps, endpoint: ResponsesEndpoint) -> None:
        self._steps = steps
        self._endpoint = endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, or refuse it as a request would be."""
        headers = known_headers(scope["headers"])
        await receive()
        try:
            self._steps.gate.check()
            self._steps.guard.check(headers)
            await self._steps.callers.of(headers)
        except ApiError as refused:

            async def reply(message: Any) -> None:
                await send({**message, "type": f"websocket.{message['type']}"})

            await send_json(reply, refused.status, [*refused.headers], body_of(refused, scope))
            return
        await send({"type": "websocket.accept"})
        await _Socket(self._steps, self._endpoint, scope, receive, send).run()


class _Socket:
    """One connection; for each request it is what the server's connection is for one of HTTP."""

    def __init__(self, steps: Steps, endpoint: ResponsesEndpoint, scope: Any, receive: Any, send: Any) -> None:
        self._steps = steps
        self._endpoint = endpoint
        headers = [one for one in scope["headers"] if one[0] not in _OWN] + [(b"content-type", b"application/json")]
        self._scope = {**scope, "type": "http", "method": "POST", "headers": headers}
        self._from_client = receive
        self._to_client = send
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._when_gone: Callable[[], None] | None = None
        self._gone = False
        self._body = b""
        self._status = 200
        self._recent: dict[str, list[dict[str, Any]]] = {}
        """Items up to the last response that is not kept, by its id."""

    async def run(self) -> None:
        """Answer requests until either side ends the connection."""
        reading = asyncio.create_task(self._read(), name="tierline.socket")
        ends = monotonic() + _LONGEST_S
        try:
            while self._steps.gate.keeps_alive and not self._gone:
                async with asyncio.timeout(min(_IDLE_S, ends - monotonic())):
                    message = await self._waiting.get()
                if message is None:
                    break
                self._body, self._status = message, 200
                await self._endpoint.answer_message(self._scope, self.receive, self.send, self._recent)
            if not self._gone:
                await self._close(1012, Draining("The gateway is stopping. Connect again."))
        except TimeoutError:
            await self._close(1000, Draining(_OVER, code="websocket_connection_limit_reached"))
        finally:
            reading.cancel()

    async def _read(self) -> None:
        while (message := await self._from_client())["type"] == "websocket.receive":
            text = message.get("text")
            await self._waiting.put(message["bytes"] if text is None else text.encode("utf-8", "surrogatepass"))
        self._gone = message["type"] == "websocket.disconnect"  # or else the server stops
        if self._gone and (callback := self._when_gone) is not None:
            callback()
        await self._waiting.put(None)

    async def _close(self, code: int, why: ApiError) -> None:
        self._status = why.status
        await self.send({"type": "http.response.body", "body": why.body()})
        await self._to_client({"type": "websocket.close", "code": code})

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """See `request.context.ClientConnection`."""
        self._when_gone = callback
        if callback is not None and self._gone:
            asyncio.get_running_loop().call_soon(callback)

    async def receive(self) -> Any:
        """Return the request's body, once, as ASGI has it."""
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body} if body else {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Send a part of the reply: the events in it, or an error's envelope as the event of an error."""
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
                    await self._to_client({"type": "websocket.send", "text": event[at + len(_DATA) :].decode()})
