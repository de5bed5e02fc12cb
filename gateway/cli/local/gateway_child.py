"""Start the gateway as a child process: `tierline serve`, with the URLs of the store and the local model."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.local.child import ChildSpec
from gateway.cli.local.http_probe import get
from gateway.cli.local.state import StateFolder
from gateway.server.listeners import Address

NAME = "gateway"
_STOP_GRACE_S = 30.0
"""Seconds before SIGKILL; more than the gateway's `limits.drain` and `limits.finish` together (by default 22 s)."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Address of the gateway, and its number of workers."""

    host: str
    port: int
    workers: int

    @property
    def reachable_host(self) -> str:
        """The host by which this machine reaches it: loopback if it listens on a wildcard address."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104

    @property
    def url(self) -> str:
        """The URL `http://HOST:PORT` for clients on this machine."""
        host = self.reachable_host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def gateway_child(
    listen: Listen,
    listens: tuple[Address, ...],
    config: Path | None,
    policies: Path | None,
    extra_env: Mapping[str, str],
    state: StateFolder,
) -> ChildSpec:
    """Return the gateway's spec; `extra_env` holds the URLs of the store and the local model, for its environment.

    `listens` are all addresses that it listens at, with the admin API's.
    """
    env = {**os.environ, **extra_env}
    if listen.workers > 1:  # the workers share their metrics through this folder; each start of the gateway empties it
        env["PROMETHEUS_MULTIPROC_DIR"] = str((state.path / "metrics").resolve())
    argv = [sys.executable, "-m", "gateway", "serve"]
    argv += ["--host", listen.host, "--port", str(listen.port), "--workers", str(listen.workers)]
    argv += ["--config", str(config)] if config else []
    argv += ["--policies", str(policies)] if policies else []
    return ChildSpec(
        name=NAME,
        argv=tuple(argv),
        env=env,
        log=state.log(NAME),
        is_ready=lambda: _is_alive(listen),
        stop_grace_s=_STOP_GRACE_S,
        vital=True,
        parent_dies=signal.SIGTERM,  # SIGKILL would leave its worker processes running
        listens=listens,
    )


async def _is_alive(listen: Listen) -> bool:
    status, _ = await get(listen.reachable_host, listen.port, "/healthz")
    return status == 200
