"""Pass requests for what is not a chat on to the service that the surface's policy names, and its replies back.

Bodies are streamed in both directions as they come, whatever is in them, so nothing of them is kept or looked at; only
where the config maps names of models (`services.NAME.models`) is a JSON body read whole. Headers go through lists of
those that are passed on. The gateway's key for the service takes the place of the client's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import BackendError, BadStatus, InvalidReply, Saturated, Unreachable
from gateway.backends.sse import DONE, EventParser
from gateway.caller import in_tenants_space
from gateway.cascade.client_errors import exhausted
from gateway.chat.usage import hide_cache
from gateway.errors import Forbidden, MethodNotAllowed, NotFound, RequestTimeout, RequestTooLarge, UnsupportedMediaType
from gateway.off_loop import off_loop
from gateway.parts.services.config import services_in
from gateway.parts.services.policy import endpoints_in
from gateway.parts.services.side_exchange import SideExchange, Units, client_of, hop_of
from gateway.request.body import ChatBodies
from gateway.request.context import REPLY_HEADERS, ClientGone
from gateway.request.options import REQUEST_HEADERS
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.parts.apis.service import ServiceClient, ServiceReply
    from gateway.parts.services.config import ServiceConfig
    from gateway.request.context import Header
    from gateway.steps import Steps
    from gateway.telemetry.trace import Hop
    from policies.model import Policy

PATHS: Final = {
    "/v1/moderations": "moderations",
    "/v1/audio": "audio",
    "/v1/images": "images",
    "/v1/files": "files",
    "/v1/uploads": "files",
    "/v1/batches": "batches",
}
"""The endpoint of a policy's `endpoints` that each path, and all below it, belongs to."""
OTHER: Final = "other"
"""The endpoint of the further paths that a policy's `endpoints.other` has."""
METHODS: Final = ("GET", "POST", "DELETE")
_MODELS_ENDPOINT: Final = "completions"
"""The endpoint whose replies are a model's that may have a prompt cache."""
_NAME_MODEL: Final = frozenset({"audio", "completions", "images", "moderations"})
"""Endpoints whose requests name their model in the body: so the models of a key can be held there."""
_MAKING: Final = frozenset(
    {"/v1/completions", "/v1/moderations"}
    | {f"/v1/audio/{name}" for name in ("speech", "transcriptions", "translations")}
    | {f"/v1/images/{name}" for name in ("edits", "generations", "variations")}
)
"""Paths of which a POST asks for an answer. All else may show, or change, what others at the account have there."""
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_.~:@!$&'()*+,;=-]+)+/?")
_QUERY: Final = re.compile(r"[!-~]*")
_REQUEST_HEADERS: Final = frozenset(
    {b"content-length", b"content-type"} | {name for name, header in REQUEST_HEADERS.items() if header.at == "passed"}
)
_ANTHROPIC: Final = b"anthropic-"
"""What the names of the headers of that API begin with."""
_REPLY_HEADERS: Final = (
    *sorted(name.decode() for name, header in REPLY_HEADERS.items() if header.at == "passed"),
    "cache-control",
    "content-length",
    "content-type",
)
_IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_JSON: Final = b"application/json"
_TAIL: Final = 1024
_TOKENS: Final = re.compile(rb'"(prompt|completion|input|output)_tokens": ?(\d{1,12})')
"""Counts in the usage, which is at the end of a reply and of a stream."""
_STALL_S: Final = 10.0
"""Longest wait in seconds for the next part of a client's upload."""


def endpoint_of(path: str) -> str | None:
    """Return the endpoint that a path belongs to; None if it is not one of those that are passed on."""
    first = path.find("/", len("/v1/"))
    return PATHS.get(path if first < 0 else path[:first])


