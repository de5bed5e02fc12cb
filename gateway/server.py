"""The server process: uvicorn with uvloop and httptools, one worker in this process or several in their own.

Workers are spawned, so what they serve reaches them as text: the command line that was given, in one variable.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from gateway.app import App
from gateway.assembly import build
from gateway.commands import CommandError
from gateway.commands._flags import deployment_of, policies_of
from gateway.services import Services
from gateway.settings import Deployment
from gateway.telemetry.metrics import METRICS_FOLDER, worker_died
from policies.errors import ConfigError
from policies.loader import PolicySource
from routing.difficulty import ArtefactError
from routing.embedder import EmbedderUnavailable

_ARGUMENTS: Final = "TIERLINE_SERVE_ARGUMENTS"
_PASSED_ON: Final[dict[str, Callable[[str], Any]]] = {"host": str, "port": int, "config": Path, "policies": Path}
_KEEP_ALIVE_S: Final = 75
_DRAIN_S: Final = 20
_BACKLOG: Final = 2048
_GC_THRESHOLD: Final = 20_000
_BROKEN_ON_PURPOSE: Final = "ASGI callable returned without completing response."


def serve(deployment: Deployment, source: PolicySource, args: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM, then finishes what is in flight; the exit code."""
    listening = listen(deployment.host, deployment.port)
    if args.workers == 1:
        server = uvicorn.Server(_config(App(_built(deployment, source))))
        _stop_quietly()
        server.run([listening])
        return 0 if server.started else 1
    os.environ[_ARGUMENTS] = orjson.dumps({name: _as_text(getattr(args, name)) for name in _PASSED_ON}).decode()
    config = _config("gateway.server:worker", factory=True, workers=args.workers)
    _stop_quietly()
    with _shared_metrics():
        workers = _Workers(config, sockets=[listening])
        workers.run()
    return 1 if any(process.exitcode == STARTUP_FAILURE for process in workers.processes) else 0


class _Workers(Multiprocess):
    """uvicorn's worker processes; a dead one's gauges go with it."""

    def keep_subprocess_alive(self) -> None:
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            if pid is not None:
                worker_died(pid)


@contextmanager
def _shared_metrics() -> Iterator[None]:
    """A folder through which the workers' metrics are added up, unless `tierline up` has already named one."""
    if METRICS_FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tierline-metrics-") as folder:
        os.environ[METRICS_FOLDER] = folder
        yield


def worker() -> App:
    """The application of one worker process, from the command line its parent was given."""
    configure_logging()
    texts: dict[str, str] = orjson.loads(os.environ[_ARGUMENTS])
    given = {name: read(texts[name]) if texts[name] else None for name, read in _PASSED_ON.items()}
    args = argparse.Namespace(**given)
    try:
        deployment = deployment_of(args)
        return App(_built(deployment, policies_of(args, deployment)))
    except (CommandError, ConfigError) as error:
        # The next one would fail just so: this exit code has the parent give up.
        sys.stderr.write(f"tierline: {error}\n")
        sys.exit(STARTUP_FAILURE)


def _as_text(value: object) -> str:
    return "" if value is None else str(value)


def _stop_quietly() -> None:
    """uvicorn raises the signal that stopped it once more; a clean stop is an exit code of 0."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _settle() -> None:
    """Takes what was built out of the garbage collector's sight, and has it look less often.

    Requests leave hardly any cycles behind, but their traces live for a while; at the default threshold the collector
    walked them, and everything imported, over and over.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)


def _built(deployment: Deployment, source: PolicySource) -> Services:
    try:
        services = build(deployment, source)
    except (ArtefactError, EmbedderUnavailable) as error:
        raise CommandError(str(error)) from None
    _settle()
    return services


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; raises CommandError, in one clear line, when the address cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.set_inheritable(True)
    except OSError as error:
        raise CommandError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listening


def configure_logging() -> None:
    """Warnings and worse, on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _BROKEN_ON_PURPOSE)


def _config(app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
        **more,
    )
