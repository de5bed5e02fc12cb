"""Vary the threshold in the start rule of a policy's cheapest tier: its `p_adequate` or its quantile. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from gateway.parts.fit.curves import Flags
from policies.expression import Expression, Values
from policies.model import Policy

StartValue = Literal["p_adequate", "quantile"]

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_FORMS: Final[Sequence[tuple[StartValue, re.Pattern[str], float]]] = (
    ("p_adequate", re.compile(rf"\bp_adequate\s*>=?\s*{_NUMBER}(?![\w.])"), 1.0),
    ("quantile", re.compile(rf"\bquantile\s*<=?\s*{_NUMBER}(?![\w.])"), 1.0),
    ("quantile", re.compile(rf"\beasiest\s+{_NUMBER}(?=\s*%\s+of\s+its\s+kind\b)"), 100.0),
)
"""What a rule compares, the comparison with its number as group 1, and the number that means all requests."""
_ANY_FORM: Final = re.compile(r"\b(?:p_adequate|quantile|easiest)\b")

START_THRESHOLDS: Final = (0.0, 0.3, 0.5, 0.7, 0.9)
"""`p_adequate` to choose from, besides the policy's own. Each further one leaves less confidence to the others."""
START_QUANTILES: Final = (1.0, 0.8, 0.6, 0.4, 0.2)
"""The same for quantiles: the share of the requests of a kind that start at the cheapest tier."""


@dataclass(frozen=True, slots=True)
class StartRules:
    """The policy's start rules. `threshold` is the number, 0..1, that the cheapest tier's rule compares `value` with.

    It is None where that rule has no such comparison, or several: then the rules are used unchanged.
    """

    policy: Policy
    threshold: float | None
    value: StartValue = "p_adequate"

    @classmethod
    def of(cls, policy: Policy) -> StartRules:
        """Read the start rules of `policy`."""
        rule = policy.route.start.get(policy.tiers[0])
        comparison = _comparison(rule.source) if rule and policy.route.classifier != "none" else None
        if comparison is None:
            return cls(policy, None)
        value, match, whole = comparison
        return cls(policy, float(f"{float(match[1]) / whole:.10g}"), value)

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """The start thresholds to choose from, that of most requests first; only None where there is none to vary."""
        if self.threshold is None:
            return (None,)
        if self.value == "quantile":
            return tuple(sorted({*START_QUANTILES, self.threshold}, reverse=True))
        return tuple(sorted({*START_THRESHOLDS, self.threshold}))

    def rule(self, threshold: float | None) -> Expression:
        """Return the cheapest tier's rule with that threshold."""
        written = self.policy.route.start[self.policy.tiers[0]]
        return written if threshold is None else Expression.parse(with_threshold(written.source, threshold))

    def in_words(self, threshold: float) -> str:
        """Return the comparison with that threshold, as a rule would write it."""
        if self.value == "p_adequate":
            return f"p_adequate >= {threshold:g}"
        return f"easiest {threshold * 100:.10g}% of its kind"

    def start_cheapest(self, requests: Sequence[Values], threshold: float | None) -> Flags:
        """Return which requests, given by their rule values, start at the cheapest tier, shape (requests,)."""
        cheapest = self.policy.tiers[0]
        if cheapest not in self.policy.route.start:
            return np.zeros(len(requests), bool)
        rules = {**self.policy.route.start, cheapest: self.rule(threshold)}
        wanted = (next(tier for tier, rule in rules.items() if rule.holds(values)) for values in requests)
        return np.fromiter((tier == cheapest for tier in wanted), bool, len(requests))


def with_threshold(rule: str, threshold: float) -> str:
    """Return the rule's text with another number, 0..1, where it compares `p_adequate` or a quantile."""
    comparison = _comparison(rule)
    if comparison is None:
        return rule
    _, match, whole = comparison
    return rule[: match.start(1)] + f"{threshold * whole:.10g}" + rule[match.end(1) :]


def _comparison(rule: str) -> tuple[StartValue, re.Match[str], float] | None:
    """Return what the rule compares, where, and the number that means all; None unless there is one such comparison."""
    found = [(value, match, whole) for value, pattern, whole in _FORMS for match in pattern.finditer(rule)]
    return found[0] if len(found) == 1 and len(_ANY_FORM.findall(rule)) == 1 else None
