"""Keep responses in the store, so that clients may refer to them (`previous_response_id`), read and delete them.

Each response is one value under a key of its tenant: the Response object, the items that it was given, and the ids of
the responses before it in its conversation. So a conversation of any length takes each item once, and two round trips.
A response is in `_pending` from the moment at which it is whole until it is in the store, which a task of its own does:
no reply waits for it. Another worker that is asked for it in these milliseconds looks again.

A response of a conversation keeps those before it for at least as long as itself. Where one of them was deleted, or is
not kept any more, the conversation cannot be continued. A tenant's responses are a lasting scope of their own with caps
(see `cache.scopes.scope`): beyond them, those that would end first are deleted, and a store that is full evicts none of
them. Once a minute one of the workers deletes those that have ended, of all tenants that ever kept one.

A reader compares the end of an entry's life with its clock, and `sweep` deletes what has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import orjson

from cache.scopes.scope import ENTRY, STRIKE, Caps, drop, keys_of, microseconds, prefixed, put
from cache.store.base import Command, NoStore, Operation, Release, Store, StoreUnavailable
from gateway.caching.batches import BatchTask
from gateway.errors import InvalidRequest, Overloaded, retry_after
from gateway.off_loop import off_loop
from policies.value_type import value_type

log = logging.getLogger("tierline.responses")

_SCHEMA: Final = "r3"
_OWNERS: Final = f"tierline:{_SCHEMA}:owners".encode()
"""Key of the set of the tenants with responses, as hashes. It grows by one for each tenant."""
_SWEEPING: Final = f"tierline:{_SCHEMA}:sweeping".encode()
"""Key that a worker sets when it sweeps, so that no other does for a while."""
_SWEEP_EVERY_S: Final = 60.0
_MOST_PENDING: Final = 1024
"""Most responses that wait for the store. Of this and the next, a tenant may take as much as is left for others."""
_MOST_PENDING_BYTES: Final = 64 << 20
"""Most bytes of the responses that wait for the store."""
_WRITTEN_AT_ONCE: Final = 4 << 20
"""Bytes of responses after which a write to the store holds no more."""
_TRIED_S: Final = 60.0
_PAUSE_S: Final = 1.0
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

ENDED: Final = frozenset({"completed", "incomplete"})
"""Status of responses that another may follow."""

Json = dict[str, Any]


@value_type
class KeptResponse:
    """One response: its object, the items that it was `given`, and the ids of those `before` it, oldest first."""

    tenant: str
    response: Json
    given: Sequence[Json]
    before: Sequence[str]

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.response["id"])

    def items(self) -> list[Json]:
        """Return its items in the order of the conversation: those given, then its output."""
        return [*self.given, *self.response["output"]]


@value_type
class _Pending:
    """A response that waits for the store: its value there, and the ids of those before it."""

    tenant: str
    id: str
    value: bytes
    before: Sequence[str]
    ttl_s: float
    release: Release | None = None
    """A lease to give back once the value is in the store."""
    until: float = 0.0
    """Monotonic time until which the write is tried again: of what has a lease, nobody else has a copy."""


class KeptResponses(BatchTask[str | Release]):
    """Keep responses. Reading raises Overloaded if the store does not answer, InvalidRequest if there is none."""

    def __init__(self, store: Store, secret: bytes, caps: Caps) -> None:
        """Take the store; keys of tenants are hashed with the deployment's secret, of any length.

        `caps` bound what is kept of each tenant.
        """
        super().__init__("tierline.responses")
        self._store = store
        self.secret = secret if len(secret) <= _SECRET_BYTES else blake2b(secret).digest()
        self._caps = caps
        self._pending: dict[str, _Pending] = {}
        self._pending_bytes = 0
        self._waiting_of: dict[str, tuple[int, int]] = {}
        """How many responses of a tenant wait for the store, and their bytes."""
        self.leases: dict[str, Release] = {}
        """Leases that this worker has of what is kept, by its id: given back once its end is in the store."""
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def configured(self) -> bool:
        """Whether there is a store."""
        return not isinstance(self._store, NoStore)

    def start(self) -> None:
        """Start writing, and sweeping if there is a store."""
        super().start()
        if self.configured:
            self._sweeping = asyncio.create_task(self._sweep_on(), name="tierline.responses.sweep")

    async def aclose(self) -> None:
        """Finish what is queued, within a time limit, and stop."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await super().aclose()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def find(self, tenant: str, response_id: str) -> KeptResponse | None:
        """Return a tenant's response; None if it is not kept."""
        kept = await self._find(tenant, [response_id])
        for wait_s in _LOOK_AGAIN_S:
            if kept:
                break
            await asyncio.sleep(wait_s)
            kept = await self._find(tenant, [response_id])
        return kept.get(response_id)

    async def conversation(self, tenant: str, response_id: str) -> tuple[list[Json], list[str]] | None:
        """See `PastResponses.conversation`."""
        last = await self.find(tenant, response_id)
        if last is None or last.response["object"] != "response":
            return None
        if last.response["status"] not in ENDED:
            raise InvalidRequest(
                f"The response {response_id!r} is not at its end, or failed: nothing can follow it.",
                code="unsupported_value",
                param="previous_response_id",
            )
        if len(last.before) > _MOST_BEFORE:
            raise _too_long(f"{len(last.before)} responses; at most {_MOST_BEFORE} are read")
        chain = await self._find(tenant, last.before)
        if len(chain) < len(last.before):
            return None
        chain[response_id] = last
        ids = [*last.before, response_id]
        first = chain[ids[0]]
        items = first.items()
        if (conversation := first.response.get("conversation")) is not None:
            # Such a response keeps its own turn only; what was before it is in its conversation.
            kept = await self._find(tenant, [conversation["id"]])
            if not kept:
                return None
            items = _until(kept[conversation["id"]].given, first.response["output"])
        return items + [item for id_ in ids[1:] for item in chain[id_].items()], ids

    async def items(self, tenant: str, wanted: Mapping[str, str]) -> dict[str, Json]:
        """See `PastResponses.items`."""
        responses = list(dict.fromkeys(wanted.values()))
        kept_by_id = await self._find(tenant, responses)
        for wait_s in _LOOK_AGAIN_S:
            if len(kept_by_id) == len(responses):
                break
            await asyncio.sleep(wait_s)
            kept_by_id = await self._find(tenant, responses)
        return {
            item["id"]: item
            for kept in kept_by_id.values()
            for item in kept.response["output"]
            if wanted.get(item.get("id")) == kept.id
        }

    async def _find(self, tenant: str, ids: Sequence[str]) -> dict[str, KeptResponse]:
        """Return those of a tenant's responses that are kept, by id, in one round trip."""
        keys = {id_: self.key_of(tenant, id_) for id_ in ids}
        values: dict[str, Any] = {
            id_: pending.value for id_, key in keys.items() if (pending := self._pending.get(key)) is not None
        }
        if asked := [id_ for id_ in ids if id_ not in values]:
            reads = [*(Command((b"GET", keys[id_].encode())) for id_ in asked), self._ends(keys[id_] for id_ in asked)]
            with self.answering():
                *found, until = await self._store.ask(reads, _READ_S)
            now = time.time()
            values |= {id_: value for id_, value, end in zip(asked, found, until, strict=True) if not ended(end, now)}
        size = sum(len(value) for value in values.values() if isinstance(value, bytes))
        if size > _MOST_BYTES:
            raise _too_long(f"{size} bytes; at most {_MOST_BYTES} are read")
        decode = partial(_all_decoded, values, tenant)
        return await off_loop(decode) if size > _DECODED_AT_ONCE else decode()

    async def delete(self, tenant: str, response_id: str, *beside: Command) -> bool:
        """Delete a tenant's response for good, and do what is to be done `beside` it; return whether there was one.

        One that another worker has still to write, or is at work on, is not kept any more then.
        """
        key = self.key_of(tenant, response_id)
        pending = self._taken(key)
        prefix, _, digest = key.rpartition(ENTRY)
        with self.answering():
            count, *_ = await self._store.ask([drop(prefix, [digest], time.time()), *beside], _READ_S)
        return pending is not None or count == 1

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Turn StoreUnavailable, raised within the block, into the error for the client.

        Raises Overloaded if the store does not answer, InvalidRequest if there is none.
        """
        try:
            yield
        except StoreUnavailable as down:
            if self.configured:
                message = f"Kept responses cannot be read now: the store does not answer ({down.reason})."
                raise Overloaded(message, code="state_unavailable", headers=retry_after(1)) from None
            message = "Responses are not kept here, as the gateway has no store (store.url in its config)."
            raise InvalidRequest(message, code="unsupported_value", param="previous_response_id") from None

    # --- writing ------------------------------------------------------------------------------------------------------

    async def keep_now(
        self, tenant: str, response: Json, given: Sequence[Json], ttl_s: float, *beside: Operation
    ) -> None:
        """Keep a response, with the operations `beside` it in the same write, before returning. Raises ApiError."""
        value = orjson.dumps([tenant, response, list(given), []])
        if len(value) > _LARGEST:
            raise _too_long(f"{len(value)} bytes; at most {_LARGEST} are kept")
        key = self.key_of(tenant, response["id"])
        self._taken(key)
        owner = Command((b"SADD", _OWNERS, self._digest(tenant).encode()))
        pending = _Pending(tenant, response["id"], value, (), max(1.0, ttl_s))
        with self.answering():
            await self._store.apply([owner, *self._commands(key, pending), *beside])

    def release(self, kept_id: str) -> None:
        """Give the lease of this id back soon, if this worker has it still."""
        if (lease := self.leases.pop(kept_id, None)) is not None:
            self._add(lease)

    def keep(self, tenant: str, response: Json, given: Sequence[Json], before: Sequence[str], ttl_s: float) -> None:
        """See `PastResponses.keep`; the store has it soon after. Dropped, and logged, if too much waits already."""
        response_id = response["id"]
        try:
            value = orjson.dumps([tenant, response, list(given), list(before)])
        except TypeError:
            log.exception("response %s is not kept", response_id)
            return
        if len(value) > _LARGEST:
            log.warning("response %s is not kept: it has %d bytes, with what it was given", response_id, len(value))
            return
        key = self.key_of(tenant, response_id)
        self._taken(key)
        count, size = self._waiting_of.get(tenant, (0, 0))
        after = count + 1, size + len(value)
        # So one tenant takes half of the room at most, and others always find some.
        free, free_bytes = _MOST_PENDING - len(self._pending), _MOST_PENDING_BYTES - self._pending_bytes
        if after[0] > free or after[1] > free_bytes:
            log.warning(
                "response %s is not kept: %d others wait for the store, with %d bytes; %d and %d are of its tenant",
                response_id, len(self._pending), self._pending_bytes, count, size,
            )  # fmt: skip
            return
        release = self.leases.pop(response_id, None)
        until = 0.0 if release is None else time.monotonic() + _TRIED_S
        self._pending[key] = _Pending(tenant, response_id, value, before, max(1.0, ttl_s), release, until)
        self._pending_bytes += len(value)
        self._waiting_of[tenant] = after
        self._write_soon(key)

    def _write_soon(self, key: str) -> None:
        self._add(key)

    def _taken(self, key: str) -> _Pending | None:
        """Take a response out of those that wait, and return it."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            self._pending_bytes -= len(pending.value)
            count, size = self._waiting_of[pending.tenant]
            if count > 1:
                self._waiting_of[pending.tenant] = count - 1, size - len(pending.value)
            else:
                del self._waiting_of[pending.tenant]
        return pending

    async def _finish(self, batch: list[str | Release]) -> None:
        keys: list[str] = []
        size = 0
        releases = [entry for entry in batch if isinstance(entry, Release)]
        for key in (entry for entry in batch if isinstance(entry, str)):
            if (pending := self._pending.get(key)) is not None:
                keys.append(key)
                size += len(pending.value)
            if size >= _WRITTEN_AT_ONCE:
                await self._write(keys)
                keys, size = [], 0
        if keys:
            await self._write(keys)
        if releases:
            with contextlib.suppress(StoreUnavailable):  # they end by themselves
                await self._store.apply(releases)

    async def _write(self, keys: Sequence[str]) -> None:
        """Write responses. The replies are out: an error here may lose these responses, but nothing after them."""
        writing = {key: pending for key in keys if (pending := self._pending.get(key)) is not None}
        again: list[str] = []
        try:
            owners = {self._digest(pending.tenant).encode() for pending in writing.values()}
            puts = [command for key, pending in writing.items() for command in self._commands(key, pending)]
            releases = [pending.release for pending in writing.values() if pending.release is not None]
            await self._store.apply([Command((b"SADD", _OWNERS, *owners)), *puts, *releases])
        except StoreUnavailable as down:
            again = [key for key, pending in writing.items() if pending.until > time.monotonic()]
            for key in again:
                asyncio.get_running_loop().call_later(_PAUSE_S, self._write_soon, key)
            if lost := len(writing) - len(again):
                log.warning("%d responses are not kept: the store does not answer (%s)", lost, down.reason)
        except Exception:
            log.exception("%d responses are not kept", len(writing))
        finally:
            for key, pending in writing.items():
                if key not in again and self._pending.get(key) is pending:
                    self._taken(key)

    # --- what has ended ---------------------------------------------------------------------------------------------

    async def _sweep_on(self) -> None:
        """Sweep about once a minute, of all workers together; the random part keeps them from asking at one instant."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311
            try:
                await self.sweep()
            except StoreUnavailable:
                continue
            except Exception:
                log.exception("responses that have ended are not deleted")

    async def sweep(self) -> None:
        """Delete what has ended, unless a worker did less than a minute ago. Raises StoreUnavailable."""
        lasting = b"%d" % round(900 * _SWEEP_EVERY_S)
        (turn,) = await self._store.ask([Command((b"SET", _SWEEPING, b"1", b"NX", b"PX", lasting))], _READ_S)
        if turn is None:
            return
        (owners,) = await self._store.ask([Command((b"SMEMBERS", _OWNERS))], _READ_S)
        for owner in owners:
            count = SWEPT_AT_ONCE
            while count == SWEPT_AT_ONCE:
                (count,) = await self._store.ask([sweep(_prefix(owner.decode()), time.time())], _READ_S)

    def _commands(self, key: str, pending: _Pending) -> list[Command]:
        """Return the commands that keep a response, and those before it for as long at least."""
        ends_at = time.time() + pending.ttl_s
        prefix, _, _ = key.rpartition(ENTRY)
        commands = [put(key, pending.value, pending.ttl_s, ends_at, self._caps, lasting=True)]
        if pending.before:  # first, as what the new response takes the room of must not be of its own conversation
            earlier = [self.key_of(pending.tenant, id_).rpartition(ENTRY)[2] for id_ in pending.before]
            commands.insert(0, prolong(prefix, earlier, ends_at))
        return commands

    def key_of(self, tenant: str, response_id: str) -> str:
        """Return the key of a response: hashes, as the id comes from the client, of any length and form.

        In a cluster all keys of a tenant are in one slot.
        """
        return f"{_prefix(self._digest(tenant))}{ENTRY}{self._digest(tenant, response_id)}"

    def lease_of(self, tenant: str, kept_id: str) -> str:
        """Return the key of the lease for whatever is kept under this id, in the cluster slot of its own key."""
        return f"{self.key_of(tenant, kept_id)}:lease"

    @staticmethod
    def _ends(keys: Iterable[str]) -> Command:
        """Return the command that reads when a tenant's responses end, by their keys, of which there is one."""
        prefixes, _, digests = zip(*(key.rpartition(ENTRY) for key in keys), strict=True)
        return ends(prefixes[0], digests)

    def _digest(self, *parts: str) -> str:
        digest = blake2b(digest_size=16, key=self.secret)
        for part in (_SCHEMA, *parts):
            digest.update(prefixed(part.encode("utf-8", "surrogatepass")))
        return digest.hexdigest()


