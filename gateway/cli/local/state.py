"""The state folder: held by one supervisor at a time, it keeps what must outlive a run.

lock        flock'ed while a supervisor lives; the kernel lets go of it however the supervisor ends
up.json     {url, store_url, local_base_url, pid} of the running supervisor, for other commands; its owner's alone
ports.json  the loopback ports chosen once for the children
logs/       one file per child
store/      the embedded store's data and its config
metrics/    what the gateway's workers share of their metrics
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.cli.local import CannotStart


@dataclass(frozen=True, slots=True)
class Up:
    """What a running supervisor tells other commands."""

    url: str
    store_url: str
    local_base_url: str | None
    pid: int


class StateFolder:
    """A claimed state folder; see `claim`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.store = path / "store"

    def log(self, child: str) -> Path:
        """The log file of one child."""
        return self.logs / f"{child}.log"

    def port(self, name: str) -> int:
        """The loopback port kept for `name`; another one, kept from now on, when somebody else has taken it."""
        kept = self.path / "ports.json"
        ports = _read_json(kept)
        port = ports.get(name)
        if not isinstance(port, int) or not 0 < port < 65536 or not can_listen("127.0.0.1", port):
            port = free_port()
            write_private(kept, json.dumps({**ports, name: port}))
        return port

    def announce(self, up: Up) -> None:
        """Writes `up.json`, whole or not at all."""
        write_private(self.path / "up.json", json.dumps(asdict(up)))

    def withdraw(self) -> None:
        """Removes `up.json`."""
        (self.path / "up.json").unlink(missing_ok=True)


@contextlib.contextmanager
def claim(path: Path) -> Iterator[StateFolder]:
    """Makes and locks the folder for as long as the context lasts.

    Raises CannotStart when it cannot be written to, or when another supervisor holds it.
    """
    folder = StateFolder(path)
    try:
        for one in (path, folder.logs, folder.store):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
            one.chmod(0o700)  # one that was there may be open to others, and logs and answers are nobody else's
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
        folder.withdraw()  # one that a killed supervisor left behind
        try:
            yield folder
        finally:
            folder.withdraw()


def can_listen(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    return why_not_listen(host, port) is None


def why_not_listen(host: str, port: int) -> str | None:
    """The reason why a server could not listen there now; None when it could."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of `host` that nobody listens on."""
    family, kind, proto, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.bind(address)
        return int(probe.getsockname()[1])


def write_private(path: Path, text: str) -> None:
    """Replaces the file, atomically, by one that only its owner can read."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file of ours; empty when there is none or it is damaged, for then it is made anew."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
