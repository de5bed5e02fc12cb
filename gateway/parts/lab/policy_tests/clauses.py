"""List the clauses of a policy: what held in some case, and did not hold in another, is covered both ways.

A clause is a key that is written in the file and that a single request can show. `UNSEEN` lists the keys that none can:
they are no clauses.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.lab.policy_tests.case import conditions
from policies.errors import KeyPath, dotted
from policies.expression import OTHERWISE, Expression

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.parts.lab.policy_tests.format import Tested
    from gateway.parts.lab.walk import Step

UNSEEN: Final[Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("unseen.toml").read_text("utf-8"))
"""Keys that no single request shows, and why. A key stands for all below it."""


def unseen(at: KeyPath, *, total_p95: bool = False) -> str:
    """Return why no single request shows this key; '' if one can. `total_p95`: the policy has that objective."""
    path = dotted(tuple(part for part in at if isinstance(part, str)))
    if path == "slo.total.p99" and total_p95:
        return UNSEEN["slo.ttft.p95"]
    return next((why for key, why in UNSEEN.items() if path == key or path.startswith(f"{key}.")), "")


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause: where it stands, and its text."""

    at: KeyPath
    line: int
    text: str


@dataclass(slots=True)
class Coverage:
    """Which outcomes of each clause were seen."""

    seen: dict[KeyPath, set[bool]] = field(default_factory=dict)
    _taken_in: dict[int, Sequence[Step]] = field(default_factory=dict)
    """The parts that were taken in, by identity; kept, so that no other one gets the same."""

    def add(self, parts: Sequence[Sequence[Step]]) -> None:
        """Take in what the rules did for one request, in parts: one that requests share is read once."""
        taken_in = self._taken_in
        for part in parts:
            if id(part) in taken_in:
                continue
            taken_in[id(part)] = part
            for at, held, _ in part:
                self.seen.setdefault(at, set()).add(held)

    def missing(self, clauses: Iterable[Clause]) -> Iterator[tuple[Clause, bool]]:
        """Yield each clause with an outcome that it never had."""
        for clause in clauses:
            outcomes = self.seen.get(clause.at, set())
            for held in (True, False):
                if held not in outcomes:
                    yield clause, held


def clauses_of(tested: Tested) -> list[Clause]:
    """Return the clauses of a policy in the order of the file: those of `_clauses` whose key is written there."""
    found: list[Clause] = []
    for at, place, rule in _clauses(tested):
        if place not in tested.document.places:
            continue
        line, name = tested.line(place), dotted(tuple(part for part in at if isinstance(part, str)))
        if rule is None:
            found.append(Clause(at, line, name))
            continue
        found.append(Clause(at, line, f"{name}: {rule.source}"))
        parts = [(i, as_written(part.source)) for i, part in enumerate(conditions(rule))]
        found += [Clause((*at, i), line, f"{name}: {part}") for i, part in parts]
    return sorted(found, key=lambda clause: clause.line)


def _clauses(tested: Tested) -> Iterator[tuple[KeyPath, KeyPath, Expression | None]]:
    """Yield each possible clause: its name, where it would be written, and its rule if it is one."""
    policy = tested.policy
    for tier, rule in policy.route.start.items():
        if rule.source != OTHERWISE:
            yield ("route", "start", tier), ("route", "start", tier), rule
    if len(policy.tiers) > 1 and policy.escalate.max_attempts > 1:
        yield from _of_escalation(tested)
    plain: list[KeyPath] = [("slo", "deadline"), ("slo", "ttft", "p99"), ("output", "max_tokens"), ("load", "max_wait")]
    if len(policy.tiers) > 1:
        plain += [("spending", "steer_from"), ("spending", "cap")]
    if policy.held_out and len(policy.tiers) > 1:
        plain.append(("holdout",))
    yield from ((at, at, None) for at in plain)
    yield from _of_cache(tested)


def _of_escalation(tested: Tested) -> Iterator[tuple[KeyPath, KeyPath, Expression | None]]:
    policy = tested.policy
    when, both = policy.escalate.when, policy.escalate.speculate.both
    in_force = {
        ("escalate", "when", "confidence_below"): bool(when.confidence_below),
        ("escalate", "when", "uncalibrated_below"): bool(when.uncalibrated_below),
        ("escalate", "when", "repetition"): when.repetition,
        ("escalate", "when", "refusal"): when.refusal,
        ("escalate", "no_signal"): when.asks_for_confidence,
        ("escalate", "stream", "hold_tokens"): True,
        ("escalate", "stream", "hold_max"): True,
        ("escalate", "hedge"): policy.escalate.hedge is not None,
        ("escalate", "max_attempts"): True,
        ("slo", "on_miss"): True,
        ("slo", "total", "p95" if policy.slo.total.p95 is not None else "p99"): True,
    }
    yield from ((at, at, None) for at, applies in in_force.items() if applies)
    for key in ("invalid", "finish"):
        at: KeyPath = ("escalate", "when", key)
        yield from (((*at, item), (*at, i), None) for i, item in enumerate(_listed(tested, at)))
    if both is not None and both.source != OTHERWISE:
        yield ("escalate", "speculate", "both"), ("escalate", "speculate", "both"), both


def _of_cache(tested: Tested) -> Iterator[tuple[KeyPath, KeyPath, Expression | None]]:
    cache = tested.policy.cache
    if cache.exact is not None or cache.semantic is not None:
        yield from ((("cache", "never", i), ("cache", "never", i), rule) for i, rule in enumerate(cache.never))
    plain: list[KeyPath] = [("cache", "exact", "ttl"), ("cache", "semantic", "ttl")]
    plain += [("cache", "semantic", key) for key in ("max_temperature", "min_similarity")]
    if cache.semantic is not None and cache.semantic.verify == "default":
        plain += [("cache", "semantic", "cross_encoder", key) for key in ("min_score", "ask_from")]
    yield from ((at, at, None) for at in plain)
    at: KeyPath = ("cache", "semantic", "guards")
    yield from (((*at, item), (*at, i), None) for i, item in enumerate(_listed(tested, at)))


def _listed(tested: Tested, at: KeyPath) -> list[str]:
    """Return the items of a list as the file has them."""
    value: Any = tested.document.value
    for part in at:
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return [str(item) for item in value] if isinstance(value, list) else []


_QUANTILE: Final = re.compile(r"\bquantile <= (0?\.\d+|[01])\b")


def as_written(source: str) -> str:
    """Return a condition as people write it: `easiest 40% of its kind`, not `quantile <= 0.4`."""
    return _QUANTILE.sub(lambda match: f"easiest {float(match[1]) * 100:.10g}% of its kind", source)
