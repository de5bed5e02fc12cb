"""Show the policies in the store, and apply one, for pages: all by plain values.

Every method raises StoreUnavailable, and Conflict for what the registry refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cache.store.base import Store
from gateway.parts.rollout.registry.apply import How, apply_file
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.parts.rollout.registry.view import blamed, history_of, in_force_shown, shown_version, status_of
from policies.loader import PolicySource

_HOW: Final[Mapping[str, How | None]] = {"": None, "canary": "canary", "evaluate": "evaluate", "now": "now"}


@dataclass(frozen=True, slots=True)
class RegistryStanding:
    """The state of the registry now, as the console's pages show it."""

    surfaces: Mapping[str, Mapping[str, Any]]
    """By surface, its state (`in_force_shown`)."""
    lagging: Mapping[str, Sequence[str]]
    """By surface, the workers that have another version than the one in force."""
    workers: int
    troubles: Sequence[tuple[str, str]]
    """Workers that cannot follow, with the reason; '' and a sentence for a file that says otherwise."""
    changes: Sequence[tuple[str, str, float, str]]
    """Surface, kind (policy or restart), Unix time and text of each."""
    paused_since: Mapping[str, float]


class StoredPolicies:
    """The registry as pages know it."""

    def __init__(self, store: Store, how: Literal["cli", "console"] = "console") -> None:
        """`how` is what changes come by, for the audit trail."""
        self._registry = PolicyRegistry(store, how)

    async def followed(self) -> bool:
        """Return whether any worker takes its policies from the store."""
        return bool(await self._registry.replicas())

    async def surfaces(self) -> list[str]:
        """Return the surfaces in force."""
        return list(await self._registry.in_force())

    async def status(self) -> dict[str, Any]:
        """Return what is in force on each surface, what is tried, and which workers differ."""
        return await status_of(self._registry)

    async def text(self, surface: str, version: str = "") -> str:
        """Return the text in force, or that of a version."""
        return str((await shown_version(self._registry, surface, version))["text"])

    async def version_text(self, surface: str, version: str) -> str:
        """Return the text of a version that need not be of a surface that is still there."""
        return (await self._registry.version(surface, version)).text

    async def policy(self, surface: str, version: str = "") -> dict[str, Any]:
        """Return a version, the one in force by default, with its lines, who set each, and the surface's history."""
        shown = await shown_version(self._registry, surface, version)
        state = await status_of(self._registry, surface)
        lines = (await blamed(self._registry, surface, version))["lines"]
        history = await history_of(self._registry, surface)
        return {**shown, "in_force": state["surfaces"][0], "lines": lines, "history": history}

    async def apply(
        self,
        source: PolicySource,
        file: Path,
        surface: str,
        *,
        how: str,
        author: str,
        message: str,
        base: str | None = None,
        may_change: Callable[[str], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Apply a file as `apply_file` does; return what came of it. Raises ConfigError too."""
        applied = await apply_file(
            self._registry, source, file, how=_HOW[how], author=author, message=message, at=time.time(), base=base,
            surface=surface, may_change=may_change,
        )  # fmt: skip
        return {"policy": applied.version.label, "how": applied.how, "doubt": applied.doubt}

    async def standing(self, grace_s: float) -> RegistryStanding:
        """Return what the registry says; within `grace_s` seconds of a change nobody lags."""
        now = time.time()
        states = await self._registry.in_force()
        replicas = await self._registry.replicas() if states else []
        entries = await self._registry.latest() if states else []
        late = [state for state in states.values() if now - state.since > grace_s]
        return RegistryStanding(
            {name: in_force_shown(state) for name, state in states.items()},
            {
                state.surface: names
                for state in late
                if (names := [server.name for server in replicas if server.surfaces.get(state.surface) != state.live])
            },
            len(replicas),
            [
                *((replica.name, replica.problem) for replica in replicas if replica.problem),
                *(("", drift) for drift in sorted({drift for replica in replicas for drift in replica.drift})),
            ],
            [
                *(
                    (item.surface, "policy", item.at, f"{item.action} {item.surface}@{item.version[:7]} by {item.by}"
                     f"{f': {item.message}' if item.message else ''}")
                    for item in entries
                    if item.action != "seed"  # the first versions: nothing changed by them
                ),
                *(("", "restart", server.started, f"worker {server.name} started") for server in replicas
                  if server.started),
            ],
            {entry.surface: entry.at for entry in entries if entry.action == "pause"},
        )  # fmt: skip
