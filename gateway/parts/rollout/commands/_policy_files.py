"""Find the policy that a command line names: a file, or a version in the store."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from policies.loader import PolicySource, made_policy, read_policy
from policies.yaml_source import Document, parse_yaml

if TYPE_CHECKING:
    from policies.model import Policy

_VERSION = re.compile(r"([a-z0-9][a-z0-9_-]*)@([0-9a-f]{4,64})")


def policy_in(text: str, args: argparse.Namespace, source: PolicySource | None = None) -> tuple[Policy, Document]:
    """Return the policy in a file, or of a version such as chat@f00d, and its document.

    A version is read from the store that `args` name (see `commands._store`). `source` has the deployment's tiers;
    without it every tier counts as configured. Raises ConfigError or CommandError.
    """
    named = _VERSION.fullmatch(text)
    if named is None or Path(text).exists():
        return read_policy(Path(text), None if source is None else source.tiers)
    from gateway.parts.rollout.commands._registry import with_registry  # asyncio and the store, for versions alone

    version = with_registry(args, lambda registry: registry.version(named[1], named[2]))
    label = Path(f"{version.surface}@{version.version[:7]}")
    document = parse_yaml(version.text, label)
    if source is not None:
        return source.made(version.content, str(label))[0], document
    return made_policy(version.content, label, {}), document
