"""Serve `/v1/responses`: `POST` through the pipeline, and what clients ask of kept responses.

GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items, POST /v1/responses/ID/cancel
POST /v1/responses/input_tokens    an estimate, without a tokenizer
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.caching.kept_responses import KeptResponse
from gateway.dialects.responses.client import ResponsesClient
from gateway.dialects.responses.items import without_encrypted
from gateway.dialects.responses.reading import unsupported
from gateway.errors import CLIENT_GONE, InvalidRequest, NotFound
from gateway.http.exchange import Exchange
from gateway.http.messages import read_body
from gateway.off_loop import off_loop
from gateway.request.body import ChatBodies
from gateway.request.context import ClientGone
from gateway.request.options import TIER_PREFIX, known_headers
from policies.loader import AUTO
from routing.features import features_of, room_needed

if TYPE_CHECKING:
    from gateway.steps import Steps

PATHS: Final = ("/v1/responses", "/responses")
_NOT_LISTED: Final = frozenset({"compaction_trigger"})
"""Items that ask for something at their place, and are nothing that could be shown."""
_MOST_LISTED: Final = 100


class ResponsesEndpoint:
    """Answer `POST /v1/responses` with one worker's steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request."""
        dialect = _client(self._steps, known_headers(scope["headers"]))
        return Exchange(self._steps, self._bodies, scope, receive, send, dialect).run()


def _client(steps: Steps, headers: dict[bytes, bytes]) -> ResponsesClient:
    surface = headers.get(b"x-tierline-surface")

    def lifetime(model: str) -> float | None:
        """Return how long responses of a surface are kept, which is known before its policy is applied."""
        name = AUTO if model.startswith(TIER_PREFIX) else model
        policy = steps.policies.current.resolve(name, None if surface is None else surface.decode("latin-1"))
        if policy is None:
            return None
        return policy.state.responses if steps.kept_responses.configured else 0.0

    backends = [backend for tier in steps.deployment.tiers for backend in tier.backends]
    hosted = any(one.kind == "responses" and "hosted_tools" in one.capabilities for one in backends)
    messages = steps.deployment.limits.messages
    hides = steps.deployment.shares_backends
    return ResponsesClient(steps.kept_responses, lifetime, messages=messages, hosted=hosted, hides_cache=hides)


async def one_response(request: Request) -> Response:
    """Return a kept response, or delete it. Raises NotFound."""
    if request.method == "DELETE":
        return await _delete(request)
    kept = await _kept(request)
    if request.query_params.get("stream", "false") not in ("false", "0"):
        raise unsupported("stream", "is not supported: only responses in the background can be streamed again.")
    return _json(_shown(request, kept.response))


