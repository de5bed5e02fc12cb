"""Keep the registry of keys in the store: keys, teams and tenants, every change with its entry in the audit trail.

All have one hash tag, so that a script can change them together:

    tierline:{keys}:records    hash    digest of a key, hex -> KeyRecord
    tierline:{keys}:ids        hash    id -> digest; of a key that was rotated, of the newest
    tierline:{keys}:order      sorted set of ids by age, and `...:order:TEAM` of each team's
    tierline:{keys}:owners     hash    team:NAME or tenant:NAME -> OwnerRecord
    tierline:{keys}:revision   a number that every change raises; workers poll it
    tierline:{keys}:changes    stream of the digests and owners that changed, its ids REVISION-0; the latest 100,000
    tierline:{keys}:filter     Bloom filter of all digests, by which workers know what no key is
    tierline:{keys}:imported   there once a key was imported that does not begin with `tl_`
    tierline:{keys}:secret     mark of the secret that keys are hashed by, so that none is made by another
    tierline:{keys}:audit      stream of the audit trail; never trimmed

A change compares the `revision` of each record that it replaces. Nothing here expires, so a store that evicts keys
without an expiry (`allkeys-*`) is not fit for it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from cache.store.base import Command, Store, StoreUnavailable, fields_in
from gateway.parts.access.audit.entries import APPEND, KEYS, How, Kind, TrailEntry
from gateway.parts.access.keys.records import (
    LATEST,
    SECRET,
    KeyRecord,
    OwnerRecord,
    State,
    hashed_by,
    key_from,
    owner_from,
    shown,
    to_json,
)
from gateway.parts.access.quotas.terms import NO_TERMS, Budget, Terms
from gateway.parts.access.settled_change import settled_change

T = TypeVar("T")

_HERE: Final = Path(__file__).parent
_RECORDS: Final = b"tierline:{keys}:records"
_IDS: Final = b"tierline:{keys}:ids"
_ORDER: Final = b"tierline:{keys}:order"
_OWNERS: Final = b"tierline:{keys}:owners"
_REVISION: Final = b"tierline:{keys}:revision"
_CHANGES: Final = b"tierline:{keys}:changes"
_FILTER: Final = b"tierline:{keys}:filter"
_IMPORTED: Final = b"tierline:{keys}:imported"
_SECRET: Final = b"tierline:{keys}:secret"
_CHANGE: Final = APPEND + (_HERE / "change.lua").read_bytes()
_LOOKUP: Final = (_HERE / "lookup.lua").read_bytes()
_NOT_ONE: Final = to_json(
    KeyRecord(
        "k_no-such-key", "0" * 64, "default", "none", "no key", "nobody@example.com", created=1.7e9, created_by="ada",
        terms=Terms(requests_per_minute=60, budgets=(Budget(usd=25),)), metadata={"of": "none"},
    )
)  # fmt: skip
"""Like the record of a key with usual terms."""

_LIMIT_S: Final = 1.0
_TRIES: Final = 5
"""How often a state is given to a key that somebody else changes meanwhile."""
_PAGE: Final = 500
MOST_LOOKED_AT: Final = 20_000
"""Keys that one search reads: about a second."""
_AT_ONCE: Final = 200
"""Most records that one script changes: it holds the store up for a few milliseconds."""


class KeysRefused(Exception):
    """A change or a question that the registry refuses. The message says why, and what to do."""


class KeysConflict(KeysRefused):
    """A record has changed since it was read."""


class Why(NamedTuple):
    """Who makes a change, why, and by what."""

    by: str
    message: str = ""
    how: How = "cli"
    action: str = ""
    """What it is called in the audit trail, where the operation does not say that."""


class FoundKey(NamedTuple):
    """A key with its owners; None for those without a record."""

    record: KeyRecord
    team: OwnerRecord | None
    tenant: OwnerRecord | None


class KeyPage(NamedTuple):
    """Some keys, the newest first, and the id after which the next page begins; '' for none."""

    keys: list[KeyRecord]
    older: str
    cut: int = 0
    """How many were looked at, where that was as many as one search may."""


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What changed since a revision. `revision` is the newest one; 0 where there is no registry."""

    revision: int
    digests: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    """Such as `team:web`."""
    whole: bool = True
    """Whether these are all changes since then; if not, nothing that was read before may be relied on."""


