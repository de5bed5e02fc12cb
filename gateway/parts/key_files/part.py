"""Read files of keys again when they change: of tenants, backends and services, each second and at SIGHUP, in a thread.

A file that cannot be used any more, or is being written, changes nothing: the keys that it had hold, and the log says
why, once. Changed is one that has another time, size or inode, as a secret that Kubernetes mounts gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from gateway.config.environment import BadSecret, secrets_from_file

if TYPE_CHECKING:
    from gateway.steps import Core

log = logging.getLogger("tierline.config")

_EVERY_S: Final = 1.0
_Stamp = tuple[tuple[int, int, int] | None, ...]


class KeyFileWatcher:
    """Watch files of keys. `watch` them, `start` on the event loop, and await `aclose`."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._watched: list[_WatchedFiles] = []
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._has_signal = False

    def watch(
        self, files: Sequence[Path], least: int, take: Callable[[list[SecretStr]], None]
    ) -> Callable[[], Awaitable[None]] | None:
        """See `gateway.steps.KeyFiles`."""
        if not files:
            return None
        watched = _WatchedFiles(tuple(files), least, take)
        self._watched.append(watched)
        return watched.look

    def watch_one(self, file: Path, rekey: Callable[[str | None], None]) -> Callable[[], Awaitable[None]] | None:
        """See `gateway.steps.KeyFiles`."""

        def take(keys: list[SecretStr]) -> None:
            if len(keys) != 1:
                raise BadSecret(f"it holds {len(keys)} keys; one is wanted")
            rekey(keys[0].get_secret_value())

        return self.watch([file], 1, take)

    def start(self) -> None:
        """Look at the files from now on, if there are any, and at once at each SIGHUP of a process without a terminal.

        In a terminal that signal is its end, and the gateway's.
        """
        if not self._watched:
            return
        self._task = asyncio.create_task(self._run(), name="tierline.key_files")
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and not os.isatty(0) and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hurry.set)
            self._has_signal = True

    async def aclose(self) -> None:
        """Stop watching the files."""
        if self._has_signal:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._hurry.wait()
            self._hurry.clear()
            for file in self._watched:
                await file.look()


class _WatchedFiles:
    def __init__(self, files: tuple[Path, ...], least: int, take: Callable[[list[SecretStr]], None]) -> None:
        self._files = files
        self._least = least
        self._take = take
        self._seen = self._stamp()
        self._lock = asyncio.Lock()

    async def look(self) -> None:
        """Take the files' keys if one of them has changed. Who comes meanwhile waits until they are taken."""
        async with self._lock:
            await self._look()

    async def _look(self) -> None:
        stamp = await asyncio.to_thread(self._stamp)
        if stamp == self._seen:
            return
        self._seen = stamp
        names = ", ".join(map(str, self._files))
        try:
            self._take(await asyncio.to_thread(self._keys))
        except BadSecret as error:
            log.error("%s was not taken, its former keys hold: %s", names, error)
        else:
            log.warning("%s was read again: its keys have changed", names)

    def _stamp(self) -> _Stamp:
        return tuple(map(_stamp_of, self._files))

    def _keys(self) -> list[SecretStr]:
        return [key for file in self._files for key in secrets_from_file(file, self._least)[0]]


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def build_tasks(core: Core) -> Mapping[str, KeyFileWatcher]:
    """Return what has the keys of tenants, backends and others read again when their files change."""
    files = KeyFileWatcher()
    core.authenticator.watch(files)
    for endpoint in core.endpoints.values():
        if endpoint.config.key_file is not None and endpoint.config.configured:
            endpoint.key.look = files.watch_one(endpoint.config.key_file, endpoint.rekey)
    for api in core.client_apis:
        api.watch_keys(files)
    return {"key files": files}
