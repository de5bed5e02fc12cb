"""Keep responses in the store, so that clients may refer to them (`previous_response_id`), read and delete them.

Each response is one value under a key of its tenant: the Response object, the items that it was given, and the ids of
the responses before it in its conversation. So a conversation of any length takes each item once, and two round trips.
A response is in `_pending` from the moment at which it is whole until it is in the store, which a task of its own does:
no reply waits for it. Another worker that is asked for it in these milliseconds looks again.

A response of a conversation keeps those before it for as long as itself. Where one of them was deleted, or is not kept
any more, the conversation cannot be continued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import orjson

from cache.store.base import Command, NoStore, Operation, Store, StoreUnavailable, Write
from gateway.caching.batches import BatchTask
from gateway.errors import InvalidRequest, Overloaded, retry_after
from gateway.off_loop import off_loop
from policies.value_type import value_type

log = logging.getLogger("tierline.responses")

_SCHEMA: Final = "r1"
_MOST_PENDING: Final = 1024
_LARGEST: Final = 8 << 20
_MOST_BEFORE: Final = 1000
"""Most responses of one conversation that are read to continue it."""
_MOST_BYTES: Final = 16 << 20
"""Most bytes of them, as stored."""
_DECODED_AT_ONCE: Final = 256 << 10
"""Bytes of responses that are decoded on the event loop; more are decoded in a thread."""
_READ_S: Final = 0.25
"""Time limit of a read: more than a cache lookup's, as the request cannot be answered without."""
_LOOK_AGAIN_S: Final = (0.02, 0.06)
_SECRET_BYTES: Final = 64

Json = dict[str, Any]


@value_type
class KeptResponse:
    """One response: its object, the items that it was `given`, and the ids of those `before` it, oldest first."""

    tenant: str
    response: Json
    given: Sequence[Json]
    before: Sequence[str]
    ttl_s: float = 0.0

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.response["id"])

    def items(self) -> list[Json]:
        """Return its items in the order of the conversation: those given, then its output."""
        return [*self.given, *self.response["output"]]


