"""Apply a policy file to the registry: check it, decide how it is tried, and store it with its author and reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.parts.lint.difference import difference
from gateway.parts.rollout.policy import RolloutSections
from gateway.parts.rollout.registry.checks import checked
from gateway.parts.rollout.registry.records import InForce, Mode, Version
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryError
from gateway.parts.rollout.registry.taken_names import taken_names
from policies.loader import PolicySource
from policies.model import Policy

How = Literal["evaluate", "shadow", "canary", "now"]
"""How a version comes: decided with only, called off the path, step by step, or at once for all."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an application did: the version, and the state of its surface afterwards."""

    version: Version
    policy: Policy
    state: InForce
    how: How
    doubt: str = ""
    """What a person should know of it: that its canary would not notice worse answers; '' for nothing."""


async def apply_file(
    registry: PolicyRegistry,
    source: PolicySource,
    file: Path,
    *,
    how: How | None,
    share: float = 0.0,
    author: str,
    message: str,
    at: float,
    base: str | None = None,
    surface: str | None = None,
    may_change: Callable[[str], bool] = lambda _: True,
) -> Applied:
    """Apply the policy in `file`. Raises ConfigError for a policy that is refused, RegistryError, StoreUnavailable.

    `how` None is canary for other rules with a `rollout` section, else now. `share` is that of a shadow. `base` is the
    version that must be in force, if any was reviewed. `surface` is the only one that the file may be of.
    `may_change` says whether the author may change a surface: from others no names are taken.
    """
    everything = await registry.states()
    states = {name: state for name, state in everything.items() if not state.removed}
    if not everything:
        raise RegistryError(
            "the registry in this store is empty. Start a gateway with `policies: {source: store}` first: it puts its "
            "policy files there"
        )
    others = await registry.documents(list(states.values()))
    live = [others[state.document] for state in states.values() if state.document in others]
    # In a thread: a worker's admin API calls this too.
    version, policy = await asyncio.to_thread(checked, file, source, live, author=author, message=message, at=at)
    if surface not in (None, version.surface):
        raise RegistryError(f"this is a policy of {version.surface}, not of {surface}")
    state = states.get(version.surface)
    if base is not None and (state is None or state.live != base):
        now = "not in the registry" if state is None else f"at {version.surface}@{state.live[:7]}"
        raise RegistryError(f"stale: this was made from {version.surface}@{base[:7]}, but the surface is {now} by now")
    before_it = None if state is None or state.document not in others else others[state.document].policy()
    taken = taken_names(policy, before_it, [version.policy() for version in live], may_change)
    if taken:
        names = ", ".join(f"{name!r} of {other}" for name, other in taken.items())
        raise RegistryError(f"it takes names that lead to surfaces which you may not change: {names}")
    others_rules = state is not None and state.live != version.version
    rollout = policy.of(RolloutSections).rollout
    chosen: How = how or ("canary" if rollout is not None and others_rules else "now")
    if state is None and chosen != "now":
        raise RegistryError(f"{version.surface} is a new surface: there is nothing to try it beside; apply it --now")
    mode: Mode | None = None if chosen == "now" else chosen
    if chosen == "canary":
        if rollout is None:
            raise RegistryError(
                f"{file.name} has no `rollout` section, so a canary has no steps; add one, or apply it --now"
            )
        share = rollout.steps[0]
    elif chosen != "shadow":
        share = 1.0
    base_state = everything.get(version.surface)
    doubt = ""
    if mode == "canary" and state is not None and (before := others.get(state.document)) is not None:
        old = before.policy()
        unguarded = RolloutSections.unguarded_quality(difference(old, policy).paths, policy)
        doubt = "" if unguarded is None else f"{unguarded.message}; {unguarded.mend} [{unguarded.code}]"
    return Applied(version, policy, await registry.apply(version, base_state, mode, share), chosen, doubt)
