"""Read how surfaces stand beside their figures: candidates, lagging workers, tiers and backends, what is degraded.

The registry says what is tried on a surface and which workers have another version, the workers' exchange of breaker
states which backends are not called, the published audits which cache breaks its bound, and the gateway's `/readyz`
which tiers it has and what is degraded. What was read serves all pages for two seconds. A store or a gateway that does
not answer leaves its part empty, and says so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cache.store.base import Store, StoreUnavailable
from gateway.config.schema import Deployment
from gateway.errors import Conflict
from gateway.parts.console.gateway_client import GatewayClient, GatewayFailure
from gateway.parts.fleet.gossip import ReportedEjection, read_reports
from gateway.parts.rollout.stored_policies import StoredPolicies
from gateway.seams import read_published
from gateway.tiers.breaker import REFUSALS, Cause
from policies.quantities import percent, write_share

if TYPE_CHECKING:
    from gateway.parts.hit_audits.published import PublishedRisk

_FRESH_S: Final = 2.0
_AFTER_ERROR_S: Final = 5.0
_LONGEST_S: Final = 1.0
"""How long a page waits for the store before it is shown without this."""
_UNITS: Final = {"requests": "requests", "tokens_in": "input tokens", "tokens_out": "output tokens"}
LASTS_S: Final = 30.0
"""A tier or a backend that is out for less needs nobody: a pause that it asks for is over in seconds."""
_PASSING: Final = ("tier ", "backend ")
"""How those lines of `/readyz` begin that may come and go with such pauses."""
_GRACE_S: Final = 5.0
"""A change reaches every worker within this time; until then nobody lags."""
_TODO: Final[Mapping[Cause, str]] = {
    "failing": "It is tried again by itself. Look at its latest errors.",
    "pause": "It asked for a pause, and is called again after it. If that happens often, add a backend.",
    "key": "It refuses our key. Set a new one in its variable, and restart the gateway.",
    "quota": "Its account is used up. Top it up, or take the backend out of its tier.",
    "model": "It has no such model, or another URL. Set its model or base_url.",
}
"""What to do about a backend that is not called, by the cause."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody: what is wrong, since when (Unix seconds; None if not known), and what to do."""

    level: str
    """bad or warn."""
    what: str
    since_s: float | None
    todo: str
    href: str
    until_s: float | None = None
    """When it ended, in Unix seconds; None while it lasts."""


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
class TierStanding:
    """One backend of a tier, for the strip of them. `state` is ready, out, or unconfigured; `why` says more."""

    tier: str
    backend: str
    model: str
    state: str
    why: str
    in_flight: int
    waiting: int
    headroom: str = ""
    """What is left of its rate limits, in words; '' where that is not asked, as on this machine."""


@dataclass(frozen=True, slots=True)
class StoreStanding:
    """What the store and the gateway say. `problem` is why the store says nothing; '' if it does."""

    at_s: float
    problem: str = ""
    surfaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By surface, its state in the registry (`gateway.parts.rollout.registry.view.in_force_shown`)."""
    lagging: Mapping[str, Sequence[str]] = field(default_factory=dict)
    workers: int = 0
    troubles: Sequence[tuple[str, str]] = ()
    """Workers that cannot follow the registry, with the reason; '' and a sentence for a file that says otherwise."""
    changes: Sequence[StandingMark] = ()
    paused_since: Mapping[str, float] = field(default_factory=dict)
    out: Sequence[ReportedEjection] = ()
    risks: Sequence[PublishedRisk] = ()
    breached_since: Mapping[str, float] = field(default_factory=dict)
    loads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Calls in flight and waiting of all workers, by backend."""
    readiness: Mapping[str, Any] = field(default_factory=dict)
    """The body of one worker's `/readyz`; empty where there is none, for the reason in `silence`."""
    silence: str = ""
    degraded_since: Mapping[str, float] = field(default_factory=dict)
    """Time since which a line of `/readyz` is known, by line."""


