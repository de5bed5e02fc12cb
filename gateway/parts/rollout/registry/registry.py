"""Keep the registry of policies in the store: its documents, the state of each surface, and the audit trail.

Six keys with one hash tag, so that a cluster keeps them on one node and a script can change them together:

    tierline:{policies}:documents   hash   SURFACE@VERSION@DOCUMENT -> Version; written once, never overwritten
    tierline:{policies}:state       hash   surface -> InForce
    tierline:{policies}:revision    a number that every change raises; workers poll it
    tierline:{policies}:audit       stream of AuditEntry, a part of the audit trail: see `gateway.parts.access.audit`
    tierline:{policies}:replicas    hash   worker -> Replica, and a sorted set beside it of when each was last heard
    tierline:{policies}:reports     hash   surface -> the judge's latest report on its candidate

Every change of a surface is one script that compares the surface's `revision`, stores the new state and appends the
audit entry: there is neither without the other. Nothing here expires, so a store that evicts keys without an expiry
(`allkeys-*`) is not fit for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Required, TypedDict, TypeVar, Unpack

import orjson

from cache.store.base import Command, Store, StoreUnavailable, fields_in
from gateway.errors import Conflict
from gateway.parts.access.audit.entries import APPEND, POLICIES, How
from gateway.parts.access.settled_change import settled_change
from gateway.parts.rollout.policy import Rollout, RolloutSections
from gateway.parts.rollout.registry.records import (
    JUDGE,
    REPORTS,
    AuditEntry,
    InForce,
    Mode,
    Replica,
    Rolling,
    Version,
    as_blob,
    entry_from,
    in_force_from,
    replica_from,
    version_from,
)
from policies.errors import ConfigError
from policies.quantities import write_share

T = TypeVar("T")

_HERE: Final = Path(__file__).parent
_DOCUMENTS: Final = b"tierline:{policies}:documents"
_STATE: Final = b"tierline:{policies}:state"
_REVISION: Final = b"tierline:{policies}:revision"
_AUDIT: Final = POLICIES.encode()
_REPLICAS: Final = b"tierline:{policies}:replicas"
_HEARD: Final = b"tierline:{policies}:heard"

_LIMIT_S: Final = 1.0
"""Time limit of every operation: no request waits for one, and a busy event loop must not fail it."""
_PAGE: Final = 1000
REPLICA_TTL_S: Final = 10
"""Seconds after which a worker that was not heard of is left out, by the store's clock."""

# KEYS: state, revision, audit, documents. ARGV: surface, revision expected, new state, audit entry, document's name,
# document, what the change came by. Returns 1, or the state that stood in the way.
_CHANGE: Final = APPEND + (_HERE / "change.lua").read_bytes()
# The revision begins at the time, so that a registry that was lost and seeded anew has another than before.
# KEYS as above. ARGV: what it came by; for each surface its name, state, audit entry, document's name and document.
_SEED: Final = APPEND + (_HERE / "seed.lua").read_bytes()
# KEYS: replicas, heard. ARGV: name, record ('' to remove it), seconds to keep.
_PUBLISH: Final = (_HERE / "publish.lua").read_bytes()
_LIVE_REPLICAS: Final = (_HERE / "live_replicas.lua").read_bytes()


class RegistryError(Conflict):
    """A change or a question that the registry refuses. The message says why, and what to do."""


class RegistryConflict(RegistryError):
    """The surface has changed since it was read. `now` is its present state, None if there is none."""

    def __init__(self, surface: str, now: InForce | None) -> None:
        gone = now is None or now.removed
        is_now = "is gone" if now is None or gone else f"is now {surface}@{now.live[:7]} (revision {now.revision})"
        super().__init__(f"{surface} was changed meanwhile: it {is_now}; look at `tierline policy status {surface}`")
        self.now = now


class PolicyWhy(TypedDict, total=False):
    """Who makes a change, and why."""

    by: Required[str]
    message: Required[str]
    details: str
    """What the change rests on, such as the guard that was crossed."""
    now: float | None
    """Unix seconds of the change; the present by default."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a follower polls: the registry's revision, 0 for an empty one, and whether a judge is at work."""

    revision: int
    judged: bool


