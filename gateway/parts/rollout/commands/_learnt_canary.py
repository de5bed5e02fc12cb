"""Read the policy that `fit learn` starts from out of the registry, and start what it proposes as a canary."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.cli.commands import CommandError
from gateway.exit_codes import Exit
from gateway.parts.lint.rules import faults
from gateway.parts.rollout.commands._registry import wait_for_spread, with_registry
from gateway.parts.rollout.policy import RolloutSections
from gateway.parts.rollout.registry.apply import apply_file
from gateway.parts.rollout.registry.registry import RegistryError
from policies.errors import ConfigError
from policies.loader import DEFAULTS, PolicySource, read_policy

if TYPE_CHECKING:
    from gateway.parts.rollout.registry.records import InForce
    from gateway.parts.rollout.registry.registry import PolicyRegistry
    from policies.model import Policy

AUTHOR: Final = "tierline fit learn"
"""Who makes the change, in the audit trail."""


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """A policy as it is in force in the registry: its text, what that says, and its version."""

    text: str
    policy: Policy
    version: str


def in_force(args: argparse.Namespace, source: PolicySource) -> PolicyInForce:
    """Return the policy of `args.surface` that is in force. Raises CommandError.

    One whose `learn.apply` is `canary` is refused where a canary could not be started, before anything is fitted.
    """

    async def work(registry: PolicyRegistry) -> tuple[InForce, str]:
        state = await registry.surface(args.surface)
        versions = await registry.documents([state])
        if state.document not in versions:
            raise RegistryError(f"the registry has lost the text of {args.surface}")
        return state, versions[state.document].text

    state, text = with_registry(args, work)
    try:
        with _beside_defaults(text, args.surface, source) as file:
            policy, _ = read_policy(file)
    except ConfigError as error:
        raise CommandError(f"{args.surface}@{state.live[:7]} cannot be read: {error}") from None
    if policy.version != state.live:
        raise CommandError(
            f"{args.surface}@{state.live[:7]} is in force, but its text makes {policy.label} with the {DEFAULTS} of "
            f"{source.directory}: name the gateway's folder with --policies"
        )
    if (learn := policy.of(RolloutSections).learn) is not None and learn.apply == "canary":
        if findings := [finding for finding in faults(policy) if finding.code == "T602"]:
            raise CommandError(f"{policy.label}: learn.apply: {findings[0].message}")
        if state.rolling is not None:
            raise CommandError(
                f"{args.surface}@{state.rolling.version[:7]} is being tried, and `learn.apply` would start another "
                "canary; promote it or roll it back first"
            )
        if state.frozen:
            raise CommandError(f"{args.surface} is frozen; `tierline policy resume {args.surface} -m WHY` ends that")
    return PolicyInForce(text, policy, state.live)


def start_canary(
    args: argparse.Namespace, source: PolicySource, base: PolicyInForce, text: str, message: str
) -> dict[str, Any]:
    """Start the policy with this text as a canary beside `base`; return version, share and workers as JSON values.

    Raises CommandError, as where something else is in force by now.
    """

    async def work(registry: PolicyRegistry) -> dict[str, Any]:
        with _beside_defaults(text, args.surface, source) as file:
            applied = await apply_file(
                registry,
                source,
                file,
                how="canary",
                author=AUTHOR,
                message=message,
                at=time.time(),
                base=base.version,
                surface=args.surface,
            )
        rolling = applied.state.rolling
        return {
            "policy": applied.version.label,
            "version": applied.version.version,
            "share": 0.0 if rolling is None else rolling.share,
            "message": message,
            "workers": await wait_for_spread(registry, applied.state),
        }

    try:
        return with_registry(args, work)
    except ConfigError as error:
        raise CommandError(f"not applied:\n{error}", Exit.FINDINGS) from None


@contextlib.contextmanager
def _beside_defaults(text: str, surface: str, source: PolicySource) -> Iterator[Path]:
    """Yield a file with this text, beside the defaults of the gateway's folder."""
    with tempfile.TemporaryDirectory(prefix="tierline-learn-") as folder:
        file = Path(folder) / f"{surface}.yaml"
        file.write_text(text, encoding="utf-8", newline="")
        if (defaults := source.directory / DEFAULTS).is_file():
            shutil.copy(defaults, folder)
        yield file
