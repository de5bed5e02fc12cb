"""Define what the registry of policies holds: versions, the state of each surface, and the audit trail.

    Version      one policy file as it was applied, immutable
    InForce      what is in force on a surface, and the candidate that is being tried beside it
    AuditEntry   one change, appended and never altered
    Replica      what one worker has in force, as it said itself

All are stored as JSON objects with these fields. A policy's `version` is the hash of what it rules, and so is not
changed by comments, the description or `rollout`. A `document` is the hash of the whole file: several documents may
have one version, each is stored once, and none is ever overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from policies.loader import made_policy
from policies.model import Policy

JUDGE: Final = "tierline:{policies}:judge"
"""Key of the store that the process which judges canaries holds: its lease and its pulse. Without it none serves."""
REPORTS: Final = "tierline:{policies}:reports"
"""Key of the store's hash of the latest report on each candidate: JSON, by surface; see `report`."""

Mode = Literal["evaluate", "shadow", "canary"]
"""How a candidate is tried: decided with beside the live policy, called off the path, or serving a share."""


@dataclass(frozen=True, slots=True)
class Version:
    """One applied policy. `version` is the hash of its rules, 64 hex digits; `text` is the file as it was written."""

    surface: str
    version: str
    text: str
    author: str
    message: str
    at: float
    """Unix seconds of its first application."""
    parent: str = ""
    """The version that was in force when it was applied; '' for the first."""
    document: str = ""
    """SHA-256 of `text` and `content`: the key under which it is stored."""
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the file says with its defaults, as plain values: `policies.loader.made_policy` makes the policy from it."""

    @property
    def label(self) -> str:
        """`surface@version`, as in `x-tierline-policy`."""
        return f"{self.surface}@{self.version[:7]}"

    def policy(self) -> Policy:
        """Return the policy as no deployment has it: all its tiers are configured. Raises ConfigError."""
        return made_policy(self.content, Path(self.label), {})


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
    document: str = ""

    def shown(self) -> dict[str, Any]:
        """Return the fields that people see, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "document"}


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
    document: str = ""
    """Document of the version in force."""
    since: float = 0.0
    """Unix seconds at which it came into force."""

    @property
    def removed(self) -> bool:
        """Whether the surface was taken out: then `live` and `document` are empty, and `since` is when."""
        return not self.live


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, made `by` a person or `tierline`.

    `action` is seed, apply, step, promote, pause, resume, rollback or remove.
    """

    surface: str
    action: str
    version: str
    before: str
    by: str
    message: str
    at: float
    details: str = ""
    """What the change rests on, such as the guard that was crossed with its figures."""
    document: str = ""
    """Document that this change put into force; '' if it changed only what is being tried."""
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The surface's InForce after the change."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What one worker has in force. `surfaces` maps each to its version, `rolling` to `version mode share`."""

    name: str
    """Its host and process id."""
    revision: int
    """Revision of the whole registry that this worker read last."""
    surfaces: Mapping[str, str]
    rolling: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why it cannot follow the registry; '' if it does."""
    drift: tuple[str, ...] = ()
    """Its policy files that say something else than what is in force, one sentence each."""
    default: str = ""
    """Its default surface."""
    started: float = 0.0
    """Unix seconds at which it started; 0 for one of an older version."""


def as_blob(record: Version | InForce | AuditEntry | Replica) -> bytes:
    """Return the record as a JSON object."""
    return orjson.dumps(asdict(record))


def version_from(blob: bytes) -> Version:
    """Return the version that `as_blob` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    return Version(**orjson.loads(blob))


def in_force_from(blob: bytes) -> InForce:
    """Return the state that `as_blob` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    fields = orjson.loads(blob)
    rolling = fields.pop("rolling")
    return InForce(**fields, rolling=None if rolling is None else Rolling(**rolling))


def entry_from(blob: bytes) -> AuditEntry:
    """Return the audit entry that `as_blob` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    return AuditEntry(**orjson.loads(blob))


def replica_from(blob: bytes) -> Replica:
    """Return the replica that `as_blob` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    fields = orjson.loads(blob)
    values = {name: fields[name] for name in Replica.__slots__ if name in fields}  # a newer version may say more
    return Replica(**{**values, "drift": tuple(fields["drift"])})
