"""Decide recorded requests again by a candidate that is only evaluated: nothing is called, and no worker does anything.

The record of a request holds the whole input of its routing decision. What depends on the content alone (the tier that
starts, and those behind it) is exact; where the candidate reads what the policy in force did not record, such as
another classifier, or gives another time limit, the request is counted as not comparable instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gateway.parts.recorder.decision_record import DecisionBasis
from policies.errors import ConfigError
from policies.loader import made_policy
from policies.model import Policy
from routing.decide import NoTierError, decide

_EXAMPLES: Final = 5


@dataclass(slots=True)
class Evaluation:
    """What a candidate would have decided, in counts, since it was applied. `content` is its policy file, parsed."""

    content: Mapping[str, Any]
    requests: int = 0
    """Requests that were decided on; those that a cache answered are not."""
    not_comparable: int = 0
    unanswered: int = 0
    """Requests that no tier of the candidate could answer."""
    same: int = 0
    same_escalated: int = 0
    """Requests of `same` whose answer escalated under the policy in force."""
    elsewhere: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that would start on another tier, by both tiers."""
    examples: list[str] = field(default_factory=list)
    """Ids of the latest such requests."""
    _policies: dict[str, tuple[DecisionBasis, Policy | None]] = field(default_factory=dict, repr=False)

    def unknown(self, record: Mapping[str, Any]) -> str:
        """Return the id of the basis that a record needs and `learn` has not been told; '' if there is none."""
        decided = record["decide"]
        return "" if decided is None or decided["basis"] in self._policies else str(decided["basis"])

    def learn(self, name: str, blob: bytes) -> None:
        """Take the basis with this id: what many requests share. Raises ValueError."""
        basis = DecisionBasis.decode(blob)
        self._policies[name] = basis, self._candidate(basis)

    def add(self, record: Mapping[str, Any]) -> None:
        """Decide one recorded request again."""
        decided = record["decide"]
        if decided is None or decided["out"] is None:
            return
        self.requests += 1
        basis, policy = self._policies.get(decided["basis"], (None, None))
        if basis is None or policy is None:
            self.not_comparable += 1
            return
        given = basis.input_of(decided["in"])
        if policy.route.classifier == "none":
            given = replace(given, difficulty=None)
        try:
            decision = decide(policy, given)
        except NoTierError:
            self.unanswered += 1
            return
        before = str(decided["out"][0][0])
        if decision.tiers[0] == before:
            self.same += 1
            self.same_escalated += record["ledger"]["path"] == "escalated"
        else:
            self.elsewhere[before, decision.tiers[0]] += 1
            self.examples = [*self.examples, str(record["ledger"]["request_id"])][-_EXAMPLES:]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "requests": self.requests,
            "not_comparable": self.not_comparable,
            "unanswered": self.unanswered,
            "same": self.same,
            "same_escalated": self.same_escalated,
            "elsewhere": [{"from": a, "to": b, "requests": count} for (a, b), count in self.elsewhere.most_common()],
            "examples": self.examples,
        }

    def lines(self) -> Iterator[str]:
        """Yield the figures as a person reads them."""
        compared = self.requests - self.not_comparable
        yield f"{compared} requests decided again, without calling anything"
        if compared:
            moved = sum(self.elsewhere.values())
            yield f"start elsewhere: {moved} ({moved / compared:.1%})"
            for (before, after), count in self.elsewhere.most_common():
                yield f"  {before} -> {after}: {count} ({count / compared:.1%})"
            if self.same:
                yield f"start as before: {self.same}, of which {self.same_escalated / self.same:.1%} escalated"
        if self.unanswered:
            yield f"no tier could answer: {self.unanswered}"
        if self.not_comparable:
            yield f"not comparable: {self.not_comparable} (it reads what was not recorded, or has other time limits)"
        if self.examples:
            yield f"such as {', '.join(self.examples)}"

    def _candidate(self, basis: DecisionBasis) -> Policy | None:
        """Return the candidate as it would have run there; None where its decisions do not follow from the records."""
        live = basis.policy
        try:
            rules = made_policy(self.content, Path("candidate"), {})
        except ConfigError as error:
            raise ValueError(f"the candidate cannot be read: {error}") from None
        tiers = {tier.name for tier in basis.tiers}
        there = {*tiers, *live.unconfigured}
        if not there.issuperset(rules.tiers_with(there)):
            return None
        if rules.route.classifier not in ("none", live.route.classifier):
            return None
        limits = [(policy.slo.deadline, policy.slo.ttft.p99, policy.output) for policy in (rules, live)]
        if limits[0] != limits[1]:
            return None
        ladder = tuple(tier for tier in rules.tiers if tier in tiers)
        unconfigured = {name: tier for name, tier in live.unconfigured.items() if name in rules.tiers}
        return made_policy(self.content, Path("candidate"), {"ladder": ladder, "unconfigured": unconfigured})
