"""Export all records of keys, teams and tenants as JSON lines, and read such an export: digests, never keys.

The first line says by which secret the keys were hashed, as a digest: under another one nobody's key would be known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.parts.access.keys.made_keys import check_key, check_owner
from gateway.parts.access.keys.records import LATEST, KeyRecord, OwnerRecord, hashed_by, secret_of, shown
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused

_FORMAT: Final = "tierline keys 1"
_KEY: Final = TypeAdapter(KeyRecord)
_OWNER: Final = TypeAdapter(OwnerRecord)
_MOST: Final = 1 << 53
"""Greatest number that the store's scripts read exactly."""


@dataclass(frozen=True, slots=True)
class MovedKeys:
    """Records to import, and for each, by its name, notes on what could not be taken over."""

    records: Sequence[KeyRecord | OwnerRecord]
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def export_lines(registry: KeyRegistry) -> list[bytes]:
    """Return all records as lines. Raises StoreUnavailable."""
    values: list[dict[str, Any]] = [{"format": _FORMAT, "hashed_by": hashed_by(secret_of())}]
    values += [shown(owner) for owner in await registry.owners()]
    values += [{"kind": "key", **shown(key)} async for key in registry.records()]
    return [orjson.dumps(record) + b"\n" for record in values]


def read_export(text: str) -> list[KeyRecord | OwnerRecord]:
    """Return the records of an export. Raises KeysRefused."""
    number = 1
    records: list[KeyRecord | OwnerRecord] = []
    try:
        head, *lines = text.splitlines() or [""]
        first = orjson.loads(head)
        if not isinstance(first, dict) or first.get("format") != _FORMAT:
            raise KeysRefused("this is no export of `tierline keys export`; --litellm takes a key list of LiteLLM")
        if first.get("hashed_by") != hashed_by(secret_of()):
            raise KeysRefused(
                "these keys were hashed by another TIERLINE_KEY_SECRET than is set here, so none of them would be "
                "known; set that one"
            )
        for line in lines:
            number += 1
            records.append(_checked(orjson.loads(line)))
    except ValidationError as error:
        first = error.errors()[0]
        raise KeysRefused(f"line {number} of the export: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise KeysRefused(f"line {number} of the export cannot be read: {error}") from None
    return records


def _checked(values: Any) -> KeyRecord | OwnerRecord:
    """Return a record that every worker can take over: another would stop them from following changes."""
    record = (_KEY if values["kind"] == "key" else _OWNER).validate_python(values)
    if isinstance(record, OwnerRecord):
        check_owner(record.kind, record.name)
    else:
        check_key(record)
        if not re.fullmatch("[0-9a-f]{64}", record.digest) or not re.fullmatch("k_[a-z0-9]{1,40}", record.id):
            raise ValueError("a digest is 64 hex digits, and an id begins with k_")
    if not (0 < record.revision < _MOST and 0 <= getattr(record, "created", 0) <= LATEST):
        raise ValueError("a revision is a number from 1 on, and a time one from 0 on")
    return record
