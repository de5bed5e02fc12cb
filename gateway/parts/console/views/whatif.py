"""What if: other numbers in a policy, and which of the latest requests would get what, at once.

The requests are read once, and what does not depend on the numbers is kept with them; each try decides them again in
cells, as `tierline policy replay` does, and its figures are the same. Both run in one thread of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from gateway.parts.console.kept_figures import patience_for
from gateway.parts.console.page import BadQuery, Page, Sources, whole_in
from gateway.parts.console.policy_check import PolicyChecker
from gateway.parts.console.policy_desk import PolicyDesk
from gateway.parts.console.policy_numbers import PolicyNumber, numbers_of, with_numbers
from gateway.parts.console.records import Records
from gateway.parts.ledger.query import QueryError
from gateway.parts.recorder.decision_record import BasisError
from policies.model import Policy

if TYPE_CHECKING:
    from gateway.parts.lab.replay.recording import Recording
    from gateway.parts.lab.replay.run import Replayed

REQUESTS: Final = 100_000
"""Most requests that a try is about, the latest of the surface."""
_KEPT: Final = 2
"""Recordings that are kept, about 60 MB each."""
_FRESH_S: Final = 60.0
"""For so long a page that names no `to` is about the requests that were read before."""
_BINS: Final = 60
_UNIT_S: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TITLES: Final[Mapping[str, str]] = {
    "cost": "Cost of 1,000",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "escalated": "Escalated",
    "hits": "Cache hits",
    "goodput": "Goodput",
    "degraded": "Degraded",
    "fallback": "Fallback",
    "failed": "Failed",
    "wasted": "Wasted of 1,000",
}


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the page."""
    places = sources.places
    policies, tries = PolicyDesk(sources.archive, sources.store, places), PolicyTries(sources.archive)
    checker = PolicyChecker(places.source, places.deployment)

    async def show(request: Request) -> Mapping[str, Any]:
        query = dict(request.query_params)
        surfaces = [row["surface"] for row in (await policies.listed())["surfaces"]]
        surface = query.pop("surface", "") or await _busiest(sources.archive, surfaces)
        to = query.pop("to", "")
        if to and whole_in(to) is None:
            raise BadQuery(f"to={to} is no ordinal of a request; leave it out for the newest.")
        in_force = await policies.policy(surface) if surface else None
        data: dict[str, Any] = {"surfaces": surfaces, "surface": surface, "to": to, "numbers": [], "tried": None}
        data |= {"version": "", "policy": "", "edited": "", "wrong": [], "nothing": "", "changes": [], "reading": False}
        if in_force is None:
            return data | {"nothing": "No policy is in force, so there is no number to change."}
        text = in_force["text"].replace("\r\n", "\n")
        numbers = numbers_of(text)
        values = _values(query, numbers)
        edited = with_numbers(text, values)
        data |= {"version": in_force["version"], "policy": in_force["policy"], "edited": edited}
        data["changes"] = [_change(field, values[field.name]) for field in numbers if values[field.name] != field.value]
        shown = [_number(number, values[number.name]) for number in numbers]
        data["numbers"] = shown
        checked = await asyncio.to_thread(checker.check, edited)
        if checked.policy is None:
            return data | {"wrong": [problem.message for problem in checked.problems]}
        try:
            tried = await tries.of(checked.policy, whole_in(to), numbers, patience_for(request))
        except (NothingToTry, BasisError) as error:
            return data | {"nothing": f"There is nothing to try this on: {error}."}
        if tried is None:
            return data | {"reading": True}
        counts = tried.counts
        return data | {
            "to": str(tried.to), "tried": _shown(tried.replayed),
            "numbers": [number | {"counts": counts.get(number["name"])} for number in shown],
            "read_s": tried.read_s, "query_ms": tried.seconds * 1000, "most": REQUESTS,
        }  # fmt: skip

    yield Page("/what-if", "whatif.html", show, name="What if", key="w")


