"""Supervise uvicorn's worker processes.

They are spawned, so their settings (a Launch) are passed as text in the variable TIERLINE_LAUNCH.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from gateway.config.launch import CannotServe, Launch
from gateway.exit_codes import Exit
from gateway.parts.workers.worker import Worker
from gateway.seams import configure_logging
from gateway.server.app import App
from gateway.server.server import built, config_of
from policies.errors import ConfigError

if TYPE_CHECKING:
    from gateway.config.schema import Deployment

_LAUNCH: Final = "TIERLINE_LAUNCH"
_UNANSWERED_S: Final = 30
"""Seconds within which a worker must answer its supervisor. On a machine without a core to spare a worker that imports
its modules may take more than uvicorn's 5 s, and would be killed and started again, for ever.
"""


def serve_by_workers(
    launch: Launch, deployment: Deployment, listening: list[socket.socket], lost: Callable[[int], None]
) -> int:
    """Serve in several processes until a signal; return the exit code."""
    os.environ[_LAUNCH] = orjson.dumps(asdict(launch), default=str).decode()
    config = config_of(
        f"{__name__}:worker",
        deployment.limits,
        factory=True,
        workers=launch.workers,
        timeout_worker_healthcheck=_UNANSWERED_S,
    )
    workers = _Workers(config, listening, lost)
    workers.run()
    if any(process.exitcode == STARTUP_FAILURE for process in workers.processes):
        return Exit.NOT_DONE
    return Exit.INTERRUPTED if workers.forced else Exit.OK


# uvicorn makes workers in several places (start, replacement, reload) by this module global, so it is replaced.
multiprocess.Process = Worker  # type: ignore[misc]


class _Workers(multiprocess.Multiprocess):
    """Supervise uvicorn's worker processes, and tell `lost` the ids of those that ended by themselves."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], lost: Callable[[int], None]) -> None:
        super().__init__(config, sockets)
        self.forced = False
        self._stops = 0
        self._lost = lost
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_stop)

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        """Queue the first signal for uvicorn, which passes it on within half a second; pass further ones on at once."""
        self._stops += 1
        self.signal_queue.append(number)
        if self._stops > 1:
            self.forced = True
            for process in self.processes:
                process.terminate()

    def keep_subprocess_alive(self) -> None:
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            if pid is not None:
                self._lost(pid)


def worker() -> App:
    """Return the application of one worker process; uvicorn calls this in the worker."""
    fields: dict[str, Any] = orjson.loads(os.environ[_LAUNCH])
    paths = {name: Path(fields[name]) for name in ("config", "policies") if fields[name] is not None}
    launch = Launch(**{**fields, **paths})
    try:
        deployment = launch.deployment()
        configure_logging(deployment)
        return App(built(launch, deployment), launch.config_file)
    except (CannotServe, ConfigError) as error:
        # A replacement would fail in the same way: this exit code makes the parent stop.
        sys.stderr.write(f"tierline: {error}\n")
        sys.exit(STARTUP_FAILURE)
