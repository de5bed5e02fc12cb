"""Keep the last good set of policies in a file, for a worker that starts while the store is down."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import orjson

from gateway.config.environment import write_private
from gateway.parts.rollout.registry.records import Version, as_blob, version_from


def file_in(state: Path, store_url: str, folder: Path) -> Path:
    """Return the path of the last good policies, one file in the state folder per store and folder of policies."""
    key = hashlib.sha256(f"{store_url}\n{folder.resolve()}".encode()).hexdigest()
    return state / f"policies-{key[:12]}.json"


def keep(file: Path, versions: Sequence[Version]) -> None:
    """Write the versions in force to `file`, whole or not at all. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_private(file, b"".join(as_blob(version) + b"\n" for version in versions))


def kept(file: Path) -> list[Version]:
    """Return the versions that `keep` wrote; none if there is no such file or it cannot be read."""
    try:
        return [version_from(line) for line in file.read_bytes().splitlines()]
    except (OSError, ValueError, KeyError, TypeError, orjson.JSONDecodeError):
        return []