class NothingToTry(Exception):
    """Raised when no recorded request can be decided again; the message says why."""


@dataclass(frozen=True, slots=True)
class PolicyTry:
    """Result of replaying a policy. Reading the requests took `read_s` seconds, once, and the replay `seconds`."""

    replayed: Replayed
    to: int
    counts: Mapping[str, Sequence[int]]
    """By the name of a number: how many requests have what it is compared with, in equal parts from low to high."""
    read_s: float
    seconds: float


@dataclass(slots=True)
class _KeptRecording:
    recording: Recording
    to: int
    at_s: float
    """When it was read, in seconds of the monotonic clock."""
    read_s: float
    counts: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class _LatestTry:
    """The latest try, which may still be made: of which surface and version, and up to which request."""

    key: tuple[str, str, int | None]
    began_s: float
    """When it was read, in seconds of the monotonic clock."""
    making: asyncio.Future[PolicyTry]

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.making.done() and self.making.exception() is not None


class PolicyTries:
    """Try policies on the latest requests of their surfaces, a few of which are kept in memory."""

    def __init__(self, archive: Records) -> None:
        self._archive = archive
        self._kept: OrderedDict[tuple[str, int], _KeptRecording] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="what-if")
        self._latest: _LatestTry | None = None

    async def of(
        self,
        candidate: Policy,
        to: int | None,
        numbers: Sequence[PolicyNumber] = (),
        patience_s: float | None = None,
    ) -> PolicyTry | None:
        """Try a candidate on the requests up to the ordinal `to`; None for the newest, or those just read.

        Returns None if that takes longer than `patience_s` seconds (None: as long as it takes): it goes on, and who
        asks for the same again gets it. Raises NothingToTry, BasisError and QueryError.
        """
        key, began = (candidate.surface, candidate.version, to), time.monotonic()
        latest = self._latest
        if latest is None or latest.key != key or latest.failed or began - latest.began_s > _FRESH_S:
            making = asyncio.get_running_loop().run_in_executor(self._thread, self._try, candidate, to, numbers)
            making.add_done_callback(lambda done: done.cancelled() or done.exception())  # for who no longer waits
            latest = self._latest = _LatestTry(key, began, making)
        done, _ = await asyncio.wait({latest.making}, timeout=patience_s)
        return latest.making.result() if done else None

    def _try(self, candidate: Policy, to: int | None, numbers: Sequence[PolicyNumber]) -> PolicyTry:
        # Imported in this thread at the first try: it takes too long for the event loop.
        from gateway.parts.lab.replay.recording import NothingRecordedError
        from gateway.parts.lab.replay.run import replay_again

        try:
            kept = self._recorded(candidate, to, numbers)
            began = time.perf_counter()
            replayed = replay_again(kept.recording, candidate)
        except NothingRecordedError as error:
            raise NothingToTry(str(error)) from None
        except duckdb.Error as error:
            raise QueryError(str(error)) from None
        return PolicyTry(replayed, kept.to, kept.counts, kept.read_s, time.perf_counter() - began)

    def _recorded(self, candidate: Policy, to: int | None, numbers: Sequence[PolicyNumber]) -> _KeptRecording:
        """Return the recording of the candidate's surface, from memory if it is there."""
        from gateway.parts.lab.replay.recording import Recording
        from gateway.parts.lab.replay.records import Which

        surface, began = candidate.surface, time.monotonic()
        for (name, until), kept in reversed(self._kept.items()):
            recent = began - kept.at_s < _FRESH_S if to is None else until == to
            if name == surface and recent and set(candidate.tiers) <= set(kept.recording.read.tiers):
                self._kept.move_to_end((name, until))
                return kept
        database = self._archive.cursor()
        which = Which(surface, until=to).newest(database, REQUESTS)
        recording = Recording(database, candidate, which, keep_inputs=True)
        counts = {number.name: count for number in numbers if (count := _counts(recording, number)) is not None}
        until = which.until or 0
        while len(self._kept) >= _KEPT:
            self._kept.popitem(last=False)
        kept = self._kept[surface, until] = _KeptRecording(recording, until, began, time.monotonic() - began, counts)
        return kept


