"""Provide the policies in the store, their admin API, and what draws answers to compare: see `gateway.seams`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.parts.rollout.tried_policy import tried

if TYPE_CHECKING:
    from fastapi import APIRouter

    from cache.store.base import Store
    from gateway.caching.write_behind import Observer
    from gateway.parts.rollout.registry.follower import PolicyFollower
    from gateway.seams import ConsoleShell
    from gateway.steps import Core
    from policies.errors import ConfigError
    from policies.loader import PolicySet, PolicySource

__all__ = ["add_pages", "admin_routers", "build_observers", "drift", "follow", "tried"]


def follow(
    core: Core,
    source: PolicySource,
    reloaded: Callable[[PolicySet], None],
    refused: Callable[[ConfigError], None],
    noted: Callable[[str], None],
) -> PolicyFollower:
    """Return what follows the policies in the store. Raises ConfigError."""
    # Not needed where policies come from files.
    from gateway.parts.rollout.registry import last_good
    from gateway.parts.rollout.registry.follower import PolicyFollower
    from gateway.parts.rollout.registry.registry import PolicyRegistry

    deployment = core.deployment
    kept = last_good.file_in(deployment.embedding.state, deployment.store.url or "", source.directory)
    return PolicyFollower(source, PolicyRegistry(core.store), kept, reloaded, refused, noted)


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


def add_pages(shell: ConsoleShell) -> None:
    """Add the page of changes to the console."""
    from gateway.parts.rollout.changes_page import add_changes_page

    add_changes_page(shell)


def build_observers(core: Core) -> Sequence[Observer]:
    """Return what draws the answers of a worker, which is not started."""
    # Slow to import, and not needed by commands.
    from gateway.parts.rollout.comparer import Comparer
    from gateway.parts.rollout.metrics import TrialMetrics
    from gateway.parts.rollout.shadow import AnswerDraws, ShadowRunner

    keep, counted = core.deployment.telemetry.keep, TrialMetrics(core.metrics)
    comparer = Comparer(
        core.tiers,
        core.store,
        core.models.classifier,
        core.models.embedder,
        counted.compared,
        keep=keep,
        verifier=core.verifier,
    )
    shadows = ShadowRunner(
        core.policies,
        core.tiers,
        core.router,
        core.verifier,
        core.store,
        core.telemetry,
        counted.shadow_ended,
        keep=keep,
    )
    return (AnswerDraws(comparer, shadows),)
