"""Run one request to an end that is recorded, whatever happens: what all endpoints that keep a ledger share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import CLIENT_GONE, ApiError, Draining, InternalError, retry_after
from gateway.http.messages import explain, reasons, request_id_of
from gateway.request.context import Client, ClientGone
from gateway.request.options import known_headers
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import NO_CALLER, Trace, parse_caller

if TYPE_CHECKING:
    from gateway.request.reply import Header, Reply
    from gateway.steps import Steps

log = logging.getLogger("tierline.exchange")

_CUT_OFF_S: Final = 0.5


class BaseExchange:
    """One request, its trace and its ledger. An endpoint implements `answer`, `fail` and, for replies, `deliver`."""

    def __init__(self, steps: Steps, scope: Any, receive: Any, send: Any) -> None:
        self.steps = steps
        self.receive = receive
        self.send = send
        self.headers = known_headers(scope["headers"])
        self.client = Client(getattr(receive, "__self__", None), steps.deployment.limits.stall)
        caller = parse_caller(self.headers) if b"traceparent" in self.headers else NO_CALLER
        self.trace = Trace(names.REQUEST, caller, steps.telemetry.sampled_below)
        self.ledger = Ledger(request_id_of(self.headers))
        self.reply: Reply | None = None
        """The pipeline's reply, for what is written after it; None where the pipeline gave none."""

    async def answer(self) -> Reply | None:
        """Read the request and return what `deliver` is to send; None if all is sent. Raises ApiError or ClientGone."""
        raise NotImplementedError

    def deliver(self, reply: Reply) -> Coroutine[Any, Any, None]:
        """Return the coroutine that sends the reply: no frame of its own, as a stream resumes all of them per chunk."""
        raise NotImplementedError

    async def fail(self, error: ApiError) -> None:
        """Tell the client of the error, by what was sent already: an error reply, an event, or a closed connection."""
        raise NotImplementedError

    async def run(self) -> None:
        """Answer the request, and leave the rest to `write_behind`, whatever happens."""
        steps = self.steps
        steps.gate.in_hand += 1
        steps.metrics.open_requests += 1
        try:
            self.reply = reply = await self.answer()
            if reply is not None:
                await self.deliver(reply)
        except ClientGone:
            self.client_left()
        except ApiError as error:
            await self.fail(error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            if self.client.gone or self.client.absent:
                self.client_left()
            else:
                await self._cut_off()
        except Exception:
            log.exception("request %s met a bug", self.ledger.request_id)
            await self.fail(InternalError())
        finally:
            steps.metrics.open_requests -= 1
            steps.gate.in_hand -= 1
            self.close()
            steps.write_behind.finish(self.trace, self.ledger, self.reply)

    def admit(self) -> None:
        """Check the load, the sender and the key, and note the tenant. Raises ApiError."""
        steps, headers = self.steps, self.headers
        steps.gate.check()
        steps.guard.check(headers)
        self.ledger.tenant = steps.tenants.of(headers)

    def explained(self) -> list[Header]:
        """Return the headers that tell how the request was answered."""
        headers = explain(self.trace, self.ledger)
        if self.headers.get(b"x-tierline-debug") == b"1":
            headers.append(reasons(self.trace))
        return headers

    def client_left(self) -> None:
        """Record that there is nobody to reply to."""
        self.ledger.status = CLIENT_GONE
        self.ledger.error = "client_gone"

    def close(self) -> None:
        """Record the request's times, after the last byte."""
        self.client.unwatch()
        ledger, root = self.ledger, self.trace.root
        root.end(ledger.error)
        ledger.total_ms = root.seconds * 1000
        ledger.overhead_ms = self.trace.overhead_ms()
        retry = self.headers.get(b"x-stainless-retry-count")
        if retry is not None and retry.isdigit():
            root.attributes[names.CLIENT_RETRY] = int(retry[:3])

    async def _cut_off(self) -> None:
        """Send the client an error, within half a second, because the gateway stops before its request could end."""
        error = Draining("The gateway is stopping. Send the request again.", headers=retry_after(1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await self.fail(error)
