"""Derive scopes, within which alone entries are shared, and limit their size.

A scope is one owner, surface, `answers_version` and generation.

The owner is the tenant of the API key, never anything in the request; or, with `cache.scope: team` in the policy, the
team of that key. The config's teams are groups of tenants, so that this widens the cache; teams of keys in the store
and of identities are groups within a tenant, so that it narrows the cache. Without a team the owner is the tenant.

The policy's `answers_version` covers what determines an answer: the ladder's tiers and models, and the rules for output
and cache. So answers of another model are never found, while those of a policy with edited thresholds are. System
prompts are part of the request (see `cache.planning.plan`).

Scopes are BLAKE2b hashes, keyed with the deployment's secret; their parts are length-prefixed, so that no text inside
one can move the boundary between two. In a key a scope is in braces: all its keys are in one slot of a cluster.

Two hashes in the store are about all scopes. One has the generations, numbers that a purge of a surface raises, so that
entries of earlier scopes are under keys that are not used any more: the field `surface` counts its purges for
everybody, `surface owner` those for one owner, and a scope's generation is the sum of the two. The other lists the
scopes in plain text, because keys contain only hashes and a purge must find the scopes of an owner.

A scope has two keys besides its entries: a hash from each entry's digest to its size in bytes and, for a copy, the
digest of the original, with the sum of all bytes under ''; and a sorted set of the digests by time of creation. One
script writes an entry and both: if the scope then exceeds its limit of entries or bytes, the oldest are deleted until
it fits (at most 100 at a time), so that a tenant that fills its scope evicts only its own entries. Expired
entries are removed in the same way, so the counts are exact except for entries that the server itself evicted. A copy
is not written once its original is gone, since that may have been purged while the copy was on its way.
What is deleted for good stays so although somebody still writes it: a third key, a sorted set of the digests by time of
deletion, outlives every writer that comes late, and refuses what was made before. It has the latest 10,000.
All keys of a scope are in one slot of a cluster, and both keys are deleted with the last entry.

The keys of a lasting scope have no expiry, so a server that is full does not evict them. Its entries are ordered by the
end of their lives instead, and those that end first are deleted first. Who keeps them deletes what has ended.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from cache.store.base import Command, Store, StoreUnavailable

if TYPE_CHECKING:
    from policies.model import Policy

SCHEMA: Final = "c3"
"""Part of every key: another version of Tierline on the same store never reads these entries."""
DIGEST_BYTES: Final = 16
_DIGEST_CHARS: Final = 2 * DIGEST_BYTES
_REMEMBERED: Final = 10_000
GENERATIONS: Final = f"tierline:{SCHEMA}:generations"
SEEN_S: Final = 1.0
"""Maximum seconds for which a worker uses the generations it has read, and duration of a purge."""
_EVERY_S: Final = 0.25
_UNUSED_S: Final = 0.7
"""Seconds between two reads that no request was in between of: the next one then still comes within SEEN_S."""
_RETRY_S: Final = 0.05
_READ_S: Final = 0.25
LISTED: Final = f"tierline:{SCHEMA}:scopes"
"""Key of the hash that lists the scopes."""
_REGISTER_S: Final = 300.0

log = logging.getLogger("tierline.cache")


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope. `prefix` starts all its keys; the other fields are the plain text of what its hash covers."""

    prefix: str
    owner: str
    surface: str
    policy: str
    """Label, `surface@version`, of a policy with answers here; other policies may share the scope."""
    models: str
    """Models that may have given the answers, the cheapest tier's first."""
    generation: int

    @property
    def digest(self) -> str:
        """The scope's hash alone, in hex."""
        return self.prefix[-_DIGEST_CHARS - 1 : -1]


