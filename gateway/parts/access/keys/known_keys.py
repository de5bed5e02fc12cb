"""Know whose keys are sent to one worker: from memory, else from the store, else from the copy on disk.

    held in memory                                 no await; so with keys that are known to be none
    may be a key, by the filter                    one lookup in the store, single flight
    cannot be one                                  the same, so that the time does not tell; but after LOOKUPS a second
                                                   refused once a look at the store's changes confirms it: a flood of
                                                   made-up keys costs one look each NO_SOONER_S in all
    the store does not answer                      the copy on disk; a key that is not there either is 503, not 401

Four times a second once anything is known, and when something is to be confirmed, the worker looks at what has changed:
one round trip. What changed is dropped here and corrected in the copy. After changes that it missed it forgets all and
corrects the whole copy. A store that has lost its registry is given the keys of the copy again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from cache.store.base import StoreUnavailable
from gateway.errors import Overloaded, Unauthorized, retry_after
from gateway.parts.access.keys.held_keys import UNKNOWN, HeldKey, HeldKeys
from gateway.parts.access.keys.kept_keys import KeptKeys
from gateway.parts.access.keys.key_caller import KeyCaller, caller_of
from gateway.parts.access.keys.records import PREFIX, KeyRecord, OwnerRecord, digest_of, hashed_by, is_mistyped
from gateway.parts.access.keys.registry import FoundKey, KeyChanges, KeyRegistry, KeysConflict, Why

if TYPE_CHECKING:
    from gateway.caller import Caller
    from gateway.parts.access.config import OwnerTerms

log = logging.getLogger("tierline.keys")

INTERVAL_S: Final = 0.25
NO_SOONER_S: Final = 0.02
"""Least time between two looks at the changes."""
LOOKUPS: Final = 100
"""Most lookups a second, in each worker, of keys that the filter says are none."""
_AT_ONCE: Final = 16
"""Most lookups under way: each has a connection to the store for itself."""
_IDLE_S: Final = 2.0
"""Pause between two looks of a worker that knows nothing yet which could change."""
_START_S: Final = 2.0
"""How long a start waits for the store."""
_RESTORED: Final = Why("gateway", "the store had lost its registry of keys", "gateway", "restore")


class KnownKeys:
    """The keys of the store in one worker. Await `start()` before requests are served, and `aclose()`.

    `configured` are the teams and tenants of the config, by `team:NAME` and `tenant:NAME`; the store's record of one
    holds in its place.
    """

    def __init__(
        self,
        registry: KeyRegistry,
        secret: bytes,
        configured: Mapping[str, OwnerRecord],
        kept: KeptKeys | None = None,
        interval_s: float = INTERVAL_S,
        lookups: int = LOOKUPS,
        team_of: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`team_of`: the teams of the config's tenants."""
        self.held = HeldKeys()
        self.imported = False
        """Whether keys that do not begin with `tl_` may be in the registry."""
        self.on_owners: Callable[[], None] = lambda: None
        """Called when the store's record of a team or tenant of the config has changed."""
        self._registry = registry
        self._secret = secret
        self._configured = configured
        self._team_of = team_of
        self._owners: dict[str, OwnerRecord] = {}
        """The store's records of teams and tenants that the config names or identities have."""
        self._asked_owners = set(configured)
        self._kept = kept
        self._interval_s = interval_s
        self._revision = -1
        """The registry's revision that all here is as of; -1 before the store was read."""
        self._drops = 0
        """How often something was dropped: what was looked up before must not be held after."""
        self._in_use = asyncio.Event()
        """Set when something becomes known here that may change."""
        self._lock = asyncio.Lock()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._finding: dict[bytes, asyncio.Task[HeldKey]] = {}
        self._next_look: asyncio.Task[bool] | None = None
        self._looked_at = 0.0
        self._most_lookups = self._lookups = float(lookups)
        self._counted_at = time.monotonic()
        self._following: asyncio.Task[None] | None = None
        self._to_keep: list[FoundKey] = []
        self._down = "it has not answered yet"
        self._warned = False
        self._others_secret = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong, in words, for /readyz."""
        if self._others_secret:
            return ("they are hashed by another TIERLINE_KEY_SECRET than is set here, so none of them is known",)
        if not self._down or self._down == "unconfigured":
            return ()
        return (f"the store cannot be read ({self._down}); keys that were used before are known, others are not",)

    def known(self, key: bytes) -> KeyCaller | None:
        """Return the caller of a key that is at hand and valid; None if it has to be found. Raises Unauthorized."""
        held = self.held.get(digest_of(key, self._secret))
        if held is None or held.caller is not None:
            return None if held is None else held.caller
        raise Unauthorized(held.refused)

    async def find(self, key: bytes) -> KeyCaller:
        """Return the caller of a key. Raises Unauthorized; Overloaded where neither store nor copy can say."""
        if key[:3] == PREFIX and is_mistyped(key):
            raise Unauthorized("This API key is mistyped or cut off: its last six characters do not fit the others.")
        digest = digest_of(key, self._secret)
        task = self._finding.get(digest)
        if task is None:
            task = self._finding[digest] = asyncio.create_task(self._find(digest), name="tierline.keys.find")
            task.add_done_callback(lambda _: self._finding.pop(digest, None))
        held = await asyncio.shield(task)
        if held.caller is None:
            raise Unauthorized(held.refused)
        return held.caller

    async def find_or(self, key: bytes, otherwise: Caller) -> Caller:
        """Return the caller of a key that may be an imported one; `otherwise` for one that the store does not have.

        Raises Unauthorized for one that it has and that is disabled, revoked or expired.
        """
        try:
            return await self.find(key)
        except Overloaded:
            return otherwise
        except Unauthorized as error:
            if error.message == UNKNOWN:
                return otherwise
            raise

    async def of_record(self, record: KeyRecord) -> KeyCaller:
        """Return the caller of the record that an identity's token stands for, by the terms of its team and tenant.

        Raises Overloaded where the store cannot say what these are.
        """
        names = (*_names_of(record), f"tenant:{record.tenant}")
        if not self._asked_owners.issuperset(names):
            async with self._lock:  # so that what changes meanwhile is not overwritten by what was read before
                try:
                    await self._read_owners({*names}, new=True)
                except StoreUnavailable as down:
                    if down.reason != "unconfigured":
                        message = "What your team may use cannot be read now: the store of keys does not answer."
                        raise Overloaded(message, code="keys_unavailable", headers=retry_after(1)) from None
                self._asked_owners.update(names)
                self._in_use.set()
        own, any_, tenant = map(self.owner, names)
        return caller_of(record, own or any_, tenant, own=self._is_own(record))

    def owner(self, name: str) -> OwnerRecord | None:
        """Return what holds of a team or a tenant, such as `team:web`: the store's record, else the config's."""
        return self._owners.get(name) or self._configured.get(name)

    async def start(self) -> None:
        """Take what the registry says, if the store answers within two seconds, and follow it from now on."""
        if self._kept is not None:
            self._revision = await self._kept.reached() or -1
        until = time.monotonic() + _START_S
        while not await self._fresh() and self._down != "unconfigured" and time.monotonic() < until:
            self._looked_at = time.monotonic() + self._interval_s / 5
        if self.held.lacks_filter and self._kept is not None:
            self._owners = {f"{owner.kind}:{owner.name}": owner for owner in await self._kept.owners()}
            self.imported = self._down != "unconfigured"
            self.on_owners()
        if self._down != "unconfigured":
            self._following = asyncio.create_task(self._follow(), name="tierline.keys")

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.held.is_empty and not self._asked_owners:
                timer = loop.call_later(_IDLE_S, self._in_use.set)
                await self._in_use.wait()
                timer.cancel()
                self._in_use.clear()
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except Exception:
                log.exception("keys: what changed in the store could not be taken over; it is tried again")
                await asyncio.sleep(1.0)

    async def aclose(self) -> None:
        """Follow no more, write what is to be kept, and close the copy."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._kept is not None:
            await self._keep()
            await self._kept.aclose()

    async def look(self) -> bool:
        """Take over what has changed in the registry; return whether the store answered."""
        async with self._lock:
            self._looked_at = time.monotonic()
            try:
                changes = await self._registry.changes(self._revision)
                if not changes.whole:
                    changes = await self._mended(changes)
                if not changes.whole or self.held.lacks_filter:
                    await self._reset()
                if changes.digests or changes.owners:
                    await self._take(changes)
                self._revision, down = changes.revision, ""
            except StoreUnavailable as error:
                down = error.reason
            if down not in (self._down, "unconfigured") and (down or self._warned):
                self._warned = bool(down)
                log.warning("keys: %s", f"the store cannot be read ({down})" if down else "the store answers")
            self._down = down
        await self._keep()
        return not down

    async def _fresh(self) -> bool:
        """Return whether the store answered a look at its changes that began after this call; callers share one."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_soon(), name="tierline.keys.look")
        return await asyncio.shield(self._next_look)

    async def _look_soon(self) -> bool:
        await asyncio.sleep(max(0.0, self._looked_at + NO_SOONER_S - time.monotonic()))
        self._next_look = None
        return await self.look()

    async def _find(self, digest: bytes) -> HeldKey:
        made_up = not self.held.may_be(digest) and not self._may_look_up()
        if made_up and await self._fresh() and not self.held.may_be(digest):
            return self.held.hold(digest, None)
        drops = self._drops
        try:
            async with self._at_once:
                there, key = await self._registry.looked_up(digest.hex())
            caller = self._caller(key)
        except StoreUnavailable as down:
            if down.reason == "unconfigured":
                return self.held.hold(digest, None)
            kept = None if self._kept is None else await self._kept.find(digest.hex())
            if kept is None:
                message = "This API key cannot be checked now: the store of keys does not answer. Try again soon."
                raise Overloaded(message, code="keys_unavailable", headers=retry_after(1)) from None
            there, caller = True, self._caller(kept)
        else:
            if there and key.record.state == "active" and drops == self._drops:
                self._to_keep.append(key)
        held = self.held.hold(digest, caller, there=there)
        self._in_use.set()
        if drops != self._drops:
            self.held.forget(digest)
        return held

    def _may_look_up(self) -> bool:
        """Return whether one more key that can be none may be looked up all the same, as one that is one."""
        now = time.monotonic()
        self._lookups = min(self._most_lookups, self._lookups + (now - self._counted_at) * self._most_lookups)
        self._counted_at = now
        if self._lookups < 1:
            return False
        self._lookups -= 1
        return True

    def _caller(self, key: FoundKey) -> KeyCaller:
        record, configured = key.record, self._configured
        team = key.team or configured.get(f"team:{record.team}")
        tenant = key.tenant or configured.get(f"tenant:{record.tenant}")
        return caller_of(record, team, tenant, own=self._is_own(record))

    def _is_own(self, record: KeyRecord) -> bool:
        """Return whether a key's team is one within its tenant, and not the config's, which may have several."""
        return self._team_of.get(record.tenant) != record.team

    async def _take(self, changes: KeyChanges) -> None:
        self._drops += 1
        for digest in changes.digests:
            self.held.drop(bytes.fromhex(digest))
        teams, tenants = (
            {name.partition(":")[2] for name in changes.owners if name.startswith(kind)}
            for kind in ("team:", "tenant:")
        )
        self.held.drop_owners(teams, tenants)
        keys = await self._registry.by_digests(changes.digests)
        self.imported = self.imported or any(key.imported for key in keys.values())
        owners = await self._read_owners(set(changes.owners))
        if self._kept is not None:
            await self._keep()  # what was looked up before the change must not be written after it
            await self._kept.change([(one, keys.get(one)) for one in changes.digests], owners.items(), changes.revision)

    async def _read_owners(self, names: set[str], *, new: bool = False) -> dict[str, OwnerRecord | None]:
        """Take the store's records of teams and tenants that the config or an identity names, or all of `new` names."""
        read = await self._registry.some_owners(sorted(names))
        for name in read.keys() if new else read.keys() & self._asked_owners:
            if (owner := read[name]) is None:
                self._owners.pop(name, None)
            else:
                self._owners[name] = owner
        if read.keys() & self._configured:
            self.on_owners()
        return read

    async def _reset(self) -> None:
        """Forget everything that is held in memory."""
        bits, self.imported = await self._registry.filter(), await self._registry.has_imported()
        self._others_secret = await self._registry.hashed_by() not in ("", hashed_by(self._secret))
        self._drops += 1
        self.held.reset(bits)
        await self._read_owners(set(self._asked_owners))

    async def _mended(self, changes: KeyChanges) -> KeyChanges:
        """Make copy and registry say the same again, after changes that were missed; return what is new to memory.

        Keys are never removed from a registry: those that it has no more, or as they were before, it has lost, and is
        given again. So with teams and tenants if it has lost everything; else they may have been removed.
        """
        revision = await self._registry.revision()  # before the records, so that later changes of them are not missed
        if self._kept is not None:
            await self._keep()
            restored, owners = 0, await self._kept.owners()
            if not changes.revision:
                restored = await self._restored(owners)
            async for keys in self._kept.pages():
                restored += await self._restored(keys)
                digests = [key.digest for key in keys]
                there = await self._registry.by_digests(digests)
                await self._kept.change([(digest, there.get(digest)) for digest in digests], [])
            if restored:
                log.warning("keys: the store had lost records; %d of the copy on disk are in it again", restored)
            terms = await self._registry.some_owners([f"{owner.kind}:{owner.name}" for owner in owners])
            await self._kept.change([], terms.items(), revision)
        return KeyChanges(revision, whole=False)

    async def _restored(self, records: Sequence[KeyRecord | OwnerRecord]) -> int:
        """Give the registry records that it has lost; return how many."""
        while True:
            try:
                return await self._registry.restore(records, _RESTORED)
            except KeysConflict:  # another worker does the same
                await asyncio.sleep(0.05)

    async def _keep(self) -> None:
        if self._to_keep and self._kept is not None:
            found, self._to_keep = self._to_keep, []
            await self._kept.keep(found)


def _names_of(record: KeyRecord) -> tuple[str, str]:
    """Return the names of the records that may say a key's team's terms: its tenant's own, then any tenant's."""
    return f"team:{record.tenant}/{record.team}", f"team:{record.team}"


def configured_owners(teams: Mapping[str, OwnerTerms], tenants: Mapping[str, OwnerTerms]) -> dict[str, OwnerRecord]:
    """Return the teams and tenants of a config, by `team:NAME` and `tenant:NAME`."""
    kinds: tuple[tuple[Literal["team", "tenant"], Mapping[str, OwnerTerms]], ...] = (
        ("team", teams),
        ("tenant", tenants),
    )
    return {
        f"{kind}:{name}": OwnerRecord(kind, name, owner.limits, owner.per_user, owner.per_session)
        for kind, owners in kinds
        for name, owner in owners.items()
    }
