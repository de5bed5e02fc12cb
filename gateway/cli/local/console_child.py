"""Run the console as a child process: `tierline console`, on the store and the ledger of `up`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.cli.local.child import ChildSpec, without_secrets
from gateway.cli.local.gateway_child import Listen
from gateway.cli.local.http_probe import get
from gateway.cli.local.state import StateFolder

NAME = "console"


def console_child(
    config: Path | None,
    policies: Path | None,
    listen: Listen,
    gateway: str,
    store_url: str,
    environ: Mapping[str, str],
    state: StateFolder,
) -> ChildSpec:
    """Return the spec of the console's process. Nothing depends on it: what it cannot do, it says on its pages.

    `gateway` is the address that its playground sends requests to, `environ` what its config needs to be loaded.
    """
    argv = [sys.executable, "-m", "gateway", "console", "--state", str(state.path), "--gateway", gateway]
    argv += ["--host", listen.host, "--port", str(listen.port), *(["--config", str(config)] if config else [])]
    argv += ["--policies", str(policies)] if policies else []
    env = {**without_secrets(os.environ), **environ, "TIERLINE_STORE_URL": store_url}
    return ChildSpec(
        name=NAME,
        argv=tuple(argv),
        env=env,
        log=state.log(NAME),
        is_ready=lambda: _answers(listen),
        stop_grace_s=4.0,
        parent_dies=signal.SIGTERM,
    )


async def _answers(listen: Listen) -> bool:
    status, _ = await get(listen.reachable_host, listen.port, "/healthz")
    return status == 200
