"""`POST /v1/embeddings`: vectors from the gateway's own encoder or from a service, each text stored by itself.

A request's texts are looked up in one round trip; those that are not there are embedded together and stored after the
reply. The service is asked for numbers, whatever form the client wants: base64 (little-endian float32, which the SDKs
ask for by themselves) is not spoken everywhere.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from cache.entry import NO_DEMANDS
from cache.store.base import StoreUnavailable
from gateway.accounting import charge, settle
from gateway.backends.base import BackendError, BadStatus, InvalidReply, Saturated, Truncated, Unreachable
from gateway.cascade.client_errors import exhausted
from gateway.chat.usage import Price, Usage, count_in
from gateway.errors import CacheOnlyMiss, InvalidRequest, NotFound
from gateway.http.build_context import deadline_s
from gateway.off_loop import off_loop
from gateway.parts.services.config import services_in
from gateway.parts.services.policy import endpoints_in
from gateway.parts.services.side_exchange import SideExchange, client_of, hop_of
from gateway.parts.services.text_encoder import StoredVector, VectorCache
from gateway.request.body import ChatBodies
from gateway.request.options import user_of
from gateway.telemetry import names
from policies.value_type import value_type
from routing.features import estimated_tokens

if TYPE_CHECKING:
    from gateway.parts.apis.service import ServiceClient
    from gateway.parts.services.text_encoder import TextEncoder
    from gateway.steps import Steps
    from policies.model import Policy
    from routing.embedder import PublicEncoder

ENDPOINT: Final = "embeddings"
ENCODER: Final = "encoder"
"""The tier of vectors from the gateway's own encoder."""
_MOST_INPUTS: Final = 2048
_FEW_INPUTS: Final = 64
"""Number of inputs up to which the work on them is done on the event loop: about a millisecond."""
_MOST_MODEL_CHARS: Final = 256
_FLOAT: Final = 4
"""Bytes of one number of a stored vector."""
_READ: Final = frozenset({"model", "input", "encoding_format", "dimensions"})
_NO_PART_OF_THE_VECTOR: Final = frozenset({"model", "input", "encoding_format", "user"})
_MOST_TOKENS: Final = (1 << 32) - 1
"""Most tokens that a stored vector can name."""
_LARGE_REPLY: Final = 64 << 10
_MOST_WRITES: Final = 64
"""Most batches of vectors that wait to be stored; more are not stored."""


@value_type
class EmbeddingsRequest:
    """A checked body. `inputs` are texts or lists of tokens; `more` are the fields that the gateway does not know."""

    model: str
    inputs: Sequence[Any]
    base64: bool
    dimensions: int | None
    body: Mapping[str, Any]

    @property
    def more(self) -> tuple[str, ...]:
        """The fields that the gateway's own encoder does not read."""
        return tuple(name for name, value in self.body.items() if name not in _READ and value is not None)


class Embeddings:
    """Answer requests for embeddings with one worker's steps."""

    def __init__(self, steps: Steps, clients: Mapping[str, ServiceClient], encoder: TextEncoder) -> None:
        self._steps = steps
        self.clients = clients
        self.encoder = encoder
        self.bodies = ChatBodies(steps.deployment.limits)
        self.vectors = VectorCache(steps.store, steps.cache.scopes, steps.cache.secret, steps.quotas["cache"])
        self._writes: set[asyncio.Task[None]] = set()

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        return _Embedding(self, self._steps, scope, receive, send).run()

    def keep(self, vectors: Mapping[str, StoredVector]) -> None:
        """Store vectors after the reply. They are dropped where the store does not keep up."""
        if vectors and len(self._writes) < _MOST_WRITES and self._steps.gate.keeps_answers:
            task = asyncio.create_task(self._write(vectors), name="tierline.vectors")
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def _write(self, vectors: Mapping[str, StoredVector]) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.vectors.write(vectors)