def _prefix(owner: str) -> str:
    """Return what all keys of a tenant's responses begin with."""
    return f"tierline:{_SCHEMA}:{{{owner}}}"


def _until(items: Sequence[Json], output: Sequence[Json]) -> list[Json]:
    """Return the items of a conversation up to a response's own output."""
    made = {item["id"] for item in output}
    ends = [place for place, item in enumerate(items) if item.get("id") in made]
    return list(items[: ends[-1] + 1] if ends else items)


def _too_long(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The conversation before has {what}. Begin a new one, with what matters of it in the input.",
        code="unsupported_value",
        param="previous_response_id",
    )


def _all_decoded(values: Mapping[str, Any], tenant: str) -> dict[str, KeptResponse]:
    """Return the responses in these values, by id, without those that are missing, damaged or another's."""
    decoded = {id_: _decoded(value, tenant, id_) for id_, value in values.items() if isinstance(value, bytes)}
    return {id_: kept for id_, kept in decoded.items() if kept is not None}


def _decoded(value: bytes, tenant: str, response_id: str) -> KeptResponse | None:
    """Return the response in a value; None if it is damaged or another's."""
    try:
        owner, response, given, before = orjson.loads(value)
        if owner != tenant or response["id"] != response_id:
            return None
        return KeptResponse(owner, response, given, before)
    except (ValueError, TypeError, LookupError):
        return None


