"""Export all records of keys, teams and tenants as JSON lines, and read such an export: digests, never keys.

The first line says by which secret the keys were hashed, as a digest: under another one nobody's key would be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.keys.minting import hashed_by, secret_of
from gateway.keys.records import KeyRecord, OwnerRecord, key_of, owner_of, shown
from gateway.keys.registry import KeyRegistry, KeysRefused

_FORMAT: Final = "tierline keys 1"


@dataclass(frozen=True, slots=True)
class MovedKeys:
    """Records to import, and by name what could not be taken over of each."""

    records: Sequence[KeyRecord | OwnerRecord]
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def export_lines(registry: KeyRegistry) -> list[bytes]:
    """Return all records as lines. Raises StoreUnavailable."""
    values: list[dict[str, Any]] = [{"format": _FORMAT, "hashed_by": hashed_by(secret_of())}]
    values += [shown(one) for one in await registry.owners()]
    values += [{"kind": "key", **shown(key)} async for key in registry.records()]
    return [orjson.dumps(one) + b"\n" for one in values]


def read_export(text: str) -> list[KeyRecord | OwnerRecord]:
    """Return the records of an export. Raises KeysRefused."""
    number = 1
    records: list[KeyRecord | OwnerRecord] = []
    try:
        head, *lines = text.splitlines()
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
            values = orjson.loads(line)
            is_key = values["kind"] == "key"
            records.append(key_of({**values, "kind": None}) if is_key else owner_of(values))
    except (ValueError, KeyError, TypeError) as error:
        raise KeysRefused(f"line {number} of the export cannot be read: {error}") from None
    return records