async def _busiest(archive: Records, surfaces: Sequence[str]) -> str:
    """Return the surface of most of the newest requests; the first of all without any request."""
    rows = await archive.newest("surface", "surface IS NOT NULL", {}, 1000)
    seen = [row["surface"] for row in rows if row["surface"] in surfaces]
    return max(surfaces, key=seen.count, default="")


def _values(query: Mapping[str, str], numbers: Sequence[PolicyNumber]) -> dict[str, float]:
    """Return the value of every number: that of the query, or what the policy says. Raises BadQuery."""
    values = {number.name: number.value for number in numbers}
    for name, text in query.items():
        if name not in values:
            raise BadQuery(f"This policy has no number {name}; it has {', '.join(values) or 'none'}.")
        try:
            value = float(text) if text.strip() else values[name]
        except ValueError:
            raise BadQuery(f"{name}={text} is no number.") from None
        if not 0 <= value < 1e9:
            raise BadQuery(f"{name}={text} is not a number from 0 to a thousand million.")
        values[name] = value
    return values


def _number(number: PolicyNumber, value: float) -> dict[str, Any]:
    return {
        "name": number.name, "group": number.group, "label": number.label, "unit": number.unit, "low": number.low,
        "high": max(number.high, value), "step": number.step, "in_force": number.value, "value": value, "counts": None,
    }  # fmt: skip


def _change(number: PolicyNumber, value: float) -> dict[str, Any]:
    return {"label": number.label, "unit": number.unit, "before": number.value, "after": value}


def _shown(replayed: Replayed) -> dict[str, Any]:
    """Return a replay as JSON values, with the figures' titles."""
    values = replayed.as_json()
    figures = {name: {**values["figures"][name], "title": title} for name, title in _TITLES.items()}
    return values | {"figures": figures}


def _counts(recording: Recording, number: PolicyNumber) -> list[int] | None:
    """Return how the requests spread over what a number is compared with; None where nothing is recorded of it."""
    scores = _scores(recording, number)
    known = np.array([], np.float64) if scores is None else scores[~np.isnan(scores)]
    if not len(known):
        return None
    counts, _ = np.histogram(
        known, bins=_BINS, range=(0.0 if number.low < number.high / 10 else number.low, number.high)
    )
    return [int(count) for count in counts]


def _scores(recording: Recording, number: PolicyNumber) -> NDArray[Any] | None:
    """Return what requests have to compare with a number, in its unit."""
    history, reader, key = recording.read.history, recording.reader, number.path[-1]
    if number.group == "route":
        words = {"…%": history.quantile * 100, "tokens_in": history.tokens, "quantile": history.quantile}
        words["budget_ms"] = history.budget_s * 1000
        of_decided = np.where(history.basis >= 0, 1.0, np.nan)
        return next((values * of_decided for word, values in words.items() if word in number.label), None)
    if key in ("confidence_below", "uncalibrated_below"):
        calibrated = reader.signals.number("calibrated")
        wanted = (history.signal == calibrated) == (key == "confidence_below")
        return np.asarray(history.confidence[wanted & (history.signal > 0)])
    if number.group == "slo":
        of_streams = {"ttft": history.ttft_ms, "tpot": history.tpot_ms, "gap": history.gap_ms}
        times = of_streams[number.path[1]][history.stream] if number.path[1] in of_streams else history.total_ms
        return np.asarray(times / 1000 / _UNIT_S[number.unit])
    if number.group == "cache":
        hits = reader.hits("cache-exact" if "exact" in number.path else "cache-semantic")
        similar = key == "min_similarity"
        found = [hit.similarity if similar else hit.age_s / _UNIT_S[number.unit] for hit in hits.values()]
        return np.array(found, np.float64)
    return None
