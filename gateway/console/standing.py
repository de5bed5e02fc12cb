"""Read how surfaces stand beside their figures, from the store: candidates, lagging workers, backends that are out.

The registry says what is tried on a surface and which workers have another version, the workers' exchange of breaker
states which backends are not called, and the published audits which cache breaks its bound. What was read serves all
pages for two seconds. A store that does not answer leaves all of it empty, and says so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cache.risk.published import PublishedRisk, read_published
from cache.store.base import Store, StoreUnavailable
from gateway.config.schema import Deployment
from gateway.registry.registry import PolicyRegistry, RegistryError
from gateway.registry.view import in_force_shown
from gateway.tiers.gossip import STREAM, ReportedEjection, ejections_in

_FRESH_S: Final = 2.0
_AFTER_ERROR_S: Final = 5.0
_LONGEST_S: Final = 1.0
"""How long a page waits for the store before it is shown without this."""
_RECENT: Final = 40
_ALL: Final = 1000
"""Entries of the workers' exchange: those of the last seconds, and all that it keeps."""
_GRACE_S: Final = 5.0
"""A change reaches every worker within this time; until then nobody lags."""
_TODO: Final[Mapping[str, str]] = {
    "failing": "It is tried again by itself. Look at its latest errors.",
    "pause": "It asked for a pause, and is called again after it. If that happens often, add a backend.",
    "key": "It refuses our key. Set a new one in its variable, and restart the gateway.",
    "quota": "Its account is used up. Top it up, or take the backend out of its tier.",
}


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody: what is wrong, since when (Unix seconds; None if not known), and what to do."""

    level: str
    """bad or warn."""
    what: str
    since_s: float | None
    todo: str
    href: str


@dataclass(frozen=True, slots=True)
class StandingChip:
    """A word beside a surface's name. `kind` is canary, warn, bad or empty; `since_s` is in Unix seconds."""

    kind: str
    text: str
    title: str
    href: str
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class StandingMark:
    """A moment that is drawn through a surface's charts. `kind` is policy, breaker or restart; '' is every surface."""

    surface: str
    kind: str
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class StoreStanding:
    """What the store says. `problem` is why it says nothing; '' if it does."""

    at_s: float
    problem: str = ""
    surfaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By surface, its state in the registry (`gateway.registry.view.in_force_shown`)."""
    lagging: Mapping[str, Sequence[str]] = field(default_factory=dict)
    workers: int = 0
    troubles: Sequence[tuple[str, str]] = ()
    """Workers that cannot follow the registry, with the reason; '' and a sentence for a file that says otherwise."""
    changes: Sequence[StandingMark] = ()
    paused_since: Mapping[str, float] = field(default_factory=dict)
    out: Sequence[ReportedEjection] = ()
    risks: Sequence[PublishedRisk] = ()
    breached_since: Mapping[str, float] = field(default_factory=dict)


class StandingReader:
    """Read the standing of all surfaces. One per page that shows it."""

    def __init__(self, store: Store, deployment: Deployment) -> None:
        self._store = store
        self._registry = PolicyRegistry(store)
        self._tier_of = {one.name: tier.name for tier in deployment.tiers for one in tier.backends}
        self._known = StoreStanding(-math.inf)
        self._reading = asyncio.Lock()

    async def read(self) -> StoreStanding:
        """Return what the store says, at most two seconds old. A failure is told in `problem`."""
        async with self._reading:
            known = self._known
            if time.time() - known.at_s < (_AFTER_ERROR_S if known.problem else _FRESH_S):
                return known
            try:
                async with asyncio.timeout(_LONGEST_S):
                    self._known = await self._read()
            except TimeoutError:
                self._known = StoreStanding(time.time(), f"the store did not answer within {_LONGEST_S:.0f} s")
            except (StoreUnavailable, RegistryError) as error:
                self._known = StoreStanding(time.time(), str(error))
            return self._known

    def tier_of(self, backend: str) -> str:
        """Return the tier of a backend; '' for one that this console's config does not name."""
        return self._tier_of.get(backend, "")

    async def _read(self) -> StoreStanding:
        now = time.time()
        states = await self._registry.in_force()
        replicas = await self._registry.replicas() if states else []
        entries = await self._registry.latest() if states else []
        risks = await read_published(self._store)
        was, breached = self._known.breached_since, {risk.surface for risk in risks if risk.figures.breached}
        pauses = {one.surface: one.at for one in entries if one.action == "pause"}
        late = [state for state in states.values() if now - state.since > _GRACE_S]
        return StoreStanding(
            now,
            surfaces={name: in_force_shown(state) for name, state in states.items()},
            lagging={
                state.surface: names
                for state in late
                if (names := [one.name for one in replicas if one.surfaces.get(state.surface) != state.live])
            },
            workers=len(replicas),
            troubles=[
                *((one.name, one.problem) for one in replicas if one.problem),
                *(("", drift) for drift in sorted({drift for one in replicas for drift in one.drift})),
            ],
            changes=[
                *(
                    StandingMark(one.surface, "policy", one.at, f"{one.action} {one.surface}@{one.version[:7]} by "
                                 f"{one.by}{f': {one.message}' if one.message else ''}")
                    for one in entries
                    if one.action != "seed"  # the first versions: nothing changed by them
                ),
                *(
                    StandingMark("", "restart", one.started, f"worker {one.name} started")
                    for one in replicas
                    if one.started
                ),
            ],
            paused_since=pauses,
            out=await self._out(now),
            risks=risks,
            breached_since={surface: was.get(surface, now) for surface in breached},
        )  # fmt: skip

    async def _out(self, now: float) -> list[ReportedEjection]:
        """Return the backends that are not called. All that is kept is read only where there are any."""
        if not ejections_in(await self._store.latest(STREAM, _RECENT), now):
            return []
        return ejections_in(await self._store.latest(STREAM, _ALL), now)


