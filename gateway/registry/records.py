"""Define what the registry of policies holds: versions, the state of each surface, and the audit trail.

    Version        one policy file as it was applied, immutable, by the hash of what it rules
    InForce   what is in force on a surface, and the candidate that is being tried beside it
    AuditEntry     one change, appended and never altered

All three are stored as JSON objects with these fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

JUDGE: Final = "tierline:policy:judge"
"""Key of the store that the process which judges canaries holds: its lease and its pulse. Without it none serves."""
REPORTS: Final = "tierline:policy:reports"
"""Key of the store's hash of the latest report on each candidate: JSON, by surface; see `gateway.rollout.report`."""

Mode = Literal["evaluate", "shadow", "canary"]
"""How a candidate is tried: decided with beside the live policy, called off the path, or serving a share."""


@dataclass(frozen=True, slots=True)
class Version:
    """One applied policy. `version` is its content hash, 64 hex digits; `text` is the file as it was written."""

    surface: str
    version: str
    text: str
    author: str
    message: str
    at: float
    """Unix seconds of its first application."""
    parent: str = ""
    """The version that was in force when it was applied; '' for the first."""

    @property
    def label(self) -> str:
        """`surface@version`, as in `x-tierline-policy`."""
        return f"{self.surface}@{self.version[:7]}"


@dataclass(frozen=True, slots=True)
class Rolling:
    """A candidate that is being tried. `share` is the part of the sticky units that get it, 0..1."""

    version: str
    mode: Mode
    share: float
    step: int = 0
    """Position in the candidate's `rollout.steps`, from 0."""
    since: float = 0.0
    """Unix seconds at which this step began."""
    paused: str = ""
    """Why no further step is taken; '' while it goes on. A paused canary keeps its share."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What is in force on one surface. A change is stored only if `revision` is still the one that it was made from."""

    surface: str
    live: str
    """Version in force."""
    revision: int
    rolling: Rolling | None = None
    frozen: bool = False
    """Whether nothing but a rollback is taken for now."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: `action` is apply, step, promote, pause, resume or rollback; `by` is a person or `tierline`."""

    surface: str
    action: str
    version: str
    before: str
    by: str
    message: str
    at: float
    details: str = ""
    """What the change rests on, such as the guard that was crossed with its figures."""
