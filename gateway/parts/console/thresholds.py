"""Show each threshold of a policy over what was recorded: how the quantity is distributed, and what is on either side.

The newest requests of the surface are read from the archive. Start rules are evaluated over the inputs of their
decisions, so that a histogram has those requests alone for which the rest of the rule holds and no rule above does:
they are the ones that another threshold would send elsewhere.
"""

from __future__ import annotations

import ast
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson

from gateway.parts.console.records import Records
from gateway.parts.console.svg.histogram import bin_counts, scale_of
from gateway.parts.lab.evidence import lint_rows
from gateway.parts.lint.outcomes import constants_by_name
from gateway.parts.lint.rule_values import ROUTE_VALUES
from gateway.parts.recorder.decision_record import input_of
from gateway.telemetry import names
from policies.errors import KeyPath, Problem, dotted
from policies.expression import OTHERWISE, Expression
from policies.model import Policy
from policies.quantities import OF_STAGES, percent, write_duration
from policies.yaml_source import Document
from routing.decide import DecisionInput, values_for

MOST: Final = 1000
"""Most requests, the newest, that are looked at."""
DAYS: Final = 7
_DAY_S: Final = 86_400
_READ_BY_RULES: Final = (
    "tokens_in", "turns", "has_tools", "wants_json", "has_images", "stream", "reasoning_above", "budget_s", "holdout",
    "difficulty", "before", "last_tier",
)  # fmt: skip
"""What start rules read of a decision's input; the health of its tiers, which is most of it, is not among them."""
_UNREAD: Final[Mapping[str, Any]] = {"ttft_s": None, "room": 0, "min_tier": None, "max_tier": None, "health": []}
_GIVEN: Final = ", ".join(f"'{name}': given.{name}" for name in _READ_BY_RULES)
_CALL: Final = ", ".join(f"'{name}': c.{name}" for name in ("tier", "confidence", "basis", "ttft_ms"))
_HOP: Final = "CASE WHEN kept <> '' THEN json_extract(hops, '$[*].attributes.\"{}\"') END AS {}"
_COLUMNS: Final = ", ".join(
    (
        f"CASE WHEN given IS NOT NULL THEN {{{_GIVEN}}} END AS given", "classifier", "ttft_ms", "tpot_ms", "gap_ms",
        "total_ms", "stream", "stages",
        f"list_transform(calls, lambda c: {{{_CALL}}}) AS calls",
        _HOP.format(names.SIMILARITY, "similarities"),
        _HOP.format(names.CACHE_SCORE, "scores"),
        _HOP.format(names.THRESHOLD, "in_force"),
    )
)  # fmt: skip
_SHARES: Final = frozenset({"p_adequate", "difficulty", "quantile", "effort", "conversation_difficulty"})
_UNCALIBRATED: Final = frozenset({"logprob", "judge", "agreement"})


