"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API, through the pipeline of chats."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import BackendError
from gateway.dialects.messages.client import MessagesClient, chat_body, protocol_in
from gateway.dialects.native import Native
from gateway.errors import ApiError
from gateway.http.exchange import Exchange
from gateway.http.messages import read_body, request_id_of, send_json
from gateway.off_loop import off_loop
from gateway.request.body import ChatBodies
from gateway.request.context import ClientGone
from gateway.request.options import TIER_PREFIX, known_headers
from policies.loader import AUTO
from routing.features import estimated_tokens, features_of, text_of

if TYPE_CHECKING:
    from gateway.steps import Steps

_REQUEST_ID = b"x-request-id"
_COUNT_S: Final = 1.0
"""Longest wait in seconds for an exact count."""
_OF_AN_IMAGE = 1600
"""Tokens of an image at the API's largest size."""


class Messages:
    """Answer messages with one worker's steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)
        backends = [backend for tier in steps.deployment.tiers for backend in tier.backends]
        speaking = [backend.can for backend in backends if backend.kind == "anthropic" and backend.configured]
        self._offered: frozenset[str] = frozenset().union(*speaking)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        scope, request_id = _identified(scope)
        hides = self._steps.deployment.shares_backends
        dialect = MessagesClient(dict(scope["headers"]), request_id, self._offered, hides_cache=hides)
        named = _named(send, request_id)
        return Exchange(self._steps, self._bodies, scope, receive, named, dialect).run()


class CountTokens:
    """Count the tokens of a request, at the surface's first tier where that speaks Anthropic's API.

    Elsewhere, or where that does not answer within a second, they are estimated by the length of the texts, as
    tokenizers differ; the header `x-tierline-estimated: 1` says so.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        scope, request_id = _identified(scope)
        headers, send = known_headers(scope["headers"]), _named(send, request_id)
        told = [(_REQUEST_ID, request_id.encode("latin-1"))]
        steps = self._steps
        try:
            steps.gate.check()
            steps.guard.check(headers)
            steps.tenants.of(headers)
            raw = await read_body(receive, headers, steps.deployment.limits.body, steps.gate, typed=steps.guard.active)
            given, large = await self._bodies.read_object(raw)
            translate = partial(chat_body, given, protocol_in(dict(scope["headers"])), counting=True)
            body, native = await off_loop(translate) if large else translate()
            await self._bodies.check(body, large=large)
            tokens = await self._counted(headers, body, native, large=large)
            if tokens is None:
                tokens = await off_loop(partial(prompt_tokens, body)) if large else prompt_tokens(body)
                told.append((b"x-tierline-estimated", b"1"))
        except ClientGone:
            return
        except ApiError as error:
            refusal = MessagesClient({}, request_id).error(error)
            await send_json(send, error.status, [*told, *error.headers], refusal)
            return
        reply = orjson.dumps({"input_tokens": tokens})
        await send_json(send, 200, told, reply)

    async def _counted(
        self, headers: Mapping[bytes, bytes], body: Mapping[str, Any], native: Native, *, large: bool
    ) -> int | None:
        """Return the exact count of the first tier that would answer; None if it gives none in time."""
        surface, model = headers.get(b"x-tierline-surface"), body["model"]
        pinned = model.removeprefix(TIER_PREFIX) if model.startswith(TIER_PREFIX) else None
        name = AUTO if pinned is not None else model
        policy = self._steps.policies.current.resolve(name, None if surface is None else surface.decode("latin-1"))
        counter = None if policy is None else self._steps.counters.get(pinned or policy.ladder[0])
        if counter is None:
            return None
        try:
            async with asyncio.timeout(_COUNT_S):
                return await counter.count(body, native, large=large)
        except (BackendError, TimeoutError):
            return None


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens of a chat-completions body: its texts, images, tool calls and tools."""
    tokens = float(features_of(body).approx_tokens)
    for message in body["messages"]:
        tokens += text_of(message.get("content"))[1] * _OF_AN_IMAGE
        if message.get("tool_calls"):
            tokens += _of_json(message["tool_calls"])
    for name in ("tools", "response_format"):
        if body.get(name):
            tokens += _of_json(body[name])
    return max(1, round(tokens))


def _of_json(value: Any) -> float:
    return estimated_tokens(orjson.dumps(value).decode())


def _identified(scope: Any) -> tuple[Any, str]:
    """Return the scope with a request id in its headers, and that id: errors in the dialect name it in their body."""
    request_id = request_id_of(known_headers(scope["headers"]))
    headers = [(name, value) for name, value in scope["headers"] if name != _REQUEST_ID]
    return {**scope, "headers": [*headers, (_REQUEST_ID, request_id.encode("latin-1"))]}, request_id


def _named(send: Any, request_id: str) -> Any:
    """Return `send`, with the request id in the header that Anthropic's SDKs read."""
    header = (b"request-id", request_id.encode("latin-1"))

    def named(message: Any) -> Any:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        return send(message)

    return named
