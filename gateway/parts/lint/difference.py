"""Compare what two policies mean: which values differ, and what each difference changes.

Values are compared as the model holds them, so `0.4s` and `400ms` are equal, and so are a default and the same value
written out. Order counts where it has a meaning: in `tiers` and `route.start`. Two rules are equal if they hold for the
same requests, which is decided exactly, as in `gateway.parts.lint.outcomes`; where that takes too many combinations,
rules that are written differently count as different.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

from pydantic.fields import FieldInfo

from gateway.parts.lint.outcomes import (
    MOST_COMBINATIONS,
    can_occur,
    combinations,
    compares_names,
    constants_by_name,
    samples_of,
)
from gateway.parts.lint.rule_values import CACHE_VALUES, ROUTE_VALUES, Range, Ranges
from gateway.parts.lint.written import NONE, number_writer, written
from policies.errors import KeyPath, dotted
from policies.expression import Expression, Values
from policies.model import Rules
from policies.sections import all_added, rules_model
from policies.validation import Section

Weight = Literal["changes", "rewritten", "aside"]
"""What a difference comes to: something in force changes; the same in other words; or it rules nothing in force."""

_START: Final = ("route", "start")
_SETS: Final = frozenset({("match", "models"), ("cache", "tags"), ("cache", "semantic", "guards"), ("output", "stop")})
"""Lists whose order has no meaning."""
_ASIDE: Final = frozenset({"description"})
"""Keys that rule nothing in force, beside sections that say so."""

EFFECTS: Final[Mapping[tuple[str, ...], str]] = {
    tuple(key.split(".")): effect
    for key, effect in tomllib.loads(Path(__file__).with_name("effects.toml").read_text("utf-8")).items()
}
"""What a change of a key affects, by the longest path that the key begins with."""
DROPS: Final = "Answers stored so far are not served any more."


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One difference. `before` and `after` are values as a person writes them; `line` is where, in the new file."""

    path: str
    before: str
    after: str
    line: int
    effect: str
    weight: Weight = "changes"


@dataclass(frozen=True, slots=True)
class Difference:
    """All differences of two policies, in the order of the keys in `policies.model`."""

    changes: tuple[PolicyChange, ...]
    drops_answers: bool
    """Whether answers stored under the one policy are not served under the other, in the same deployment."""

    @property
    def paths(self) -> list[str]:
        """The paths of the differences in force."""
        return [change.path for change in self.in_force]

    @property
    def in_force(self) -> tuple[PolicyChange, ...]:
        """The differences that change what is in force."""
        return tuple(change for change in self.changes if change.weight == "changes")


def difference(before: Rules, after: Rules, line_of: Callable[[KeyPath], int] = lambda _: 0) -> Difference:
    """Return how two policies differ. `line_of` gives the line of a key in the new policy's file."""
    differences = _Differences(before, after, line_of)
    for name, field in rules_model().model_fields.items():
        differences.value((name,), getattr(before, name), getattr(after, name), field)
    drops = any(getattr(before, name) != getattr(after, name) for name in ("tiers", "tier_fields", "output", "cache"))
    return Difference(tuple(differences.changes), drops)


def same_requests(rule: Expression, other: Expression, ranges: Ranges) -> bool:
    """Return whether two rules certainly hold for the same requests."""
    if rule.source == other.source:
        return True
    cases = combinations([rule, other], ranges)
    return cases is not None and all(rule.holds(values) == other.holds(values) for values in cases if can_occur(values))


