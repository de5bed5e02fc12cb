"""The playground: one prompt, raced through two policy versions or tiers; what came when, what was held, what it cost.

Requests go from here to the gateway as any client's do, so they cost money: only an editor may send. They have the arm
`playground`, which no figure of a surface counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from cache.store.base import Store, StoreUnavailable
from gateway.console.page import (
    Action,
    BadQuery,
    Page,
    PageError,
    PolicyPlaces,
    Sources,
    allowed,
    form_of,
    person_in,
    whole_in,
)
from gateway.console.prompt_race import KEPT_S, LaneChoice, Prompt, PromptRace, RaceLane, TooManyRaces
from gateway.console.render import utc
from gateway.console.svg.prompt_race import Segment
from gateway.console.timeline import Bar, timeline_of
from gateway.console.views.request import record_of
from gateway.keys.roles import may_some
from gateway.registry.registry import PolicyRegistry, RegistryError
from gateway.telemetry import names
from policies.errors import ConfigError
from policies.loader import policy_files, read_policy
from policies.quantities import dollars, milliseconds

_TEMPLATE: Final = "playground.html"
_MOST_FORM: Final = 1 << 18
_MOST_TEXT: Final = 100_000
_MOST_TOKENS: Final = 32_000
_VERSIONS: Final = 6
"""Older versions of each surface that can be chosen."""
_EVERY_S: Final = 0.25
_TICK_S: Final = 0.5
"""How often the axis goes on while nothing comes."""
_SHOWN: Final = 20_000
"""Characters of an answer that the page shows; the rest is in its `.json`."""
_ROOM: Final = 1.04
_EXAMPLE: Final = (
    "Which trade-off matters most when a small team chooses between two databases? Answer in two sentences."
)
_COMMITTED: Final = "then sent on, which is the commit"


class NoSuchRace(PageError):
    """There is no such race, or no more."""

    status, title = 404, "This race is not kept"


class NotSent(Exception):
    """A prompt that was not sent; the message says why, and the page shows it beside the form."""


class MayNotSend(PageError):
    """Somebody who may not send asked to."""

    status, title = 403, "You may look, and may not send"


@dataclass(frozen=True, slots=True)
class SurfaceChoices:
    """What can be raced on one surface."""

    surface: str
    choices: Sequence[LaneChoice]


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of a lane, drawn: its tier, the parts of its time, and what it did in words."""

    label: str
    served: bool
    parts: Sequence[Segment]
    text: str


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the form, a race's page, the stream of its updates, and the buttons that send and stop."""
    ground = Playground(sources)

    async def show(request: Request) -> Mapping[str, Any]:
        return await ground.form(request, request.query_params)

    async def send(request: Request) -> Response:
        form = await form_of(request, _MOST_FORM)
        try:
            race = await ground.start(request, form)
        except NotSent as error:
            kept = {"a": "", "b": "", "stream": "0", **form}
            data = {**await ground.form(request, kept), "refused": str(error)}
            return sources.render.page(request, _TEMPLATE, data, status=422)
        to = f"/playground/{race.id}"
        if "hx-request" in request.headers:
            return Response(status_code=204, headers={"hx-redirect": to})
        await ground.finished(race)  # without a script, the next page is the finished one
        return RedirectResponse(to, 303)

    async def show_race(request: Request) -> Mapping[str, Any]:
        race = ground.race_of(request)
        return {**await ground.form(request, _fields_of(race)), "race": race_data(race)}

    async def updates(request: Request) -> Response:
        race = ground.race_of(request)
        return StreamingResponse(_updates(sources, race), media_type="text/event-stream")

    async def stop(request: Request) -> Response:
        await ground.stop(request)
        return RedirectResponse(f"/playground/{request.path_params['race']}", 303)

    yield Page("/playground", _TEMPLATE, show, name="Playground", key="y")
    yield Action("/playground", send, "playground.send")
    yield Action("/playground/{race}/events", updates, "look", methods=("GET",))
    yield Action("/playground/{race}/stop", stop, "playground.send")
    yield Page("/playground/{race}", _TEMPLATE, show_race)