def document_of(text: str, content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of a policy file and what it says with its defaults."""
    return hashlib.sha256(orjson.dumps([text, content])).hexdigest()


class PolicyRegistry:
    """Operations on the registry. Each raises StoreUnavailable; those that change it RegistryError or a subclass too.

    `by` is who makes a change, `message` why. A change is made from the state with this `revision`; RegistryConflict
    if there is another by now. `how` is what its changes come by.
    """

    def __init__(self, store: Store, how: How = "gateway") -> None:
        self._store = store
        self._how = how.encode()

    async def pulse(self) -> Pulse:
        """Return what has to be known to see whether anything changed: two commands in one round trip."""
        revision, judged = await self._ask(Command((b"GET", _REVISION)), Command((b"EXISTS", JUDGE.encode())))
        return Pulse(int(revision or 0), judged == 1)

    async def in_force(self) -> Mapping[str, InForce]:
        """Return the state of every surface, sorted by name, without those that were removed."""
        return {name: state for name, state in (await self.states()).items() if not state.removed}

    async def states(self) -> Mapping[str, InForce]:
        """Return the state of every surface, sorted by name, and of those that were removed."""
        (fields,) = await self._ask(Command((b"HGETALL", _STATE)))
        states = [_read(in_force_from, blob) for blob in fields_in(fields).values()]
        return {state.surface: state for state in sorted(states, key=lambda state: state.surface)}

    async def surface(self, name: str, *, removed: bool = False) -> InForce:
        """Return the state of one surface; of one that was removed only with `removed`. Raises RegistryError."""
        states = await self.states()
        if name not in states:
            there = ", ".join(state.surface for state in states.values() if not state.removed)
            raise RegistryError(f"the registry has no surface {name!r}; it has {there or 'none'}")
        if states[name].removed and not removed:
            raise _was_removed(name)
        return states[name]

    async def documents(self, states: Sequence[InForce], known: Container[str] = ()) -> Mapping[str, Version]:
        """Return, by document, the versions that are in force or being tried, but for the documents `known`."""
        wanted = [(state.surface, state.live, state.document) for state in states if not state.removed]
        wanted += [(state.surface, state.rolling.version, state.rolling.document) for state in states if state.rolling]
        names = [_name(*version) for version in wanted if version[2] not in known]
        if not names:
            return {}
        (blobs,) = await self._ask(Command((b"HMGET", _DOCUMENTS, *names)))
        return {version.document: version for version in (_read(version_from, blob) for blob in blobs if blob)}

    async def version(self, surface: str, prefix: str) -> Version:
        """Return the version of the surface's policy whose hash begins with `prefix`, as it was applied last.

        Raises RegistryError where none or several begin so.
        """
        found = {
            version.document: version for version in await self.versions(surface) if version.version.startswith(prefix)
        }
        if not found:
            raise RegistryError(f"{surface} has no version {prefix!r}; see `tierline policy history {surface}`")
        if len({version.version for version in found.values()}) > 1:
            labels = ", ".join(sorted({version.version[:12] for version in found.values()}))
            raise RegistryError(f"{prefix!r} begins several versions of {surface}: {labels}; write more of it")
        for entry in reversed(await self.history(surface)):
            if entry.document in found:
                return found[entry.document]
        return max(found.values(), key=lambda version: version.at)

    async def versions(self, surface: str) -> list[Version]:
        """Return all versions of a surface, each document once, oldest first."""
        cursor, found = b"0", dict[bytes, bytes]()
        while True:
            pattern = f"{surface}@*".encode()
            (reply,) = await self._ask(Command((b"HSCAN", _DOCUMENTS, cursor, b"MATCH", pattern, b"COUNT", b"200")))
            cursor, fields = reply
            found.update(fields_in(fields))
            if cursor == b"0":
                return sorted((_read(version_from, blob) for blob in found.values()), key=lambda version: version.at)

    async def history(self, surface: str | None = None) -> list[AuditEntry]:
        """Return the audit entries, oldest first: of one surface, or of all."""
        entries: list[AuditEntry] = []
        start = b"-"
        while True:
            (page,) = await self._ask(Command((b"XRANGE", _AUDIT, start, b"+", b"COUNT", b"%d" % _PAGE)))
            entries += [_read(entry_from, fields[1]) for _, fields in page]
            if len(page) < _PAGE:
                return [entry for entry in entries if surface in (None, entry.surface)]
            start = b"(" + page[-1][0]

    async def latest(self) -> list[AuditEntry]:
        """Return the latest hundred audit entries of all surfaces, oldest first."""
        (page,) = await self._ask(Command((b"XREVRANGE", _AUDIT, b"+", b"-", b"COUNT", b"100")))
        return [_read(entry_from, fields[1]) for _, fields in reversed(page)]

    async def succession(self, surface: str) -> list[AuditEntry]:
        """Return the changes that led to the text in force, oldest first, without what was rolled back."""
        live: list[AuditEntry] = []
        for entry in await self.history(surface):
            if entry.action == "rollback" and any(version.document == entry.document for version in live):
                while live[-1].document != entry.document:
                    live.pop()
            elif entry.document:
                live.append(entry)
        return live

    async def seed(self, versions: Sequence[Version], message: str) -> bool:
        """Put these versions in force if the registry is empty; return whether it was."""
        words: list[bytes] = [self._how]
        for version in versions:
            state = InForce(version.surface, version.version, 1, document=version.document, since=version.at)
            entry = _entry(
                state, "seed", version.version, "", version.author, message, version.at, "", version.document
            )
            name = _name(version.surface, version.version, version.document)
            words += [version.surface.encode(), as_blob(state), as_blob(entry), name, as_blob(version)]
        (done,) = await self._ask(Command((b"EVAL", _SEED, b"4", _STATE, _REVISION, _AUDIT, _DOCUMENTS, *words)))
        return bool(done)

    async def apply(
        self, version: Version, base: InForce | None, mode: Mode | None = None, share: float = 1.0
    ) -> InForce:
        """Put a version in force, or try it in a `mode` beside what is in force. `base`: the state it was made from.

        Author and message are the version's. The content must have been checked: see `checks`.
        """
        surface, now = version.surface, version.at
        if base is not None and base.frozen:
            raise RegistryError(f"{surface} is frozen; `tierline policy resume {surface} -m WHY` ends that")
        if base is not None and base.rolling is not None:
            raise RegistryError(
                f"{surface}@{base.rolling.version[:7]} is being tried; promote it or roll it back before another"
            )
        before, revision = ("", 0) if base is None else (base.live, base.revision)
        version = replace(version, parent=before)
        if base is None or base.removed or mode is None:
            if base is not None and base.document == version.document:
                raise RegistryError(f"{version.label} is already in force, with this very text")
            state = InForce(surface, version.version, revision + 1, document=version.document, since=now)
            document, details = version.document, "" if before != version.version else "the rules are the same"
        else:
            if base.live == version.version:
                raise RegistryError(f"{version.label} rules the same as what is in force: there is nothing to try")
            rolling = Rolling(version.version, mode, share, 0, now, "", version.document)
            state = replace(base, revision=revision + 1, rolling=rolling)
            document, details = "", f"{mode} {write_share(share)}"
        entry = _entry(state, "apply", version.version, before, version.author, version.message, now, details, document)
        return await self._change(state, revision, entry, version)

    async def step(self, surface: str, revision: int, **why: Unpack[PolicyWhy]) -> InForce:
        """Take a candidate one step further: from evaluate or shadow to its first share, then to the next, then all."""
        state, rolling = await self._rolling(surface, revision)
        steps = (await self._rollout(state, rolling)).steps
        step = rolling.step + 1 if rolling.mode == "canary" else 0
        if step >= len(steps):
            return await self.promote(surface, revision, **why)
        why = {"details": f"canary {write_share(steps[step])}", **_given(why)}
        further = Rolling(rolling.version, "canary", steps[step], step, _at(why), "", rolling.document)
        return await self._made(replace(state, rolling=further), "step", rolling.version, state.live, why)

    async def promote(self, surface: str, revision: int, **why: Unpack[PolicyWhy]) -> InForce:
        """Put the candidate in force for all."""
        state, rolling = await self._rolling(surface, revision)
        after = replace(state, live=rolling.version, document=rolling.document, rolling=None)
        return await self._made(after, "promote", rolling.version, state.live, why, changed=True)

    async def pause(self, surface: str, revision: int, **why: Unpack[PolicyWhy]) -> InForce:
        """Take no further step with the candidate; without one, freeze the surface against all but a rollback."""
        state = await self._at(surface, revision)
        if state.rolling is not None:
            after = replace(state, rolling=replace(state.rolling, paused=why["message"]))
            about = state.rolling.version
        else:
            after, about = replace(state, frozen=True), state.live
        return await self._made(after, "pause", about, state.live, why)

    async def resume(self, surface: str, revision: int, **why: Unpack[PolicyWhy]) -> InForce:
        """End a pause: the candidate's step begins anew, and a frozen surface takes changes again."""
        state = await self._at(surface, revision)
        rolling, why = state.rolling, _given(why)
        if not state.frozen and (rolling is None or not rolling.paused):
            raise RegistryError(f"{surface} is not paused")
        if rolling is not None:
            rolling = replace(rolling, paused="", since=_at(why))
        after = replace(state, rolling=rolling, frozen=False)
        about = state.live if rolling is None else rolling.version
        return await self._made(after, "resume", about, state.live, why)

    async def rollback(
        self, surface: str, revision: int, *, to: Version | None = None, **why: Unpack[PolicyWhy]
    ) -> InForce:
        """Drop the candidate; without one, or with `to`, put that version or the one before in force again.

        A surface that was removed comes back.
        """
        state = await self._at(surface, revision, removed=True)
        if to is None and state.rolling is not None:
            after = replace(state, rolling=None)
            return await self._made(after, "rollback", state.live, state.rolling.version, why)
        if to is None:
            to = await self._before(state)
        if to.document == state.document and state.rolling is None:
            raise RegistryError(f"{to.label} is in force already")
        after = replace(state, live=to.version, document=to.document, rolling=None)
        return await self._made(after, "rollback", to.version, state.live, why, changed=True)

    async def remove(
        self, surface: str, revision: int, *, with_candidate: bool = False, **why: Unpack[PolicyWhy]
    ) -> InForce:
        """Take a surface out of force: requests for it get a 404. Its versions and history stay; a rollback undoes it.

        It must not be a worker's default surface, nor the last one. A candidate is dropped `with_candidate` alone.
        """
        state = await self._at(surface, revision)
        if state.frozen:
            raise RegistryError(f"{surface} is frozen; `tierline policy resume {surface} -m WHY` ends that")
        if state.rolling is not None and not with_candidate:
            raise RegistryError(
                f"{surface}@{state.rolling.version[:7]} is being tried; promote it or roll it back first, or remove it "
                "--with-candidate"
            )
        if defaults := [replica.name for replica in await self.replicas() if replica.default == surface]:
            raise RegistryError(
                f"{surface} is the default surface of {len(defaults)} workers, such as {defaults[0]}: what asks for "
                "`auto` goes there. Name another as `default_surface` in their config, and start them again, first"
            )
        if len(await self.in_force()) == 1:
            raise RegistryError(f"{surface} is the only surface, and a gateway needs one")
        if state.rolling is not None:
            why = {**why, "details": f"with its candidate {surface}@{state.rolling.version[:7]}"}
        after = InForce(surface, "", revision)
        return await self._made(after, "remove", state.live, state.live, why, changed=True)

    async def publish(self, replica: Replica) -> None:
        """Say what this worker has in force; it is shown for REPLICA_TTL_S seconds."""
        await self._publish(replica.name, as_blob(replica))

    async def withdraw(self, name: str) -> None:
        """Remove a worker that stops from those that are shown."""
        await self._publish(name, b"")

    async def replicas(self) -> list[Replica]:
        """Return what each worker said it has in force, sorted by name."""
        words = (b"EVAL", _LIVE_REPLICAS, b"2", _REPLICAS, _HEARD, b"%d" % REPLICA_TTL_S)
        (blobs,) = await self._ask(Command(words))
        return sorted((_read(replica_from, blob) for blob in blobs), key=lambda replica: replica.name)

    async def put_report(self, surface: str, report: Mapping[str, Any]) -> None:
        """Store the judge's latest report on the surface's candidate."""
        await self._ask(Command((b"HSET", REPORTS.encode(), surface.encode(), orjson.dumps(report))))

    async def reports(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the judge's latest report on each surface's candidate."""
        (fields,) = await self._ask(Command((b"HGETALL", REPORTS.encode())))
        return {name.decode(): _read(orjson.loads, blob) for name, blob in fields_in(fields).items()}

    async def _at(self, surface: str, revision: int, *, removed: bool = False) -> InForce:
        state = (await self.states()).get(surface)
        if state is None or state.revision != revision:
            raise RegistryConflict(surface, state)
        if state.removed and not removed:
            raise _was_removed(surface)
        return state

    async def _rolling(self, surface: str, revision: int) -> tuple[InForce, Rolling]:
        state = await self._at(surface, revision)
        if state.rolling is None:
            raise RegistryError(f"{surface} has no candidate; `tierline policy apply FILE --canary` starts one")
        return state, state.rolling

    async def _rollout(self, state: InForce, rolling: Rolling) -> Rollout:
        candidate = (await self.documents([state])).get(rolling.document)
        try:
            rollout = None if candidate is None else candidate.policy().of(RolloutSections).rollout
        except ConfigError as error:
            raise RegistryError(f"{state.surface}@{rolling.version[:7]} cannot be read: {error}") from None
        if rollout is None:
            raise RegistryError(
                f"{state.surface}@{rolling.version[:7]} has no `rollout` section, so no next step; promote it --full"
            )
        return rollout

    async def _before(self, state: InForce) -> Version:
        """Return the version that was in force before the present one. Raises RegistryError."""
        by_document = {version.document: version for version in await self.versions(state.surface)}
        current = by_document[state.document].version if state.document in by_document else state.live
        # Texts that rule the same are one version: what was in force before is the last that ruled something else.
        for entry in reversed(await self.succession(state.surface)):
            if entry.document in by_document and by_document[entry.document].version != current:
                return by_document[entry.document]
        raise RegistryError(f"{state.surface} has had no other version in force; name one with --to")

    async def _made(
        self, after: InForce, action: str, version: str, before: str, why: PolicyWhy, *, changed: bool = False
    ) -> InForce:
        """Store what follows the state of this `revision`, with its audit entry; `changed`: it is in force since."""
        at, revision = _at(why), after.revision
        after = replace(after, revision=revision + 1, since=at if changed else after.since)
        document, details = after.document if changed else "", why.get("details", "")
        entry = _entry(after, action, version, before, why["by"], why["message"], at, details, document)
        return await self._change(after, revision, entry)

    async def _change(
        self, after: InForce, revision: int, entry: AuditEntry, version: Version | None = None
    ) -> InForce:
        name = b"" if version is None else _name(version.surface, version.version, version.document)
        blob = b"" if version is None else as_blob(version)
        keys = (_STATE, _REVISION, _AUDIT, _DOCUMENTS)
        words = (after.surface.encode(), b"%d" % revision, as_blob(after), as_blob(entry), name, blob, self._how)
        reply, _ = await settled_change(self._store, _CHANGE, keys, words)
        if reply != 1:
            raise RegistryConflict(after.surface, _read(in_force_from, reply) if reply else None)
        return after

    async def _publish(self, name: str, record: bytes) -> None:
        words = (b"EVAL", _PUBLISH, b"2", _REPLICAS, _HEARD, name.encode(), record, b"%d" % REPLICA_TTL_S)
        await self._ask(Command(words))

    async def _ask(self, *commands: Command) -> list[Any]:
        return await self._store.ask(commands, _LIMIT_S)


def _given(why: PolicyWhy) -> PolicyWhy:
    """Return the members that say something, with the time of the change."""
    why_now: PolicyWhy = {"by": why["by"], "message": why["message"], "now": _at(why)}
    if details := why.get("details"):
        why_now["details"] = details
    return why_now


def _at(why: PolicyWhy) -> float:
    now = why.get("now")
    return time.time() if now is None else now


def _was_removed(surface: str) -> RegistryError:
    return RegistryError(
        f"{surface} was removed; `tierline policy rollback {surface} -m WHY` brings it back, and `tierline policy "
        f"history {surface}` says who removed it and why"
    )


def _entry(
    state: InForce,
    action: str,
    version: str,
    before: str,
    by: str,
    message: str,
    at: float,
    details: str = "",
    document: str = "",
) -> AuditEntry:
    return AuditEntry(state.surface, action, version, before, by, message, at, details, document, asdict(state))


def _name(surface: str, version: str, document: str) -> bytes:
    return f"{surface}@{version}@{document}".encode()


def _read(unpack: Callable[[bytes], T], blob: bytes) -> T:
    try:
        return unpack(blob)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailable("error", f"the registry holds a record that cannot be read: {error}") from None
