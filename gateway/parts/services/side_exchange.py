"""Handle one request for what is not a chat, and its reply: the steps around an endpoint's own work.

These endpoints run beside the pipeline of chats. They share its first steps (load shedding, keys, surfaces), its errors
and its records: each request has one ledger and one trace, whose surface is `SURFACE/ENDPOINT`, so that the figures
of a surface's chats stay those of chats.

A service counts what a request makes in units of its `request_price`:

    endpoint          units of a POST
    ----------------  ------------------------------------------------------------------
    images            the images that it asks for (`n`), in JSON or in a form
    audio, uploaded   the MiB of its body, begun ones included: a longer recording costs more
    batches           not known: a batch has any number of requests
    anything else     one
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import ApiError, NotFound, RequestTimeout, RequestTooLarge, UpstreamFailed
from gateway.http.build_context import chosen_policy, models_of
from gateway.http.error_replies import error_envelope
from gateway.http.exchange import BaseExchange
from gateway.http.messages import linger, send_json
from gateway.parts.services.config import services_in
from gateway.request.options import RequestOptions, read_options
from gateway.telemetry import names
from policies.loader import AUTO

if TYPE_CHECKING:
    from gateway.parts.apis.service import ServiceClient
    from gateway.request.context import Header
    from gateway.steps import Steps
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop, Trace
    from policies.model import Policy


class SideExchange(BaseExchange):
    """One request and its reply; an endpoint implements `answer`, which calls `start` before its first part."""

    def __init__(self, steps: Steps, endpoint: str, scope: Any, receive: Any, send: Any) -> None:
        super().__init__(steps, scope, receive, send)
        self.endpoint = endpoint
        self.scope = scope
        self.options = RequestOptions()
        """The options in the request's headers, once `accept` has read them."""
        self._started = False

    async def accept(self) -> None:
        """Check the load, the sender and the key, and read the options. Raises ApiError."""
        await self.admit()
        self.options = read_options(self.headers)

    def policy(self, model: str | None = None) -> Policy:
        """Return the policy: of the surface in the header, else of the one that `model` names, else the default's.

        Raises NotFound for an unknown surface in the header, and Forbidden for what is closed to the key.
        """
        policies = self.steps.policies.current
        name = model or AUTO
        policy = chosen_policy(policies, name, self.options.surface, self.caller.rights)
        if policy is None and self.options.surface is not None:
            raise NotFound(
                f"There is no surface {self.options.surface!r} here. GET /v1/models lists what there is.",
                code="model_not_found",
                param="x-tierline-surface",
            )
        policy = policy or chosen_policy(policies, name, policies.default.surface, self.caller.rights)
        assert policy is not None  # noqa: S101  (the default is in force)
        self.ledger.surface = f"{policy.surface}/{self.endpoint}"
        self.ledger.policy = policy.label
        return policy

    def check_model(self, policy: Policy, body: Mapping[str, Any], asked: str, answers: str) -> None:
        """Raise Forbidden where the key's models do not open the model of a service, which the client calls `asked`."""
        rights = self.caller.rights
        if rights is not None and rights.some_models:
            rights.check_fields(body)
            ladder = models_of(self.steps, policy)
            rights.check_model(policy, self.steps.policies.current, ladder, asked=asked, answers=answers)

    def may_call(self, service: str) -> bool:
        """Return whether the key may use a service: one of some tiers only where it is listed among these."""
        return self.caller.rights is None or self.caller.rights.may_call(service)

    def check_service(self, service: str) -> None:
        """Raise Forbidden for a service that the key's tiers do not have."""
        if self.caller.rights is not None:
            self.caller.rights.check_service(service, self.endpoint)

    async def let_in(self, tokens: int = 0) -> None:
        """Count the request, and these tokens, against the limits of its owners. Raises ApiError if one is reached."""
        limits = self.steps.limits
        self.hold = hold = None if limits is None else limits.hold(self.caller, self.trace, self.ledger)
        if hold is not None:
            await hold.enter(tokens, partial(self.steps.authenticator.find, self.headers))

    async def reserve(self, usd: float | None, what: str) -> None:
        """Reserve what the request costs, once its calls are known; None for a price nobody states. Raises ApiError."""
        if self.hold is not None:
            await self.hold.reserve(usd, what)

    async def start(self, status: int, headers: list[Header], *, opaque: bool = False) -> None:
        """Send the head of the reply. The parts of an `opaque` body may be cut anywhere."""
        self.ledger.status = status
        self.ledger.ttft_ms = self.trace.root.seconds * 1000
        self._started = True
        message = {"type": "http.response.start", "status": status, "headers": [*self.explained(), *headers]}
        await self.send(message | {"opaque": True} if opaque else message)

    async def part(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body; the last one without `more`."""
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    def explained(self) -> list[Header]:
        """Return the headers that tell how the request was answered, those that apply, with the surface's own name."""
        surface = self.ledger.surface.partition("/")[0].encode()
        return [
            (name, surface if name == b"x-tierline-surface" else value) for name, value in super().explained() if value
        ]

    async def fail(self, error: ApiError) -> None:
        """Send the error as the reply, or close the connection where a reply has begun."""
        self.client.unwatch()  # a client that leaves now must not cancel the error reply
        self.ledger.error, self.ledger.refused = error.code or error.type, error.refuses
        if self._started:
            # What was sent is not an envelope, and its length may have been announced: only a break tells of the error.
            await self._break_off()
            return
        self.ledger.status = error.status
        self._started = True
        before_end = partial(linger, self.receive) if isinstance(error, RequestTimeout | RequestTooLarge) else None
        body = error_envelope(error, self.scope, self.ledger.request_id)
        await send_json(self.send, error.status, [*self.explained(), *error.headers], body, before_end)

    async def _break_off(self) -> None:
        """Close the connection in the middle of a reply, so that the client does not take it for a whole one."""
        transport = getattr(getattr(self.receive, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()


_NO_RETRY: Final = ((b"x-should-retry", b"false"),)


def client_of(steps: Steps, clients: Mapping[str, ServiceClient], service: str) -> ServiceClient:
    """Return the client of a service that a policy names. Raises UpstreamFailed if it cannot be called yet."""
    client = clients.get(service)
    if client is None:
        reason = services_in(steps.deployment)[service].unconfigured_reason
        raise UpstreamFailed(
            f"The service {service!r} is not configured: {reason}.", code="upstream_unreachable", headers=_NO_RETRY
        )
    return client


_OF_MODELS: Final = frozenset({"audio", "completions", "embeddings", "images", "moderations"})
"""Operations of a service that call a model; of others only one that is named says so."""


def hop_of(trace: Trace, ledger: Ledger, service: str, operation: str, model: str) -> Hop:
    """Begin the hop of a call, and count the call."""
    ledger.attempts += 1
    ledger.tier = ledger.backend = service
    ledger.model = model
    asked = {names.GEN_AI_OPERATION: operation, names.GEN_AI_PROVIDER: "openai", names.GEN_AI_REQUEST_MODEL: model}
    return trace.begin(
        names.ATTEMPT,
        {
            names.ATTEMPT_NUMBER: ledger.attempts,
            names.TIER: service,
            names.BACKEND: service,
            **(asked if operation in _OF_MODELS or model else {}),
        },
    )


_MIB: Final = 1 << 20
_MOST_IMAGES: Final = 10
"""Images of one request at OpenAI, which are reserved where a form is sent on before its `n` is read."""
_MOST_MIB: Final = 25
"""MiB of an upload of audio at OpenAI, which are reserved where its length is not announced."""
_N: Final = re.compile(rb'"n"\s*:\s*(\d{1,4})|name="?n"?\r\n(?:[^\r\n]+\r\n)*\r\n(\d{1,4})')
"""The member of a JSON body, and the field of a form; within a JSON text the quotes are escaped."""
_OVERLAP: Final = 256


class Units:
    """Count what a request to a service is charged by, such as images, while its body passes."""

    def __init__(self, endpoint: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """`endpoint` is the policy's, `headers` are the client's."""
        self._images = endpoint == "images"
        is_json = headers.get(b"content-type", b"").startswith(b"application/json")
        self._audio = endpoint == "audio" and not is_json
        self.unknown = endpoint == "batches" or path.rstrip("/").endswith("/batches")
        """Whether nobody can say what the request costs."""
        length = headers.get(b"content-length", b"")
        self._announced = int(length) if length.isdigit() else None
        self._size, self._n, self._tail = 0, 0, b""

    def feed(self, part: bytes) -> None:
        """Count the units in the next part of the body."""
        self._size += len(part)
        if self._images:
            for match in _N.finditer(self._tail + part):
                self._n = max(self._n, int(match[1] or match[2]))
            self._tail = (self._tail + part)[-_OVERLAP:]

    def of_parts(self, body: bytes | AsyncIterator[bytes] | None) -> bytes | AsyncIterator[bytes] | None:
        """Return the same body, of which every part is fed as it passes."""
        if isinstance(body, AsyncIterator):
            return self._fed(body)
        if body is not None and not self._size:
            self.feed(body)
        return body

    def count(self) -> int:
        """Return the units that were counted, once the body has passed."""
        if self._images:
            return max(1, self._n)
        return max(1, -(-self._size // _MIB)) if self._audio else 1

    def most(self) -> int:
        """Return the units that are reserved: those of a body that was fed, else the most that there can be."""
        if self._size:
            return self.count()
        if self._audio:
            return _MOST_MIB if self._announced is None else max(1, -(-self._announced // _MIB))
        return _MOST_IMAGES if self._images else 1

    async def _fed(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            self.feed(part)
            yield part
