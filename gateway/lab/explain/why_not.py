"""Find the smallest change that makes a request start at another tier, in three classes; no I/O.

request    values that rules ask for, the classifier's among them, the time left, the room, the client's own limits
policy     the constants of start rules, `slo.deadline`, `slo.ttft.p99`
world      tiers that are up or down, how fast they are expected to answer, the tokens they hold, the holdout's draw

Smallest: the fewest things changed, then the smallest sum of moves. A share moves by its difference, another number by
its difference relative to the larger of the two, and a word, a flag, a missing value or a tier's state by 1. What
follows from a change is not counted: out of its domain, or with images, the classifier gives no values; a prompt's
tokens are part of the room; only a stream has a limit for its first token.

The search is exact. Comparisons with constants make all values between two neighbouring constants alike, so of each
thing one value for every case that can be told apart is tried, the nearest; every combination of them is decided again
by `decide`, those with the fewest changes first. Only if rules compare two numbers of a request with each other, which
have no such cases, may a smaller change be missed where both numbers change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

from gateway.lab.explain.moves import Move, Patch
from gateway.lab.explain.policy_changes import changed_policy, policy_things
from gateway.lab.explain.request_changes import changed_request, request_things
from gateway.lab.explain.world_changes import changed_world, world_things
from policies.model import Policy
from routing.decide import Decision, DecisionInput, NoTierError, decide, needs

Build = Callable[[Patch], tuple[Policy, DecisionInput] | None]
"""Make the policy and the input with these changes; None where no request can have them."""

_MOST: Final = 400_000
"""Most combinations that are decided again."""


@dataclass(frozen=True, slots=True)
class Flip:
    """The smallest change of its class, and the decision that `decide` then makes with `policy` and `given`."""

    moves: tuple[Move, ...]
    decision: Decision
    policy: Policy
    given: DecisionInput

    @property
    def distance(self) -> float:
        """The sum of the moves."""
        return math.fsum(move.distance for move in self.moves)


@dataclass(frozen=True, slots=True)
class Impossible:
    """No change of its class leads to the tier; the reason for people. `searched` is False if that is not certain."""

    reason: str
    searched: bool = True


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer for one tier. `start` is where the request starts now; None if no tier can answer."""

    target: str
    start: str | None
    request: Flip | Impossible
    policy: Flip | Impossible
    world: Flip | Impossible


def why_not(policy: Policy, given: DecisionInput, target: str) -> WhyNot:
    """Return, for each class, the smallest change with which the request starts at `target`.

    Raises ValueError if it starts there already or the policy has no such tier.
    """
    if target not in policy.tiers:
        raise ValueError(f"{policy.surface} has no tier {target!r}; it has {', '.join(policy.tiers)}")
    start = start_of(policy, given)
    if start == target:
        raise ValueError(f"it does start at {target}")
    return WhyNot(
        target,
        start,
        _of_request(policy, given, target),
        _of_policy(policy, given, target),
        _of_world(policy, given, target),
    )


def start_of(policy: Policy, given: DecisionInput) -> str | None:
    """Return the tier that answers first; None if none can."""
    try:
        return decide(policy, given).tiers[0]
    except NoTierError:
        return None


def _smallest(things: Sequence[Sequence[Move]], build: Build, target: str) -> Flip | Impossible | None:
    """Return the smallest change that leads to the target; None if there is none."""
    tried = 0
    for count in range(1, len(things) + 1):
        best: Flip | None = None
        for chosen in combinations(things, count):
            for moves in product(*chosen):
                distance = math.fsum(move.distance for move in moves)
                if best is not None and distance >= best.distance:
                    continue
                built = build({move.path: move.value for move in moves})
                if built is None:
                    continue
                tried += 1
                if tried > _MOST:
                    return best or Impossible(f"none found among changes of up to {count - 1} things", searched=False)
                try:
                    decision = decide(*built)
                except NoTierError:
                    continue
                if decision.tiers[0] == target:
                    best = Flip(moves, decision, *built)
        if best is not None:
            return best
    return None


def _of_request(policy: Policy, given: DecisionInput, target: str) -> Flip | Impossible:
    if why := _not_there(policy, given, target):
        return Impossible(why)
    found = _smallest(request_things(policy, given), lambda patch: changed_request(policy, given, patch), target)
    if found is not None:
        return found
    if given.holdout:
        return Impossible(_HELD_OUT.format(policy.ladder[-1]))
    if target not in policy.route.start:
        return Impossible(f"no start rule names {target}")
    return Impossible(f"no values of a request make the rules choose {target}")


def _of_policy(policy: Policy, given: DecisionInput, target: str) -> Flip | Impossible:
    if why := _not_there(policy, given, target) or _not_open(policy, given, target):
        return Impossible(why)
    if given.holdout:
        return Impossible(_HELD_OUT.format(policy.ladder[-1]))
    found = _smallest(policy_things(policy, given), lambda patch: changed_policy(policy, given, patch), target)
    if found is not None:
        return found
    if given.health[target].unfit_for(set(), given.room):
        return Impossible(given.health[target].unfit_for(set(), given.room))
    if target not in policy.route.start:
        return Impossible(f"no start rule names {target}")
    return Impossible(f"no other constants make the rules choose {target} for this request")


def _of_world(policy: Policy, given: DecisionInput, target: str) -> Flip | Impossible:
    if target not in policy.ladder and target not in policy.unconfigured:
        return Impossible(f"this deployment has no tier {target}")
    if why := _not_open(policy, given, target):
        return Impossible(why)
    found = _smallest(world_things(policy, given), lambda patch: changed_world(policy, given, patch), target)
    return found or Impossible(f"in no state of the tiers do the rules lead to {target}")


_HELD_OUT: Final = "it was drawn for the holdout, which starts at {} whatever the rules say"


def _not_there(policy: Policy, given: DecisionInput, target: str) -> str:
    """Return why a tier can take no request in this state of the world; '' if it can."""
    if target in policy.unconfigured:
        return policy.unconfigured[target].why_not
    if target not in policy.ladder:
        return f"this deployment has no tier {target}"
    health = given.health[target]
    return f"{target} is {health.unavailable}" if health.unavailable and not health.failing else ""


def _not_open(policy: Policy, given: DecisionInput, target: str) -> str:
    """Return why a tier can never take this request, whatever the rules and the state of the world; '' if it can."""
    clamp = given.clamp
    if clamp is not None:
        whole = policy.model_copy(update={"ladder": policy.tiers})
        if target not in clamp.of(whole):
            return f"the client's own limits leave out {target}"
    can = given.health[target].capabilities if target in given.health else policy.unconfigured[target].capabilities
    lacking = needs(given.features) - can
    return f"{target} cannot do {', '.join(sorted(lacking))}" if lacking else ""
