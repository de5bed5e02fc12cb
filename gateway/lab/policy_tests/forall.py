"""Search the requests of some ranges for one that breaks a property.

Rules compare values with constants, so a policy decides alike between two neighbouring constants. One value of each
such interval, and the constants themselves, are tried in every combination: if none breaks the property, none of the
ranges does. Latencies count as constants too. Where a draft takes part of the time, further values between are tried,
for the time left is no constant. Above `MOST` combinations a sample of that size is tried, and the result says so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from gateway.lab.policy_tests.case import GOT, CaseOutcome, PolicyUnderTest, is_as_expected
from policies.caching import CACHE_VALUES
from policies.expression import Range, constants_by_name
from policies.model import ROUTE_VALUES

if TYPE_CHECKING:
    from gateway.lab.policy_tests.format import Case, Expect, Property, Span
    from policies.model import Policy

MOST: Final = 50_000
_SEED: Final = 0
_BETWEEN: Final = 8
_CACHE_NAMES: Final = {"has_tools": "tools", "has_images": "images", "wants_json": "json"}
_RANGES: Final[Mapping[str, Range]] = {
    **CACHE_VALUES,
    **ROUTE_VALUES,
    "confidence": Range(0.0, 1.0),
    "ttft_ms": Range(0.0),
    "max_tokens": Range(0.0, whole=True),
    "room": Range(0.0, whole=True),
    "holdout": Range(flag=True),
}

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search: how many cells of how many were tried, and the smallest one that breaks the property.

    `before` and `after` are its values and what it got; of a property along one value, `before` is the lower one.
    """

    tried: int
    of: int
    before: tuple[Cell, CaseOutcome] | None = None
    after: tuple[Cell, CaseOutcome] | None = None
    broken: str = ""


