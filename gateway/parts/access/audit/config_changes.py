"""Append an entry when a gateway runs with another config file than the last that ran with it: which keys changed.

Workers and replicas that start with one file make one entry: the store holds a digest of each key's value by the file's
path, and a script compares it. Values are in neither; what a variable (`${VAR}`) holds is not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import hashlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.parts.access.audit.entries import APPEND, REST, TrailEntry
from policies.errors import ConfigError
from policies.yaml_source import read_yaml

log = logging.getLogger("tierline")

_STATE: Final = b"tierline:{audit}:configs"
_CHANGE: Final = APPEND + (Path(__file__).parent / "config_change.lua").read_bytes()
_LIMIT_S: Final = 1.0
_AGAIN_S: Final = 5.0
_DIGITS: Final = 8


async def note_file(store: Store, file: Path) -> None:
    """Append the entry of a file as it is now, unless it was written anew since it was loaded and is not whole yet."""
    with contextlib.suppress(ConfigError):
        document = await asyncio.to_thread(read_yaml, file)
        await note_content(store, str(file), document.value)


async def note_content(store: Store, file: str, content: Mapping[str, Any]) -> None:
    """Append the entry if there is something to say, as soon as the store answers; without a store, do nothing."""
    while True:
        try:
            await _noted(store, file, content)
            return
        except StoreUnavailable as down:
            if down.reason == "unconfigured":
                return
            log.warning("audit: the store cannot take the config's entry yet (%s)", down)
            await asyncio.sleep(_AGAIN_S)


async def _noted(store: Store, file: str, content: Mapping[str, Any]) -> None:
    new = {".".join(path): _digest(value) for path, value in _leaves(content, ())}
    blob = orjson.dumps(new, option=orjson.OPT_SORT_KEYS)
    (old,) = await store.ask([Command((b"HGET", _STATE, file.encode()))], _LIMIT_S)
    while old != blob:
        entry = _entry(file, orjson.loads(old or b"{}"), new)
        words = (_STATE, REST.encode(), file.encode(), old or b"", blob, entry.change())
        (old,) = await store.ask([Command((b"EVAL", _CHANGE, b"2", *words))], _LIMIT_S)
        if old == 1:
            return


def _entry(file: str, old: Mapping[str, str], new: Mapping[str, str]) -> TrailEntry:
    after: dict[str, Any] = {
        "changed": sorted(name for name in old.keys() & new if old[name] != new[name]),
        "added": sorted(new.keys() - old),
        "removed": sorted(old.keys() - new),
    }
    after = {name: names for name, names in after.items() if names} if old else {"keys": len(new)}
    where = socket.gethostname()
    return TrailEntry(
        time.time(), _user(), "config", file, "change" if old else "start", f"started on {where}", {}, after
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "gateway"


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each key that holds no others; of a list, by the names of what it holds."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {str(item.get("name") or item.get("model") or number): item for number, item in enumerate(value)}
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, str(name)))
    else:
        yield path, value


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, default=str)).hexdigest()[:_DIGITS]
