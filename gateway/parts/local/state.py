"""Manage the state folder, which one supervisor at a time uses, and which is kept between runs.

lock        locked (flock) while a supervisor runs; the kernel releases it however the supervisor ends
up.json     `Up` of the running supervisor, for other commands; readable by its owner
ports.json  the loopback ports chosen for the children
logs/       one file per child
store/      the embedded store's data and its config
ledger/     the ledger in files, see gateway.parts.ledger
metrics/    the metrics that the gateway's workers share
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.config.environment import write_private
from gateway.parts.local import CannotStart
from gateway.server.listeners import bound


@dataclass(frozen=True, slots=True)
class Up:
    """Facts on a running supervisor for other commands, as in `up.json`."""

    url: str
    store_url: str
    local_base_url: str | None
    pid: int
    admin_url: str | None = None
    """Address of the admin API; None without one."""
    admin_key_env: str | None = None
    """Name of the variable that has its key."""
    console_url: str | None = None
    """Address of the console; None without one."""
    config: str | None = None
    """Absolute path of its config file; None for the one shipped."""
    policies: str | None = None
    """Absolute path of its folder of policies; None for those shipped."""


class StateFolder:
    """A claimed state folder; see `claimed_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.store = path / "store"

    def log(self, child: str) -> Path:
        """Return the log file of one child."""
        return self.logs / f"{child}.log"

    def port(self, name: str) -> int:
        """Return the loopback port stored for `name`; if none is or it is in use, choose a free one and store it."""
        file = self.path / "ports.json"
        ports = _read_json(file)
        port = ports.get(name)
        if not isinstance(port, int) or not 0 < port < 65536 or not can_listen("127.0.0.1", port):
            port = free_port()
            write_private(file, json.dumps({**ports, name: port}).encode())
        return port

    def announce(self, up: Up) -> None:
        """Write `up.json` atomically."""
        write_private(self.path / "up.json", json.dumps(asdict(up)).encode())

    def withdraw(self) -> None:
        """Remove `up.json`."""
        (self.path / "up.json").unlink(missing_ok=True)


@contextlib.contextmanager
def claimed_folder(path: Path) -> Iterator[StateFolder]:
    """Create the folder and lock it during the context.

    Raises CannotStart if it cannot be written to, or if another supervisor holds it.
    """
    folder = StateFolder(path)
    try:
        for private in (path, folder.logs, folder.store):
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.chmod(0o700)  # an existing folder may be readable by others, and logs and answers are private
        lock = (path / "lock").open("a")
    except OSError as error:
        raise CannotStart(f"cannot write to the state folder {path}: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            up = _read_json(path / "up.json")
            where = f" (pid {up.get('pid')}, {up.get('url')})" if up else ""
            raise CannotStart(f"tierline is already up on the state folder {path}{where}") from None
        folder.withdraw()  # a killed supervisor may have left `up.json` behind
        try:
            yield folder
        finally:
            folder.withdraw()


def can_listen(host: str, port: int) -> bool:
    """Return whether a server could listen there now."""
    return why_not_listen(host, port) is None


def why_not_listen(host: str, port: int) -> str | None:
    """Return why a server could not listen there now; None if it could."""
    try:
        bound(host, port).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free TCP port of `host`."""
    family, kind, proto, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.bind(address)
        return int(probe.getsockname()[1])


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged, so that it is written anew."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