async def _updates(sources: Sources, race: PromptRace) -> AsyncIterator[bytes]:
    """Yield the lanes as server-sent events, at most four a second, until the race is over."""
    yield b": connected\n\n"
    while True:
        seen, over = race.version, race.ended_at is not None
        html = sources.render.part("playground_lanes.html", {"race": race_data(race)})
        yield b"".join(b"data: " + line.encode() + b"\n" for line in html.splitlines() if line) + b"\n"
        if over:
            yield b"event: over\ndata: \n\n"
            return
        await asyncio.sleep(_EVERY_S)
        await race.wait(seen, _TICK_S)


class Playground:
    """Make the page's data, and begin races."""

    def __init__(self, sources: Sources) -> None:
        self._races = sources.prompt_races
        self._offer = LaneOffer(sources.store, sources.places)

    def race_of(self, request: Request) -> PromptRace:
        """Return the race that a path names. Raises NoSuchRace."""
        race = None if self._races is None else self._races.find(request.path_params["race"])
        if race is None:
            raise NoSuchRace(
                f"Races are kept for {KEPT_S / 60:.0f} minutes, and until the console restarts. Their requests stay in "
                "the ledger: see Requests, with arm=playground in the URL."
            )
        return race

    async def form(self, request: Request, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the form with what `given` holds of its fields. Raises BadQuery for a choice that there is not."""
        began = time.perf_counter()
        surfaces = await self._offer.surfaces({given.get("a", ""), given.get("b", "")})
        values = [one.value for surface in surfaces for one in surface.choices]
        first, second = self._offer.usual(surfaces)
        chosen = {"a": given.get("a") or first, "b": given.get("b") or second}
        for lane, value in chosen.items():
            if value and value not in values and request.method == "GET" and "race" not in request.path_params:
                raise BadQuery(f"{lane}={value} is nothing that can be raced here; there are {', '.join(values)}")
        return {
            "surfaces": surfaces, **chosen, "prompt": given.get("prompt", _EXAMPLE), "system": given.get("system", ""),
            "stream": given.get("stream", "1") == "1", "cached": given.get("cached", "") == "1",
            "max_tokens": given.get("max_tokens", ""), "gateway": None if self._races is None else self._races.url,
            "may_send": may_some(person_in(request), "playground.send"), "race": None, "refused": "",
            "query_ms": (time.perf_counter() - began) * 1000,
        }  # fmt: skip

    async def start(self, request: Request, form: Mapping[str, str]) -> PromptRace:
        """Begin the race that a form asks for. Raises NotSent and MayNotSend."""
        if self._races is None:
            raise NotSent("No gateway is set: write `console: {gateway: URL}` in the config.")
        values = [form.get(lane, "") for lane in ("a", "b")]
        by_value = {one.value: one for surface in await self._offer.surfaces(values) for one in surface.choices}
        lanes = [by_value.get(value) for value in values]
        if None in lanes:
            raise NotSent("What was chosen for a lane is not there (any more): choose again.")
        chosen = [one for one in lanes if one is not None]
        for one in chosen:
            if not allowed(request, "playground.send", one.surface):
                raise MayNotSend(f"Sending costs money: it takes an editor of {one.surface}.")
        try:
            return self._races.start(_prompt_of(form), chosen)
        except TooManyRaces as error:
            raise NotSent(str(error)) from None

    async def stop(self, request: Request) -> None:
        """Stop the race that a path names, and wait for its records. Raises NoSuchRace."""
        race = self.race_of(request)
        race.stop()
        await self.finished(race)

    async def finished(self, race: PromptRace) -> None:
        """Return once a race is over, with its records where they came."""
        if self._races is not None:
            await self._races.finished(race)


class LaneOffer:
    """Find what can be raced: of each surface the version in force, its candidate, older versions, and its tiers."""

    def __init__(self, store: Store, places: PolicyPlaces) -> None:
        self._registry = PolicyRegistry(store)
        self._places = places
        self._tiers = {tier.name for tier in places.deployment.tiers if not tier.unconfigured_reason}

    async def surfaces(self, asked: Collection[str] = ()) -> list[SurfaceChoices]:
        """Return the surfaces, by name, with their choices. Raises StoreUnavailable where policies come from it.

        A version that `asked` names (`chat/version/3f2a91c0de12`) is among them even if it is too old to be listed.
        """
        if self._places.deployment.policies.source == "store" or await self._is_followed():
            return await self._of_registry(asked)
        return await asyncio.to_thread(self._of_files)

    def usual(self, surfaces: Sequence[SurfaceChoices]) -> tuple[str, str]:
        """Return what stands in both lanes at first: the default surface as it is, and its candidate or top tier."""
        if not surfaces:
            return "", ""
        default = self._places.deployment.default_surface
        one = next((one for one in surfaces if one.surface == default), surfaces[0])
        rest = [choice.value for choice in one.choices if choice.tried == "candidate" or choice.tier]
        return one.choices[0].value, next(
            (value for value in rest if value.endswith("/candidate")), rest[-1] if rest else one.choices[0].value
        )

    async def _is_followed(self) -> bool:
        with contextlib.suppress(StoreUnavailable, RegistryError):
            return bool(await self._registry.replicas())
        return False

    async def _of_registry(self, asked: Collection[str]) -> list[SurfaceChoices]:
        states = await self._registry.in_force()
        documents = await self._registry.documents(list(states.values()))
        changes = await self._registry.latest()
        found = []
        for name, state in states.items():
            known = [state.live]
            choices = [LaneChoice(f"{name}/live", name, f"in force: {name}@{state.live[:7]}", "live")]
            if state.rolling is not None:
                known.append(state.rolling.version)
                label = f"candidate: {name}@{state.rolling.version[:7]} ({state.rolling.mode})"
                choices.append(LaneChoice(f"{name}/candidate", name, label, "candidate"))
            set_at = {one.version: one.at for one in reversed(changes) if one.surface == name and one.version}
            older = [version for version in set_at if version not in known][:_VERSIONS]
            versions = {version: _version(name, version, at) for version, at in set_at.items()}
            choices += [one for version, one in versions.items() if version in older or one.value in asked]
            text = documents.get(state.document)
            tiers = [] if text is None else text.content.get("tiers") or []
            found.append(SurfaceChoices(name, [*choices, *self._of_tiers(name, tiers)]))
        return found

    def _of_files(self) -> list[SurfaceChoices]:
        found = []
        for file in policy_files(self._places.source.directory):
            with contextlib.suppress(ConfigError):
                policy, _ = read_policy(file, self._places.source.tiers)
                name = policy.surface
                live = LaneChoice(f"{name}/live", name, f"in force: {policy.label}", "live")
                found.append(SurfaceChoices(name, [live, *self._of_tiers(name, policy.tiers)]))
        return sorted(found, key=lambda one: one.surface)

    def _of_tiers(self, surface: str, tiers: Sequence[str]) -> list[LaneChoice]:
        return [
            LaneChoice(f"{surface}/tier/{tier}", surface, f"tier {tier} alone", "live", tier)
            for tier in tiers
            if tier in self._tiers
        ]


def _version(surface: str, version: str, at: float) -> LaneChoice:
    short = version[:12]
    label = f"version {surface}@{version[:7]} ({utc(at, 'date')} UTC)"
    return LaneChoice(f"{surface}/version/{short}", surface, label, short)


def _prompt_of(form: Mapping[str, str]) -> Prompt:
    """Return the prompt of a form. Raises NotSent."""
    text, system, most = form.get("prompt", "").strip(), form.get("system", "").strip(), form.get("max_tokens", "")
    if not text:
        raise NotSent("There is no prompt yet: write one.")
    if len(text) + len(system) > _MOST_TEXT:
        raise NotSent(f"The prompt is longer than {_MOST_TEXT:,} characters.")
    if most and not 0 < (whole_in(most) or 0) <= _MOST_TOKENS:
        raise NotSent(f"The longest answer is a number of tokens from 1 to {_MOST_TOKENS:,}, or nothing.")
    return Prompt(text, system, form.get("stream") == "1", form.get("cached") == "1", whole_in(most))


def _fields_of(race: PromptRace) -> dict[str, str]:
    prompt = race.prompt
    return {
        "a": race.lanes[0].choice.value, "b": race.lanes[1].choice.value, "prompt": prompt.text,
        "system": prompt.system, "stream": "1" if prompt.stream else "0", "cached": "1" if prompt.cached else "",
        "max_tokens": "" if prompt.max_tokens is None else str(prompt.max_tokens),
    }  # fmt: skip


def race_data(race: PromptRace) -> dict[str, Any]:
    """Return what the page shows of a race, with everything in milliseconds since it was sent."""
    end_ms = max(race.elapsed_ms, 1.0) * _ROOM
    lanes = [_lane_data(lane) for lane in race.lanes]
    again = urlencode({name: value for name, value in _fields_of(race).items() if name in ("a", "b")})
    return {
        "id": race.id, "over": race.ended_at is not None, "running": not all(lane.over for lane in race.lanes),
        "started_s": race.started, "end_ms": end_ms, "lanes": lanes, "compared": _compared(lanes), "again": again,
    }  # fmt: skip


def _lane_data(lane: RaceLane) -> dict[str, Any]:
    ledger = lane.row or {}
    facts, text = lane.facts, lane.text
    cost = facts.get("cost-usd")
    commit_ms = ledger.get("ttft_ms")
    later_ms = _later_ms(lane)
    return {
        "name": lane.name, "choice": lane.choice, "state": lane.state, "problem": lane.problem,
        "request_id": lane.request_id, "entry_ms": ledger.get("entry_ms"), "recorded": lane.row is not None,
        "policy": facts.get("policy", ""), "path": ledger.get("path") or facts.get("path", ""),
        "tier": ledger.get("tier") or facts.get("tier", ""), "model": ledger.get("model") or facts.get("model", ""),
        "thinking": "thinking" in facts, "seen": _seen(lane), "head_ms": lane.head_ms,
        "first_ms": lane.first_ms, "total_ms": lane.total_ms,
        "cost_usd": _number(cost) if lane.row is None else ledger["cost_usd"],
        "cost_unknown": cost == "unknown" or bool(ledger.get("cost_unknown")),
        "way_ms": later_ms, "wasted_usd": ledger.get("wasted_usd"), "wasted_tokens": ledger.get("wasted_tokens"),
        "attempts": ledger.get("attempts") or facts.get("attempts"), "confidence": ledger.get("confidence"),
        "tokens": lane.tokens, "finish": lane.finish, "text": text, "shown": text[:_SHOWN],
        "arrivals_ms": [round(at, 1) for at, _ in lane.arrivals], "rows": _attempts(lane.row, later_ms),
        "commit_ms": None if commit_ms is None else commit_ms + later_ms,
    }  # fmt: skip


def _seen(lane: RaceLane) -> str:
    """Return in words what a client has seen of a lane."""
    first = "no text yet" if lane.first_ms is None else f"first text after {milliseconds(lane.first_ms)}"
    if lane.total_ms is None:
        return first
    return f"{'no text' if lane.first_ms is None else first}; {lane.state} after {milliseconds(lane.total_ms)}"


def _later_ms(lane: RaceLane) -> float:
    """Return what the console's clock shows more than the gateway's: the way to the gateway, by begin and by end."""
    row = lane.row or {}
    pairs = ((lane.first_ms, row.get("ttft_ms")), (lane.total_ms, row.get("total_ms")))
    return max(min((ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None), default=0), 0)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _attempts(row: Mapping[str, Any] | None, later_ms: float) -> list[AttemptRow]:
    """Return the attempts of a recorded request, or the lookup of a hit, on the console's clock.

    `later_ms` is what that clock shows more than the gateway's: the way there and back.
    """
    if row is None:
        return []
    bars = timeline_of(record_of(row), row["given"], ()).bars
    if str(row["path"] or "").startswith("cache"):
        bars = [bar for bar in bars if bar.attributes.get(names.CACHE_OUTCOME) == "hit"]
        rows = [AttemptRow("cache", True, [("cache", bar.start_ms, bar.end_ms)], "a stored answer") for bar in bars]
    else:
        rows = [_attempt(bar, row["ttft_ms"], streamed=row["stream"]) for bar in bars if bar.name == names.ATTEMPT]
    return [
        replace(one, parts=[(kind, start + later_ms, end + later_ms) for kind, start, end in one.parts]) for one in rows
    ]


def _attempt(bar: Bar, commit_ms: float | None, *, streamed: bool) -> AttemptRow:
    """Return an attempt as it waited for its first token, was held, and was sent on or dropped."""
    tier = str(bar.attributes.get(names.TIER, ""))
    first = min(max(bar.end_ms if bar.first_ms is None else bar.first_ms, bar.start_ms), bar.end_ms)
    parts: list[Segment] = [("wait", bar.start_ms, first)]
    came = "over" if not streamed else "nothing" if bar.first_ms is None else "first token"
    words = [f"{tier}: {came} after {milliseconds(first - bar.start_ms)}"]
    if bar.served:
        then, held_until = "sent", min(max(bar.end_ms if commit_ms is None else commit_ms, first), bar.end_ms)
        told = "went on with the text that had broken off" if names.CONTINUES in bar.attributes else _COMMITTED
    else:
        then, told = "dropped", _given_up(bar)
        held_until = bar.end_ms if bar.verdict_ms is None else min(max(bar.verdict_ms, first), bar.end_ms)
    parts += [("held", first, held_until), (then, held_until, bar.end_ms)]
    if held_until - first >= 1:
        words.append(f"held for {milliseconds(held_until - first)}")
    words.append(told)
    drawn = [part for part in parts if part[2] > part[1]]
    return AttemptRow(tier, bar.served, drawn, "; ".join(words))


def _given_up(bar: Bar) -> str:
    """Return in words why nobody saw an attempt's text, or not all of it."""
    outcome = str(bar.attributes.get(names.OUTCOME) or "")
    if outcome == "caller_gone":
        return "stopped, as its client left"
    if outcome == names.LOST:
        return "given up, as another attempt was sooner"
    return f"given up before anybody saw it: {bar.attributes.get(names.REASON) or outcome or bar.error or 'not needed'}"


def _compared(lanes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in words how two finished lanes differ; nothing while one is under way or has failed."""
    one, other = lanes
    if one["state"] != "done" or other["state"] != "done":
        return []
    words = []
    for what, name in (("First text", "first_ms"), ("End", "total_ms")):
        if one[name] is not None and other[name] is not None:
            ahead = one["name"] if one[name] <= other[name] else other["name"]
            words.append(f"{what}: {ahead}, {milliseconds(abs(one[name] - other[name]))} sooner")
    if not (one["cost_unknown"] or other["cost_unknown"]) and None not in (one["cost_usd"], other["cost_usd"]):
        difference = one["cost_usd"] - other["cost_usd"]
        cheaper = one["name"] if difference < 0 else other["name"]
        words.append(f"Cost: {cheaper}, {dollars(abs(difference))} less" if difference else "Cost: the same")
    return words