class StandingReader:
    """Read the standing of all surfaces. One per page that shows it."""

    def __init__(self, store: Store, deployment: Deployment | None, gateway: GatewayClient | None = None) -> None:
        """Without `deployment` backends have no known tier; without `gateway` what is degraded is not known."""
        self._store = store
        self._gateway = gateway
        self._stored = StoredPolicies(store)
        tiers = () if deployment is None else deployment.tiers
        self._tier_of = {backend.name: tier.name for tier in tiers for backend in tier.backends}
        self._known = StoreStanding(-math.inf)
        self._reading = asyncio.Lock()

    async def read(self) -> StoreStanding:
        """Return what store and gateway say, at most two seconds old; failures are in `problem` and `silence`."""
        async with self._reading:
            standing = self._known
            if time.time() - standing.at_s < (_AFTER_ERROR_S if standing.problem else _FRESH_S):
                return standing
            stored, (readiness, silence) = await asyncio.gather(self._of_store(), self._readiness())
            lines, was = readiness.get("degraded") or (), standing.degraded_since
            since = {line: was.get(line, stored.at_s) for line in lines if isinstance(line, str)}
            self._known = replace(stored, readiness=readiness, silence=silence, degraded_since=since)
            return self._known

    async def _of_store(self) -> StoreStanding:
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await self._read()
        except TimeoutError:
            return StoreStanding(time.time(), f"the store did not answer within {_LONGEST_S:.0f} s")
        except (StoreUnavailable, Conflict) as error:
            return StoreStanding(time.time(), str(error))

    async def _readiness(self) -> tuple[Mapping[str, Any], str]:
        if self._gateway is None:
            return {}, ""
        try:
            return await self._gateway.readiness(), ""
        except GatewayFailure as failure:
            return {}, str(failure)

    def tier_of(self, backend: str) -> str:
        """Return the tier of a backend; '' for one that this console's config does not name."""
        return self._tier_of.get(backend, "")

    async def _read(self) -> StoreStanding:
        now = time.time()
        registry = await self._stored.standing(_GRACE_S)
        risks: Sequence[Any] = await read_published(self._store)
        out, loads = await read_reports(self._store, now)
        was, breached = self._known.breached_since, {risk.surface for risk in risks if _breached(risk)}
        return StoreStanding(
            now,
            surfaces=registry.surfaces,
            lagging=registry.lagging,
            workers=registry.workers,
            troubles=registry.troubles,
            changes=[StandingMark(*change) for change in registry.changes],
            paused_since=registry.paused_since,
            out=out,
            loads=loads,
            risks=risks,
            breached_since={surface: was.get(surface, now) for surface in breached},
        )


def is_passing(since_s: float | None, cause: str = "") -> bool:
    """Return whether a backend that is out since `since_s` may be back in a moment; not if it refuses us."""
    return cause not in REFUSALS and since_s is not None and time.time() - since_s < LASTS_S


def backends_of(standing: StoreStanding) -> Iterator[TierStanding]:
    """Yield every backend, cheapest tier first, as the gateway says that it stands; none if it is silent."""
    out = {ejection.backend: ejection.reason for ejection in standing.out}
    for tier, told in (standing.readiness.get("tiers") or {}).items():
        for backend, own in told["backends"].items():
            text = str(own["state"])
            why = out.get(backend, "" if text == "ready" else text)
            state = "ready" if not why else "unconfigured" if why.startswith("unconfigured") else "out"
            why = why or str(own.get("retirement") or "")
            load = standing.loads.get(backend, (own["in_flight"], own["waiting"]))
            why = why.removeprefix("unconfigured: ")
            left = _headroom(own.get("headroom"))
            yield TierStanding(tier, backend, str(own["model"]), state, why, load[0], load[1], left)


def _headroom(limits: Mapping[str, Mapping[str, float | None]] | None) -> str:
    """Return what is left of a backend's rate limits: the scarcest, as a share where the limit is known."""
    if not limits:
        return "rate limit not known" if limits is None else ""
    shares = {unit: one["left"] / one["of"] for unit, one in limits.items() if one["of"] and one["left"] is not None}
    if shares:
        unit = min(shares, key=shares.__getitem__)
        return f"{percent(shares[unit], 0)} of {_UNITS[unit]} left"
    return ", ".join(f"{limit['left']:,.0f} {_UNITS[unit]} left" for unit, limit in limits.items())


