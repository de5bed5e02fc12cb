"""Hold the policies in force, which come from files that are read once, or from where a part follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource
from policies.model import Policy


class Policies(Protocol):
    """Where a worker's policies come from: files (`FilePolicies`), or the store."""

    current: PolicySet
    """The set in force. A request reads it once, at its start, and uses that set to its end."""
    failure: ConfigError | None
    """Why something newer is not in force; None if nothing is."""
    source: PolicySource
    """The folder of files, and what policies must fit."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with the source of the policies besides a failed reload, in words, for `/readyz`."""

    @property
    def revision(self) -> int | None:
        """Revision of the registry in the store that is in force; None where policies come from files."""

    async def start(self) -> None:
        """Load the policies, so that requests can be served."""

    async def run(self) -> None:
        """Follow changes until cancelled."""

    def assigned(
        self, live: Policy, headers: Mapping[bytes, bytes], tenant: str, session: str
    ) -> tuple[Policy, str, str]:
        """Return the policy of a request's arm, the arm and its unit where a canary runs on the surface; else `live`.

        Asked only where `current` has something rolling.
        """

    async def aclose(self) -> None:
        """Stop following changes."""


class FilePolicies:
    """Policies of files as they were at the start; the part that provides `reload` follows their changes."""

    notes: tuple[str, ...] = ()
    revision: None = None

    def __init__(self, source: PolicySource) -> None:
        """Read the files of this source. Raises ConfigError."""
        self.current = source.load()
        self.failure: ConfigError | None = None
        self.source = source

    async def start(self) -> None:
        """Do nothing: the files were read when this was made."""

    async def run(self) -> None:
        """Do nothing."""

    def assigned(
        self, live: Policy, headers: Mapping[bytes, bytes], tenant: str, session: str
    ) -> tuple[Policy, str, str]:
        """Return the policy in force: files have no candidate."""
        return live, "", ""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""
