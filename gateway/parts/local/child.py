"""Run one child process of the supervisor: in a session of its own, restarted when it ends, stopped within a limit.

    starting --ready--> ready --exit--> down --(backoff)--> starting ... --stop()--> stopped

An outage is reported when it begins and when it ends, and not at the attempts in between. When a child fails
`QUICK_FAILURES` times in a row, the last lines of its log are shown, and it is restarted at growing intervals; if it is
vital and was never ready, the supervisor ends instead.

Children write to files, so that a slow terminal cannot block them. They end with their parent, so that `kill -9` of the
supervisor leaves no process running: on Linux the kernel does it (PR_SET_PDEATHSIG); elsewhere only children that check
for their parent themselves end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway.config.environment import write_private
from gateway.exit_codes import Exit
from gateway.parts.local import CannotStart
from gateway.server.listeners import Address, bound, handing_over

_MOST_ENDS = 50
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def death_signal(number: signal.Signals) -> Callable[[], None] | None:
    """Return a `preexec_fn` that makes the kernel signal the child when its parent ends; None if not on Linux."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here, because loading is unsafe after the fork

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended between the fork and the call above
            os._exit(1)

    return set_death_signal


MAX_LOG_BYTES = 8 << 20
_TAIL_BYTES = 16 << 10


def rotate_log(log: Path) -> int:
    """Copy a log of more than 8 MiB to `NAME.1` and empty it; return its size after that, in bytes.

    The file is emptied in place, because the child has it open for appending. Never raises: a child must not be stopped
    for a problem with its log.
    """
    size = 0
    with contextlib.suppress(OSError):
        size = log.stat().st_size
        if size > MAX_LOG_BYTES:
            with contextlib.suppress(OSError):  # on a full disk the old text is dropped
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
            size = 0
    return size


def last_lines(log: Path, start: int, lines: int = 12) -> list[str]:
    """Return the last `lines` non-blank lines written after byte `start`; none if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


QUICK_FAILURES = 5
STABLE_S = 10.0
MAX_BACKOFF_S = 30.0
PROBE_EVERY_S = 0.05

Say = Callable[[str], None]

_HARMLESS = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
)
_HARMLESS_PREFIXES = (
    "CUDA_",
    "DYLD_",
    "GGML_",
    "LC_",
    "LD_",
    "LLAMA_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "SSL_CERT_",
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start one child and how to check that it is ready.

    `parent_dies` is the signal that the kernel sends it when the supervisor ends (Linux only). `stop_grace_s` is the
    time in seconds between SIGTERM and SIGKILL. A `vital` child that cannot start ends the supervisor. Sockets that
    listen at `listens` are opened once, for all its starts.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    is_ready: Callable[[], Awaitable[bool]]
    stop_grace_s: float = 5.0
    vital: bool = False
    parent_dies: signal.Signals = signal.SIGKILL
    listens: tuple[Address, ...] = ()


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return only the variables that any process needs to run: the store and the model need none of our keys."""

    def harmless(name: str) -> bool:
        return name in _HARMLESS or (name.startswith(_HARMLESS_PREFIXES) and not name.endswith("_KEY"))

    return {name: value for name, value in environ.items() if harmless(name)}