class _Embedding(SideExchange):
    def __init__(self, route: Embeddings, steps: Steps, scope: Any, receive: Any, send: Any) -> None:
        super().__init__(steps, ENDPOINT, scope, receive, send)
        self._route = route
        self._encoder = route.encoder.encoder

    async def answer(self) -> None:
        await self.accept()
        limits = self.steps.deployment.limits
        raw = await self.body(limits.body)
        body, large = await self._route.bodies.read_object(raw, tokens=True)
        check = partial(embedding_request, body)
        request = await off_loop(check) if large else check()
        large = large or len(request.inputs) > _FEW_INPUTS
        self.client.watch()
        self.ledger.requested_model, self.ledger.user = request.model, user_of(self.ledger.tenant, body)
        policy = self.policy(request.model)
        await self._enter(request, large=large)
        model = self._allowed_model(policy, request)
        ledger, endpoint = self.ledger, endpoints_in(policy).embeddings
        ledger.tier = ledger.backend = endpoint.service or ENCODER
        ledger.model = model
        if endpoint.service is None:
            _check_for_encoder(self._encoder, request)
            ledger.dropped = request.more
        cache = self._route.vectors
        find_keys = partial(cache.keys, self.caller.owner, policy, _settings(policy, model, request), request.inputs)
        keys = await off_loop(find_keys) if large else find_keys()
        found = await self._stored(policy, keys)
        missing = [i for i, vector in enumerate(found) if vector is None]
        if missing and self.options.cache.only_if_cached:
            raise CacheOnlyMiss("There is no stored vector for every input of this request.")
        limit_s = deadline_s(policy, self.options)
        made: list[StoredVector] = []
        if missing:
            try:
                async with asyncio.timeout(limit_s):
                    inputs = [request.inputs[i] for i in missing]
                    made = await (
                        self._encoded(inputs, missing, policy)
                        if endpoint.service is None
                        else self._called(endpoint.service, model, request, inputs, policy, large=large)
                    )
            except TimeoutError:
                raise exhausted([], timed_out=True) from None
        for i, vector in zip(missing, made, strict=True):
            found[i] = vector
        ledger.path = "direct" if missing else "cache-exact"
        vectors = [vector for vector in found if vector is not None]
        if endpoint.service is not None and (
            price := services_in(self.steps.deployment)[endpoint.service].prices.get(model)
        ):
            stored = sum(vector.tokens for vector in vectors) - sum(vector.tokens for vector in made)
            ledger.list_usd = Price(input=price).of(Usage(stored, 0))
        ledger.answer_tokens_in, ledger.answer_tokens_out = sum(vector.tokens for vector in vectors), 0
        ledger.dropped += () if endpoint.service is None else _ignored(request.dimensions, vectors)
        write = partial(_reply, vectors, model, request.base64, _cut(self._encoder, policy, request))
        size = sum(len(vector.vector) for vector in vectors)
        reply = await off_loop(write) if size > _LARGE_REPLY else write()
        length = (b"content-length", b"%d" % len(reply))
        await self.start(200, [(b"content-type", b"application/json"), length])
        await self.part(reply, more=False)
        if endpoint.ttl and self.options.cache.write:
            self._route.keep({keys[i]: vector for i, vector in zip(missing, made, strict=True)})

    def _allowed_model(self, policy: Policy, request: EmbeddingsRequest) -> str:
        """Return the model that embeds. Raises ApiError for none, and for one that is closed to the key."""
        model, service = _model(self.steps, self._encoder, policy, request), endpoints_in(policy).embeddings.service
        self.check_model(policy, request.body, request.model, model)
        if service is not None:
            self.check_service(service)
        return model

    async def _enter(self, request: EmbeddingsRequest, *, large: bool) -> None:
        """Count the request and its tokens against the limits of its owners. Raises ApiError if one is reached."""
        share = partial(_shares, request.inputs, None)
        limited = self.caller.is_limited
        await self.let_in(sum(await off_loop(share) if large else share()) if limited else 0)

    async def _stored(self, policy: Policy, keys: Sequence[str]) -> list[StoredVector | None]:
        """Return what is stored, as a hop of the trace; nothing where the store does not answer."""
        nothing: list[StoredVector | None] = [None] * len(keys)
        hop = self.trace.begin(names.CACHE_EXACT)
        try:
            if not endpoints_in(policy).embeddings.ttl or not self.options.cache.read:
                hop.attributes |= {names.CACHE_OUTCOME: "bypass", names.CACHE_REASON: "policy"}
                return nothing
            stored = await self._route.vectors.read(keys)
        except StoreUnavailable as error:
            outcome = error.reason if error.reason in ("timeout", "open") else "error"
            hop.attributes |= {names.CACHE_OUTCOME: outcome, names.CACHE_REASON: error.reason}
            return nothing
        finally:
            hop.end()
        demands, now = self.options.cache.demands, self._route.vectors.clock()
        if demands is not NO_DEMANDS:
            stored = [
                vector if vector and not demands.unmet(now - vector.created_at, vector.expires_at - now, None) else None
                for vector in stored
            ]
        hits = sum(vector is not None for vector in stored)
        hop.attributes[names.CACHE_OUTCOME] = "hit" if hits == len(keys) else "miss"
        if 0 < hits < len(keys):
            hop.attributes[names.CACHE_REASON] = f"partly: {hits} of {len(keys)} stored"
        return stored

    async def _encoded(self, texts: list[str], places: Sequence[int], policy: Policy) -> list[StoredVector]:
        """Return the vectors of the gateway's own encoder. `places` are the texts' in the request."""
        encoder = self._route.encoder
        is_model = self.steps.deployment.embedding.kind != "static"
        hop = self.trace.begin(names.EMBED, names.of_embedder(encoder.encoder.name, is_model=is_model))
        try:
            encoded = await encoder.encode(texts)
        except BaseException:
            hop.end("embedding_failed")
            raise
        hop.end()
        made, now = [], self._route.vectors.clock()
        for done, (place, vector) in enumerate(zip(places, encoded, strict=True), start=1):
            if done % _FEW_INPUTS == 0:
                await asyncio.sleep(0)
            if vector.tokens is None:
                raise InvalidRequest(
                    f"The text is longer than the gateway's own encoder ({encoder.encoder.name}) reads. Split it, or "
                    "name a service that reads more: endpoints.embeddings.service in the policy.",
                    code="context_length_exceeded",
                    param=f"input[{place}]",
                )
            made.append(_stored(np.asarray(vector.vector, "<f4"), vector.tokens, now, policy))
        tokens = sum(vector.tokens for vector in made)
        self.ledger.tokens_in += tokens
        hop.attributes[names.GEN_AI_TOKENS_IN] = tokens
        return made

    async def _called(
        self,
        service: str,
        model: str,
        request: EmbeddingsRequest,
        inputs: list[Any],
        policy: Policy,
        *,
        large: bool,
    ) -> list[StoredVector]:
        """Return the vectors of the service, or of the fallback: asked once more where that may help."""
        whole = len(inputs) == len(request.inputs)
        body = {
            **{name: value for name, value in request.body.items() if name != "encoding_format"},
            "model": model,
            "input": request.body["input"] if whole else inputs,
        }
        fallback = endpoints_in(policy).embeddings.fallback
        fallback = fallback if fallback is not None and self.may_call(fallback) else None
        errors: list[BackendError] = []
        for server in (service, fallback or service):
            try:
                return await self._taken(server, model, inputs, body, policy, large=large)
            except BackendError as error:
                errors.append(error)
                if not _may_help(error, elsewhere=fallback is not None):
                    break
        raise exhausted(errors, timed_out=False)

    async def _taken(
        self, service: str, model: str, inputs: list[Any], body: dict[str, Any], policy: Policy, *, large: bool
    ) -> list[StoredVector]:
        """Return the vectors of one service. Raises BackendError.

        It is asked once more without `user` if it refuses that: no vector depends on it.
        """
        refused, also = client_of(self.steps, self._route.clients, service).refused, list[Any]()
        while True:
            fitted, omitted = refused.left_out(body, also)
            self.ledger.dropped = tuple(omitted)
            write = partial(orjson.dumps, fitted)
            sent = await off_loop(write) if large else write()
            try:
                vectors = await self._asked(service, model, inputs, sent, policy, large=large)
            except BadStatus as error:
                fields, _ = refused.refused(error.status, error.body, fitted, also)
                fields = [field for field in fields if field.shown == "user"]
                if also or not fields:
                    raise
                also += fields
                continue
            refused.remember(also)
            return vectors

    async def _asked(
        self, service: str, model: str, inputs: list[Any], sent: bytes, policy: Policy, *, large: bool
    ) -> list[StoredVector]:
        """Return the vectors of one service, by one call. Raises BackendError."""
        client = client_of(self.steps, self._route.clients, service)
        price = services_in(self.steps.deployment)[service].prices.get(model)
        if self.hold is not None:
            tokens_in = sum(_shares(inputs, None))
            usd = None if price is None else Price(input=price).of(Usage(tokens_in, 0))
            await self.reserve(usd, f"embedding by {model!r}")
        hop = hop_of(self.trace, self.ledger, service, ENDPOINT, model)
        headers = {"Content-Type": "application/json", **self.trace.headers(hop)}
        per_token = None if price is None else Price(input=price)
        try:
            reply = await client.send("POST", "/embeddings", headers, sent)
            try:
                raw = await reply.read()
            finally:
                reply.close()
            parse = partial(_vectors_of, raw, len(inputs))
            vectors, tokens = await off_loop(parse) if len(raw) > _LARGE_REPLY else parse()
        except BaseException as error:
            outcome = error.error_type if isinstance(error, BackendError) else "cancelled"
            hop.attributes[names.OUTCOME] = outcome
            if not isinstance(error, BadStatus | Unreachable | Saturated):  # it was sent, and the service bills it
                charge(self.ledger, hop, per_token, Usage(sum(_shares(inputs, None)), 0, estimated=True))
            hop.end(outcome)
            raise
        share = partial(_shares, inputs, tokens)
        shares = await off_loop(share) if large else share()
        used = Usage(sum(shares), 0, estimated=tokens is None)
        settle(self.ledger, 1)
        charge(self.ledger, hop, per_token, used)
        hop.attributes[names.OUTCOME] = "answered"
        hop.end()
        now = self._route.vectors.clock()
        return [_stored(vector, count, now, policy) for vector, count in zip(vectors, shares, strict=True)]