class Scopes:
    """Derive the scopes of requests. `teams` has the name of the team of each tenant that the config puts into one."""

    def __init__(self, secret: bytes, teams: Mapping[str, str], generation: Callable[[str, str], int]) -> None:
        """Take the secret (at most 64 bytes), the teams, and `generation`, of (owner, surface) now."""
        self._secret = secret
        self._teams = teams
        self._generation = generation
        self._known: dict[tuple[str, str, str, str], Scope] = {}

    def of(self, tenant: str, policy: Policy) -> Scope:
        """Return the scope of a request of this tenant, or of a team of its keys as `TENANT/TEAM`."""
        name = (tenant, policy.surface, policy.version, policy.answers_version)
        scope = self._known.get(name)
        if scope is None or scope.generation != self._generation(scope.owner, scope.surface):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            scope = self._known[name] = self._new(tenant, policy)
        return scope

    def _new(self, tenant: str, policy: Policy) -> Scope:
        owners = owners_of(tenant, self._teams)
        owner, surface = owners[-1] if policy.cache.scope == "team" else owners[0], policy.surface
        generation = self._generation(owner, surface)
        prefix = scope_of(owner, surface, policy.answers_version, self._secret, generation)
        return Scope(prefix, owner, surface, policy.label, " -> ".join(policy.models), generation)

    def owners(self, tenant: str) -> tuple[str, ...]:
        """Return the owners of a tenant's possible answers; see `owners_of`."""
        return owners_of(tenant, self._teams)


def owners_of(tenant: str, teams: Mapping[str, str]) -> tuple[str, ...]:
    """Return the owners of a tenant's possible answers: itself, and its team if it has one.

    That is the team in `TENANT/TEAM`, unless it is the tenant's own in `teams`, by tenant: such a team has tenants.
    """
    name, _, team = tenant.partition("/")
    shared = teams.get(name)
    if team and team != shared:
        return (owner_of(name), owner_of(tenant))
    return (owner_of(name),) if shared is None else (owner_of(name), f"team:{shared}")


def owner_of(tenant: str) -> str:
    """Return a tenant's name as an owner. It cannot equal a team's: neither name contains a colon."""
    return f"tenant:{tenant}"


def scope_of(owner: str, surface: str, answers_version: str, secret: bytes, generation: int = 0) -> str:
    """Return the prefix of all keys of one scope."""
    digest = blake2b(digest_size=DIGEST_BYTES, key=secret)
    for part in (SCHEMA, owner, surface, answers_version, str(generation)):
        digest.update(prefixed(part.encode()))
    return prefix_of(digest.hexdigest())


def prefix_of(digest: str) -> str:
    """Return the prefix of the scope with this hash."""
    return f"tierline:{SCHEMA}:{{{digest}}}"


def prefixed(part: bytes) -> bytes:
    """Return a part to be hashed, with its length in front."""
    return b"%d:%b" % (len(part), part)


class Generations:
    """One worker's copy of the generations. `run` is a task; `clock` is monotonic, in seconds.

    Every worker reads them a few times a second, off the path of requests, and uses what it read for at most SEEN_S; a
    purge raises a number and waits that long. When it returns, no worker uses the old keys any more: each has read the
    new number, or has none. A worker without numbers, because the store does not answer, uses a random generation of
    its own, shared with nobody.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._alone = _nobody_elses()
        self._known: Mapping[str, int] = {}
        self._until = -1.0
        self._used = True

    def of(self, owner: str, surface: str) -> int:
        """Return the generation of an owner's entries on a surface."""
        self._used = True
        return generation_of(self._known, owner, surface) if self._clock() <= self._until else self._alone

    async def refresh(self) -> bool:
        """Read the generations from the store; return whether that succeeded."""
        asked_at = self._clock()
        try:
            (reply,) = await self._store.ask(_READ, _READ_S)
        except StoreUnavailable:
            return False
        if self._clock() > self._until:
            self._alone = _nobody_elses()  # entries of the last one may have been purged meanwhile
        self._known, self._until = generations_in(reply), asked_at + SEEN_S
        return True

    async def run(self) -> None:
        """Refresh until cancelled."""
        ok = True
        while True:
            await asyncio.sleep(_RETRY_S if not ok else _EVERY_S if self._used else _UNUSED_S)
            self._used = False
            try:
                ok = await self.refresh()
            except Exception:
                ok = False
                log.exception("the generations of the cache could not be read")


def generation_of(raised: Mapping[str, int], owner: str, surface: str) -> int:
    """Return the generation of an owner's entries on a surface, as the sum of all purges that reach them.

    `raised` counts purges by surface, and by surface and owner; those of a team's tenant reach the team too.
    """
    if not raised:
        return 0
    tenant, slash, _ = owner.partition("/")
    of_tenant = raised.get(f"{surface} {tenant}", 0) if slash else 0
    return raised.get(surface, 0) + raised.get(f"{surface} {owner}", 0) + of_tenant


def read_generations() -> Command:
    """Return the command that reads all generations; `generations_in` reads the reply."""
    return Command((b"HGETALL", GENERATIONS.encode()))