async def _delete(request: Request) -> Response:
    steps, tenant, response_id = _asked(request)
    if not await steps.kept_responses.delete(tenant, response_id):
        raise _not_found(response_id)
    return _json({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """Refuse: only responses in the background can be cancelled, and none are."""
    await _kept(request)
    raise InvalidRequest(
        "Cannot cancel a synchronous response. Close its connection, and the backend's call is ended.",
        code="unsupported_value",
        param="response_id",
    )


async def list_input_items(request: Request) -> Response:
    """List what a response was given, earlier turns too: newest first, or `order=asc`; `limit`, `after` as a cursor."""
    kept = await _kept(request)
    query = request.query_params
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not limit.isdecimal() or not 1 <= int(limit[:4]) <= _MOST_LISTED:
        raise unsupported("limit", f"must be 1 to {_MOST_LISTED}.")
    if order not in ("asc", "desc"):
        raise unsupported("order", "must be asc or desc.")
    items = await _given(request, kept)
    if order == "desc":
        items.reverse()
    if (after := query.get("after")) is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise unsupported("after", "is not the id of an item of this response.")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    return _json(
        {
            "object": "list",
            "data": [_shown_item(request, item) for item in page],
            "first_id": page[0]["id"] if page else "",  # the API's schema has no null here
            "last_id": page[-1]["id"] if page else "",
            "has_more": len(items) > len(page),
        }
    )


async def _given(request: Request, kept: KeptResponse) -> list[dict[str, Any]]:
    """Return all items of the conversation before a response's output, each with an id and as the API lists it."""
    steps, tenant, response_id = _asked(request)
    found = await steps.kept_responses.conversation(tenant, response_id)
    before = [] if found is None else found[0]
    items = [*before[: -len(kept.items())], *kept.given] if found is not None else list(kept.given)
    suffix = response_id.rpartition("_")[2]
    listed = [_listed(item, f"{suffix}i{place:03x}") for place, item in enumerate(items)]
    return [item for item in listed if item["type"] not in _NOT_LISTED]


def _listed(item: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Return an item as the API lists it: a message has a type, an id, a status and parts."""
    if item.get("type", "message") != "message":
        done = {"status": "completed"} if item["type"].endswith(("_call", "_output")) and not item.get("status") else {}
        return {**item, **done, "id": item.get("id") or f"item_{suffix}"}
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": content}
        content = [{**part, "annotations": []} if kind == "output_text" else part]
    return {
        "status": "completed",
        **item,
        "type": "message",
        "id": item.get("id") or f"msg_{suffix}",
        "content": content,
    }


async def count_tokens(request: Request) -> Response:
    """Estimate the tokens of what a request would give a model, as routing does; no tokenizer is asked."""
    steps: Steps = request.app.state.steps
    headers = known_headers(request.scope["headers"])
    steps.gate.check()
    tenant = steps.tenants.of(headers)
    limits = steps.deployment.limits
    try:
        raw = await read_body(request.receive, headers, limits.body, steps.gate, typed=steps.guard.active)
    except ClientGone:
        return Response(status_code=CLIENT_GONE)
    bodies = ChatBodies(limits)
    given, large = await bodies.read_object(raw)
    for name in ("stream", "background"):
        given.pop(name, None)
    given = {"model": AUTO, **given, "store": False}
    if given["model"] is None:
        given["model"] = AUTO
    chat, _, large = await _client(steps, headers).read(given, tenant, large=large)
    await bodies.check(chat, large=large)
    tokens = await off_loop(partial(_tokens_of, chat)) if large else _tokens_of(chat)
    return Response(
        orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens}),
        media_type="application/json",
        headers={"x-tierline-estimated": "1"},
    )


def _tokens_of(chat: Mapping[str, Any]) -> int:
    """Estimate the tokens of a chat completion's messages, tools and schema."""
    tokens = features_of(chat).approx_tokens
    tools: dict[str, Any] = {name: chat[name] for name in ("tools", "response_format") if name in chat}
    return tokens + room_needed({**tools, "messages": [], "max_tokens": 0}) if tools else tokens


def is_other_path(path: str) -> bool:
    """Return whether a path has the place of a response's id, but is none: one of OpenAI's that are not served."""
    beginning, _, name = path.rpartition("/")
    return beginning == PATHS[0] and not name.startswith("resp_") and name != "input_tokens"


def _asked(request: Request) -> tuple[Steps, str, str]:
    steps: Steps = request.app.state.steps
    return steps, steps.tenants.of(known_headers(request.scope["headers"])), request.path_params["response_id"]


async def _kept(request: Request) -> KeptResponse:
    steps, tenant, response_id = _asked(request)
    kept = await steps.kept_responses.find(tenant, response_id)
    if kept is None:
        raise _not_found(response_id)
    return kept


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id {response_id!r} not found.", code="response_not_found", param="response_id")


def _shown(request: Request, response: dict[str, Any]) -> dict[str, Any]:
    return {**response, "output": [_shown_item(request, item) for item in response["output"]]}


def _shown_item(request: Request, item: dict[str, Any]) -> dict[str, Any]:
    query = request.query_params
    include = query.getlist("include") + query.getlist("include[]")
    return item if "reasoning.encrypted_content" in include else without_encrypted(item)


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


ROUTES: Final = (
    Route("/v1/responses/input_tokens", count_tokens, methods=["POST"]),
    Route("/v1/responses/{response_id}", one_response, methods=["GET", "DELETE"]),
    Route("/v1/responses/{response_id}/cancel", cancel_response, methods=["POST"]),
    Route("/v1/responses/{response_id}/input_items", list_input_items, methods=["GET"]),
)