class KeptResponses(BatchTask[str]):
    """Keep responses. Reading raises Overloaded if the store does not answer, InvalidRequest if there is none."""

    def __init__(self, store: Store, secret: bytes) -> None:
        """Take the store; keys of tenants are hashed with the deployment's secret, of any length."""
        super().__init__("tierline.responses")
        self._store = store
        self._secret = secret if len(secret) <= _SECRET_BYTES else blake2b(secret).digest()
        self._pending: dict[str, KeptResponse] = {}

    @property
    def configured(self) -> bool:
        """Whether there is a store."""
        return not isinstance(self._store, NoStore)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def find(self, tenant: str, response_id: str) -> KeptResponse | None:
        """Return a tenant's response; None if it is not kept."""
        found = await self._find(tenant, [response_id])
        for wait_s in _LOOK_AGAIN_S:
            if found:
                break
            await asyncio.sleep(wait_s)
            found = await self._find(tenant, [response_id])
        return found.get(response_id)

    async def conversation(self, tenant: str, response_id: str) -> tuple[list[Json], list[str]] | None:
        """See `PastResponses.conversation`."""
        last = await self.find(tenant, response_id)
        if last is None:
            return None
        if len(last.before) > _MOST_BEFORE:
            raise _too_long(f"{len(last.before)} responses; at most {_MOST_BEFORE} are read")
        before = await self._find(tenant, last.before)
        if len(before) < len(last.before):
            return None
        items = [item for one in last.before for item in before[one].items()]
        return items + last.items(), [*last.before, response_id]

    async def items(self, tenant: str, wanted: Mapping[str, str]) -> dict[str, Json]:
        """See `PastResponses.items`."""
        responses = list(dict.fromkeys(wanted.values()))
        found = await self._find(tenant, responses)
        for wait_s in _LOOK_AGAIN_S:
            if len(found) == len(responses):
                break
            await asyncio.sleep(wait_s)
            found = await self._find(tenant, responses)
        return {
            item["id"]: item
            for one in found.values()
            for item in one.response["output"]
            if wanted.get(item.get("id")) == one.id
        }

    async def _find(self, tenant: str, ids: Sequence[str]) -> dict[str, KeptResponse]:
        """Return those of a tenant's responses that are kept, by id, in one round trip."""
        keys = {one: self._key(tenant, one) for one in ids}
        found = {one: kept for one, key in keys.items() if (kept := self._pending.get(key)) is not None}
        if asked := [one for one in ids if one not in found]:
            try:
                values = await self._store.ask([Command((b"GET", keys[one].encode())) for one in asked], _READ_S)
            except StoreUnavailable as down:
                raise self._unavailable(down) from None
            size = sum(len(value) for value in values if isinstance(value, bytes))
            if size > _MOST_BYTES:
                raise _too_long(f"{size} bytes; at most {_MOST_BYTES} are read")
            decode = partial(_all_decoded, values, tenant, asked)
            found |= await off_loop(decode) if size > _DECODED_AT_ONCE else decode()
        return found

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a tenant's response; return whether there was one."""
        key = self._key(tenant, response_id)
        pending = self._pending.pop(key, None)
        try:
            (count,) = await self._store.ask([Command((b"DEL", key.encode()))], _READ_S)
        except StoreUnavailable as down:
            raise self._unavailable(down) from None
        return pending is not None or count == 1

    def _unavailable(self, down: StoreUnavailable) -> Exception:
        if not self.configured:
            return InvalidRequest(
                "Responses are not kept here, as the gateway has no store (store.url in its config).",
                code="unsupported_value",
                param="previous_response_id",
            )
        return Overloaded(
            f"Kept responses cannot be read now: the store does not answer ({down.reason}).",
            code="state_unavailable",
            headers=retry_after(1),
        )

    # --- writing ------------------------------------------------------------------------------------------------------

    def keep(self, tenant: str, response: Json, given: Sequence[Json], before: Sequence[str], ttl_s: float) -> None:
        """See `PastResponses.keep`; the store has it soon after. Dropped, and logged, if too many wait already."""
        if len(self._pending) >= _MOST_PENDING:
            log.warning("response %s is not kept: %d others wait for the store", response["id"], _MOST_PENDING)
            return
        key = self._key(tenant, response["id"])
        self._pending[key] = KeptResponse(tenant, response, given, before, ttl_s)
        self._queue.append(key)
        self._waiting.set()

    async def _finish(self, batch: list[str]) -> None:
        """Write a batch. The replies are out: an error here may lose these responses, but nothing after them."""
        writing = {key: kept for key in batch if (kept := self._pending.get(key)) is not None}
        operations: list[Operation] = []
        try:
            for key, kept in writing.items():
                operations += self._operations(key, kept)
            if operations:
                await self._store.apply(operations)
            for key in batch:
                if key not in self._pending and key in writing:  # deleted while it was being written
                    await self._store.delete(key)
        except StoreUnavailable as down:
            log.warning("%d responses are not kept: the store does not answer (%s)", len(writing), down.reason)
        except Exception:
            log.exception("%d responses are not kept", len(writing))
        finally:
            for key in batch:
                self._pending.pop(key, None)

    def _operations(self, key: str, kept: KeptResponse) -> list[Operation]:
        """Return the commands that keep a response, and those before it for as long."""
        value = orjson.dumps([kept.tenant, kept.response, list(kept.given), list(kept.before)])
        if len(value) > _LARGEST:
            log.warning("response %s is not kept: it has %d bytes, with what it was given", kept.id, len(value))
            return []
        ttl_s = max(1, round(kept.ttl_s))
        prolonged = [self._key(kept.tenant, one).encode() for one in kept.before]
        return [Write(key, value, ttl_s), *(Command((b"EXPIRE", one, b"%d" % ttl_s)) for one in prolonged)]

    def _key(self, tenant: str, response_id: str) -> str:
        """Return the key of a response: a hash of both, as the id comes from the client, of any length and form."""
        digest = blake2b(digest_size=16, key=self._secret)
        for part in (_SCHEMA, tenant, response_id):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(b"%d:%b" % (len(data), data))
        return f"tierline:{_SCHEMA}:response:{digest.hexdigest()}"


def _too_long(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The conversation before has {what}. Begin a new one, with what matters of it in the input.",
        code="unsupported_value",
        param="previous_response_id",
    )


def _all_decoded(values: Sequence[Any], tenant: str, ids: Sequence[str]) -> dict[str, KeptResponse]:
    """Return the responses in these values, by id, without those that are missing, damaged or another's."""
    decoded = {
        one: _decoded(value, tenant, one) for one, value in zip(ids, values, strict=True) if isinstance(value, bytes)
    }
    return {one: kept for one, kept in decoded.items() if kept is not None}


def _decoded(value: bytes, tenant: str, response_id: str) -> KeptResponse | None:
    """Return the response in a value; None if it is damaged or another's."""
    try:
        owner, response, given, before = orjson.loads(value)
        if owner != tenant or response["id"] != response_id:
            return None
        return KeptResponse(owner, response, given, before)
    except (ValueError, TypeError, LookupError):
        return None