_SWEEP: Final = STRIKE + (Path(__file__).parent / "sweep.lua").read_bytes()
SWEPT_AT_ONCE: Final = 100
"""Most entries that one `sweep` deletes, as the server serves nobody meanwhile."""


def prolong(prefix: str, digests: Sequence[str], ends_at: float) -> Command:
    """Return the command that lets entries of a lasting scope live to `ends_at` (wall clock), or as long as they do.

    There is at least one digest.
    """
    scores = [word for digest in digests for word in (microseconds(ends_at), digest.encode())]
    return Command((b"ZADD", keys_of(prefix)[1], b"XX", b"GT", *scores))


def ends(prefix: str, digests: Sequence[str]) -> Command:
    """Return the command that reads when entries of a lasting scope end; `ended` reads one of its replies."""
    return Command((b"ZMSCORE", keys_of(prefix)[1], *(digest.encode() for digest in digests)))


def ended(reply: object, now: float) -> bool:
    """Return whether an entry's life is over at this time of the wall clock."""
    return isinstance(reply, bytes) and float(reply) <= now * 1e6


def sweep(prefix: str, now: float) -> Command:
    """Return the command that deletes entries of a lasting scope that have ended; its reply is how many it deleted."""
    return Command((b"EVAL", _SWEEP, b"3", f"{prefix}{ENTRY}".encode(), *keys_of(prefix), b"", microseconds(now)))