Change = tuple[KeyRecord | OwnerRecord | None, KeyRecord | OwnerRecord | None]
"""A record before and after; None before a new one, and after one is removed."""


class KeyRegistry:
    """Operations on the registry. Each raises StoreUnavailable; those that change it KeysRefused or KeysConflict too.

    With `durable`, a change waits until the store has it on disk, if that has an append-only file. It holds up the
    connection meanwhile, so a worker's own store is not to be used so.
    """

    def __init__(self, store: Store, *, durable: bool = False) -> None:
        self._store = store
        self._durable = durable
        self.on_disk: bool | None = None
        """Whether the latest change is on the store's disk; None if nobody waited for that, or the store cannot say."""

    async def create(self, record: KeyRecord, why: Why) -> KeyRecord:
        """Store a new key."""
        record = replace(record, revision=1, created=record.created or time.time(), created_by=why.by)
        await self._change([(None, record)], "create", why)
        return record

    async def rotate(self, key: KeyRecord, digest: str, grace_s: float, why: Why, **limits: Any) -> KeyRecord:
        """Give a key a new digest under the same id; the old one is valid for `grace_s` more. Return the new record.

        `limits` are fields that the new one has in place of the old one's.
        """
        if key.state != "active":
            raise KeysRefused(f"{key.id} is {key.state}; only an active key can be rotated")
        now = time.time()
        ends = min(LATEST if key.expires is None else key.expires, now + grace_s)
        new = replace(key, digest=digest, created=now, created_by=why.by, replaces=key.digest, revision=1)
        new = replace(new, **limits)
        if new.expires is not None and new.expires <= now:
            raise KeysRefused(f"{key.id} has expired; give it another end first (`tierline keys update --expires`)")
        old = replace(key, expires=ends, revision=key.revision + 1)
        await self._change([(key, old), (None, new)], "rotate", why)
        return new

    async def update(self, key: KeyRecord, why: Why, **fields: Any) -> KeyRecord:
        """Change fields of a key, and of the one before it while that is valid too. Return the key as it is now."""
        if key.state == "revoked":
            raise KeysRefused(f"{key.id} is revoked, and stays so; create another")
        after = replace(key, **fields, revision=key.revision + 1)
        changes: list[Change] = [(key, after)]
        shared = {name: value for name, value in fields.items() if name != "expires"}
        before, now = key, time.time()
        while before.replaces and (older := await self.by_digest(before.replaces)) is not None:
            before = older
            if before.expires is None or before.expires > now:
                changes.append((before, replace(before, **shared, revision=before.revision + 1)))
        await self._change(changes[::-1], "update", why)
        return after

    async def set_state(self, key: KeyRecord, state: State, why: Why) -> KeyRecord:
        """Give a key a state, also one that is changed or rotated meanwhile. Return the key as it is now."""
        for _ in range(_TRIES):
            try:
                return await self.update(key, why, state=state)
            except KeysConflict:
                key = await self.find(key.id)
                if key.state == state:
                    return key
        return await self.update(key, why, state=state)

    async def put_owner(self, before: OwnerRecord | None, owner: OwnerRecord, why: Why) -> OwnerRecord:
        """Store the terms of a team or a tenant in place of those `before`."""
        owner = replace(owner, revision=1 if before is None else before.revision + 1)
        await self._change([(before, owner)], "create" if before is None else "update", why)
        return owner

    async def remove_owner(self, owner: OwnerRecord, why: Why) -> None:
        """Remove the record of a team or a tenant: it has no terms of its own then. Its keys stay."""
        await self._change([(owner, None)], "remove", why)

    async def restore(self, records: Sequence[KeyRecord | OwnerRecord], why: Why) -> int:
        """Store records as they are, unless the store has them as new or newer; return how many were stored."""
        done = 0
        for start in range(0, len(records), _AT_ONCE):
            some = records[start : start + _AT_ONCE]
            there: dict[str, KeyRecord | OwnerRecord | None] = {
                **await self.by_digests([record.digest for record in some if isinstance(record, KeyRecord)]),
                **await self.some_owners([_name(record) for record in some if isinstance(record, OwnerRecord)]),
            }
            pairs: list[Change] = [(there.get(_name(record)), record) for record in some]
            changes = [(old, new) for old, new in pairs if old is None or (new and old.revision < new.revision)]
            if changes:
                await self._change(changes, "import", why)
            done += len(changes)
        return done

    async def find(self, name: str) -> KeyRecord:
        """Return the key with this id, or the only one with this name. Raises KeysRefused."""
        (digest,) = await self._ask(Command((b"HGET", _IDS, name.encode())))
        if digest is not None and (record := await self.by_digest(digest.decode())) is not None:
            return record
        named, _, cut = (
            KeyPage([], "") if name.startswith("k_") else await self.page("", 5, wanted=lambda key: key.name == name)
        )
        if len(named) == 1 and not cut:
            return named[0]
        many = ", ".join(key.id for key in named)
        raise KeysRefused(
            f"several keys are called {name!r}: {many}; name one by its id" if len(named) > 1
            else f"{name!r} is no id, and names are found among the newest {cut:,} keys alone; name it by its id" if cut
            else f"there is no key {name!r}; `tierline keys list` shows those that there are"
        )  # fmt: skip

    async def by_digest(self, digest: str) -> KeyRecord | None:
        """Return the key of a digest, in hex."""
        (blob,) = await self._ask(Command((b"HGET", _RECORDS, digest.encode())))
        return None if blob is None else _read(key_from, blob)

    async def by_digests(self, digests: Sequence[str]) -> Mapping[str, KeyRecord]:
        """Return the keys that are there, by their digests."""
        if not digests:
            return {}
        (blobs,) = await self._ask(Command((b"HMGET", _RECORDS, *map(str.encode, digests))))
        return {record.digest: record for record in (_read(key_from, blob) for blob in blobs if blob)}

    async def names(self, ids: Sequence[str]) -> dict[str, str]:
        """Return what people call the keys with these ids, those that have a name."""
        return {key.id: key.name for key in (await self.of_ids(ids)).values() if key.name}

    async def of_ids(self, ids: Sequence[str]) -> dict[str, KeyRecord]:
        """Return the keys with these ids that are there, by id: of a rotated one its latest record."""
        if not ids:
            return {}
        (digests,) = await self._ask(Command((b"HMGET", _IDS, *map(str.encode, ids))))
        records = await self.by_digests([digest.decode() for digest in digests if digest])
        return {key.id: key for key in records.values()}

    async def page(
        self, after: str = "", most: int = 100, *, team: str = "", wanted: Callable[[KeyRecord], bool] | None = None
    ) -> KeyPage:
        """Return the keys of all or of one team that are `wanted`, after the one with this id, newest first.

        After MOST_LOOKED_AT keys it returns what it has, with the last one that it has looked at as `older`.
        """
        order = _ORDER + (b":" + team.encode() if team else b"")
        start = 0
        if after:
            (rank,) = await self._ask(Command((b"ZREVRANK", order, after.encode())))
            if rank is None:
                raise KeysRefused(f"there is no key {after!r} to go on after")
            start = rank + 1
        last = start + MOST_LOOKED_AT
        keys: list[KeyRecord] = []
        while True:
            count = max(most + 1, _PAGE if wanted else 0)
            (ids,) = await self._ask(Command((b"ZREVRANGE", order, b"%d" % start, b"%d" % (start + count - 1))))
            if not ids:
                return KeyPage(keys, "")
            (digests,) = await self._ask(Command((b"HMGET", _IDS, *ids)))
            records = await self.by_digests([digest.decode() for digest in digests if digest])
            for digest in digests:
                key = records.get(digest.decode()) if digest else None
                if key is None or (wanted is not None and not wanted(key)):
                    continue
                if len(keys) == most:
                    return KeyPage(keys, keys[-1].id)
                keys.append(key)
            start += len(ids)
            if start >= last:
                return KeyPage(keys, ids[-1].decode(), MOST_LOOKED_AT)

    async def keys(self, *, team: str = "") -> AsyncIterator[KeyRecord]:
        """Yield all keys, newest first; of one that was rotated the newest record."""
        page = KeyPage([], "")
        while True:
            page = await self.page(page.older, _PAGE, team=team)
            for key in page.keys:
                yield key
            if not page.older:
                return

    async def records(self) -> AsyncIterator[KeyRecord]:
        """Yield every record of a key, also those that were replaced, in no order."""
        cursor = b"0"
        while True:
            (reply,) = await self._ask(Command((b"HSCAN", _RECORDS, cursor, b"COUNT", b"500")))
            cursor, flat = reply
            for blob in flat[1::2]:
                yield _read(key_from, blob)
            if cursor == b"0":
                return

    async def owners(self) -> list[OwnerRecord]:
        """Return all teams and tenants that have a record, by kind and name."""
        (fields,) = await self._ask(Command((b"HGETALL", _OWNERS)))
        owners = [_read(owner_from, blob) for blob in fields_in(fields).values()]
        return sorted(owners, key=lambda owner: (owner.kind, owner.name))

    async def some_owners(self, names: Sequence[str]) -> dict[str, OwnerRecord | None]:
        """Return the records of teams and tenants such as `team:web`, None for those that have none."""
        if not names:
            return {}
        (blobs,) = await self._ask(Command((b"HMGET", _OWNERS, *map(str.encode, names))))
        read = [None if blob is None else _read(owner_from, blob) for blob in blobs]
        return dict(zip(names, read, strict=True))

    async def owner(self, kind: Literal["team", "tenant"], name: str) -> OwnerRecord | None:
        """Return the record of a team or a tenant; None if it has none."""
        (blob,) = await self._ask(Command((b"HGET", _OWNERS, f"{kind}:{name}".encode())))
        return None if blob is None else _read(owner_from, blob)

    async def looked_up(self, digest: str) -> tuple[bool, FoundKey]:
        """Return whether there is a key of a digest, and it with its owners, in one round trip.

        What is done for one that is not there is the same as for one that is, down to a record in its place, so that
        the time does not tell.
        """
        words = (b"EVAL", _LOOKUP, b"2", _RECORDS, _OWNERS, digest.encode(), _NOT_ONE)
        ((there, record, team, tenant),) = await self._ask(Command(words))
        owners = [_read(owner_from, blob) if blob else None for blob in (team, tenant)]
        return bool(there), FoundKey(_read(key_from, record), *owners)

    async def changes(self, since: int) -> KeyChanges:
        """Return what changed since a revision, -1 for none that is known, in one round trip."""
        start = b"(%d-0" % max(since, 0)
        newest, entries = await self._ask(
            Command((b"GET", _REVISION)), Command((b"XRANGE", _CHANGES, start, b"+", b"COUNT", b"%d" % _PAGE))
        )
        revision = int(newest or 0)
        reached = since
        digests: list[str] = []
        owners: list[str] = []
        for id_, fields in entries:
            number = int(id_.partition(b"-")[0])
            if number != reached + 1:
                return KeyChanges(revision, whole=False)
            reached = number
            (digests if fields[0] == b"key" else owners).append(fields[1].decode())
        if (reached < revision and len(entries) < _PAGE) or reached == since != revision:
            return KeyChanges(revision, whole=False)
        return KeyChanges(reached, tuple(digests), tuple(owners))

    async def hashed_by(self) -> str:
        """Return the mark of the secret that keys are hashed by; empty before the first key."""
        (mark,) = await self._ask(Command((b"GET", _SECRET)))
        return (mark or b"").decode()

    async def check_secret(self, secret: bytes) -> None:
        """Raise KeysRefused if the keys of this store are hashed by another secret: no gateway would know a key.

        The first who asks says which secret it is.
        """
        mark = hashed_by(secret).encode()
        _, there = await self._ask(Command((b"SETNX", _SECRET, mark)), Command((b"GET", _SECRET)))
        if there != mark:
            raise KeysRefused(f"{SECRET} is not what this store's keys are hashed by; set it here as for the gateway")

    async def has_imported(self) -> bool:
        """Return whether any key was ever imported that does not begin with `tl_`."""
        (there,) = await self._ask(Command((b"EXISTS", _IMPORTED)))
        return bool(there)

    async def revision(self) -> int:
        """Return the registry's revision; 0 where there is none."""
        (revision,) = await self._ask(Command((b"GET", _REVISION)))
        return int(revision or 0)

    async def filter(self) -> bytes:
        """Return the Bloom filter of all digests; see `gateway.parts.access.keys.known_keys`."""
        (blob,) = await self._ask(Command((b"GET", _FILTER)))
        return blob or b""

    async def _change(self, changes: Sequence[Change], action: str, why: Why) -> None:
        """Make changes and their audit entries in one script. Raises KeysConflict."""
        words: list[bytes] = [why.how.encode()]
        # One entry for a key with the keys before it: the one about its newest record, which comes last.
        newest = {record.id: record for pair in changes for record in pair if isinstance(record, KeyRecord)}
        earlier = {record.id: record for record, _ in changes if isinstance(record, KeyRecord)}
        for before, after in changes:
            told = not isinstance(after, KeyRecord) or newest[after.id] is after
            was = earlier.get(after.id) if isinstance(after, KeyRecord) else before
            words += _words((before, after), was, why.action or action, why, told=told)
        keys = (_RECORDS, _IDS, _ORDER, _OWNERS, _REVISION, _CHANGES, _FILTER, KEYS.encode(), _IMPORTED)
        reply, self.on_disk = await settled_change(self._store, _CHANGE, keys, words, durable=self._durable)
        if not isinstance(reply, int):
            number, now = reply
            subject = changes[number][0] or changes[number][1]
            what = subject.id if isinstance(subject, KeyRecord) else f"{subject.kind} {subject.name}" if subject else ""
            is_now = "it is there already" if not changes[number][0] and now else "look at it again"
            raise KeysConflict(f"{what} was changed meanwhile: {is_now if now else 'it is gone'}")

    async def _ask(self, *commands: Command) -> list[Any]:
        return await self._store.ask(commands, _LIMIT_S)


