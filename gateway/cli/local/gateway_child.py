"""The gateway as a child: `tierline serve`, told where the store and the local model are."""

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

NAME = "gateway"
_STOP_GRACE_S = 30.0
"""More than its drain window and the time it gives requests to finish, together: none of them is cut by us."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the gateway listens, and with how many workers."""

    host: str
    port: int
    workers: int

    @property
    def reachable_host(self) -> str:
        """The host under which this machine reaches it: a wildcard address is none."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, as a client on this machine writes it."""
        host = self.reachable_host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def gateway_child(
    listen: Listen, config: Path | None, policies: Path | None, found: Mapping[str, str], state: StateFolder
) -> ChildSpec:
    """The child; `found` is what the supervisor adds to the environment: the URLs of the store and the local model."""
    env = {**os.environ, **found}
    if listen.workers > 1:  # through it they add up their metrics; each start of the gateway empties it
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
        parent_dies=signal.SIGTERM,  # SIGKILL would leave its workers behind
    )


async def _is_alive(listen: Listen) -> bool:
    status, _ = await get(listen.reachable_host, listen.port, "/healthz")
    return status == 200
