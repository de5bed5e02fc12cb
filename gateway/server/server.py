"""Run uvicorn with uvloop and httptools, in this process or, by a part, in several worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import math
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from gateway.assembly import build
from gateway.config.launch import CannotServe, Launch
from gateway.exit_codes import Exit
from gateway.request.load_shedding import room_for_bodies
from gateway.seams import configure_logging, serve_by_workers, shared_metrics
from gateway.server.app import App
from gateway.server.descriptors import fitted_limits, raise_limit
from gateway.server.http_protocol import HttpProtocol
from gateway.server.listeners import BACKLOG, listen
from gateway.server.process import Server
from routing.difficulty.model import ArtefactError
from routing.embedder import EmbedderUnavailable

if TYPE_CHECKING:
    from gateway.config.schema import Deployment, Limits
    from gateway.steps import Steps

_CUT_OFF_S: Final = 2
"""Seconds that requests cancelled at the end of `limits.finish` have to send their last event."""
_GC_THRESHOLD: Final = 20_000


def serve(launch: Launch, deployment: Deployment) -> int:
    """Serve until SIGINT or SIGTERM, finish the requests in progress, and return the exit code.

    `deployment` is the one that `launch` loads. Raises CannotServe, and ConfigError for invalid policies.
    """
    configure_logging(deployment)
    raise_limit(deployment)
    listening = listen(*deployment.addresses)
    with shared_metrics(launch.workers) as lost:
        if launch.workers > 1:
            return serve_by_workers(launch, deployment, listening, lost)
        return _serve_here(built(launch, deployment), launch.config_file, listening)


def _serve_here(steps: Steps, config: Path, listening: list[socket.socket]) -> int:
    server = server_of(steps, config)
    server.run(listening)
    if not server.started:
        return Exit.NOT_DONE
    return Exit.INTERRUPTED if server.force_exit else Exit.OK


def server_of(steps: Steps, config: Path | None = None) -> Server:
    """Return the server of a single-process gateway, to be run with a listening socket; `config` is its file."""
    return Server(config_of(App(steps, config), steps.deployment.limits))


def settle_memory() -> None:
    """Exempt the objects built so far from garbage collection, make collections less frequent, and give back memory.

    `built` lets nothing be collected: half a million objects would be scanned again and again, for 1,500 of garbage.
    Requests leave hardly any reference cycles, but their traces live for a while; at the default threshold the
    collector would scan them, and everything imported, again and again. glibc keeps what reading the models has freed;
    other C libraries have no `malloc_trim`.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)
    gc.enable()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def built(launch: Launch, deployment: Deployment) -> Steps:
    """Build the services of one process. Raises CannotServe and ConfigError."""
    deployment = fitted_limits(deployment)
    room = room_for_bodies(deployment.limits, launch.workers)
    limits = deployment.limits.model_copy(update={"bodies": room})
    deployment = deployment.model_copy(update={"limits": limits})
    gc.disable()
    try:
        steps = build(deployment, launch.policy_source(deployment))
    except (ArtefactError, EmbedderUnavailable, ValueError) as error:
        # A ValueError here means an invalid value from outside, such as an OTEL_* environment variable.
        raise CannotServe(str(error)) from None
    finally:
        settle_memory()
    return steps


def _web_socket(**of: Any) -> asyncio.Protocol:
    """Return the protocol of an open WebSocket, which the part has that answers it."""
    protocol: asyncio.Protocol = of["app_state"]["socket_protocol"](**of)
    return protocol


def config_of(app: Any, limits: Limits, **more: Any) -> uvicorn.Config:
    """Return uvicorn's settings for an application, or for what makes it, with `more` of them."""
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
