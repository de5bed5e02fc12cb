"""Handle one request for what is not a chat, and its reply: the steps around an endpoint's own work.

These endpoints run beside the pipeline of chats. They share its first steps (load shedding, keys, surfaces), its errors
and its records: each request has one ledger and one trace, whose surface is `SURFACE/ENDPOINT`, so that the figures
of a surface's chats stay those of chats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import ApiError, Draining, InternalError, NotFound, RequestTooLarge, retry_after
from gateway.http.messages import explain, linger, overhead_ms, reasons, request_id_of, send_error
from gateway.request.context import Client, ClientGone
from gateway.request.options import RequestOptions, known_headers, read_options
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace, parse_traceparent
from policies.loader import AUTO

if TYPE_CHECKING:
    from gateway.request.reply import Header
    from gateway.steps import Steps
    from policies.model import Policy

log = logging.getLogger("tierline.endpoints")

_CLIENT_GONE: Final = 499
_CUT_OFF_S: Final = 0.5


class SideExchange:
    """One request and its reply; an endpoint implements `answer`."""

    def __init__(self, steps: Steps, endpoint: str, scope: Any, receive: Any, send: Any) -> None:
        self.steps = steps
        self.endpoint = endpoint
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers = known_headers(scope["headers"])
        self.options = RequestOptions()
        """The options in the request's headers, once `accept` has read them."""
        self.client = Client(getattr(receive, "__self__", None), steps.deployment.limits.stall)
        trace_id, parent_id = parse_traceparent(self.headers.get(b"traceparent")) or (0, 0)
        self.trace = Trace(names.REQUEST, trace_id, parent_id)
        self.ledger = Ledger(request_id_of(self.headers))
        self._started = False

    async def answer(self) -> None:
        """Read the request and send the reply: `start` first. Raises ApiError or ClientGone before that."""
        raise NotImplementedError

    async def run(self) -> None:
        """Answer the request and record it, whatever happens."""
        steps = self.steps
        steps.gate.enter()
        steps.metrics.request_started()
        try:
            await self.answer()
        except ClientGone:
            self._client_left()
        except ApiError as error:
            await self._fail(error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            if self.client.gone:
                self._client_left()
            else:
                await self._cut_off()
        except Exception:
            log.exception("request %s met a bug", self.ledger.request_id)
            await self._fail(InternalError())
        finally:
            steps.metrics.request_ended()
            steps.gate.leave()
            self.client.unwatch()
            self._close()
            steps.write_behind.finish(self.trace, self.ledger, None)

    def accept(self) -> None:
        """Check the load, the sender and the key, and read the options. Raises ApiError."""
        steps = self.steps
        steps.gate.check()
        steps.guard.check(self.headers)
        self.ledger.tenant = steps.tenants.of(self.headers)
        self.options = read_options(self.headers)

    def policy(self, model: str | None = None) -> Policy:
        """Return the policy: of the surface in the header, else of the one that `model` names, else the default's.

        Raises NotFound for an unknown surface in the header.
        """
        policies = self.steps.policies.current
        policy = policies.resolve(model or AUTO, self.options.surface)
        if policy is None and self.options.surface is not None:
            raise NotFound(
                f"There is no surface {self.options.surface!r} here. GET /v1/models lists what there is.",
                code="model_not_found",
                param="x-tierline-surface",
            )
        policy = policy or policies.default
        self.ledger.surface = f"{policy.surface}/{self.endpoint}"
        self.ledger.policy = policy.label
        return policy

    async def start(self, status: int, headers: list[Header], *, opaque: bool = False) -> None:
        """Send the head of the reply. The parts of an `opaque` body may be cut anywhere."""
        self.ledger.status = status
        self.ledger.ttft_ms = self.trace.root.seconds * 1000
        self._started = True
        message = {"type": "http.response.start", "status": status, "headers": [*self._explained(), *headers]}
        await self.send(message | {"opaque": True} if opaque else message)

    async def part(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body; the last one without `more`."""
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    def _explained(self) -> list[Header]:
        surface = self.ledger.surface.partition("/")[0].encode()
        headers = [
            (name, surface if name == b"x-tierline-surface" else value)
            for name, value in explain(self.trace, self.ledger)
            if value
        ]
        if self.headers.get(b"x-tierline-debug") == b"1":
            headers.append(reasons(self.trace))
        return headers

    async def _fail(self, error: ApiError) -> None:
        self.client.unwatch()  # a client that leaves now must not cancel the error reply
        self.ledger.error = error.code or error.type
        if self._started:
            # What was sent is not an envelope, and its length may have been announced: only a break tells of the error.
            await self._break_off()
            return
        self.ledger.status = error.status
        self._started = True
        before_end = partial(linger, self.receive) if isinstance(error, RequestTooLarge) else None
        await send_error(self.send, error, self._explained(), before_end)

    async def _break_off(self) -> None:
        """Close the connection in the middle of a reply, so that the client does not take it for a whole one."""
        transport = getattr(getattr(self.receive, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()

    async def _cut_off(self) -> None:
        error = Draining("The gateway is stopping. Send the request again.", headers=retry_after(1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await self._fail(error)

    def _close(self) -> None:
        ledger, root = self.ledger, self.trace.root
        root.end(ledger.error)
        ledger.total_ms = root.seconds * 1000
        ledger.overhead_ms = overhead_ms(self.trace)
        retry = self.headers.get(b"x-stainless-retry-count")
        if retry is not None and retry.isdigit():
            root.attributes[names.CLIENT_RETRY] = int(retry[:3])

    def _client_left(self) -> None:
        self.ledger.status = _CLIENT_GONE
        self.ledger.error = "client_gone"
