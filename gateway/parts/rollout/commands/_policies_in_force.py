"""Read the policies in force from where the config says that they come from: files, or the registry in the store."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource, policy_files, read_policy
from policies.yaml_source import Document, parse_yaml

if TYPE_CHECKING:
    from gateway.config.schema import Deployment
    from gateway.parts.rollout.registry.records import Version
    from gateway.parts.rollout.registry.registry import PolicyRegistry
    from policies.model import Policy


@dataclass(frozen=True, slots=True)
class PoliciesInForce:
    """The policies in force and their documents, by surface."""

    where: str
    """The folder's path, or `the store`."""
    by_surface: Mapping[str, tuple[Policy, Document]]
    texts: Mapping[str, str]
    """What was written of each, by surface; empty where they come from files."""

    def joined(self, source: PolicySource) -> PolicySet:
        """Return all of them as the deployment of `source` runs them. Raises ConfigError."""
        if not self.texts:
            return source.load()
        return source.joined([source.made(policy.content, policy.label) for policy, _ in self.by_surface.values()])


def policies_in_force(
    args: argparse.Namespace, deployment: Deployment, source: PolicySource, *, from_store: bool = False
) -> PoliciesInForce:
    """Return the policies in force: those of the source that the deployment names, or with `from_store` of the store.

    The store is that of the flags; see `commands._store`. Files with mistakes are left out. Raises CommandError.
    """
    if not from_store and deployment.policies.source == "files":
        return PoliciesInForce(str(source.directory), policies_in(source.directory), {})
    from gateway.parts.rollout.commands._registry import with_registry  # asyncio and the store, for this source alone

    async def work(registry: PolicyRegistry) -> list[Version]:
        states = list((await registry.in_force()).values())
        versions = await registry.documents(states)
        return [versions[state.document] for state in states if state.document in versions]

    versions = with_registry(args, work)
    by_surface = {
        version.surface: (version.policy(), parse_yaml(version.text, Path(version.label))) for version in versions
    }
    return PoliciesInForce("the store", by_surface, {version.surface: version.text for version in versions})


def policies_in(folder: Path) -> dict[str, tuple[Policy, Document]]:
    """Return the policies in a folder and their documents, by surface. Files with mistakes are left out."""
    found = {}
    for file in policy_files(folder):
        try:
            policy, document = read_policy(file)
        except ConfigError:
            continue
        found[policy.surface] = policy, document
    return found