def _may_help(error: BackendError, *, elsewhere: bool) -> bool:
    """Return whether another call may end better: at another service, or at once at the one that has failed."""
    wordless = isinstance(error, BadStatus) and error.blame == "unknown" and not error.told.get("message")
    if isinstance(error, BadStatus) and (error.blame in ("request", "content") or wordless):
        return False
    passing = isinstance(error, BadStatus) and error.status >= 500 and not (error.asks_for_pause or error.cannot)
    return elsewhere or passing or isinstance(error, InvalidReply | Truncated | Unreachable)


def embedding_request(body: Mapping[str, Any]) -> EmbeddingsRequest:
    """Return the request in a body. Raises InvalidRequest."""
    model = body.get("model")
    if model is None:
        raise _missing("model")
    if not isinstance(model, str) or not 0 < len(model) <= _MOST_MODEL_CHARS or not model.isprintable():
        raise _wrong("model", f"a string of 1 to {_MOST_MODEL_CHARS} printable characters")
    encoding = body.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise _unsupported("encoding_format", "encoding_format is float or base64.")
    dimensions = body.get("dimensions")
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int)):
        raise _wrong("dimensions", "an integer")
    if dimensions is not None and dimensions < 1:
        raise _unsupported("dimensions", "dimensions is at least 1.")
    user = body.get("user")
    if user is not None and not isinstance(user, str):
        raise _wrong("user", "a string")
    return EmbeddingsRequest(model, _inputs(body.get("input")), encoding == "base64", dimensions, body)