def search(under: PolicyUnderTest, wanted: Property, most: int = MOST) -> Searched:
    """Return whether any cell breaks the property, and the smallest one that does."""
    values = {name: values_of(name, span, under, wanted.case) for name, span in wanted.spans.items()}
    of = prod(len(some) for some in values.values())
    along = wanted.wanted.as_ if wanted.wanted.never_falls or wanted.wanted.never_rises else None
    others = {name: some for name, some in values.items() if name != along}
    steps: Sequence[Any] = values[along] if along is not None else (None,)
    cells = _combinations(others, max(1, most // len(steps)))
    tried, best, found = 0, -1, Searched(0, of)
    for size, cell in cells:
        before: tuple[Cell, CaseOutcome] | None = None
        for position, value in enumerate(steps):
            whole = cell if along is None else {**cell, along: value}
            outcome = run_cell(under, wanted.case, whole)
            tried += 1
            broken = _broken(under.policy, wanted, before[1] if before else None, outcome)
            if broken and (best < 0 or size + position < best):
                best = size + position
                found = Searched(0, of, before, (whole, run_cell(under, wanted.case, whole, with_steps=True)), broken)
            before = whole, outcome
    return replace(found, tried=tried)


def run_cell(under: PolicyUnderTest, case: Case, cell: Cell, *, with_steps: bool = False) -> CaseOutcome:
    """Return what the request with these values gets; with what each rule did if `with_steps`."""
    given = {**case.given, **{name: value for name, value in cell.items() if value is not None}}
    return under.run(case, values=given, with_steps=with_steps)


def _combinations(values: Mapping[str, Sequence[Any]], most: int) -> Iterator[tuple[int, Cell]]:
    """Yield every combination with its size, the sum of its values' places; a seeded sample where there are more."""
    names, lists = list(values), list(values.values())
    if prod(map(len, lists)) <= most:
        indexes: Iterator[tuple[int, ...]] = product(*(range(len(some)) for some in lists))
    else:
        draw = random.Random(_SEED)  # noqa: S311  (a reproducible sample)
        indexes = islice(iter(lambda: tuple(draw.randrange(len(some)) for some in lists), None), most)
    for places in indexes:
        yield sum(places), {name: some[i] for name, some, i in zip(names, lists, places, strict=True)}


def _broken(policy: Policy, wanted: Property, before: CaseOutcome | None, now: CaseOutcome) -> str:
    """Return the key of `expect` that this cell breaks, or ''."""
    rules = wanted.wanted
    for aspect, sign, name in ((rules.never_falls, 1, "never_falls"), (rules.never_rises, -1, "never_rises")):
        if aspect is not None and before is not None:
            was, is_ = (_rank(policy, GOT[aspect](policy, one)) for one in (before, now))
            if (is_ - was) * sign < 0:
                return name
    if rules.always is not None and (key := _first_unmet(policy, rules.always, now)):
        return f"always {key}"
    if rules.never is not None and not _first_unmet(policy, rules.never, now):
        return "never"
    return ""


def _first_unmet(policy: Policy, expect: Expect, outcome: CaseOutcome) -> str:
    names = sorted(expect.model_fields_set)
    return next((key for key in names if not is_as_expected(key, getattr(expect, key), GOT[key](policy, outcome))), "")


def _rank(policy: Policy, tier: str) -> int:
    """Return the place of a tier on the ladder; -1 for no answer."""
    return policy.tiers.index(tier) if tier in policy.tiers else -1


# --- values ---------------------------------------------------------------------------------------------------------


def values_of(name: str, span: Span, under: PolicyUnderTest, case: Case) -> list[Any]:
    """Return the values of a name to try: one of every interval that the policy can tell apart, within its span."""
    known = _RANGES.get(name, Range(flag=True))
    if span.values and span.values != ("any",):
        return list(span.values)
    if known.flag:
        return [False, True]
    if span.values:  # any
        return [*known.words, None] if known.words else known.samples(constants_of(name, under, case))
    # 0 is a constant of every range, and may lie outside of the span.
    within = Range(span.low, span.high, whole=known.whole)
    cuts = [one for one in constants_of(name, under, case) if span.low <= one <= span.high]
    if known.whole:  # so that a counterexample shows both sides of a border
        cuts += [cut - 1 for cut in cuts if cut - 1 >= span.low]
    if case.drafts and name in ("budget_ms", "ttft_ms"):
        low, high = max(span.low, 1.0), max(span.high, 1.0)
        cuts += [low * (high / low) ** (i / (_BETWEEN + 1)) for i in range(1, _BETWEEN + 1)]
    return sorted(within.samples(cuts))


def constants_of(name: str, under: PolicyUnderTest, case: Case) -> list[float]:
    """Return the numbers that the policy compares a value with, in its rules and by its limits."""
    policy = under.policy
    rules = [*policy.route.start.values(), *policy.cache.never]
    if policy.escalate.speculate.both is not None:
        rules.append(policy.escalate.speculate.both)
    names = {name, _CACHE_NAMES.get(name, name)}
    found = [
        number for rule in rules for own, every in constants_by_name(rule).items() if own in names for number in every
    ]
    if name in ("budget_ms", "ttft_ms"):
        for tier in case.world.values():
            figures = (tier.ttft_p5, tier.ttft_p50, tier.total_p50, tier.queue)
            found += [(figure + tier.queue) * 1000 for figure in figures if figure is not None]
        found += [policy.slo.deadline * 1000, (policy.slo.ttft.p99 or 0) * 1000]
    if name in ("tokens_in", "room"):
        rooms = [tier.context for tier in case.world.values() if tier.context is not None]
        found += [*rooms, *(room - 256 for room in rooms)]
    if name == "confidence":
        when = policy.escalate.when
        found += [when.threshold(calibrated=True), when.threshold(calibrated=False)]
    if name == "temperature" and policy.cache.semantic is not None:
        found.append(policy.cache.semantic.max_temperature)
    if name == "max_tokens" and policy.output.max_tokens is not None:
        found.append(policy.output.max_tokens)
    return found