class PassedOn:
    """Pass on the requests of one worker."""

    def __init__(self, steps: Steps, clients: Mapping[str, ServiceClient]) -> None:
        self._steps = steps
        self._clients = clients
        self._bodies = ChatBodies(steps.deployment.limits)

    def __call__(
        self, endpoint: str, scope: Any, receive: Any, send: Any, model: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request. `model` is its body's, where that may name the surface."""
        return _PassedRequest(self._bodies, self._steps, self._clients, endpoint, scope, receive, send, model).run()


class _PassedRequest(SideExchange):
    def __init__(
        self,
        bodies: ChatBodies,
        steps: Steps,
        clients: Mapping[str, ServiceClient],
        endpoint: str,
        scope: Any,
        receive: Any,
        send: Any,
        model: str | None,
    ) -> None:
        super().__init__(steps, endpoint, scope, receive, send)
        self._bodies = bodies
        self._clients = clients
        self._model = model
        self._sent = False

    async def answer(self) -> None:
        await self.accept()
        method, path, query = self.scope["method"], self.scope["path"], self.scope["query_string"].decode("latin-1")
        if method not in METHODS:
            raise MethodNotAllowed(
                f"{method} is not a method of this URL; use {', '.join(METHODS)}.",
                headers=((b"allow", ", ".join(METHODS).encode()),),
            )
        segments = path.split("/")
        plain = self.scope["raw_path"].decode("latin-1") == path and _PATH.fullmatch(path) and _QUERY.fullmatch(query)
        if not plain or any(segment.partition(";")[0] in (".", "..") for segment in segments):
            raise NotFound(f"There is no {path!r} here: a path that is passed on has plain characters only.")
        policy = self.policy(self._model)
        await self.let_in()
        service = self._service(policy) if self.endpoint != OTHER else self._other_service(policy, path)
        self.check_service(service)
        config = services_in(self.steps.deployment)[service]
        client = client_of(self.steps, self._clients, service)
        self.ledger.tier = self.ledger.backend = service
        headers = self._headers(config)
        body = await self._body(config, headers, policy)
        self.client.watch()
        units = Units(self.endpoint, path, self.headers) if method == "POST" else None
        if units is not None and self.hold is not None and self.hold.has_budget:
            if isinstance(body, bytes):
                units.feed(body)
            await self.reserve(_price(config, units, units.most()), f"a request to {service!r}")
        hop = hop_of(self.trace, self.ledger, service, self.endpoint, self.ledger.model)
        headers.update(self.trace.headers(hop))
        body = body if units is None else units.of_parts(body)
        outcome, self._sent = "cancelled", False
        try:
            async with asyncio.timeout(self._limit_s()):
                reply = await client.send(
                    method,
                    path.removeprefix("/v1"),
                    headers,
                    body,
                    query=query,
                    clients_path=True,
                    sent=self._note_sent,
                )
            self._charge(hop, config, units)
            try:
                await self._pass_back(reply, config, hop)
            finally:
                reply.close()
            outcome = "answered"
        except BackendError as error:
            outcome = error.error_type
            self._sent = self._sent and not isinstance(error, BadStatus | Unreachable | Saturated)  # nothing was made
            raise exhausted([error], timed_out=False) from None
        except TimeoutError:
            outcome = "deadline_exceeded"
            raise exhausted([], timed_out=True) from None
        finally:
            self._charge(hop, config, units)
            hop.attributes[names.OUTCOME] = outcome
            hop.end(None if outcome == "answered" else outcome)

    def _note_sent(self) -> None:
        """Note that the service has all of the request: it bills it, whether or not somebody waits for the reply."""
        self._sent = True

    def _charge(self, hop: Hop, config: ServiceConfig, units: Units | None) -> None:
        """Charge what the service was sent, once; its tokens, where the reply tells them, follow at its end."""
        if units is None or not self._sent or names.COST in hop.attributes:
            return
        price = _price(config, units, units.count())
        if price is None:
            self.ledger.cost_unknown = hop.attributes[names.COST_UNKNOWN] = True
        else:
            self.ledger.cost_usd = hop.attributes[names.COST] = price

    def _limit_s(self) -> float | None:
        """Return the seconds within which the reply must come; None for no limit.

        The timeouts that SDKs send are for each read, and an upload may take longer: only our own header counts.
        """
        return self.options.deadline_s if b"x-tierline-deadline-ms" in self.headers else None

    def _service(self, policy: Policy) -> str:
        """Return the service for this endpoint. Raises NotFound or Forbidden."""
        service: str | None = getattr(endpoints_in(policy), self.endpoint)
        if service is None:
            raise NotFound(
                f"Surface {policy.surface!r} has no {self.endpoint} endpoint: set endpoints.{self.endpoint} in its "
                "policy to a service of the config (services)."
            )
        if self.scope["method"] != "POST" or self.scope["path"].rstrip("/") not in _MAKING:
            self._check_shared(service)
        return service

    def _other_service(self, policy: Policy, path: str) -> str:
        """Return the service for a further path, and name the endpoint after it. Raises NotFound or Forbidden.

        What is not a POST to the very path that is listed may show, or change, what others have made at the account.
        """
        listed = endpoints_in(policy).other_path(path)
        if listed is None:
            raise NotFound(
                f"Surface {policy.surface!r} does not pass {path} on: list it under endpoints.other in its policy, "
                "with a service of the config (services)."
            )
        self.endpoint = listed.removeprefix("/v1/")
        self.ledger.surface = f"{policy.surface}/{self.endpoint}"
        service = endpoints_in(policy).other[listed]
        if self.scope["method"] != "POST" or path != listed:
            self._check_shared(service)
        return service

    def _check_shared(self, service: str) -> None:
        """Raise Forbidden where tenants, or teams of one, would see each other's at the service's one account."""
        deployment, owner = self.steps.deployment, self.caller.owner
        if owner not in deployment.unshared and not services_in(deployment)[service].share_files:
            raise Forbidden(
                f"All tenants and teams would share the {self.endpoint} at the service {service!r}. "
                f"services.{service}.share_files in the config allows that.",
                code="files_not_shared",
            )

    def _headers(self, config: ServiceConfig) -> dict[str, str]:
        """Return the client's headers that are passed on. Raises UnsupportedMediaType for a coded body."""
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMediaType("Send the body without a content encoding.")
        headers = {
            name.decode().title(): value.decode("latin-1")
            for name, value in self.scope["headers"]
            if name in _REQUEST_HEADERS or (config.kind == "anthropic" and name.startswith(_ANTHROPIC))
        }
        if (key := headers.get(_IDEMPOTENCY_KEY)) is not None:  # another team's with this key has another reply
            headers[_IDEMPOTENCY_KEY] = in_tenants_space(self.caller.owner, key)
        return headers

    async def _body(
        self, config: ServiceConfig, headers: dict[str, str], policy: Policy
    ) -> bytes | AsyncIterator[bytes] | None:
        """Return the body to send: as it comes, or with another model in it; None without a body.

        Raises Forbidden for a key of some models, unless the request is JSON that says its model, and that is open.
        """
        length = headers.get("Content-Length")
        if length is not None and length.isdigit() and int(length) > config.max_request:
            raise _too_large(config.max_request)
        is_json = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _JSON
        rights = self.caller.rights
        limited = rights is not None and rights.some_models
        if rights is not None and limited and not (is_json and self._may_name_model(policy)):
            raise rights.not_open(f"{self.endpoint} by a request that does not say its model in JSON")
        if not length and b"transfer-encoding" not in dict(self.scope["headers"]):
            headers.pop("Content-Type", None)
            return None
        if not limited and (not config.models or not is_json):
            return self._parts(config.max_request)
        raw = await self.body(self.steps.deployment.limits.body, typed=False)
        value, large = await self._bodies.read_object(raw)
        model = value.get("model")
        if rights is not None and limited:
            if not isinstance(model, str) or further_models(value):
                raise rights.not_open(f"{self.endpoint} by a request that does not say its one model in JSON")
            self.check_model(policy, value, model, config.models.get(model, model))
        if isinstance(model, str):
            self.ledger.requested_model = model[:256]
            if model in config.models:
                self.ledger.model = config.models[model]
                write = partial(orjson.dumps, value | {"model": self.ledger.model})
                raw = await off_loop(write) if large else write()
        headers["Content-Length"] = str(len(raw))
        return raw

    def _may_name_model(self, policy: Policy) -> bool:
        """Return whether the model that answers a request is the one in its body, and in nothing else of it."""
        listed = self.endpoint in _NAME_MODEL or self.scope["path"] in endpoints_in(policy).other
        return listed and self.scope["method"] == "POST" and b"model" not in self.scope["query_string"]

    async def _parts(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the client's body as it comes. Raises ClientGone, RequestTimeout and RequestTooLarge."""
        left, more = limit, True
        while more:
            try:
                async with asyncio.timeout(_STALL_S):
                    message = await self.receive()
            except TimeoutError:
                raise RequestTimeout(
                    f"No part of the body came for {_STALL_S:g} seconds.", headers=((b"connection", b"close"),)
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            left -= len(part)
            if left < 0:
                raise _too_large(limit)
            more = message.get("more_body", False)
            if part:
                yield part

    async def _pass_back(self, reply: ServiceReply, config: ServiceConfig, hop: Hop) -> None:
        """Send the service's reply as it comes. A client that leaves it unread for too long is given up."""
        is_json = (reply.header("content-type") or "").startswith("application/json")
        parts: AsyncIterator[bytes] | None = None
        if self.endpoint == _MODELS_ENDPOINT and self.ledger.tenant not in self.steps.deployment.unshared:
            parts = _without_cache(reply)
        elif config.kind == "anthropic" and is_json:
            parts = _with_our_urls(reply, config.base_url.removesuffix("/v1") + "/")
        headers: list[Header] = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name in _REPLY_HEADERS
            if (value := reply.header(name)) is not None and value.isprintable()
            if parts is None or name != "content-length"
        ]
        if (reply.header("content-type") or "").startswith("text/event-stream"):
            headers.append((b"x-accel-buffering", b"no"))
        self.ledger.path = "passthrough"
        await self.start(reply.status, headers, opaque=True)
        stall_s = self.steps.deployment.limits.stall
        tail = b""
        async for part in parts or _parts_of(reply):
            tail = tail[-_TAIL:] + part[-_TAIL:]
            try:
                async with asyncio.timeout(stall_s):
                    await self.part(part, more=True)
            except TimeoutError:
                self.client.drop()
                raise ClientGone from None
        # What is only looked at, such as a batch, was paid for by the request that made it.
        for kind, count in _TOKENS.findall(tail) if self.scope["method"] == "POST" else ():
            if kind in (b"prompt", b"input"):
                self.ledger.tokens_in = hop.attributes[names.GEN_AI_TOKENS_IN] = int(count)
            else:
                self.ledger.tokens_out = hop.attributes[names.GEN_AI_TOKENS_OUT] = int(count)
        await self.part(b"", more=False)


def _price(config: ServiceConfig, units: Units, count: int) -> float | None:
    """Return what so many units cost in US dollars; None if nobody states it."""
    return None if config.request_price is None or units.unknown else config.request_price * count


async def _parts_of(reply: ServiceReply) -> AsyncIterator[bytes]:
    """Yield a reply's body as it comes."""
    while part := await reply.chunk():
        yield part


async def _without_cache(reply: ServiceReply) -> AsyncIterator[bytes]:
    """Yield the body of a text completion without what it says of the server's prompt cache, event by event."""
    if not (reply.header("content-type") or "").startswith("text/event-stream"):
        yield _hidden(await reply.read())
        return
    parser = EventParser()
    async for part in _parts_of(reply):
        for data in parser.feed(part):
            yield b"data: %b\n\n" % (data if data == DONE else _hidden(data))


async def _with_our_urls(reply: ServiceReply, origin: str) -> AsyncIterator[bytes]:
    """Yield a JSON reply with paths of ours for the URLs of the results of batches: SDKs follow these, with our key."""
    raw = await reply.read()
    if b'"results_url"' in raw:
        try:
            value = orjson.loads(raw)
            for item in (value, *value.get("data", ())):
                url = item.get("results_url")
                if isinstance(url, str) and url.startswith(origin):
                    item["results_url"] = "/" + url[len(origin) :]
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            raise InvalidReply("a reply that is not a batch") from None
        raw = orjson.dumps(value)
    yield raw


def _hidden(raw: bytes) -> bytes:
    """Return a completion or chunk, as JSON, without what it says of the server's prompt cache."""
    try:
        value = orjson.loads(raw)
        hide_cache(value)
    except (orjson.JSONDecodeError, AttributeError, LookupError, TypeError):
        raise InvalidReply("a reply that is not a text completion") from None
    return orjson.dumps(value)


def _too_large(limit: int) -> RequestTooLarge:
    # Closing the connection is the only way not to read the rest of the body.
    return RequestTooLarge(f"The body is larger than {limit} bytes.", headers=((b"connection", b"close"),))


def further_models(body: Mapping[str, Any]) -> bool:
    """Return whether anything within a body names a model too, or a file that may: as the requests of a batch do."""
    values: list[Any] = [value for name, value in body.items() if name != "model"]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if "model" in value:
                return True
            values += value.values()
        elif isinstance(value, list):
            values += value
    return "input_file_id" in body