def chips_of(
    surface: Mapping[str, Any], ladder: Sequence[str], standing: StoreStanding, reader: StandingReader
) -> Iterator[StandingChip]:
    """Yield the chips of a surface, what changes its answers most first."""
    name = surface["surface"]
    state = standing.surfaces.get(name)
    tried = None if state is None else state["candidate"]
    if tried is not None:
        part = f" {tried['share']:.3g}" if tried["mode"] == "canary" else ""
        text = f"canary {write_share(tried['share'])}" if part else tried["mode"]
        seen = f"; {surface['canary']:,} requests of this span" if part else ""
        yield StandingChip("canary", text, f"{tried['policy']}, step {tried['step'] + 1}{seen}", "/changes",
                           tried["since"])  # fmt: skip
        if tried["paused"]:
            yield StandingChip("warn", "paused", tried["paused"], "/changes", standing.paused_since.get(name))
    if state is not None and state["frozen"]:
        yield StandingChip("", "frozen", "nothing but a rollback is taken for now", f"/policies/{name}")
    if state is not None and name in standing.lagging:
        lagging = standing.lagging[name]
        text = f"policy drifted on {len(lagging)} of {standing.workers}"
        yield StandingChip("warn", text, ", ".join(lagging), f"/policies/{name}", state["since"])
    for tier, down in surface["unavailable"].items():
        if not is_passing(down["since_s"]):
            yield StandingChip("bad", f"{tier} down", down["reason"], f"/requests?surface={name}", down["since_s"])
    for out in standing.out:
        tier = reader.tier_of(out.backend)
        if tier in ladder and tier not in surface["unavailable"] and not is_passing(out.since_s, out.cause):
            yield StandingChip("bad", f"{out.backend} out", out.reason, f"/requests?surface={name}", out.since_s)
    for risk in standing.risks:
        if risk.surface == name and (whose := _breached(risk)):
            title = f"more wrong hits than its max_error, of {', '.join(whose)}"
            yield StandingChip("bad", "cache bound breached", title, "/cache", standing.breached_since.get(name))
    if surface["cost_unknown"]:
        title = "a backend's price is not known: cost and saving are too low"
        yield StandingChip("warn", "price unknown", title, f"/requests?surface={name}")


def needs_of(standing: StoreStanding, reader: StandingReader) -> Iterator[Need]:
    """Yield what needs somebody by what the gateway and the store say, the gravest first."""
    if standing.silence:
        todo = "See whether it runs: clients get no answer if it does not. Its address is console.gateway's."
        yield Need("bad", standing.silence, None, todo, "/requests")
    yield from _degraded(standing)
    for ejection in standing.out:
        if is_passing(ejection.since_s, ejection.cause):
            continue
        tier = reader.tier_of(ejection.backend)
        where = f" of tier {tier}" if tier else ""
        about = "At least since then. " if ejection.at_least else ""
        level = "bad" if ejection.cause in REFUSALS else "warn"
        yield Need(level, f"Backend {ejection.backend}{where} is not called: {ejection.reason}", ejection.since_s,
                   about + _TODO[ejection.cause], "/requests?is=failed")  # fmt: skip
    yield from _breaches(standing)
    for worker, trouble in standing.troubles:
        if worker:
            todo = "It serves what it had. Mend what its log names, or restart it."
            yield Need("bad", f"Worker {worker} cannot follow the policies: {trouble}", None, todo, "/policies")
        else:
            todo = "Files are not read while policies come from the store. Apply the file, or make it the same."
            yield Need("warn", trouble, None, todo, "/policies")
    troubled = {worker for worker, _ in standing.troubles}
    for name, workers in standing.lagging.items():
        lagging = [worker for worker in workers if worker not in troubled]
        if lagging:
            what = f"{name}: {len(lagging)} of {standing.workers} workers have another version than the one in force"
            todo = f"Restart {', '.join(lagging)}, or look at the log there."
            yield Need("warn", what, standing.surfaces[name]["since"], todo, f"/policies/{name}")
    for name, state in standing.surfaces.items():
        tried = state["candidate"]
        if tried is not None and tried["paused"]:
            what = f"{name}: the canary {tried['policy']} stays at {write_share(tried['share'])}: {tried['paused']}"
            todo = "See its guards; then resume it (tierline policy resume), or roll it back."
            yield Need("warn", what, standing.paused_since.get(name), todo, "/changes")


