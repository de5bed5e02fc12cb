"""Serve the conversations API: what `conversation` of a request names, and its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.caching.conversations import named
from gateway.dialects.responses.items import without_encrypted
from gateway.dialects.responses.reading import ENCRYPTED, chat_body, unsupported
from gateway.errors import NotFound
from gateway.http.api_route import Body, BodyRoute, Sender, Served
from gateway.http.routes.kept_responses import listed_item, page_of
from gateway.steps import Steps

router: Final = APIRouter(prefix="/v1/conversations", tags=["Answers"], route_class=BodyRoute)
Shown = dict[str, Any]
_MOST_AT_ONCE: Final = 20
_Included = Annotated[list[str], Query(alias="include[]", include_in_schema=False)]
_Include = Annotated[list[str], Query()]
_Key = Annotated[str, Field(max_length=64)]
_Metadata = Annotated[dict[_Key, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


class _Changed(Body):
    most_bytes: ClassVar[int | None] = None
    nulls: ClassVar[bool] = True

    metadata: _Metadata | None = None


class _Created(_Changed):
    items: list[Shown] | None = None


class _Added(Body):
    most_bytes: ClassVar[int | None] = None

    items: list[Shown]


def _kept_s(steps: Steps) -> float:
    """Return how long a conversation is kept that no response has used yet. Raises InvalidRequest."""
    kept_s = steps.policies.current.default.state.responses
    if not kept_s or not steps.kept_responses.configured:
        raise unsupported("conversation", "cannot be kept: that needs a store, and state.responses in the policy.")
    return kept_s


def _checked(steps: Steps, items: Sequence[Shown]) -> list[Shown]:
    """Return items with ids, once it is clear that a request could have them. Raises InvalidRequest."""
    if len(items) > _MOST_AT_ONCE:
        raise unsupported("items", f"may have up to {_MOST_AT_ONCE} items at a time.")
    chat_body({}, [(f"items[{i}]", item) for i, item in enumerate(items)], hosted=True, kept=True)
    return [listed_item(item, "") for item in named(items)]


@router.post("")
async def create_conversation(steps: Served, tenant: Sender, body: _Created) -> Shown:
    """Begin a conversation."""
    items = _checked(steps, body.items or [])
    return _shown(await steps.conversations.create(tenant, items, body.metadata or {}, _kept_s(steps)))


@router.get("/{conversation_id}")
async def show_conversation(steps: Served, tenant: Sender, conversation_id: str) -> Shown:
    """Show a conversation."""
    return _shown((await steps.conversations.find(tenant, conversation_id)).response)


@router.post("/{conversation_id}")
async def update_conversation(steps: Served, tenant: Sender, conversation_id: str, body: _Changed) -> Shown:
    """Change a conversation's metadata."""
    opened = await steps.conversations.open(tenant, conversation_id)
    try:
        return _shown(await opened.replace(opened.items, _kept_s(steps), body.metadata or {}))
    finally:
        opened.close()


@router.delete("/{conversation_id}")
async def delete_conversation(steps: Served, tenant: Sender, conversation_id: str) -> Shown:
    """Delete a conversation with its items."""
    await steps.conversations.delete(tenant, conversation_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation_id}/items")
async def list_items(
    steps: Served,
    tenant: Sender,
    conversation_id: str,
    limit: Annotated[str, Query(description="Most items.")] = "20",
    order: Annotated[str, Query(description="asc, or desc: newest first.")] = "desc",
    after: Annotated[str | None, Query(description="The last item of the page before.")] = None,
    include: _Include = [],  # noqa: B006  (FastAPI copies it)
    included: _Included = [],  # noqa: B006
) -> Shown:
    """List a conversation's items."""
    found = await steps.conversations.find(tenant, conversation_id)
    items = [listed_item(item, "") for item in found.given]
    return page_of(items, limit, order, after, encrypted=ENCRYPTED in include + included)


@router.post("/{conversation_id}/items")
async def add_items(steps: Served, tenant: Sender, conversation_id: str, body: _Added) -> Shown:
    """Add items to a conversation."""
    items = _checked(steps, body.items)
    opened = await steps.conversations.open(tenant, conversation_id)
    try:
        await opened.replace([*opened.items, *items], _kept_s(steps))
    finally:
        opened.close()
    return page_of(items, str(_MOST_AT_ONCE), "asc", None, encrypted=False)


@router.get("/{conversation_id}/items/{item_id}")
async def show_item(
    steps: Served,
    tenant: Sender,
    conversation_id: str,
    item_id: str,
    include: _Include = [],  # noqa: B006
    included: _Included = [],  # noqa: B006
) -> Shown:
    """Show an item of a conversation."""
    found = await steps.conversations.find(tenant, conversation_id)
    item = listed_item(found.given[_place(found.given, item_id)], "")
    return item if ENCRYPTED in include + included else without_encrypted(item)


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(steps: Served, tenant: Sender, conversation_id: str, item_id: str) -> Shown:
    """Delete an item of a conversation, and return the conversation."""
    opened = await steps.conversations.open(tenant, conversation_id)
    try:
        place = _place(opened.items, item_id)
        return _shown(await opened.replace([*opened.items[:place], *opened.items[place + 1 :]], _kept_s(steps)))
    finally:
        opened.close()


def _place(items: Sequence[Shown], item_id: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise NotFound(f"Item with id {item_id!r} not found.", code="item_not_found", param="item_id")


def _shown(conversation: Shown) -> Shown:
    return {name: value for name, value in conversation.items() if name != "output"}
