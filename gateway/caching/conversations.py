"""Keep conversations in the store: items that clients name together by one id (`conversation`).

A conversation is kept as a response is (`KeptResponses`), within its tenant's room: its object, and its items as what
it was given. One request at a time may change it, of all workers: it has the conversation's lease meanwhile, which is
given back once the store has the new items. It is kept as long as a response of the surface that used it last.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cache.store.base import Release, Store, StoreUnavailable
from gateway.caching.kept_responses import KeptResponse, KeptResponses
from gateway.dialects.responses.response_object import ItemIds
from gateway.errors import Conflict, NotFound, retry_after

Json = dict[str, Any]

_TRIES_S: Final = (0.0, 0.02, 0.06, 0.15)
"""Waits before each try to get a lease: the request before may have ended just now."""
LEASE_S: Final = 10.0
"""Life of the lease of a change that calls no model, and what a request has beyond its deadline."""


class OpenConversation:
    """A conversation whose lease this request has, until `replace` or `close`."""

    def __init__(self, kept: KeptResponses, tenant: str, conversation: KeptResponse, lease: Release) -> None:
        self._kept = kept
        self._tenant = tenant
        self._object = conversation.response
        self._lease: Release | None = lease
        self.items = conversation.given
        """Its items so far, each with an id."""

    @property
    def id(self) -> str:
        """The conversation's id."""
        return str(self._object["id"])

    def append(self, given: Sequence[Json], output: Sequence[Json], ttl_s: float) -> None:
        """Add a turn, and give the lease back."""
        lease, self._lease = self._lease, None
        items = [*self.items, *named(given), *output]
        if not self._kept.keep(self._tenant, self._object, items, [], ttl_s, lease) and lease is not None:
            self._kept.release(lease)

    async def replace(self, items: Sequence[Json], ttl_s: float, metadata: Mapping[str, str] | None = None) -> Json:
        """Put these items, and metadata if given, in the place of what there is. Return the object. Raises ApiError."""
        if metadata is not None:
            self._object = {**self._object, "metadata": dict(metadata)}
        released = () if self._lease is None else (self._lease,)
        await self._kept.keep_now(self._tenant, self._object, items, (), *released, ttl_s=ttl_s)
        self._lease = None
        return self._object

    def close(self) -> None:
        """Give the lease back, if it still has it."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._kept.release(lease)


class Conversations:
    """The conversations of one deployment. What fails raises ApiError."""

    def __init__(self, kept: KeptResponses, store: Store) -> None:
        self._kept = kept
        self._store = store

    async def create(self, tenant: str, items: Sequence[Json], metadata: Mapping[str, str], ttl_s: float) -> Json:
        """Keep a new conversation for a time in seconds, and return its object."""
        made = {
            "id": f"conv_{secrets.token_hex(16)}",
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": dict(metadata),
            "output": [],
        }
        await self._kept.keep_now(tenant, made, named(items), ttl_s=ttl_s)
        return made

    async def find(self, tenant: str, conversation_id: str) -> KeptResponse:
        """Return a tenant's conversation, whose items are what it was `given`."""
        found = await self._kept.find(tenant, conversation_id)
        if found is None or found.response["object"] != "conversation":
            raise NotFound(
                f"Conversation with id {conversation_id!r} not found.",
                code="conversation_not_found",
                param="conversation",
            )
        return found

    async def open(self, tenant: str, conversation_id: str, hold_s: float = 0.0) -> OpenConversation:
        """Return a conversation for a change that takes up to `hold_s` seconds; Conflict if another one is at it."""
        await self.find(tenant, conversation_id)
        key = self._kept.lease_of(tenant, conversation_id)
        holder = secrets.token_bytes(16)
        try:
            for wait_s in _TRIES_S:
                await asyncio.sleep(wait_s)
                claim = await self._store.claim(key, holder, hold_s + LEASE_S, key)
                if claim.holder == holder:
                    break
            else:
                raise Conflict(
                    "Another request is using this conversation. Send this one again when that one has ended.",
                    code="conversation_locked",
                    param="conversation",
                    headers=retry_after(1),
                )
        except StoreUnavailable as down:
            raise self._kept.unavailable(down) from None
        lease = Release(key, holder)
        try:
            return OpenConversation(self._kept, tenant, await self.find(tenant, conversation_id), lease)
        except BaseException:
            self._kept.release(lease)
            raise

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Delete a conversation with its items; responses that belonged to it stay."""
        opened = await self.open(tenant, conversation_id)
        try:
            await self._kept.delete(tenant, conversation_id)
        finally:
            opened.close()


def named(items: Sequence[Json]) -> list[Json]:
    """Return items with an id each: their own, or a new one."""
    ids = ItemIds()
    return [item if item.get("id") else {**item, "id": ids.new(item.get("type") or "message")} for item in items]