class _Differences:
    """Collect the differences of two policies."""

    def __init__(self, before: Rules, after: Rules, line_of: Callable[[KeyPath], int]) -> None:
        self._before, self._after, self._line_of = before, after, line_of
        deadline = max(before.slo.deadline, after.slo.deadline)
        self._ranges: Ranges = {**ROUTE_VALUES, "budget_ms": Range(0.0, deadline * 1000)}
        self.changes: list[PolicyChange] = []

    def add(self, path: KeyPath, before: str, after: str, weight: Weight = "changes", note: str = "") -> None:
        """Add one difference; `note` goes before what it affects."""
        effect = note
        if weight == "rewritten":
            effect = note or "Written differently, the same meaning."
            if path[0] == "cache":
                effect += f" {DROPS}"
        else:
            effect = " ".join(part for part in (note, _effect(path)) if part)
        if path[0] in _ASIDE or any(path[0] in part.aside for part in all_added()):
            weight = "aside"
        self.changes.append(PolicyChange(dotted(path), before, after, self._line_of(path), effect, weight))

    def value(self, path: KeyPath, before: Any, after: Any, field: FieldInfo) -> None:
        """Add the differences of one key, whatever stands below it."""
        how = number_writer(str(path[-1]), field)
        if path == _START:
            self._starts(before, after)
        elif path == ("cache", "never"):
            self._never(before, after)
        elif path == ("escalate", "when", "uncalibrated_below"):
            self._uncalibrated(path)
        elif isinstance(before, Expression) and isinstance(after, Expression):
            self._rule(path, before, after, alike=False)
        elif isinstance(before, Section) and isinstance(after, Section):
            for name, part in type(before).model_fields.items():
                self.value((*path, name), getattr(before, name), getattr(after, name), part)
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            for key in dict.fromkeys([*before, *after]):
                if not _equal(before.get(key), after.get(key)):
                    self.add((*path, key), written(before.get(key), how), written(after.get(key), how))
        elif not _equal(before, after):
            weight: Weight = "rewritten" if path in _SETS and set(before) == set(after) else "changes"
            note = "Their order has no meaning." if weight == "rewritten" else ""
            self.add(path, written(before, how), written(after, how), weight, note)

    def _rule(self, path: KeyPath, before: Expression, after: Expression, *, alike: bool) -> None:
        if before.source != after.source:
            same = alike or same_requests(before, after, self._ranges)
            self.add(path, before.source, after.source, "rewritten" if same else "changes")

    def _uncalibrated(self, path: KeyPath) -> None:
        """Compare the thresholds in force: one that is left out follows from `confidence_below`."""
        thresholds, other = self._before.escalate.when, self._after.escalate.when
        was, is_ = thresholds.threshold(calibrated=False), other.threshold(calibrated=False)
        if not _equal(was, is_):
            note = "" if other.uncalibrated_below is not None else "The default where it is left out."
            self.add(path, f"{was:.10g}", f"{is_:.10g}", note=note)

    def _starts(self, before: Mapping[str, Expression], after: Mapping[str, Expression]) -> None:
        if [(tier, rule.source) for tier, rule in before.items()] == [(tier, r.source) for tier, r in after.items()]:
            return
        alike = self._before.tiers == self._after.tiers and _start_alike(before, after, self._after.tiers, self._ranges)
        for tier in dict.fromkeys([*before, *after]):
            old, other = before.get(tier), after.get(tier)
            if old is None or other is None:
                self.add((*_START, tier), written(old), written(other), "rewritten" if alike else "changes")
            else:
                self._rule((*_START, tier), old, other, alike=alike)
        if [tier for tier in before if tier in after] != [tier for tier in after if tier in before]:
            note = "The rules are read in this order" + ("; the same requests start at each tier." if alike else ".")
            order = " then ".join(before), " then ".join(after)
            self.add(_START, *order, "rewritten" if alike else "changes", note)

    def _never(self, before: Sequence[Expression], after: Sequence[Expression]) -> None:
        """Compare two lists of rules of which any may hold; the order has no meaning."""
        removed = [rule for rule in before if rule.source not in {other.source for other in after}]
        added = [rule for rule in after if rule.source not in {other.source for other in before}]
        places = {rule.source: i for i, rule in enumerate(after)}
        for rule in list(removed):
            twin = next((other for other in added if same_requests(rule, other, CACHE_VALUES)), None)
            if twin is not None:
                self.add(("cache", "never", places[twin.source]), rule.source, twin.source, "rewritten")
                removed.remove(rule)
                added.remove(twin)
        if not removed and not added:
            return
        cases = combinations([*before, *after], CACHE_VALUES)
        alike = cases is not None and all(
            any(rule.holds(values) for rule in before) == any(rule.holds(values) for rule in after)
            for values in cases
            if can_occur(values)
        )
        weight: Weight = "rewritten" if alike else "changes"
        for rule in removed:
            self.add(("cache", "never"), rule.source, NONE, weight)
        for rule in added:
            self.add(("cache", "never", places[rule.source]), NONE, rule.source, weight)


def _effect(path: KeyPath) -> str:
    keys = tuple(map(str, path))
    longest = max((prefix for prefix in EFFECTS if keys[: len(prefix)] == prefix), key=len, default=None)
    effect = EFFECTS[longest] if longest else "A part of the policy that is in force."
    return f"{effect} {DROPS}" if path[0] in {"cache", "output", "tiers", "tier_fields"} else effect


def _equal(value: Any, other: Any) -> bool:
    """Return whether two values are equal, but for the last digits of numbers that were converted from other units."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-12)
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(_equal(*pair) for pair in zip(value, other, strict=True))
    return bool(value == other)


def _start_alike(
    before: Mapping[str, Expression], after: Mapping[str, Expression], tiers: Sequence[str], ranges: Ranges
) -> bool:
    """Return whether both lists of start rules certainly start every request at the same tier.

    Each tier's rule compares the tier's own `p_adequate`, which is 1 for the last tier.
    """
    rules = [*before.items(), *after.items()]
    if any(compares_names(rule, ranges) for _, rule in rules):
        return False
    constants: dict[tuple[str, str], set[float]] = {}
    for tier, rule in rules:
        for name, numbers in constants_by_name(rule).items():
            constants.setdefault((name, tier if name == "p_adequate" else ""), set()).update(numbers)
    keys = sorted(constants)
    samples: list[list[Any]] = []
    for name, tier in keys:
        last = name == "p_adequate" and tier == tiers[-1]
        samples.append([1.0, None] if last else samples_of(ranges[name], sorted(constants[name, tier])))
    if math.prod(map(len, samples)) > MOST_COMBINATIONS:
        return False
    for combination in product(*samples):
        shared = {name: value for (name, tier), value in zip(keys, combination, strict=True) if not tier}
        own = {tier: value for (_, tier), value in zip(keys, combination, strict=True) if tier}
        if len({value is None for value in own.values()}) > 1:
            continue
        if not can_occur({**shared, **({"p_adequate": next(iter(own.values()))} if own else {})}):
            continue
        if _start_of(before, shared, own) != _start_of(after, shared, own):
            return False
    return True


def _start_of(rules: Mapping[str, Expression], shared: Values, own: Mapping[str, float | None]) -> str:
    return next(tier for tier, rule in rules.items() if rule.holds({**shared, "p_adequate": own.get(tier)}))