def _name(record: KeyRecord | OwnerRecord) -> str:
    return record.digest if isinstance(record, KeyRecord) else f"{record.kind}:{record.name}"


def _words(change: Change, was: KeyRecord | OwnerRecord | None, action: str, why: Why, *, told: bool) -> list[bytes]:
    """Return what the script is told of one change; `told`: with an entry of the trail, which compares with `was`."""
    before, after = change
    record = after or before
    assert record is not None  # noqa: S101  (a change has one of the two)
    is_key = isinstance(record, KeyRecord)
    kind: Kind = "key" if isinstance(record, KeyRecord) else record.kind
    subject, team = (record.id, record.team) if isinstance(record, KeyRecord) else ("", "")
    old, new = (_audited(record) for record in (was, after))
    changed = {name for name in (*old, *new) if old.get(name) != new.get(name)}
    entry = TrailEntry(
        time.time(), why.by, kind, subject or getattr(record, "name", ""), action, why.message,
        {name: value for name, value in old.items() if name in changed},
        {name: value for name, value in new.items() if name in changed},
    )  # fmt: skip
    return [
        b"key" if is_key else b"owner",
        _name(record).encode(),
        b"%d" % (0 if before is None else before.revision),
        b"" if after is None else to_json(after),
        subject.encode(),
        team.encode(),
        entry.change() if told else b"",
    ]


def _audited(record: KeyRecord | OwnerRecord | None) -> dict[str, Any]:
    """Return what the audit trail says of a record: not its digest, nor what only counts."""
    if record is None:
        return {}
    left_out = ("digest", "replaces", "revision", "created", "created_by", "kind", "id")
    said = {name: value for name, value in shown(record).items() if name not in left_out}
    for name in ("terms", "per_user", "per_session", "maker_terms"):
        if budgets := getattr(record, name, NO_TERMS).budgets:
            said[name] = {**said[name], "budgets": [budget.text for budget in budgets]}
    if isinstance(record, KeyRecord) and record.expires is not None:
        said["expires"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.expires))
    return said


def _read(unpack: Callable[[bytes], T], blob: bytes) -> T:
    try:
        return unpack(blob)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailable("error", f"the registry holds a key that cannot be read: {error}") from None
