"""Handle one request and its reply in another API than chat completions, as its `ClientDialect` translates them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Coroutine
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.dialects.native import client_path
from gateway.errors import ApiError, InvalidRequest
from gateway.http.exchange import Exchange, ReadRequest
from gateway.request.context import QUIET_S, STILL_ALIVE, is_error_event
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.parts.apis.dialects.client import ClientDialect, StreamWriter
    from gateway.request.body import ChatBodies
    from gateway.request.context import Header, Reply, RequestContext
    from gateway.steps import Steps


class TranslatedExchange(Exchange):
    """Handle one request and its reply as `Exchange` does, for a client that does not speak chat completions."""

    def __init__(
        self, steps: Steps, bodies: ChatBodies, scope: Any, receive: Any, send: Any, dialect: ClientDialect
    ) -> None:
        super().__init__(steps, bodies, scope, receive, send)
        self.admissions = (*steps.admissions, self)
        self._dialect = dialect
        self._writer: StreamWriter | None = None

    async def read(self, raw: bytes) -> ReadRequest:
        """See `Exchange.read`."""
        given, large = await self._bodies.read_object(raw)
        body, native, large = await self._dialect.read(given, self.ledger.tenant, large=large)
        await self._check(body, native, large=large)
        return ReadRequest(given, body, native, large)

    async def _check(self, body: dict[str, Any], native: Native | None, *, large: bool) -> None:
        """Check a translated body. Raises InvalidRequest, by the client's own path."""
        try:
            await self._bodies.check(body, large=large)
        except InvalidRequest as error:
            if error.param is None or (param := client_path(native, error.param)) == error.param:
                raise
            message = error.message.replace(error.param, param)
            raise InvalidRequest(message, code=error.code, param=param) from None

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """Let a request in, as the last of its layers: the dialect notes the limit of the answer's tokens."""
        if (limit := self.trace.root.attributes.get(names.OUTPUT_LIMIT)) is not None:
            self._dialect.limited(limit)
        return None

    def living_stream(self) -> StreamWriter:
        """Return what writes the stream; the same one each time."""
        if self._writer is None:
            self._writer = self._dialect.stream()
        return self._writer

    def deliver(self, reply: Reply) -> Coroutine[Any, Any, None]:
        """Return the coroutine that sends the reply, translated."""
        if reply.events is None:
            return super().deliver(replace(reply, body=self._dialect.whole(orjson.loads(reply.body))))
        return super().deliver(replace(reply, events=translated(reply.events, self.living_stream()), pass_on=None))

    def error_body(self, error: ApiError) -> bytes:
        """See `Exchange.error_body`."""
        return self._dialect.error(error)

    def error_event(self, error: ApiError) -> bytes:
        """See `Exchange.error_event`."""
        return self.living_stream().error(orjson.loads(error.body())["error"])

    def explained(self) -> list[Header]:
        """See `BaseExchange.explained`. Fields that were dropped are named as in the client's own dialect."""
        ledger = self.ledger
        if ledger.dropped:
            ledger.dropped = tuple(dict.fromkeys(map(self._dialect.path_of, ledger.dropped)))
        return super().explained()


_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


async def translated(events: AsyncGenerator[bytes], writer: StreamWriter) -> AsyncGenerator[bytes]:
    """Yield the events of a stream in the client's dialect, each in one write; comments go out before their event.

    A client that gets nothing of what the model writes, such as thinking that it has not asked for, is shown every two
    seconds that the stream lives: by an event, where its API has one for that.
    """
    quiet_since = 0.0
    try:
        async for event in events:
            comment, data = _parts(event)
            if data == _DONE:
                written = writer.done()
            elif event == STILL_ALIVE:
                comment, written = b"", writer.alive() or event
            elif not data:
                written = b""
            elif is_error_event(_DATA + data):
                written = writer.error(orjson.loads(data)["error"])
            else:
                written = writer.chunk(orjson.loads(data))
            if comment or written:
                quiet_since = 0.0
                yield comment + written
            elif not quiet_since:
                quiet_since = monotonic()
            elif monotonic() - quiet_since >= QUIET_S:
                quiet_since = 0.0
                yield writer.alive() or STILL_ALIVE
    finally:
        await events.aclose()


def _parts(event: bytes) -> tuple[bytes, bytes]:
    """Return the comment lines before an event, if any, and the event's data without `data: ` and line breaks."""
    if event.startswith(_DATA):
        return b"", event[len(_DATA) : -2]
    at = event.find(b"\n" + _DATA)
    if at < 0:
        return event, b""
    return event[: at + 1], event[at + 1 + len(_DATA) : -2]