def _breaches(standing: StoreStanding) -> Iterator[Need]:
    """Yield whose bound on wrong hits is breached."""
    for risk in standing.risks:
        for group in risk.figures.breached_groups:
            what = f"{risk.surface}: the cache gives more wrong hits to {group.words} than its max_error"
            todo = "The threshold of these requests was raised. See what was served wrongly, and take it back."
            yield Need("bad", what, standing.breached_since.get(risk.surface), todo, "/cache")
        if risk.figures.breached:
            what = (
                f"{risk.surface}: the cache gives wrong hits to {percent(risk.figures.error, 2)} of requests; "
                f"its bound is {write_share(risk.figures.max_error)}"
            )
            todo = "Its threshold was raised. See what was served wrongly, and take it back."
            yield Need("bad", what, standing.breached_since.get(risk.surface), todo, "/cache")


def _breached(risk: PublishedRisk) -> list[str]:
    """Return whose bound is breached, in words: all requests, languages, tenants."""
    return [*(["all requests"] if risk.figures.breached else []), *(one.words for one in risk.figures.breached_groups)]


def _degraded(standing: StoreStanding) -> Iterator[Need]:
    """Yield what `/readyz` says is degraded, but for what is told by figures and by the store."""
    status = standing.readiness.get("status")
    if status == "unavailable":
        yield Need("bad", "The gateway answers nobody: no tier is configured.", None,
                   "Set a backend's key, or see `tierline check`.", "/policies")  # fmt: skip
    if status == "degraded" and "degraded" not in standing.readiness:
        yield Need("warn", "The gateway says that it is degraded, and not to whom it may say what.", None,
                   "Name the admin's key: console.gateway_key_env.", "/requests")  # fmt: skip
    told = [f"backend {ejection.backend}:" for ejection in standing.out]
    told += [f"semantic cache of {risk.surface}{sign}" for risk in standing.risks if _breached(risk) for sign in ":,"]
    told += ["policies:"] if standing.troubles else []
    for line, since_s in standing.degraded_since.items():
        if line.startswith(tuple(told)) or (line.startswith(_PASSING) and is_passing(since_s)):
            continue
        level = "bad" if line.startswith(("surface ", "store:", "backend ")) else "warn"
        what, todo = f"{line[0].upper()}{line[1:]}", "As /readyz says; the gateway's log has more."
        if line.startswith("store: "):
            what = f"The store does not work as it should: {line.removeprefix('store: ')}."
            todo = "See its log and its memory. Models answer meanwhile; the cache serves less, or nothing."
        yield Need(level, what, since_s, todo, "/requests")


def version_marks(changes: Sequence[Mapping[str, Any]], standing: StoreStanding) -> Iterator[StandingMark]:
    """Yield the policy versions that came into use, again too, of surfaces of which the registry says nothing."""
    seen: set[str] = set()
    for change in changes:
        surface = change["surface"]
        if surface in seen and surface not in standing.surfaces:
            yield StandingMark(surface, "policy", change["since_s"], f"{change['policy']} came into use")
        seen.add(surface)  # the first version of a surface was there before, or is all that is known


def marks_within(marks: Sequence[StandingMark], from_s: float, span_s: float) -> list[dict[str, Any]]:
    """Return the marks within the window in order of time, with their places in it (`at`, 0 to 1)."""
    return [
        {"surface": mark.surface, "kind": mark.kind, "text": mark.text, "at": at, "since_s": mark.at_s}
        for mark in sorted(marks, key=lambda mark: mark.at_s)
        if 0 <= (at := (mark.at_s - from_s) / span_s) <= 1
    ]