def backoff_s(failures: int) -> float:
    """Return the seconds to wait before the next start: 0 after the first failure, then doubling from 0.25 to 30."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_S, 0.25 * 2.0 ** min(failures - 2, 10))


class Child:
    """Run one child: `run()` keeps it alive until `stop()`.

    `settled` is set once its first start has succeeded or failed for good; `ready` is whether it is ready now.
    """

    def __init__(self, spec: ChildSpec, say: Say) -> None:
        self.spec = spec
        self.ready = False
        self.settled = asyncio.Event()
        self._say = say
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self._ever_ready = False
        self._outage_since: float | None = None
        self._listeners: dict[Address, socket.socket] = {}

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Start and restart the child until `stop()`.

        Raises CannotStart if it is vital and cannot start, or if an address that it listens at is taken.
        """
        try:
            for host, port in self.spec.listens:
                try:
                    self._listeners[host, port] = bound(host, port)
                except OSError as error:
                    raise CannotStart(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
            await self._keep_alive()
        finally:
            self._close_listeners()

    async def _keep_alive(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            started, log_from = time.monotonic(), rotate_log(self.spec.log)
            how = await self._live()
            if self._stopping.is_set():
                break
            was_ready, self.ready = self.ready, False
            stable = was_ready and time.monotonic() - started >= STABLE_S
            failures = 1 if stable else failures + 1
            self._judge(how, failures, log_from)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_s(failures))

    async def stop(self) -> None:
        """Send SIGTERM, wait up to `stop_grace_s` seconds, and send SIGKILL to what is left of its session."""
        self._stopping.set()
        self._close_listeners()  # so that connections are refused as soon as the child takes no more
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self.spec.stop_grace_s)
            except TimeoutError:
                self._say(f"{self.spec.name} did not stop within {self.spec.stop_grace_s:g} s; killed")
        self.kill()
        await process.wait()

    def kill(self) -> None:
        """Send SIGKILL to the child and to all processes of its session."""
        self._stopping.set()
        if self._process is not None:
            _kill_session(self._process.pid)

    async def _live(self) -> str:
        """Start the process and wait for its end; return in words how it ended."""
        with self._open_log() as log:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    *self.spec.argv,
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    env={**self.spec.env, **handing_over(self._listeners)},
                    pass_fds=[listening.fileno() for listening in self._listeners.values()],
                    start_new_session=True,  # so that a Ctrl-C in the terminal reaches the supervisor only
                    preexec_fn=death_signal(self.spec.parent_dies),
                )
            except OSError as error:
                return f"could not be started ({error.strerror or error})"
        if self._stopping.is_set():  # stop() was called while the process was being started, and did not see it
            self.kill()
        exit_code = await self._watch(process)
        _kill_session(process.pid)  # processes that a killed child leaves behind would hold its port
        return f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exited with code {exit_code}"

    def _open_log(self) -> BinaryIO:
        """Open the child's log for appending; if that fails, report it and use the null device."""
        try:
            return self.spec.log.open("ab")
        except OSError as error:
            self._say(f"{self.spec.name} runs without a log: cannot write {self.spec.log} ({error.strerror or error})")
            return Path(os.devnull).open("ab")

    async def _watch(self, process: Process) -> int:
        exited = asyncio.create_task(process.wait())
        while not exited.done():
            if not self._stopping.is_set():
                probe = asyncio.ensure_future(self.spec.is_ready())  # waits, where a socket is held for the child
                await asyncio.wait({exited, probe}, return_when=asyncio.FIRST_COMPLETED)
                if not probe.done():
                    probe.cancel()
                elif probe.result():
                    self._note_ready()
                    break
            await asyncio.wait({exited}, timeout=PROBE_EVERY_S)
        return await exited

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.popitem()[1].close()

    def _note_ready(self) -> None:
        self.ready = self._ever_ready = True
        if self._outage_since is not None:
            self._say(f"{self.spec.name} is back after {time.monotonic() - self._outage_since:.1f} s")
            self._outage_since = None
        self.settled.set()

    def _judge(self, how: str, failures: int, log_from: int) -> None:
        """Report this end if it is news; raise CannotStart if the child is vital and cannot start."""
        note_end(self.spec.log, how)
        if self._outage_since is None:
            self._outage_since = time.monotonic()
            if self._ever_ready:
                self._say(f"{self.spec.name} {how}; restarting it (log: {self.spec.log})")
        # A restart would fail in the same way until a person changes something.
        needs_a_person = not self._ever_ready and how == f"exited with code {Exit.NOT_DONE}"
        if not needs_a_person and failures != QUICK_FAILURES:
            return
        lines = "".join(f"\n    {line}" for line in last_lines(self.spec.log, log_from))
        what = f"{self.spec.name} {how}" if needs_a_person else f"{self.spec.name} {how}, {failures} times in a row"
        if self.spec.vital and not self._ever_ready:
            raise CannotStart(f"{what}; the end of its log ({self.spec.log}):{lines}")
        self._say(
            f"{what}; restarting it at intervals of up to {MAX_BACKOFF_S:g} s. "
            f"The end of its log ({self.spec.log}):{lines}"
        )
        self.settled.set()


def _kill_session(leader: int) -> None:
    # The process group outlives its leader while it has members; without members there is nothing to signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def note_end(log: Path, how: str) -> None:
    """Write an unexpected end of the process with this log; the latest _MOST_ENDS are kept. Errors are passed over."""
    file = log.with_name(log.name.removesuffix(".log") + ".ends")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = file.read_text().splitlines() if file.is_file() else []
        lines = [*lines, f"{time.time():.3f} {how}"][-_MOST_ENDS:]
        write_private(file, "".join(f"{line}\n" for line in lines).encode())
