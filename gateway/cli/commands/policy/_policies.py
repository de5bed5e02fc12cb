"""Find the policy that a command line names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.commands import CommandError
from policies.loader import read_policy
from policies.model import DeployedTier, Policy
from policies.yaml_source import Document

_VERSION = re.compile(r"[a-z0-9][a-z0-9_-]*@[0-9a-f]{4,64}")


def policy_of(text: str, tiers: Sequence[DeployedTier] | None = None) -> tuple[Policy, Document]:
    """Return the policy in the file of that name, and its document. Raises ConfigError or CommandError.

    `tiers` are the deployment's; without them every tier counts as configured.
    """
    file = Path(text)
    if _VERSION.fullmatch(text) and not file.exists():
        raise CommandError(f"{text} names a stored version, and there is no store of versions; name a file")
    return read_policy(file, tiers)
