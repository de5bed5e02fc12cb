"""One request: where its time went, why this tier, what would have changed it, and whether it was worth it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from cache.store.base import Store, StoreUnavailable
from gateway.errors import ApiError, Conflict
from gateway.parts.console.bar import Bar
from gateway.parts.console.facts import hop_facts
from gateway.parts.console.page import PageError
from gateway.parts.console.policy_numbers import PolicyNumber, numbers_of
from gateway.parts.console.records import Records
from gateway.parts.console.replaced import replaced_in
from gateway.parts.console.summary import summary_of
from gateway.parts.console.timeline import Timeline, timeline_of
from gateway.parts.console.what_changes import tried_as, what_changes
from gateway.parts.lab.explain.path import decision_lines
from gateway.parts.ledger.columns import LEDGER
from gateway.parts.ledger.live import recorded_between
from gateway.parts.lint.edit import keys_by_line
from gateway.parts.measures.feedback import ServedHit
from gateway.parts.recorder.decision_record import DecisionBasis
from gateway.parts.rollout.stored_policies import StoredPolicies
from gateway.telemetry import names
from gateway.telemetry.sink import MOST_CHARS
from policies.errors import ConfigError
from policies.loader import PolicySource, policy_files, read_policy
from policies.model import Policy
from policies.quantities import dollars
from routing.decide import DecisionInput

_BASIS: Final = "SELECT basis::VARCHAR AS basis FROM bases WHERE id = $id"
_FEEDBACK: Final = "SELECT score, comment FROM feedback WHERE request_id = $id AND tenant = $tenant"
_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_NEWEST: Final = 500
_FEWEST: Final = 20
"""Hops of a kind from which its usual durations are known."""
_MOST_POLICIES: Final = 256
_SLOW_MS: Final = 1.0
_SLOW_SHARE: Final = 0.02
"""A hop is called slow from this duration and share of the total time: less is never why a request took long."""
_USUAL_S: Final = 30.0
"""How long the usual durations of a surface's hops are kept."""


class NoSuchRequest(PageError):
    """There is no record of that request; the message says where it was looked for."""

    status, title = 404, "Not recorded"


@dataclass(frozen=True, slots=True)
class CapturedTexts:
    """The last message and the answer of a request; None where they are not recorded. `cut`: they may go on."""

    prompt: str | None
    answer: str | None
    cut: Sequence[str]
    why_not: str
    """Why a text is missing; empty if none is."""


@dataclass(frozen=True, slots=True)
class RecordedDecisionInput:
    """A recorded decision as it can be made again."""

    policy: Policy
    given: DecisionInput


_SAME: Final = "request_id, tenant, surface, started_s, entry_ms, entry_seq"
_MOST_SAME: Final = 20


