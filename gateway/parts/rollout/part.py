"""Provide the policies in the store, their admin API, and what draws answers to compare: see `gateway.seams`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.parts.rollout.tried_policy import tried

if TYPE_CHECKING:
    from fastapi import APIRouter

    from cache.store.base import Store
    from gateway.parts.rollout.registry.follower import PolicyFollower
    from gateway.seams import Observer, ObserverNeeds, PoliciesNeeds
    from policies.loader import PolicySource

__all__ = ["admin_routers", "build_observers", "drift", "follow", "tried"]


def follow(needs: PoliciesNeeds) -> PolicyFollower:
    """Return what follows the policies in the store. Raises ConfigError."""
    # Not needed where policies come from files.
    from gateway.parts.rollout.registry import last_good
    from gateway.parts.rollout.registry.follower import PolicyFollower
    from gateway.parts.rollout.registry.registry import PolicyRegistry

    kept = last_good.file_in(needs.state, needs.store_url, needs.source.directory)
    registry = PolicyRegistry(needs.store)
    return PolicyFollower(needs.source, registry, kept, needs.reloaded, needs.refused, needs.noted)


async def drift(store: Store, source: PolicySource) -> tuple[str, ...]:
    """Return which files say something else than the store has in force. Raises StoreUnavailable."""
    from gateway.parts.rollout.registry.checks import FileDrift
    from gateway.parts.rollout.registry.registry import PolicyRegistry

    states = await PolicyRegistry(store).in_force()
    return FileDrift(source).look(states) if states else ()


def admin_routers() -> list[APIRouter]:
    """Return the admin API of policies."""
    from gateway.parts.rollout.policy_admin import router  # FastAPI is slow to import, and most workers need none

    return [router]


def build_observers(needs: ObserverNeeds) -> Sequence[Observer]:
    """Return what draws the answers of a worker, which is not started."""
    # Slow to import, and not needed by commands.
    from gateway.parts.rollout.comparer import Comparer
    from gateway.parts.rollout.metrics import TrialMetrics
    from gateway.parts.rollout.observer import AnswerDraws
    from gateway.parts.rollout.shadow import ShadowRunner

    keep, counted = needs.deployment.telemetry.keep, TrialMetrics(needs.metrics)
    comparer = Comparer(
        needs.tiers,
        needs.store,
        needs.classifier,
        needs.embedder,
        counted.compared,
        keep=keep,
        verifier=needs.verifier,
    )
    shadows = ShadowRunner(
        needs.policies,
        needs.tiers,
        needs.router,
        needs.verifier,
        needs.store,
        needs.telemetry,
        counted.shadow_ended,
        keep=keep,
    )
    return (AnswerDraws(comparer, shadows),)
