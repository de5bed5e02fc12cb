"""One child process of the supervisor: started in a session of its own, watched, restarted, stopped in bounded time.

    starting --ready--> ready --exit--> down --(backoff)--> starting ... --stop()--> stopped

An outage is said once, when it begins, and once when it ends; tries in between are silent. A child that fails
`QUICK_FAILURES` times in a row is said with the last lines of its log, and tried again ever more rarely; a vital one
that was never ready ends the supervisor instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway.cli.local import CannotStart
from gateway.cli.local.logs import rotate, tail
from gateway.cli.local.parent import death_signal
from gateway.exit_codes import Exit

QUICK_FAILURES = 5
STABLE_S = 10.0
MAX_BACKOFF_S = 30.0
PROBE_EVERY_S = 0.05

Say = Callable[[str], None]

_HARMLESS = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
)
_HARMLESS_PREFIXES = ("CUDA_", "DYLD_", "GGML_", "LC_", "LD_", "LLAMA_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start one child and how to see that it is ready.

    `parent_dies` is the signal the kernel sends it when the supervisor is gone (Linux). `stop_grace_s` is what it gets
    between SIGTERM and SIGKILL. A `vital` child that cannot start ends the supervisor.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    is_ready: Callable[[], Awaitable[bool]]
    stop_grace_s: float = 5.0
    vital: bool = False
    parent_dies: signal.Signals = signal.SIGKILL


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the variables that a process needs to run, and no others: the store and the model need none of our keys."""
    return {name: value for name, value in environ.items() if name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES)}


def backoff_s(failures: int) -> float:
    """Seconds to wait before the next start: none after the first failure, then doubling from a quarter."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_S, 0.25 * 2.0 ** min(failures - 2, 10))


class Child:
    """One child and its watcher: `run()` keeps it alive until `stop()`.

    `settled` is set once its first start is decided, one way or the other.
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

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Starts and restarts the child until `stop()`. Raises CannotStart when a vital child cannot."""
        failures = 0
        while not self._stopping.is_set():
            started, log_from = time.monotonic(), rotate(self.spec.log)
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
        """SIGTERM, `stop_grace_s`, SIGKILL to whatever is left of its session."""
        self._stopping.set()
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
        """SIGKILL to the child and to everything it started, now."""
        self._stopping.set()
        if self._process is not None:
            _kill_session(self._process.pid)

    async def _live(self) -> str:
        """One life of the process, to its end; returns how it ended, in words."""
        with self._open_log() as log:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    *self.spec.argv,
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    env=dict(self.spec.env),
                    start_new_session=True,  # a Ctrl-C in the terminal is the supervisor's to handle
                    preexec_fn=death_signal(self.spec.parent_dies),
                )
            except OSError as error:
                return f"could not be started ({error.strerror or error})"
        if self._stopping.is_set():  # stop() came while the process was being made, and could not see it
            self.kill()
        exit_code = await self._watch(process)
        _kill_session(process.pid)  # what a killed child leaves behind would hold its port
        return f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exited with code {exit_code}"

    def _open_log(self) -> BinaryIO:
        """The child's log, to be appended to; where a full disk or a wrong path has none, what it says is lost."""
        try:
            return self.spec.log.open("ab")
        except OSError as error:
            self._say(f"{self.spec.name} runs without a log: cannot write {self.spec.log} ({error.strerror or error})")
            return Path(os.devnull).open("ab")

    async def _watch(self, process: Process) -> int:
        exited = asyncio.create_task(process.wait())
        while not exited.done():
            if not self._stopping.is_set() and await self.spec.is_ready():
                self._note_ready()
                break
            await asyncio.wait({exited}, timeout=PROBE_EVERY_S)
        return await exited

    def _note_ready(self) -> None:
        self.ready = self._ever_ready = True
        if self._outage_since is not None:
            self._say(f"{self.spec.name} is back after {time.monotonic() - self._outage_since:.1f} s")
            self._outage_since = None
        self.settled.set()

    def _judge(self, how: str, failures: int, log_from: int) -> None:
        """Says what is new about this end, and ends the supervisor when a vital child has no chance."""
        if self._outage_since is None:
            self._outage_since = time.monotonic()
            if self._ever_ready:
                self._say(f"{self.spec.name} {how}; restarting it (log: {self.spec.log})")
        # Started again it would fail just so, until a person changes something.
        needs_a_person = not self._ever_ready and how == f"exited with code {Exit.NOT_DONE}"
        if not needs_a_person and failures != QUICK_FAILURES:
            return
        lines = "".join(f"\n    {line}" for line in tail(self.spec.log, log_from))
        what = f"{self.spec.name} {how}" if needs_a_person else f"{self.spec.name} {how}, {failures} times in a row"
        if self.spec.vital and not self._ever_ready:
            raise CannotStart(f"{what}; its last words (all of them in {self.spec.log}):{lines}")
        self._say(
            f"{what}; tried again, every {MAX_BACKOFF_S:g} s in the end. Its last words (log: {self.spec.log}):{lines}"
        )
        self.settled.set()


def _kill_session(leader: int) -> None:
    # A session leader's group outlives it while members remain; without members there is nothing to signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
