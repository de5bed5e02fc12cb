"""Serve what clients ask of kept responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from gateway.caching.background import UNFINISHED
from gateway.caching.kept_responses import KeptResponse
from gateway.dialects.responses.items import without_encrypted
from gateway.dialects.responses.reading import ENCRYPTED, unsupported
from gateway.errors import InvalidRequest, NotFound
from gateway.http.api_route import BodyRoute, Sender, Served
from gateway.steps import Steps

router: Final = APIRouter(prefix="/v1/responses", tags=["Answers"], route_class=BodyRoute)
Shown = dict[str, Any]
_NOT_LISTED: Final = frozenset({"compaction_trigger"})
"""Items that ask for something at their place, and are nothing that could be shown."""
_MOST_LISTED: Final = 100
_UNBUFFERED: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class _FoundResponse:
    """A response that is kept, and whether the client wants its encrypted reasoning too."""

    id: str
    response: KeptResponse
    encrypted: bool

    def item(self, item: Shown) -> Shown:
        """Return an item as it is shown to the client."""
        return item if self.encrypted else without_encrypted(item)


async def _kept(
    steps: Served,
    tenant: Sender,
    response_id: str,
    include: Annotated[list[str], Query()] = [],  # noqa: B006  (FastAPI copies it)
    included: Annotated[list[str], Query(alias="include[]", include_in_schema=False)] = [],  # noqa: B006
) -> _FoundResponse:
    kept = await steps.kept_responses.find(tenant, response_id)
    if kept is None or kept.response["object"] != "response":
        raise _not_found(response_id)
    kept = await steps.background.current(kept)
    return _FoundResponse(response_id, kept, ENCRYPTED in include + included)


_Found = Annotated[_FoundResponse, Depends(_kept)]


@router.get("/{response_id}", response_model=None)
async def show_response(
    steps: Served,
    kept: _Found,
    stream: str = "false",
    starting_after: Annotated[int, Query(description="Number of the last event that is not wanted again.")] = -1,
) -> Shown | StreamingResponse:
    """Show a kept response, or the events of one in the background."""
    if stream in ("false", "0"):
        response = kept.response.response
        return {**response, "output": [kept.item(item) for item in response["output"]]}
    events = None
    if kept.response.response.get("background"):
        events = await steps.background.events(kept.response, starting_after)
    if events is None:
        raise unsupported("stream", "needs a response that was made with background and stream, and lately.")
    return StreamingResponse(events, headers=_UNBUFFERED, media_type="text/event-stream")


@router.delete("/{response_id}")
async def delete_response(steps: Served, tenant: Sender, response_id: str) -> Shown:
    """Delete a kept response."""
    kept = await steps.kept_responses.find(tenant, response_id)
    if kept is not None and (await steps.background.current(kept)).response.get("status") in UNFINISHED:
        raise InvalidRequest("The response is not at its end. Cancel it first.", code="response_in_progress")
    if not await steps.kept_responses.delete(tenant, response_id):
        raise _not_found(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel")
async def cancel_response(steps: Served, kept: _Found) -> Shown:
    """Cancel a response in the background."""
    if not kept.response.response.get("background"):
        raise InvalidRequest(
            "Cannot cancel a synchronous response. Close its connection, and the backend's call is ended.",
            code="unsupported_value",
            param="response_id",
        )
    response = (await steps.background.cancel(kept.response)).response
    return {**response, "output": [kept.item(item) for item in response["output"]]}


@router.get("/{response_id}/input_items")
async def list_input_items(
    steps: Served,
    tenant: Sender,
    kept: _Found,
    limit: Annotated[str, Query(description="Most items.")] = "20",
    order: Annotated[str, Query(description="asc, or desc: newest first.")] = "desc",
    after: Annotated[str | None, Query(description="The last item of the page before.")] = None,
) -> Shown:
    """List what a kept response was given, earlier turns too."""
    return page_of(await _given(steps, tenant, kept.id, kept.response), limit, order, after, encrypted=kept.encrypted)


def page_of(items: list[Shown], limit: str, order: str, after: str | None, *, encrypted: bool) -> Shown:
    """Return a page of items, oldest first as they are given. Raises InvalidRequest."""
    if not limit.isdecimal() or not 1 <= int(limit[:4]) <= _MOST_LISTED:
        raise unsupported("limit", f"must be 1 to {_MOST_LISTED}.")
    if order not in ("asc", "desc"):
        raise unsupported("order", "must be asc or desc.")
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise unsupported("after", "is not the id of an item listed here.")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page if encrypted else [without_encrypted(item) for item in page],
        "first_id": page[0]["id"] if page else "",  # the API's schema has no null here
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(items) > len(page),
    }


async def _given(steps: Steps, tenant: str, response_id: str, kept: KeptResponse) -> list[dict[str, Any]]:
    """Return all items of the conversation before a response's output, each with an id and as the API lists it."""
    found = await steps.kept_responses.conversation(tenant, response_id)
    before = [] if found is None else found[0]
    items = [*before[: -len(kept.items())], *kept.given] if found is not None else list(kept.given)
    suffix = response_id.rpartition("_")[2]
    listed = [listed_item(item, f"{suffix}i{place:03x}") for place, item in enumerate(items)]
    return [item for item in listed if item["type"] not in _NOT_LISTED]


def listed_item(item: dict[str, Any], suffix: str) -> dict[str, Any]:
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


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id {response_id!r} not found.", code="response_not_found", param="response_id")
