"""Serve the conversations API: what `conversation` of a request names, and its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

from fastapi import APIRouter
from pydantic import Field

from gateway.errors import NotFound
from gateway.http.api_route import Body, BodyRoute, Served
from gateway.parts.apis.clients import Clients
from gateway.parts.apis.dialects.responses.items import Json as Shown
from gateway.parts.apis.dialects.responses.items import listed_item
from gateway.parts.apis.dialects.responses.reading import chat_request, unsupported
from gateway.parts.apis.routes.kept_responses import ShownItems
from gateway.parts.apis.routes.of_worker import OfWorker, Owner
from gateway.parts.apis.stores.conversations import with_ids
from gateway.steps import Steps

router: Final = APIRouter(prefix="/v1/conversations", tags=["Answers"], route_class=BodyRoute)
_MOST_AT_ONCE: Final = 20
_Key = Annotated[str, Field(max_length=64)]
_Metadata = Annotated[dict[_Key, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


class _GivenItems(Body):
    most_bytes: ClassVar[int | None] = None
    nulls: ClassVar[bool] = True

    items: list[Shown] | None = None
    metadata: _Metadata | None = None


def _kept_s(steps: Steps, clients: Clients) -> float:
    """Return how long a conversation is kept that no response has used yet. Raises InvalidRequest."""
    kept_s = steps.policies.current.default.state.responses
    if not kept_s or not clients.kept_responses.configured:
        raise unsupported("conversation", "cannot be kept: that needs a store, and state.responses in the policy.")
    return kept_s


def _checked(items: Sequence[Shown]) -> list[Shown]:
    """Return items with ids, once it is clear that a request could have them. Raises InvalidRequest."""
    if len(items) > _MOST_AT_ONCE:
        raise unsupported("items", f"may have up to {_MOST_AT_ONCE} items at a time.")
    chat_request({}, [(f"items[{i}]", item) for i, item in enumerate(items)], hosted=True, kept=True)
    return [listed_item(item, "") for item in with_ids(items)]


@router.post("")
async def create_conversation(steps: Served, clients: OfWorker, owner: Owner, body: _GivenItems) -> Shown:
    """Begin a conversation."""
    items, kept_s = _checked(body.items or []), _kept_s(steps, clients)
    return _shown(await clients.conversations.create(owner, items, body.metadata or {}, kept_s))


@router.get("/{conversation_id}")
async def show_conversation(clients: OfWorker, owner: Owner, conversation_id: str) -> Shown:
    """Show a conversation."""
    return _shown((await clients.conversations.find(owner, conversation_id)).response)


@router.post("/{conversation_id}")
async def update_conversation(
    steps: Served, clients: OfWorker, owner: Owner, conversation_id: str, body: _GivenItems
) -> Shown:
    """Change a conversation's metadata."""
    metadata = body.metadata or {}
    return _shown(await clients.conversations.change(owner, conversation_id, list, _kept_s(steps, clients), metadata))


@router.delete("/{conversation_id}")
async def delete_conversation(clients: OfWorker, owner: Owner, conversation_id: str) -> Shown:
    """Delete a conversation with its items."""
    await clients.conversations.delete(owner, conversation_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation_id}/items")
async def list_items(clients: OfWorker, owner: Owner, conversation_id: str, shown: ShownItems) -> Shown:
    """List a conversation's items."""
    conversation = await clients.conversations.find(owner, conversation_id)
    return shown.page([listed_item(item, "") for item in conversation.given])


@router.post("/{conversation_id}/items")
async def add_items(
    steps: Served, clients: OfWorker, owner: Owner, conversation_id: str, body: _GivenItems, shown: ShownItems
) -> Shown:
    """Add items to a conversation."""
    items = _checked(body.items or [])
    await clients.conversations.change(
        owner, conversation_id, lambda before: [*before, *items], _kept_s(steps, clients)
    )
    return shown.listed(items)


@router.get("/{conversation_id}/items/{item_id}")
async def show_item(clients: OfWorker, owner: Owner, conversation_id: str, item_id: str, shown: ShownItems) -> Shown:
    """Show an item of a conversation."""
    conversation = await clients.conversations.find(owner, conversation_id)
    return shown.item(listed_item(conversation.given[_place(conversation.given, item_id)], ""))


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(steps: Served, clients: OfWorker, owner: Owner, conversation_id: str, item_id: str) -> Shown:
    """Delete an item of a conversation, and return the conversation."""

    def without(items: Sequence[Shown]) -> list[Shown]:
        place = _place(items, item_id)
        return [*items[:place], *items[place + 1 :]]

    return _shown(await clients.conversations.change(owner, conversation_id, without, _kept_s(steps, clients)))


def _place(items: Sequence[Shown], item_id: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise NotFound(f"Item with id {item_id!r} not found.", code="item_not_found", param="item_id")


def _shown(conversation: Shown) -> Shown:
    return {name: value for name, value in conversation.items() if name != "output"}