_READ: Final = (read_generations(),)


def generations_in(reply: object) -> dict[str, int]:
    """Return the fields and numbers in a reply to `read_generations`; invalid ones are left out."""
    if not isinstance(reply, list) or not reply:
        return {}
    pairs = zip(reply[::2], reply[1::2], strict=False)
    return {name.decode(errors="replace"): int(value) for name, value in pairs if value.removeprefix(b"-").isdigit()}


def _nobody_elses() -> int:
    return -1 - secrets.randbits(62)


class Registry:
    """The scopes that one worker has registered. `clock` is the wall clock in seconds.

    A scope's hash is mapped to its owner, surface, policy, models and generation, and to the time until which it may
    have entries. A worker registers a scope when it first writes to it or reads tags in it, and again every 5 minutes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def enter(self, scope: Scope, ttl_s: float) -> tuple[Command, ...]:
        """Return the commands that register a scope whose entries live `ttl_s` seconds; none if done recently."""
        now = self._clock()
        if self._due.get(scope.prefix, 0.0) > now:
            return ()
        if len(self._due) >= _REMEMBERED:
            self._due.clear()
        self._due[scope.prefix] = now + _REGISTER_S
        words = (scope.owner, scope.surface, scope.policy, scope.models, scope.generation)
        value = orjson.dumps((*words, now + _REGISTER_S + ttl_s))
        return (Command((b"HSET", LISTED.encode(), scope.digest.encode(), value)),)

    def forget(self) -> None:
        """Register all scopes again when next used: the store may not have executed the commands."""
        self._due.clear()


ENTRY: Final = ":x:"

_HERE: Final = Path(__file__).parent
STRIKE: Final = (_HERE / "strike.lua").read_bytes()
"""The beginning of scripts that delete entries."""
_PUT: Final = STRIKE + (_HERE / "put.lua").read_bytes()
_DROP: Final = STRIKE + (_HERE / "drop.lua").read_bytes()
GONE_S: Final = 600.0
"""How long it is known what was deleted for good: longer than any write is tried again, or waits."""


@dataclass(slots=True)
class Caps:
    """The most that one scope may hold, in entries and in bytes as stored. The values may change while it is in use."""

    entries: int = 20_000
    bytes: int = 32 << 20


def put(
    key: str,
    value: bytes,
    ttl_s: float,
    created_at: float,
    caps: Caps,
    origin: str = "",
    lease: str = "",
    *,
    lasting: bool = False,
) -> Command:
    """Return the command that writes an entry under its scope's caps. Times in seconds of the writer's wall clock.

    A `lasting` scope gives the end of the entry's life as `created_at`.
    `lease` is the key of the lease under which the answer was produced; it is deleted, because lookups now hit.
    """
    prefix, _, digest = key.rpartition(ENTRY)
    ttl_ms = max(1, round(ttl_s * 1000))
    created_us = round(created_at * 1e6)
    keys = (key.encode(), *keys_of(prefix), *((lease.encode(),) if lease else ()))
    return Command(
        (
            b"EVAL", _PUT, b"%d" % len(keys), *keys, digest.encode(), value, b"%d" % ttl_ms,
            b"%d" % created_us, origin.encode(), b"%d" % caps.entries, b"%d" % caps.bytes,
            b"%d" % (created_us - 1000 * ttl_ms), b"1" if lasting else b"",
        )
    )  # fmt: skip


def drop(prefix: str, digests: Iterable[str], at: float | None = None) -> Command:
    """Return the command that deletes entries of one scope; its reply is 1 if the first of them existed, else 0.

    With a time `at` (wall clock, in seconds) they are deleted for good: a later write of an answer that was made until
    then is refused. In a lasting scope every later write of them is refused.
    """
    digests = list(digests)
    key = f"{prefix}{ENTRY}{digests[0]}".encode()
    words = (*map(str.encode, digests), b"%d" % (0 if at is None else round(1000 * GONE_S)), microseconds(at or 0.0))
    return Command((b"EVAL", _DROP, b"3", key, *keys_of(prefix), *words))


def keys_of(prefix: str) -> tuple[bytes, bytes]:
    """Return the keys of a scope's size hash and of its sorted set of creation times."""
    return f"{prefix}:sizes".encode(), f"{prefix}:ages".encode()


def microseconds(at: float) -> bytes:
    """Return a time of the wall clock in whole microseconds."""
    return b"%d" % round(at * 1e6)