def chips_of(
    surface: Mapping[str, Any], ladder: Sequence[str], standing: StoreStanding, reader: StandingReader
) -> Iterator[StandingChip]:
    """Yield the chips of a surface, what changes its answers most first."""
    name = surface["surface"]
    state = standing.surfaces.get(name)
    tried = None if state is None else state["candidate"]
    if tried is not None:
        part = f" {tried['share']:.3g}" if tried["mode"] == "canary" else ""
        text = f"canary {tried['share']:.0%}" if part else tried["mode"]
        seen = f"; {surface['canary']:,} requests of this span" if part else ""
        yield StandingChip("canary", text, f"{tried['policy']}, step {tried['step'] + 1}{seen}", "/rollout",
                           tried["since"])  # fmt: skip
        if tried["paused"]:
            yield StandingChip("warn", "paused", tried["paused"], "/rollout", standing.paused_since.get(name))
    if state is not None and state["frozen"]:
        yield StandingChip("", "frozen", "nothing but a rollback is taken for now", f"/policies/{name}")
    if state is not None and name in standing.lagging:
        lagging = standing.lagging[name]
        text = f"policy drifted on {len(lagging)} of {standing.workers}"
        yield StandingChip("warn", text, ", ".join(lagging), f"/policies/{name}", state["since"])
    for tier, down in surface["unavailable"].items():
        yield StandingChip("bad", f"{tier} down", down["reason"], f"/requests?surface={name}", down["since_s"])
    for one in standing.out:
        tier = reader.tier_of(one.backend)
        if tier in ladder and tier not in surface["unavailable"]:
            yield StandingChip("bad", f"{one.backend} out", one.reason, f"/requests?surface={name}", one.since_s)
    if any(risk.surface == name and risk.figures.breached for risk in standing.risks):
        since = standing.breached_since.get(name)
        yield StandingChip("bad", "cache bound breached", "more wrong hits than its max_error", "/cache", since)
    if surface["cost_unknown"]:
        title = "a backend's price is not known: cost and saving are too low"
        yield StandingChip("warn", "price unknown", title, f"/requests?surface={name}")


def needs_of(standing: StoreStanding, reader: StandingReader) -> Iterator[Need]:
    """Yield what needs somebody by what the store says, the gravest first."""
    for one in standing.out:
        tier = reader.tier_of(one.backend)
        where = f" of tier {tier}" if tier else ""
        about = "at least since then; " if one.at_least else ""
        level = "bad" if one.cause in ("key", "quota") else "warn"
        yield Need(level, f"Backend {one.backend}{where} is not called: {one.reason}", one.since_s,
                   about + _TODO[one.cause], "/requests?is=failed")  # fmt: skip
    for risk in standing.risks:
        if risk.figures.breached:
            what = (
                f"{risk.surface}: the cache gives wrong hits to {risk.figures.error:.2%} of requests; "
                f"its bound is {risk.figures.max_error:.2%}"
            )
            todo = "Its threshold was raised. See what was served wrongly, and take it back."
            yield Need("bad", what, standing.breached_since.get(risk.surface), todo, "/cache")
    for worker, trouble in standing.troubles:
        if worker:
            todo = "It serves what it had. Mend what its log names, or restart it."
            yield Need("bad", f"Worker {worker} cannot follow the policies: {trouble}", None, todo, "/policies")
        else:
            todo = "Files are not read while policies come from the store. Apply the file, or make it the same."
            yield Need("warn", trouble, None, todo, "/policies")
    told = {worker for worker, _ in standing.troubles}
    for name, workers in standing.lagging.items():
        lagging = [one for one in workers if one not in told]
        if lagging:
            what = f"{name}: {len(lagging)} of {standing.workers} workers have another version than the one in force"
            todo = f"Restart {', '.join(lagging)}, or look at the log there."
            yield Need("warn", what, standing.surfaces[name]["since"], todo, f"/policies/{name}")
    for name, state in standing.surfaces.items():
        tried = state["candidate"]
        if tried is not None and tried["paused"]:
            what = f"{name}: the canary {tried['policy']} stays at {tried['share']:.0%}: {tried['paused']}"
            todo = "See its guards; then resume it (tierline policy resume), or roll it back."
            yield Need("warn", what, standing.paused_since.get(name), todo, "/rollout")


def version_marks(changes: Sequence[Mapping[str, Any]], standing: StoreStanding) -> Iterator[StandingMark]:
    """Yield the policy versions that came into use, of surfaces of which the registry says nothing."""
    seen: set[str] = set()
    for change in changes:
        surface = change["surface"]
        if surface in seen and surface not in standing.surfaces:
            yield StandingMark(surface, "policy", change["since_s"], f"{change['policy']} came into use")
        seen.add(surface)  # the first version of a surface was there before, or is all that is known


def marks_within(marks: Sequence[StandingMark], from_s: float, span_s: float) -> list[dict[str, Any]]:
    """Return the marks within the window in order of time, with their places in it (`at`, 0 to 1)."""
    return [
        {"surface": one.surface, "kind": one.kind, "text": one.text, "at": at, "since_s": one.at_s}
        for one in sorted(marks, key=lambda mark: mark.at_s)
        if 0 <= (at := (one.at_s - from_s) / span_s) <= 1
    ]
