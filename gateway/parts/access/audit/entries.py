"""Define an entry of the audit trail, its streams in the store, and the part of a script that appends one.

What changes something appends the entry in the script that makes the change, so there is neither without the other: its
script begins with APPEND, and calls `audit(stream, entry, how)` with a stream of STREAMS that is in its slot. An entry
of a stream has three fields: `v`, the JSON of the change; `how` it came; and `before`, the hash of the entry before it,
so that none can be altered or removed without a break. The hash of the newest, and their number, stand in a key beside
the stream, so that it cannot be removed either, nor can all. SHA-1 is what a script of the store can compute; nobody
can make a second entry of a given hash with it. Streams are never trimmed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import orjson

Kind = Literal["policy", "key", "team", "tenant", "budget", "config", "login"]
How = Literal["cli", "admin", "console", "config", "gateway", "judge", ""]
"""What a change came by; 'judge' is the one of canaries, and '' stands for entries of older versions."""

KINDS: Final = ("policy", "key", "team", "tenant", "budget", "config", "login")
POLICIES: Final = "tierline:{policies}:audit"
KEYS: Final = "tierline:{keys}:audit"
BUDGETS: Final = "{tierline:traces}:audit"
"""In the slot of the stream of records, which has the adjustments of budgets."""
REST: Final = "tierline:{audit}:audit"
"""Changes of the config, and who signed in."""
STREAMS: Final = (POLICIES, KEYS, BUDGETS, REST)

APPEND: Final = (Path(__file__).parent / "append.lua").read_bytes()
"""Lua of `audit(stream, entry, how)`, for the beginning of a script."""


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One change. `before` and `after` are what it changed, as JSON values, and never hold a secret."""

    at: float
    """Unix seconds."""
    by: str
    """Who made it: a person, or a process of Tierline."""
    kind: Kind
    subject: str
    """What was changed: a surface, the id of a key, the name of a team."""
    action: str
    message: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    how: How = ""
    stream: str = ""
    id: str = ""
    """Its place in its stream; with `stream` and `how` it is not part of the JSON of the change."""
    chain: str = ""
    """Hash of the entry, which the next one of its stream holds."""

    @property
    def cursor(self) -> str:
        """Its place among the entries of all streams, for those that are older."""
        return f"{self.id}@{STREAMS.index(self.stream)}"

    @property
    def words(self) -> str:
        """What the change was, as people read it: `state: active -> disabled`."""
        old, new = self.before, self.after
        return ", ".join(
            f"{name}: {_written(old[name])} -> {_written(new[name])}" if name in old and name in new
            else f"{name}: {_written(new.get(name, old.get(name)))}{'' if name in new else ' -> none'}"
            for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)
        )  # fmt: skip

    def shown(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the entry as JSON values, with its `words`; unless `whole`, nothing of what was changed in it."""
        entry = self if whole else replace(self, before={}, after={})
        return {**asdict(entry), "words": entry.words}

    def change(self) -> bytes:
        """Return the JSON of the change, the `entry` that a script appends."""
        fields = asdict(self)
        return orjson.dumps({name: fields[name] for name in fields if name not in ("how", "stream", "id", "chain")})


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it stands in its stream. `fields` are names and values in turn."""

    stream: str
    id: bytes
    fields: Sequence[bytes]

    @property
    def chain(self) -> str:
        """Hash of the entry, which the entry after it must hold (as the appending script computes it)."""
        text = self.id + b"\n" + b"\n".join(self.fields)
        return hashlib.sha1(text, usedforsecurity=False).hexdigest()

    @property
    def before(self) -> str | None:
        """Hash of the entry before it, '' for the first; None for an entry of an older version."""
        return self._text(b"before")

    @property
    def place(self) -> tuple[int, int]:
        """Milliseconds of the store's clock, and the number within them: entries of all streams are ordered by it."""
        at, _, number = self.id.partition(b"-")
        return int(at), int(number)

    def read(self) -> TrailEntry:
        """Return the change. Raises ValueError, KeyError or TypeError for anything else."""
        fields = orjson.loads(self._text(b"v") or "")
        if "surface" in fields:
            fields = _of_policy(fields)
        values = {name: fields[name] for name in TrailEntry.__slots__ if name in fields}  # a newer version may say more
        how = self._text(b"how") or ""
        return TrailEntry(**{**values, "how": how, "stream": self.stream, "id": self.id.decode(), "chain": self.chain})

    def exported(self) -> dict[str, Any]:
        """Return the entry with all that its hash is of, as JSON values, for a file."""
        fields = [text.decode() for text in self.fields]
        return {"stream": self.stream, "id": self.id.decode(), "fields": fields, "chain": self.chain}

    @classmethod
    def from_export(cls, exported: Mapping[str, Any]) -> StoredEntry:
        """Return the entry that `exported` wrote. Raises ValueError, KeyError or TypeError for any other."""
        fields = [text.encode() for text in exported["fields"]]
        entry = cls(exported["stream"], exported["id"].encode(), fields)
        if entry.chain != exported["chain"]:
            raise ValueError(f"the hash of entry {exported['id']} is not that of its fields")
        return entry

    def _text(self, name: bytes) -> str | None:
        value = dict(zip(self.fields[::2], self.fields[1::2], strict=True)).get(name)
        return None if value is None else value.decode()


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_written(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " and ".join(map(_written, value)) or "none"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _of_policy(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry from those of a change of a policy; see `AuditEntry` of the registry."""
    after = {"version": fields["version"][:12], "details": fields.get("details")}
    return {
        **{name: fields[name] for name in ("at", "by", "action", "message")},
        "kind": "policy", "subject": fields["surface"],
        "before": {"version": fields["before"][:12]} if fields["before"] else {},
        "after": {name: value for name, value in after.items() if value},
    }  # fmt: skip
