"""Keep conversations in the store: items that clients name together by one id (`conversation`).

A conversation is kept as a response is (`KeptResponses`), within its tenant's room: its object, and its items as what
it was given. One request at a time may change it, of all workers: it has the conversation's lease meanwhile, which is
given back once the store has the new items. It is kept as long as a response of the surface that used it last.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from cache.store.base import Release, Store
from gateway.errors import Conflict, NotFound, retry_after
from gateway.parts.apis.dialects.responses.response_object import ItemIds
from gateway.parts.apis.stores.kept_responses import KeptResponse, KeptResponses

Json = dict[str, Any]
Items = Sequence[Json]

_TRIES_S: Final = (0.0, 0.02, 0.06, 0.15)
"""Waits before each try to get a lease: the request before may have ended just now."""
_LEASE_S: Final = 10.0
"""Life of the lease of a change that calls no model, and what a request has beyond its deadline."""
_IN_USE: Final = "Another request is using this conversation. Send this one again when that one has ended."


class Conversations:
    """The conversations that one deployment keeps. Methods raise ApiError."""

    def __init__(self, kept: KeptResponses, store: Store) -> None:
        self._kept = kept
        self._store = store
        self._open: dict[tuple[str, str], KeptResponse] = {}
        """Those whose leases this worker has, by tenant and id."""

    async def create(self, tenant: str, items: Items, metadata: Mapping[str, str], ttl_s: float) -> Json:
        """Keep a new conversation for a time in seconds, and return its object."""
        made: Json = {"id": f"conv_{secrets.token_hex(16)}", "object": "conversation", "created_at": int(time.time())}
        made |= {"metadata": dict(metadata), "output": []}
        await self._kept.keep_now(tenant, made, with_ids(items), ttl_s)
        return made

    async def find(self, tenant: str, conversation_id: str) -> KeptResponse:
        """Return a tenant's conversation, whose items are what it was `given`."""
        conversation = await self._kept.find(tenant, conversation_id)
        if conversation is None or conversation.response["object"] != "conversation":
            message = f"Conversation with id {conversation_id!r} not found."
            raise NotFound(message, code="conversation_not_found", param="conversation")
        return conversation

    async def open(self, tenant: str, conversation_id: str, hold_s: float = 0.0) -> Items:
        """Return a conversation's items, for a change that takes up to `hold_s` seconds, until `close`.

        Raises Conflict while another request changes it.
        """
        await self.find(tenant, conversation_id)
        lease = Release(self._kept.lease_of(tenant, conversation_id), secrets.token_bytes(16))
        for wait_s in _TRIES_S:
            await asyncio.sleep(wait_s)
            with self._kept.answering():
                claim = await self._store.claim(lease.lease, lease.holder, hold_s + _LEASE_S, lease.lease)
            if claim.holder == lease.holder:
                break
        else:
            raise Conflict(_IN_USE, code="conversation_locked", param="conversation", headers=retry_after(1))
        self._kept.leases[conversation_id] = lease
        try:
            conversation = self._open[tenant, conversation_id] = await self.find(tenant, conversation_id)
        except BaseException:
            self.close(tenant, conversation_id)
            raise
        return conversation.given

    def append(self, tenant: str, conversation_id: str, items: Items, ttl_s: float) -> None:
        """Add items to an open conversation, soon, and let others change it then."""
        conversation = self._open[tenant, conversation_id]
        self._kept.keep(tenant, conversation.response, [*conversation.given, *with_ids(items)], [], ttl_s)

    def close(self, tenant: str, conversation_id: str) -> None:
        """End the use of an open conversation."""
        self._open.pop((tenant, conversation_id), None)
        self._kept.release(conversation_id)

    async def change(
        self,
        tenant: str,
        conversation_id: str,
        items: Callable[[Items], Items],
        ttl_s: float,
        metadata: Mapping[str, str] | None = None,
    ) -> Json:
        """Replace a conversation's items by what `items` returns of them, and the metadata if given; return it."""
        async with self._changing(tenant, conversation_id) as found:
            changed = found.response if metadata is None else {**found.response, "metadata": dict(metadata)}
            await self._kept.keep_now(tenant, changed, items(found.given), ttl_s)
            return changed

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Delete a conversation with its items; responses that belonged to it stay."""
        async with self._changing(tenant, conversation_id):
            await self._kept.delete(tenant, conversation_id)

    @contextlib.asynccontextmanager
    async def _changing(self, tenant: str, conversation_id: str) -> AsyncIterator[KeptResponse]:
        await self.open(tenant, conversation_id)
        try:
            yield self._open[tenant, conversation_id]
        finally:
            self.close(tenant, conversation_id)


def with_ids(items: Items) -> list[Json]:
    """Return items with an id each: their own, or a new one."""
    ids = ItemIds()
    return [item if item.get("id") else {**item, "id": ids.new(item.get("type") or "message")} for item in items]