@dataclass(frozen=True, slots=True)
class Limit:
    """One value that the quantity is compared with, and the share of the recorded values below it."""

    name: str
    value: float
    written: str
    line: int
    below: float | None
    before: float | None = None
    """The value in force, where an edit has another."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A quantity, its recorded values in ascending order, and the limits that the policy sets to it.

    `says` tells in a sentence what the first limit does with the values; `among` what they are of.
    """

    key: str
    quantity: str
    unit: str
    limits: tuple[Limit, ...]
    values: tuple[float, ...]
    says: str
    among: str
    says_in_force: str = ""
    """What the limits in force do, where an edit moves one."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, with what `svg.histogram.drawn` draws: the axis and the counts along it."""
        marks = [mark for limit in self.limits for mark in (limit.value, limit.before) if mark is not None]
        scale = scale_of(self.values, marks, share=self.unit == "share")
        return {
            "key": self.key, "quantity": self.quantity, "unit": self.unit, "says": self.says, "among": self.among,
            "says_in_force": self.says_in_force,
            "limits": [asdict(limit) for limit in self.limits], "recorded": len(self.values), "scale": asdict(scale),
            "counts": bin_counts(self.values, scale),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedRequests:
    """The newest requests of a surface, as far as thresholds are about them, and how long reading them took."""

    rows: Sequence[Mapping[str, Any]]
    inputs: Sequence[DecisionInput]
    """What those of them were decided by that were routed."""
    query_ms: float


async def recorded_of(archive: Records, surface: str) -> RecordedRequests:
    """Return the newest requests of a surface, at most MOST of the last DAYS days. Raises QueryError."""
    began = time.perf_counter()
    since = {"surface": surface, "since": int((time.time() - DAYS * _DAY_S) * 1000)}
    rows = await archive.newest(_COLUMNS, "surface = $surface AND entry_ms >= $since", since, MOST)
    inputs = [
        input_of({**row["given"], **_UNREAD}, (), row["classifier"] or "") for row in rows if row["given"] is not None
    ]
    return RecordedRequests(rows, inputs, (time.perf_counter() - began) * 1000)


def thresholds_of(policy: Policy, document: Document, recorded: RecordedRequests) -> list[Threshold]:
    """Return the thresholds of a policy over these requests, in the order of its lines."""
    found = [
        *_objectives(policy, document, recorded),
        *_starts(policy, document, recorded),
        *_confidences(policy, document, recorded),
        *_similarities(policy, document, recorded),
    ]
    return sorted(found, key=lambda threshold: threshold.limits[0].line)


def against_record(policy: Policy, document: Document, recorded: RecordedRequests) -> list[Problem]:
    """Return what does not fit these requests, as `tierline policy lint --since` tells it, but for `cache.never`."""
    return [document.locate(finding) for finding in lint_rows(policy, recorded.rows, recorded.inputs)]


def with_earlier(edited: Sequence[Threshold], before: Sequence[Threshold]) -> list[Threshold]:
    """Return the thresholds of an edited policy, with the values in force beside those that the edit changes."""
    earlier = dict(zip(_names(before), before, strict=True))
    found = []
    for name, threshold in zip(_names(edited), edited, strict=True):
        values = {limit.name: limit.value for limit in earlier[name].limits} if name in earlier else {}
        limits = tuple(
            replace(limit, before=values[limit.name]) if values.get(limit.name, limit.value) != limit.value else limit
            for limit in threshold.limits
        )
        moved = limits != threshold.limits
        found.append(replace(threshold, limits=limits, says_in_force=earlier[name].says) if moved else threshold)
    return found


def _names(thresholds: Sequence[Threshold]) -> list[tuple[str, str, str, int]]:
    """Return a name for each threshold: its key, quantity and tier, and how many of the same come before it."""
    seen: Counter[tuple[str, str, str]] = Counter()
    names = []
    for threshold in thresholds:
        name = (threshold.key, threshold.quantity, threshold.limits[0].name if threshold.unit != "ms" else "")
        names.append((*name, seen[name]))
        seen[name] += 1
    return names


def _line(document: Document, *path: str | int) -> int:
    place = document.place(path)
    return 0 if place is None else place.line


def _made(
    key: KeyPath,
    quantity: str,
    unit: str,
    limits: Iterable[tuple[str, float, str, int]],
    values: Iterable[float],
    among: str,
    says: str = "",
) -> Threshold:
    """Return a threshold; in `says`, `{below}` and `{above}` stand for the shares beside its first limit."""
    ordered = tuple(sorted(values))
    made = tuple(Limit(name, value, written, line, _below(ordered, value)) for name, value, written, line in limits)
    below = made[0].below
    if not ordered:
        says = ""
    elif below is not None:
        says = says.replace("{below}", percent(below)).replace("{above}", percent(1 - below))
    return Threshold(dotted(key), quantity, unit, made, ordered, says, among)


def _below(ordered: Sequence[float], value: float) -> float | None:
    return sum(score < value for score in ordered) / len(ordered) if ordered else None


def _objectives(policy: Policy, document: Document, recorded: RecordedRequests) -> Iterator[Threshold]:
    """Return the objectives for the first token, the pace, the gaps and the whole answer."""
    limits = policy.slo.limits()
    for what, quantity, among in (
        ("ttft", "time to the first token", "streams"),
        ("tpot", "time per further token", "streams"),
        ("gap", "longest gap between two chunks", "streams"),
        ("total", "time to the whole answer", "requests"),
        *((f"{OF_STAGES}{stage}", f"time of the stage {stage}", "requests") for stage in policy.slo.stages),
    ):
        own = [
            (
                name.removeprefix(f"{what}_"),
                seconds * 1000,
                write_duration(seconds),
                _line(document, "slo", *name.split("_")),
            )
            for name, seconds in limits.items()
            if name.startswith(f"{what}_") or (what == "total" and name == "deadline")
        ]
        own.sort(key=lambda limit: limit[1])
        if what.startswith(OF_STAGES):
            stage = what.removeprefix(OF_STAGES)
            values = [row["stages"][stage] for row in recorded.rows if stage in (row["stages"] or ())]
        else:
            values = [
                row[f"{what}_ms"]
                for row in recorded.rows
                if row[f"{what}_ms"] is not None and (what == "total" or row["stream"])
            ]
        if own:
            ordered = sorted(values)
            over = [
                f"{percent(1 - (_below(ordered, limit) or 0.0))} longer than {name} ({text})"
                for name, limit, text, _ in own
            ]
            says = f"{over[0].replace(' longer', ' take longer')}{''.join(f', {stage}' for stage in over[1:])}."
            yield _made(("slo", *what.split("_")), quantity, "ms", own, values, f"{len(values):,} {among}", says)


def _starts(policy: Policy, document: Document, recorded: RecordedRequests) -> Iterator[Threshold]:
    """Return each comparison of a start rule with a number, over the requests for which the rest of it holds."""
    left = list(recorded.inputs)
    for tier, rule in policy.route.start.items():
        if rule.source == OTHERWISE:
            break
        seen = [(given, values_for(policy, given, tier)) for given in left]
        at, line = ("route", "start", tier), _line(document, "route", "start", tier)
        for name, value, part, rest in _comparisons(rule):
            those = [
                values[name]
                for _, values in seen
                if values[name] is not None and all(rule.holds(values) for rule in rest)
            ]
            held = sum(part.holds({name: number}) for number in those)
            among = f"{len(those):,} of {len(recorded.inputs):,} requests"
            if rest or tier != next(iter(policy.route.start)):
                among += " for which the rest of the rule holds" if rest else " that no rule above takes"
            says = f"{part.source} holds for {percent(held / len(those))}: they start at {tier}." if those else ""
            unit = "ms" if name == "budget_ms" else "share" if name in _SHARES else "count"
            yield _made(at, name, unit, [(tier, value, _written(value, unit), line)], those, among, says)
        left = [given for given, values in seen if not rule.holds(values)]


def _comparisons(rule: Expression) -> Iterator[tuple[str, float, Expression, list[Expression]]]:
    """Yield each comparison of a number in a rule: its name, the number, itself, and what else must hold.

    That is the other parts of a rule that joins its parts by `and`; of any other rule nothing is known.
    """
    tree = rule.tree
    if tree is None:
        return
    joined = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    parts = [Expression.parse(ast.unparse(node)) for node in joined]
    for i, part in enumerate(parts):
        rest = [other for j, other in enumerate(parts) if j != i]
        for node in ast.walk(part.tree) if part.tree is not None else ():
            if not isinstance(node, ast.Compare):
                continue
            comparison = Expression.parse(ast.unparse(node))
            for name, constants in constants_by_name(comparison).items():
                if not (ROUTE_VALUES[name].flag or ROUTE_VALUES[name].words):
                    for constant in sorted(constants):
                        yield name, constant, comparison, rest if node is part.tree else []


def _written(value: float, unit: str) -> str:
    return write_duration(value / 1000) if unit == "ms" else f"{value:,.10g}"


def _confidences(policy: Policy, document: Document, recorded: RecordedRequests) -> Iterator[Threshold]:
    """Return the thresholds of confidence, for each tier that can be escalated from and has been judged."""
    when = policy.escalate.when
    for tier in policy.tiers[:-1]:
        for key, value, bases, kind in (
            ("confidence_below", when.confidence_below, {"calibrated"}, "probability that the answer is right"),
            ("uncalibrated_below", when.threshold(calibrated=False), _UNCALIBRATED, "uncalibrated score of the answer"),
        ):
            values = [
                call["confidence"]
                for row in recorded.rows
                for call in row["calls"] or ()
                if call["tier"] == tier and call["basis"] in bases and call["confidence"] is not None
            ]
            if not value or (key == "uncalibrated_below" and when.uncalibrated_below is None and not values):
                continue
            at: KeyPath = ("escalate", "when", key)
            yield _made(
                at, kind, "share", [(tier, value, f"{value:g}", _line(document, *at))], values,
                f"{len(values):,} answers of {tier}", "{below} are below: escalated to the next tier.",
            )  # fmt: skip


def _similarities(policy: Policy, document: Document, recorded: RecordedRequests) -> Iterator[Threshold]:
    """Return the thresholds of the semantic cache: which neighbours are considered, and which are served."""
    semantic = policy.cache.semantic
    if semantic is None:
        return
    values = _of_hops(recorded, "similarities")
    at: KeyPath = ("cache", "semantic", "min_similarity")
    least = semantic.min_similarity
    yield _made(
        at, "similarity of the nearest stored question", "share",
        [("", least, f"{least:g}", _line(document, *at))], values, f"{len(values):,} traced lookups",
        "{below} are below and are not considered.",
    )  # fmt: skip
    scores, in_force = _of_hops(recorded, "scores"), _of_hops(recorded, "in_force")
    if scores and in_force:
        at = ("cache", "semantic", "max_error")
        yield _made(
            at, "score of the best candidate", "share",
            [("in force", in_force[0], f"{in_force[0]:g}", _line(document, *at))], scores,
            f"{len(scores):,} traced candidates",
            "{above} reach the threshold that labels set for this error, and are served.",
        )  # fmt: skip


def _of_hops(recorded: RecordedRequests, column: str) -> list[float]:
    """Return the numbers that hops have, newest request first, of requests whose hops were all kept: of others only
    those of hits are there, which would look like the rule."""
    found = []
    for row in recorded.rows:
        for value in row[column] or ():
            number = orjson.loads(value) if isinstance(value, str) else value
            if isinstance(number, int | float) and not isinstance(number, bool):
                found.append(float(number))
    return found
