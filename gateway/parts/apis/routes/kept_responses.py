"""Serve what clients ask of kept responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from gateway.errors import InvalidRequest, NotFound
from gateway.http.api_route import BodyRoute
from gateway.parts.apis.clients import Clients
from gateway.parts.apis.dialects.responses.items import Json as Shown
from gateway.parts.apis.dialects.responses.items import listed_item, without_encrypted
from gateway.parts.apis.dialects.responses.reading import ENCRYPTED, unsupported
from gateway.parts.apis.routes.of_worker import OfWorker, Owner
from gateway.parts.apis.stores.background import UNFINISHED
from gateway.parts.apis.stores.kept_responses import ENDED, KeptResponse

router: Final = APIRouter(prefix="/v1/responses", tags=["Answers"], route_class=BodyRoute)
_NOT_LISTED: Final = frozenset({"compaction_trigger"})
"""Items that ask for something at their place, and are nothing that could be shown."""
_MOST_LISTED: Final = 100
_UNBUFFERED: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class _ShownItems:
    """Which items the client wants to see, and whether with their encrypted reasoning."""

    include: Annotated[list[str], Query(default_factory=list)]
    included: Annotated[list[str], Query(alias="include[]", default_factory=list, include_in_schema=False)]
    limit: Annotated[str, Query(description="Most items.")] = "20"
    order: Annotated[str, Query(description="asc, or desc: newest first.")] = "desc"
    after: Annotated[str | None, Query(description="The last item of the page before.")] = None

    def item(self, item: Shown) -> Shown:
        """Return an item as it is shown to the client."""
        return item if ENCRYPTED in self.include or ENCRYPTED in self.included else without_encrypted(item)

    def response(self, kept: KeptResponse) -> Shown:
        """Return a Response object as it is shown to the client."""
        return {**kept.response, "output": [self.item(item) for item in kept.response["output"]]}

    def page(self, items: Sequence[Shown]) -> Shown:
        """Return the page of items, oldest first as they are given. Raises InvalidRequest."""
        if not self.limit.isdecimal() or not 1 <= int(self.limit[:4]) <= _MOST_LISTED:
            raise unsupported("limit", f"must be 1 to {_MOST_LISTED}.")
        if self.order not in ("asc", "desc"):
            raise unsupported("order", "must be asc or desc.")
        items = items[::-1] if self.order == "desc" else items
        if self.after is not None:
            places = [place for place, item in enumerate(items) if item["id"] == self.after]
            if not places:
                raise unsupported("after", "is not the id of an item listed here.")
            items = items[places[0] + 1 :]
        return self.listed(items[: int(self.limit)], more=len(items) > int(self.limit))

    def listed(self, page: Sequence[Shown], *, more: bool = False) -> Shown:
        """Return these items as a list."""
        return {
            "object": "list",
            "data": [self.item(item) for item in page],
            "first_id": page[0]["id"] if page else "",  # the API's schema has no null here
            "last_id": page[-1]["id"] if page else "",
            "has_more": more,
        }


ShownItems = Annotated[_ShownItems, Depends()]


async def _kept(clients: OfWorker, owner: Owner, response_id: str) -> KeptResponse:
    kept = await clients.kept_responses.find(owner, response_id)
    if kept is None or kept.response["object"] != "response":
        raise NotFound(f"Response with id {response_id!r} not found.", code="response_not_found", param="response_id")
    return await clients.background.current(kept)


_Found = Annotated[KeptResponse, Depends(_kept)]


@router.get("/{response_id}", response_model=None)
async def show_response(
    clients: OfWorker,
    kept: _Found,
    shown: ShownItems,
    stream: str = "false",
    starting_after: Annotated[int, Query(description="Number of the last event that is not wanted again.")] = -1,
) -> Shown | StreamingResponse:
    """Show a kept response, or the events of one in the background."""
    if stream in ("false", "0"):
        return shown.response(kept)
    events = await clients.background.events(kept, starting_after) if kept.response.get("background") else None
    if events is None:
        raise unsupported("stream", "needs a response that was made with background and stream, and lately.")
    return StreamingResponse(events, headers=_UNBUFFERED, media_type="text/event-stream")


@router.delete("/{response_id}")
async def delete_response(clients: OfWorker, owner: Owner, response_id: str) -> Shown:
    """Delete a kept response; one that is not there yet will not be kept."""
    try:
        kept = await _kept(clients, owner, response_id)
    except NotFound:
        await clients.kept_responses.delete(owner, response_id)
        raise
    if kept.response["status"] in UNFINISHED:
        raise InvalidRequest("The response is not at its end. Cancel it first.", code="response_in_progress")
    await clients.background.delete(kept)
    return {"id": kept.id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel")
async def cancel_response(clients: OfWorker, kept: _Found, shown: ShownItems) -> Shown:
    """Cancel a response in the background."""
    if not kept.response.get("background"):
        raise InvalidRequest(
            "Cannot cancel a synchronous response. Close its connection, and the backend's call is ended.",
            code="unsupported_value",
            param="response_id",
        )
    return shown.response(await clients.background.cancel(kept))


@router.get("/{response_id}/input_items")
async def list_input_items(clients: OfWorker, kept: _Found, shown: ShownItems) -> Shown:
    """List what a kept response was given, earlier turns too."""
    return shown.page(await _given(clients, kept))


async def _given(clients: Clients, kept: KeptResponse) -> list[Shown]:
    """Return all items of the conversation before a response's output, each with an id and as the API lists it."""
    items = list(kept.given)
    if kept.response["status"] in ENDED and (kept.before or "conversation" in kept.response):
        conversation = await clients.kept_responses.conversation(kept.tenant, kept.id)
        items = items if conversation is None else [*conversation[0][: -len(kept.items())], *items]
    suffix = kept.id.rpartition("_")[2]
    listed = [listed_item(item, f"item_{suffix}i{place:03x}") for place, item in enumerate(items)]
    return [item for item in listed if item["type"] not in _NOT_LISTED]
