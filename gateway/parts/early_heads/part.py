"""Send the heads of streams early, before their tier is known, and keep their connections alive meanwhile.

If the policy says so (`escalate.stream.alive`), a stream's head is sent early, and its connection kept alive
(`StreamHead`): if there is no answer after 0.1 s, the head is sent before its tier is known, and then something every
two seconds, which is below the idle limit of proxies. What the headers could not say yet follows in the last comment.
An error is sent as an event, because the status was 200.

    comments   sends comment lines, which clients skip; with one newline each, because openai-python takes a blank line
               for the end of an event
    role       sends a first chunk with the role, under an id of the gateway's, which all later chunks then get too;
               in another dialect the events that begin a stream, and then, where it has one, an event every two seconds
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.chat.completions import new_completion_id, wants_usage
from gateway.http.messages import explain, start_events
from gateway.request.context import QUIET_S, REPLY_HEADERS, STILL_ALIVE, Header

if TYPE_CHECKING:
    from gateway.request.context import LivingStream, RequestContext

_AFTER_S: Final = 0.1
_WAITING: Final = b": waiting\n"
_LAST: Final = b": x-tierline-"
_KNOWN_EARLY: Final = frozenset(name for name, header in REPLY_HEADERS.items() if header.known == "early")
_LATE: Final = frozenset(name for name, header in REPLY_HEADERS.items() if header.known == "late")


def early_head(request: RequestContext, send: Any, writer: LivingStream | None) -> StreamHead:
    """Return what sends the head of a stream, if it has no answer within 0.1 s."""
    return StreamHead(request, send, writer)


class StreamHead:
    """Send the early head of one stream; call `stopped` before sending anything else, or `abandon`."""

    def __init__(self, request: RequestContext, send: Any, writer: LivingStream | None = None) -> None:
        """Start the timer; the head is sent if `stopped` is not called within 0.1 s.

        `writer` is that of a client which does not speak chat completions.
        """
        self._request = request
        self._send = send
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._named: dict[str, Any] = {}
        by_events = request.policy.escalate.stream.alive == "role"
        self._writer = writer if by_events else None
        if by_events and writer is None:
            self._named = {
                "id": new_completion_id(),
                "object": "chat.completion.chunk",
                "created": int(time.time()),
                "model": request.policy.surface,
            }
        self._timer = asyncio.get_running_loop().call_later(_AFTER_S, self._start)

    async def stopped(self) -> bool:
        """Stop after any message being sent has gone out; return whether the head was sent."""
        self._timer.cancel()
        if self._task is None:
            return False
        self._over.set()
        await asyncio.wait({self._task})  # it may have been cancelled
        return True

    def abandon(self) -> None:
        """Stop at once: the client has disconnected."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def events(self, events: AsyncGenerator[bytes], extra: Sequence[Header] = ()) -> AsyncGenerator[bytes]:
        """Yield the answer's events, adapted to follow the early head; `extra` are headers that it did not have."""
        try:
            async for data in events:
                if data.startswith(_LAST):
                    yield self._late_comment(extra) + data[1:]
                elif not self._named or data == STILL_ALIVE:
                    yield data
                elif renamed := self._renamed(data):
                    yield renamed
        finally:
            await events.aclose()

    async def fail(self, error_event: bytes) -> None:
        """Send the error's event as the last, after a comment with the late headers, and end the response."""
        ledger = self._request.ledger
        costs = f" x-tierline-cost-usd={ledger.cost_shown} x-tierline-attempts={ledger.attempts}\n"
        data = self._late_comment() + costs.encode() + error_event
        await self._send({"type": "http.response.body", "body": data})

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tierline.alive")

    async def _run(self) -> None:
        early = [header for header in self._headers() if header[0] in _KNOWN_EARLY]
        await start_events(self._send, early)
        data = self._role() if self._named else b"" if self._writer is None else self._writer.begin()
        while not self._over.is_set():
            await self._send({"type": "http.response.body", "body": data or _WAITING, "more_body": True})
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._over.wait()
            except TimeoutError:
                data = b"" if self._writer is None else self._writer.alive()

    def _headers(self) -> list[Header]:
        return explain(self._request.trace, self._request.ledger)

    def _late_comment(self, extra: Sequence[Header] = ()) -> bytes:
        late = (header for header in (*self._headers(), *extra) if header[0] in _LATE)
        return b":" + b"".join(b" %b=%b" % header for header in late)

    def _role(self) -> bytes:
        count = self._request.body.get("n") or 1
        delta = {"role": "assistant", "content": ""}
        choices = [{"index": index, "delta": delta, "finish_reason": None} for index in range(count)]
        chunk = {**self._named, "choices": choices}
        if wants_usage(self._request.body):
            chunk["usage"] = None
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _renamed(self, data: bytes) -> bytes:
        """Return a chunk with the early chunk's id and without its role, empty if nothing is left; errors unchanged."""
        value = orjson.loads(data[6:])
        if "error" in value:
            return data
        chunk = value | self._named
        left = not chunk["choices"]
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            delta.pop("role", None)
            left = left or any(delta.values()) or bool(choice.get("finish_reason") or choice.get("logprobs"))
        return b"data: " + orjson.dumps(chunk) + b"\n\n" if left else b""