def _inputs(given: Any) -> Sequence[Any]:
    """Return the inputs one by one, each a text or a list of tokens. Raises InvalidRequest."""
    if given is None:
        raise _missing("input")
    if isinstance(given, str):
        return [_text(given, "input")]
    if not isinstance(given, list):
        raise _wrong("input", "a string, a list of strings, a list of tokens or a list of lists of tokens")
    if not given:
        raise _unsupported("input", "input is an empty list.")
    if _is_token(given[0]):
        return [_tokens(given, "input")]
    if len(given) > _MOST_INPUTS:
        raise _unsupported("input", f"input has {len(given)} items; send at most {_MOST_INPUTS}.")
    if isinstance(given[0], str):
        return [_text(text, f"input[{i}]") for i, text in enumerate(given)]
    return [_tokens(tokens, f"input[{i}]") for i, tokens in enumerate(given)]


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _wrong(at, "a string, as the first input is")
    if not value:
        raise _unsupported(at, f"{at} is an empty text.")
    return value


def _tokens(value: Any, at: str) -> list[int]:
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        raise _wrong(at, "a string or a list of tokens")
    if not value:
        raise _unsupported(at, f"{at} is an empty list.")
    return value


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_for_encoder(encoder: PublicEncoder, request: EmbeddingsRequest) -> None:
    """Raise InvalidRequest for what the gateway's own encoder cannot do."""
    if not isinstance(request.inputs[0], str):
        at = "input" if _is_token(request.body["input"][0]) else "input[0]"
        message = f"The gateway's own encoder ({encoder.name}) reads texts; tokens are another model's. Send the text."
        raise _unsupported(at, message)
    if request.dimensions is not None and request.dimensions not in encoder.lengths:
        lengths = ", ".join(map(str, encoder.lengths))
        raise _unsupported("dimensions", f"The vectors of {encoder.name} have these lengths: {lengths}.")


