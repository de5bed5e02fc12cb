"""Vary the `p_adequate` threshold in the start rule of a policy's cheapest tier. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from offline.calibration.risk import Flags
from policies.expression import Expression, Values
from policies.model import Policy

COMPARISON: Final = re.compile(r"\bp_adequate\s*>=?\s*(\d+(?:\.\d*)?|\.\d+)(?![\w.])")
"""Matches a threshold in a rule; group 1 is the number."""

START_THRESHOLDS: Final = (0.0, 0.3, 0.5, 0.7, 0.9)
"""Start thresholds to choose from, besides the policy's own. Each further one leaves less confidence to the others."""


@dataclass(frozen=True, slots=True)
class StartRules:
    """The policy's start rules. `threshold` is the number that the cheapest tier's rule compares p_adequate with.

    It is None where that rule has no such comparison, or several: then the rules are used unchanged.
    """

    policy: Policy
    threshold: float | None

    @classmethod
    def of(cls, policy: Policy) -> StartRules:
        """Read the start rules of `policy`."""
        rule = policy.route.start.get(policy.tiers[0])
        matches = COMPARISON.findall(rule.source) if rule and policy.route.classifier != "none" else []
        alone = rule is not None and len(matches) == 1 and rule.source.count("p_adequate") == 1
        return cls(policy, float(matches[0]) if alone else None)

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """The start thresholds to choose from; only None where the rule has none to vary."""
        return (None,) if self.threshold is None else tuple(sorted({*START_THRESHOLDS, self.threshold}))

    def rule(self, threshold: float | None) -> Expression:
        """Return the cheapest tier's rule with that threshold."""
        written = self.policy.route.start[self.policy.tiers[0]]
        return written if threshold is None else Expression.parse(with_threshold(written.source, threshold))

    def start_cheapest(self, requests: Sequence[Values], threshold: float | None) -> Flags:
        """Return which requests, given by their rule values, start at the cheapest tier, shape (requests,)."""
        cheapest = self.policy.tiers[0]
        if cheapest not in self.policy.route.start:
            return np.zeros(len(requests), bool)
        rules = {**self.policy.route.start, cheapest: self.rule(threshold)}
        wanted = (next(tier for tier, rule in rules.items() if rule.holds(values)) for values in requests)
        return np.fromiter((tier == cheapest for tier in wanted), bool, len(requests))


def with_threshold(rule: str, threshold: float) -> str:
    """Return the rule's text with another number where it compares p_adequate."""
    return COMPARISON.sub(lambda match: match[0][: match.start(1) - match.start()] + f"{threshold:g}", rule)
