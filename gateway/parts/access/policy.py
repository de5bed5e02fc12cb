"""Define the section `spending` of a policy: how a surface answers for less while its owners' budgets run out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, cast

from pydantic import Field

from policies.errors import Edit, Finding, KeyPath, did_you_mean
from policies.model import Policy, Rules
from policies.quantities import percent, write_duration
from policies.sections import PolicySections
from policies.steering import Spent, Steering
from policies.validation import Seconds, Section, Share

AUTO: Final = "auto"
NONE: Final = "none"


class Spending(Section):
    """How requests are steered from a share of the tightest budget on: of the key, team, tenant, user or session.

    The share counts what is under way. Nothing is refused before all of a budget is spent, and nothing changes for
    requests without one. A request that its own limits, or what it asks for, leave no tier up to `cap` starts at the
    cheapest that is left.
    """

    steer_from: Share = 0.9
    """Share of the budget that is spent. At 100% nothing is steered, as what follows is refused."""
    cap: Annotated[str, Field(min_length=1)] = AUTO
    """Strongest tier that requests start at, and whose answers are taken at any confidence; what fails, or has a fault
    in its structure, still goes to the next. `auto`: where the strongest tier's last dollars gain least by the measured
    quality of this surface's answers, and below the strongest where that is not known. `none`: no cap."""
    thresholds: Share = 0.5
    """What the thresholds of confidence come down to when all is spent, as a share of themselves."""
    wait: Seconds | None = None
    """How long a request is held back while its budget is above the share. Left out, a tenth of `slo.deadline` where
    `load.priority` is batch, and else not at all."""

    @property
    def is_measured(self) -> bool:
        """Whether the cap follows from the measured quality of answers."""
        return self.cap == AUTO

    def cap_on(self, ladder: Sequence[str], measured: str) -> str:
        """Return the tier of a ladder that is its cap, with the `measured` one ('' if not known); '' for no cap."""
        cap = self.cap
        if self.is_measured:
            cap = measured if measured in ladder else ladder[-2] if len(ladder) > 1 else NONE
        return "" if cap == NONE or (ladder and cap == ladder[-1]) else cap

    def ease(self, share: float) -> float:
        """Return the factor of the thresholds at that share of a budget: from 1 at `steer_from` down to `thresholds`.

        ease = 1 - (1 - thresholds) * (share - steer_from) / (1 - steer_from)
        """
        if share >= 1 or self.steer_from >= 1:
            return self.thresholds
        return 1 - (1 - self.thresholds) * (share - self.steer_from) / (1 - self.steer_from)


class SpendingSections(PolicySections):
    """The sections of policies that this part reads."""

    spending: Spending = Spending()
    """How requests are answered for less while a budget of theirs runs out."""

    @property
    def steer_from(self) -> float:
        """See `Policy`."""
        return self.spending.steer_from

    def steering(self, spent: Spent) -> Steering | None:
        """See `Policy`."""
        policy, rules = cast("Policy", self), self.spending
        if spent.share < rules.steer_from:
            return None
        cap = rules.cap_on(policy.ladder, spent.cap)
        known = not rules.is_measured or spent.cap == cap
        basis = "" if known else ", the tier below the strongest, as what more gains is not known"
        why = f"{percent(spent.share)} of the budget is spent: capped at {cap}{basis}"
        return Steering(spent.share, cap, rules.ease(spent.share), why, "spending.cap")

    @property
    def held_back_s(self) -> float:
        """Seconds that a request waits for others while a budget of its owner is nearly spent."""
        policy, wait = cast("Rules", self), self.spending.wait
        return (policy.slo.deadline / 10 if policy.load.priority == "batch" else 0.0) if wait is None else wait

    @classmethod
    def check(cls, rules: Rules) -> Iterator[Finding]:
        """Yield a finding if `spending.cap` names no tier of the policy."""
        cap, tiers, at = rules.of(cls).spending.cap, rules.tiers, ("spending", "cap")
        if cap not in (AUTO, NONE, *tiers):
            message = f"tier {cap!r} is not among this policy's tiers {list(tiers)}{did_you_mean(cap, tiers)}"
            yield Finding(at, message, "T202", "write one of them, auto or none", (Edit(at),))

    @classmethod
    def lint(cls, rules: Rules) -> Iterator[Finding]:
        """Yield a finding where the section steers every request, or none."""
        own, steer = rules.of(cls), ("spending", "steer_from")
        spending = own.spending
        if spending.steer_from == 0:
            message = "every request of an owner with a budget is steered, from its first cent on"
            yield Finding(steer, message, "T606", "write 90%", (Edit(steer, "90%"),))
        elif spending.steer_from == 1 and spending.model_fields_set > {"steer_from"}:
            message = "at 100% requests are refused, so none is steered, and what else is written here changes nothing"
            yield Finding(steer, message, "T606", "write 90%", (Edit(steer, "90%"),))
        cap: KeyPath = ("spending", "cap")
        if spending.cap == rules.tiers[-1]:
            message = f"{spending.cap} is the strongest tier, so nothing is capped"
            yield Finding(cap, message, "T606", "write a weaker one, auto or none", (Edit(cap),))
        if own.held_back_s >= rules.slo.deadline:
            at, half = ("spending", "wait"), write_duration(rules.slo.deadline / 2)
            message = "not less than slo.deadline, which ends the wait first"
            yield Finding(at, message, "T305", f"write such as {half}", (Edit(at, half),))

    @classmethod
    def without_tiers(cls, rules: Rules, tiers: Sequence[str]) -> Mapping[str, object]:
        """Return the section with another `cap` where the tier that it names is left out; {} where none is.

        The new cap is the next cheaper tier that is left, or the cheapest of all.
        """
        spending = rules.of(cls).spending
        if spending.cap not in rules.tiers or spending.cap in tiers:
            return {}
        cheaper = [name for name in rules.tiers[: rules.tiers.index(spending.cap)] if name in tiers]
        return {"spending": spending.model_copy(update={"cap": (cheaper or tiers)[-1 if cheaper else 0]})}


SECTIONS: Final = SpendingSections