def _model(steps: Steps, encoder: PublicEncoder, policy: Policy, request: EmbeddingsRequest) -> str:
    """Return the model that embeds: the surface's, or the one that the request names. Raises ApiError."""
    endpoint = endpoints_in(policy).embeddings
    is_surface = steps.policies.current.resolve(request.model) is not None
    own = encoder.name if endpoint.service is None else endpoint.model
    if not is_surface and endpoint.service is not None:
        return services_in(steps.deployment)[endpoint.service].models.get(request.model, request.model)
    if not is_surface and request.model != own:
        raise NotFound(
            f"There is no surface {request.model!r} here, and {policy.surface!r} embeds with {own}. Send a surface, "
            "or name the service that has the model: endpoints.embeddings.service in the policy.",
            code="model_not_found",
            param="model",
        )
    if own is None:
        raise InvalidRequest(
            f"Surface {policy.surface!r} sends embeddings to {endpoint.service!r} and names no model for it: set "
            "endpoints.embeddings.model in its policy, or send the service's own model.",
            code="unsupported_value",
            param="model",
        )
    return own


def _settings(policy: Policy, model: str, request: EmbeddingsRequest) -> dict[str, Any]:
    """Return what makes a vector, beside its text. The own encoder's vectors are stored whole, and cut when sent."""
    service = endpoints_in(policy).embeddings.service
    more = {name: value for name, value in request.body.items() if name not in _NO_PART_OF_THE_VECTOR}
    return {"service": service, "model": model, "more": {} if service is None else more}


def _cut(encoder: PublicEncoder, policy: Policy, request: EmbeddingsRequest) -> int | None:
    """Return the length to which vectors are cut here; None where they stay as they are."""
    own = endpoints_in(policy).embeddings.service is None
    return request.dimensions if own and request.dimensions != encoder.dimension else None


def _ignored(dimensions: int | None, vectors: Sequence[StoredVector]) -> tuple[str, ...]:
    """Return the name of the field that a service ignored if its vectors do not have the length that was asked for."""
    honoured = dimensions is None or all(len(vector.vector) == _FLOAT * dimensions for vector in vectors)
    return () if honoured else ("dimensions",)


def _stored(vector: np.ndarray[Any, Any], tokens: int, now: float, policy: Policy) -> StoredVector:
    return StoredVector(vector.tobytes(), tokens, now, now + endpoints_in(policy).embeddings.ttl)


def _vectors_of(raw: bytes, count: int) -> tuple[list[np.ndarray[Any, Any]], int | None]:
    """Return the vectors in a service's reply, in order, and the tokens that it counted. Raises InvalidReply."""
    try:
        value = orjson.loads(raw)
        data = sorted(value["data"], key=lambda item: item["index"])
        vectors = [_vector_of(item["embedding"]) for item in data]
    except (orjson.JSONDecodeError, binascii.Error, LookupError, TypeError, ValueError):
        raise InvalidReply("a reply without embeddings") from None
    if [one["index"] for one in data] != list(range(count)) or any(not one.size or one.ndim != 1 for one in vectors):
        raise InvalidReply("a reply with other embeddings than were asked for")
    usage = value.get("usage")
    counts = [usage.get(name) for name in ("prompt_tokens", "total_tokens")] if isinstance(usage, dict) else []
    known = [count for count in map(count_in, counts) if count is not None and count <= _MOST_TOKENS]
    return vectors, known[0] if known else None


def _vector_of(embedding: Any) -> np.ndarray[Any, Any]:
    if isinstance(embedding, str):
        vector = np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    else:
        vector = np.array(embedding, "<f4")
    if not np.isfinite(vector).all():
        raise ValueError("not a number")
    return vector


def _shares(inputs: Sequence[Any], tokens: int | None) -> list[int]:
    """Return the tokens of each input: of one the reported number, of several in proportion to our own estimates."""
    estimates = [max(1, round(estimated_tokens(text))) if isinstance(text, str) else len(text) for text in inputs]
    if tokens is None:
        return estimates
    total, given, before = sum(estimates), 0, 0
    shares = []
    for estimate in estimates:
        before += estimate
        share = round(tokens * before / total) - given
        given += share
        shares.append(share)
    return shares


def _reply(vectors: Sequence[StoredVector], model: str, encoded: bool, cut: int | None) -> bytes:
    data = []
    for index, embedded in enumerate(vectors):
        vector = np.frombuffer(embedded.vector, "<f4")
        if cut is not None:
            vector = vector[:cut]
            length = float(np.linalg.norm(vector))
            vector = vector / np.float32(length) if length else vector
        embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode() if encoded else vector
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = sum(vector.tokens for vector in vectors)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    value = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: {param!r}.", code="missing_required_parameter", param=param)


def _wrong(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for {param!r}: expected {expected}.", code="invalid_type", param=param)


def _unsupported(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_value", param=param)
