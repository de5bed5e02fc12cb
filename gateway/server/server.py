"""Run uvicorn with uvloop and httptools, in this process or in several worker processes.

Worker processes are spawned, so their settings (a Launch) are passed as text in the variable TIERLINE_LAUNCH.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from gateway.assembly import build
from gateway.config.launch import CannotServe, Launch
from gateway.exit_codes import Exit
from gateway.request.load_shedding import room_for_bodies
from gateway.seams import shared_metrics
from gateway.server.app import App
from gateway.server.descriptors import fitted_limits, raise_limit
from gateway.server.http_protocol import HttpProtocol
from gateway.server.listeners import BACKLOG, listen
from gateway.server.process import Server, Worker
from gateway.telemetry.logs import configure_logging
from policies.errors import ConfigError
from routing.difficulty.model import ArtefactError
from routing.embedder import EmbedderUnavailable

if TYPE_CHECKING:
    from gateway.config.schema import Deployment, Limits
    from gateway.steps import Steps

_LAUNCH: Final = "TIERLINE_LAUNCH"
_CUT_OFF_S: Final = 2
"""Seconds that requests cancelled at the end of `limits.finish` have to send their last event."""
_UNANSWERED_S: Final = 30
"""Seconds within which a worker must answer its supervisor. On a machine without a core to spare a worker that imports
its modules may take more than uvicorn's 5 s, and would be killed and started again, for ever.
"""
_GC_THRESHOLD: Final = 20_000
_BROKEN_ON_PURPOSE: Final = "ASGI callable returned without completing response."
"""uvicorn's error for an incomplete reply; not logged, because the gateway ends replies early on purpose."""


def serve(launch: Launch, deployment: Deployment) -> int:
    """Serve until SIGINT or SIGTERM, finish the requests in progress, and return the exit code.

    `deployment` is the one that `launch` loads. Raises CannotServe, and ConfigError for invalid policies.
    """
    _configure_logging(deployment)
    raise_limit(deployment)
    listening = listen(*deployment.addresses)
    with shared_metrics(launch.workers) as lost:
        if launch.workers > 1:
            return _serve_by_workers(launch, deployment, listening, lost)
        return _serve_here(built(launch, deployment), launch.config_file, listening)


def _serve_here(steps: Steps, config: Path, listening: list[socket.socket]) -> int:
    server = server_of(steps, config)
    server.run(listening)
    if not server.started:
        return Exit.NOT_DONE
    return Exit.INTERRUPTED if server.force_exit else Exit.OK


def server_of(steps: Steps, config: Path | None = None) -> Server:
    """Return the server of a single-process gateway, to be run with a listening socket; `config` is its file."""
    return Server(_config(App(steps, config), steps.deployment.limits))


def _serve_by_workers(
    launch: Launch, deployment: Deployment, listening: list[socket.socket], lost: Callable[[int], None]
) -> int:
    os.environ[_LAUNCH] = launch.to_text()
    config = _config(
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
    launch = Launch.from_text(os.environ[_LAUNCH])
    try:
        deployment = launch.deployment()
        _configure_logging(deployment)
        return App(built(launch, deployment), launch.config_file)
    except (CannotServe, ConfigError) as error:
        # A replacement would fail in the same way: this exit code makes the parent stop.
        sys.stderr.write(f"tierline: {error}\n")
        sys.exit(STARTUP_FAILURE)


def settle_memory() -> None:
    """Exempt the objects built so far from garbage collection, make collections less frequent, and give back memory.

    Requests leave hardly any reference cycles, but their traces live for a while; at the default threshold the
    collector would scan them, and everything imported, again and again. glibc keeps what reading the models has freed;
    other C libraries have no `malloc_trim`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def built(launch: Launch, deployment: Deployment) -> Steps:
    """Build the services of one process. Raises CannotServe and ConfigError."""
    deployment = fitted_limits(deployment)
    room = room_for_bodies(deployment.limits, launch.workers)
    limits = deployment.limits.model_copy(update={"bodies": room})
    deployment = deployment.model_copy(update={"limits": limits})
    try:
        steps = build(deployment, launch.policy_source(deployment))
    except (ArtefactError, EmbedderUnavailable, ValueError) as error:
        # A ValueError here means an invalid value from outside, such as an OTEL_* environment variable.
        raise CannotServe(str(error)) from None
    settle_memory()
    return steps


def _configure_logging(deployment: Deployment) -> None:
    configure_logging(deployment.log)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _BROKEN_ON_PURPOSE)


def _web_socket(**of: Any) -> asyncio.Protocol:
    """Return the protocol of an open WebSocket, which the part has that answers it."""
    protocol: asyncio.Protocol = of["app_state"]["socket_protocol"](**of)
    return protocol


def _config(app: Any, limits: Limits, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=HttpProtocol,
        ws=_web_socket,  # type: ignore[arg-type]
        ws_max_size=limits.body,
        ws_ping_timeout=limits.stall,
        ws_per_message_deflate=False,
        lifespan="on",
        interface="asgi3",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=math.ceil(limits.finish) + _CUT_OFF_S,
        **more,
    )