class RequestView:
    """Find requests and say all that is known of each."""

    def __init__(
        self,
        archive: Records,
        store: Store,
        source: PolicySource,
        in_force: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`in_force` returns the text of a surface's policy in force, by whose numbers What if tries changes."""
        self._archive = archive
        self._in_force = in_force
        self._source = source
        self._stored = StoredPolicies(store)
        self._lines: dict[str, Mapping[str, int]] = {}
        self._usual: dict[str, tuple[float, dict[tuple[str, str | None], list[float]]]] = {}

    async def data(self, request_id: str, at_ms: int | None = None) -> dict[str, Any]:
        """Return a request's page. `at_ms`: about when its record was written, which finds it faster.

        Raises NoSuchRequest.
        """
        rows = await self._found(request_id, at_ms)
        if not rows:
            raise NoSuchRequest(
                f"No request {request_id!r} is recorded here. It may be older than what is kept (`ledger.keep`), or "
                "its record is on its way: it takes up to a second."
            )
        row = rows[0]
        record = row_record(row)
        again = redecided(row)
        tiers = again.policy.ladder if again is not None else ()
        timeline = timeline_of(record, row["given"], tiers)
        usual = await self._usual_of(row["surface"])
        changes = what_changes(record["ledger"], timeline, None if again is None else again.policy.escalate.hedge)
        numbers = await self._numbers(row["surface"] or "") if changes else []
        same = await self._archive.newest(
            _SAME,
            "request_id = $id",
            {"id": request_id},
            _MOST_SAME,
            between_ms=recorded_between(request_id) or (None, None),
        )
        feedback = await self._archive.ask(_FEEDBACK, {"id": request_id, "tenant": row["tenant"]})
        return {
            "request_id": request_id,
            "trace_id": row["trace_id"],
            "parent_id": row["parent_id"],
            "entry_ms": row["entry_ms"],
            "started": record["started"],
            "ledger": record["ledger"],
            "summary": summary_of(record["ledger"], timeline.bars),
            "texts": texts_of(record["ledger"], timeline.bars),
            "timeline": timeline,
            "facts": {bar.number: hop_facts(bar.attributes, bar.error) for bar in timeline.bars},
            "changes": {
                part: [(change, tried_as(change, numbers)) for change in changes if change.part == part]
                for part in dict.fromkeys(change.part for change in changes)
            },
            "target": timeline.target_ms,
            "limits_ms": {} if again is None else _limits_ms(again.policy),
            "saved": _saved(row),
            "usual": {bar.number: interval for bar in timeline.bars if (interval := _usual_of_kind(usual, bar))},
            "slow": slow_hops(timeline, usual),
            "replaced": replaced_in(timeline.bars),
            "lines": await self._lines_of(timeline.bars, row["surface"] or "", row["policy"] or ""),
            "steps": [] if again is None else decision_lines(again.policy, again.given),
            "same_id": [one for one in same if (one["entry_ms"], one["tenant"]) != (row["entry_ms"], row["tenant"])],
            "feedback": feedback[0] if feedback else None,
            "decided": again is not None,
            "hit": ServedHit.of(record["hops"]),
        }

    async def _numbers(self, surface: str) -> Sequence[PolicyNumber]:
        """Return the numbers of the surface's policy in force; none where it is not known."""
        if self._in_force is None or not surface:
            return []
        try:
            return numbers_of((await self._in_force(surface)).replace("\r\n", "\n"))
        except (ApiError, StoreUnavailable):
            return []  # then the page has no links to What if

    async def _found(self, request_id: str, at_ms: int | None) -> list[dict[str, Any]]:
        """Return the row of a request, with the basis of its decision; none if there is none."""
        rows = await self._archive.by_id("*", request_id, at_ms)
        for row in rows:
            bases = await self._archive.ask(_BASIS, {"id": row["basis"]})
            row["basis_json"] = bases[0]["basis"] if bases else None
        return rows

    async def _lines_of(self, bars: Sequence[Bar], surface: str, label: str) -> dict[str, int]:
        """Return the lines of the policy `label` (surface@version) of the keys that hops rest on, by key.

        The key that decided a hop has its line in the record where the policy came from a file. All others are looked
        up in the policy's text: that of the registry, or the file's, if it is still that version.
        """
        told = {bar.clause: bar.line for bar in bars if bar.line is not None}
        wanted = {key.key for bar in bars for key in bar.keys} - told.keys()
        if not label or not wanted:
            return told
        lines = await self._lines_in(surface, label)
        return told | {key: line for key in wanted if (line := nearest_line(lines, key)) is not None}

    async def _lines_in(self, surface: str, label: str) -> Mapping[str, int]:
        """Return the line of each key of a policy; nothing where its text is not known."""
        if label not in self._lines:
            try:
                text = await self._stored.version_text(surface, label.partition("@")[2])
            except (Conflict, StoreUnavailable):
                text = await asyncio.to_thread(_text_in_files, self._source, label)
            if not text:
                return {}  # links then lead to the policy, not to a line
            if len(self._lines) >= _MOST_POLICIES:
                self._lines.clear()
            self._lines[label] = line_of_key(text)
        return self._lines[label]

    async def _usual_of(self, surface: str) -> dict[tuple[str, str | None], list[float]]:
        """Return quantiles of the durations of a surface's latest hops, by name and tier."""
        usual = self._usual.get(surface)
        if usual is None or time.monotonic() - usual[0] > _USUAL_S:
            wanted = {"surface": surface}
            rows = await self._archive.newest("hops", "surface = $surface", wanted, _NEWEST, equal=wanted)
            usual = time.monotonic(), await asyncio.to_thread(_usual, [row["hops"] for row in rows])
            self._usual[surface] = usual
        return usual[1]


def _usual(recorded: Sequence[str]) -> dict[tuple[str, str | None], list[float]]:
    """Return quantiles of the durations of hops in milliseconds, by name and tier."""
    durations: dict[tuple[str, str | None], list[float]] = {}
    for hops in recorded:
        for hop in orjson.loads(hops):
            kind = hop["name"], hop["attributes"].get(names.TIER)
            durations.setdefault(kind, []).append(hop["duration_us"] / 1000)
    return {
        kind: [float(value) for value in np.quantile(found, _QUANTILES)]
        for kind, found in durations.items()
        if len(found) >= _FEWEST
    }


def _text_in_files(source: PolicySource, label: str) -> str:
    """Return the text of a policy's file that is still of that version; '' where there is none."""
    for file in policy_files(source.directory):
        with contextlib.suppress(ConfigError):
            if read_policy(file, source.tiers)[0].label == label:
                return file.read_text("utf-8-sig")
    return ""


def line_of_key(text: str) -> dict[str, int]:
    """Return the line on which each dotted key of a policy's text begins."""
    return {key.replace("[", ".").replace("]", ""): line for line, key in keys_by_line(text).items()}


def nearest_line(lines: Mapping[str, int], key: str) -> int | None:
    """Return the line of a dotted key, or of the nearest key around it; None if not even that stands in the text."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key)


def _limits_ms(policy: Policy) -> dict[str, float]:
    """Return each limit of a policy in milliseconds, by its name as pages write it: `ttft.p95`."""
    return {name.replace("_", "."): limit_s * 1000 for name, limit_s in policy.slo.limits().items()}


def slow_hops(timeline: Timeline, usual: Mapping[tuple[str, str | None], Sequence[float]]) -> dict[int, float]:
    """Return the hops that took longer than 95% of their kind, by number, with that duration in milliseconds.

    The request itself is none: its page says whether it was late.
    """
    p95 = {bar.number: quantiles[4] for bar in timeline.bars if (quantiles := _usual_of_kind(usual, bar))}
    return {
        bar.number: p95[bar.number]
        for bar in timeline.bars
        if bar.name != names.REQUEST and bar.number in p95 and bar.duration_ms > p95[bar.number]
        and bar.duration_ms >= max(_SLOW_MS, _SLOW_SHARE * timeline.total_ms)
    }  # fmt: skip


def _usual_of_kind(usual: Mapping[tuple[str, str | None], Sequence[float]], bar: Bar) -> Sequence[float] | None:
    return usual.get((bar.name, bar.attributes.get(names.TIER))) or usual.get((bar.name, None))


def row_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an archive's row as the record that it was made of."""
    return {
        "trace_id": row["trace_id"],
        "parent_id": row["parent_id"],
        "started": row["started_s"],
        "ledger": {name: row[name] for name in LEDGER},
        "hops": orjson.loads(row["hops"]),
    }


def redecided(row: Mapping[str, Any]) -> RecordedDecisionInput | None:
    """Return a row's routing decision as it can be made again; None if nothing was decided, or it cannot be read."""
    if row["given"] is None or row["basis_json"] is None:
        return None
    try:
        basis = DecisionBasis.decode(row["basis_json"].encode())
        return RecordedDecisionInput(basis.policy, basis.input_of(row["given"]))
    except ValueError:
        return None


def _saved(ledger: Mapping[str, Any]) -> str:
    """Return in words what the answer cost less than from the strongest tier."""
    full = ledger["counterfactual_usd"]
    if full is None or ledger["cost_unknown"]:
        return ""
    saved = full - ledger["cost_usd"]
    return f"{dollars(saved)} less than the strongest tier" if saved >= 0 else f"{dollars(-saved)} more than it alone"


def texts_of(ledger: Mapping[str, Any], bars: Sequence[Bar]) -> CapturedTexts:
    """Return the captured texts of a request: as far as they were recorded, and why not where they were not."""
    root = bars[0].attributes if bars else {}
    prompt, answer = root.get(names.PROMPT), root.get(names.ANSWER)
    cut = [what for what, text in (("prompt", prompt), ("answer", answer)) if text and len(text) >= MOST_CHARS]
    why_not = ""
    if not ledger["kept"]:
        why_not = "Neither is recorded: this request's hops are not (telemetry.sample)."
    elif prompt is None and answer is None and not ledger["surface"]:
        why_not = "Neither is recorded: it was refused before its prompt was read."
    elif prompt is None and answer is None:
        why_not = "Neither is captured (telemetry.prompts), or what redacts texts left nothing of them."
    elif answer is None:
        why_not = "There was no answer." if ledger["status"] >= 400 else "No text of it is recorded."
    return CapturedTexts(prompt, answer, cut, why_not)


__all__ = ["NoSuchRequest", "RequestView", "Timeline", "redecided", "row_record"]
