"""Count the tokens of requests that are not sent: of messages, and of what a response is given.

Messages are counted by the surface's first tier, where that speaks Anthropic's API and answers within a second. All
else is estimated by the length of the texts, as tokenizers differ; the header `x-tierline-estimated: 1` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.backends.base import BackendError
from gateway.caller import Rights
from gateway.dialects.native import Native
from gateway.http.api_route import BodyRoute, Served
from gateway.http.build_context import chosen_policy, clamp_of, models_of
from gateway.off_loop import off_loop
from gateway.parts.apis.clients import Clients
from gateway.parts.apis.dialects.messages.client import chat_body, protocol_in
from gateway.parts.apis.openapi import MESSAGES_ERROR
from gateway.parts.apis.routes.of_worker import CountedCaller, OfWorker
from gateway.parts.apis.routes.responses import dialect_of
from gateway.request.body import ChatBodies
from gateway.request.options import TIER_PREFIX, RequestOptions, known_headers
from gateway.steps import Steps
from policies.loader import AUTO
from routing.features import estimated_tokens, features_of, room_needed, text_of

router: Final = APIRouter(prefix="/v1", tags=["Answers"], route_class=BodyRoute)
Given = dict[str, Any]
_COUNT_S: Final = 1.0
"""Longest wait in seconds for an exact count."""
_OF_AN_IMAGE: Final = 1600
"""Tokens of an image at the API's largest size."""


@router.post("/responses/input_tokens")
async def count_response(
    request: Request, reply: Response, steps: Served, clients: OfWorker, caller: CountedCaller, given: Given
) -> Given:
    """Estimate the tokens of a response's input."""
    for name in ("stream", "background"):
        given.pop(name, None)
    given = {"model": AUTO, **given, "store": False}
    if given["model"] is None:
        given["model"] = AUTO
    large = request.state.large
    client = dialect_of(steps, clients, known_headers(request.scope["headers"]))
    client.owner = caller.owner
    try:
        chat, _, large = await client.read(given, caller.tenant, large=large)
    finally:
        client.close()
    await _check(request, chat, large=large)
    reply.headers["x-tierline-estimated"] = "1"
    tokens = await off_loop(partial(_tokens_of, chat)) if large else _tokens_of(chat)
    return {"object": "response.input_tokens", "input_tokens": tokens}


@router.post("/messages/count_tokens", responses=MESSAGES_ERROR)
async def count_messages(
    request: Request, reply: Response, steps: Served, clients: OfWorker, caller: CountedCaller, given: Given
) -> Given:
    """Count a message's tokens."""
    large, headers = request.state.large, request.scope["headers"]
    translate = partial(chat_body, given, protocol_in(dict(headers)), counting=True)
    body, native = await off_loop(translate) if large else translate()
    await _check(request, body, large=large)
    tokens = await _counted(steps, clients, caller.rights, known_headers(headers), body, native, large=large)
    if tokens is None:
        reply.headers["x-tierline-estimated"] = "1"
        tokens = await off_loop(partial(body_tokens, body)) if large else body_tokens(body)
    return {"input_tokens": tokens}


async def _check(request: Request, chat: Mapping[str, Any], *, large: bool) -> None:
    """Check the chat that a request was translated into. Raises ApiError."""
    bodies: ChatBodies = request.app.state.bodies
    await bodies.check(chat, large=large)


async def _counted(
    steps: Steps,
    clients: Clients,
    rights: Rights | None,
    headers: Mapping[bytes, bytes],
    body: Given,
    native: Native,
    *,
    large: bool,
) -> int | None:
    """Return the exact count of the first tier that would answer; None if it gives none in time, or is not the key's.

    Raises Forbidden for a surface that the key may not use, or where none of its tiers and models is.
    """
    surface, model = headers.get(b"x-tierline-surface"), body["model"]
    pinned = model.removeprefix(TIER_PREFIX) if model.startswith(TIER_PREFIX) else None
    name = AUTO if pinned is not None else model
    named = None if surface is None else surface.decode("latin-1")
    policies = steps.policies.current
    policy = chosen_policy(policies, name, named, rights)
    ladder = () if policy is None else policy.ladder
    if policy is not None and rights is not None:
        models = rights.open_models(policy, policies, models_of(steps, policy))
        clamp = clamp_of(policy, RequestOptions(), None, rights, models)
        ladder = ladder if clamp is None else clamp.of(policy)
    tier = pinned or next(iter(ladder), "")
    counter = clients.counters.get(tier) if pinned is None or pinned in ladder else None
    if counter is None:
        return None
    try:
        async with asyncio.timeout(_COUNT_S):
            return await counter.count(body, native, large=large)
    except (BackendError, TimeoutError):
        return None


def body_tokens(body: Mapping[str, Any]) -> int:
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


def _tokens_of(chat: Mapping[str, Any]) -> int:
    """Estimate the tokens of a chat completion's messages, tools and schema."""
    tokens = features_of(chat).approx_tokens
    tools: dict[str, Any] = {name: chat[name] for name in ("tools", "response_format") if name in chat}
    return tokens + room_needed({**tools, "messages": [], "max_tokens": 0}) if tools else tokens
