"""Keep the ledger in files as a child process: `tierline ledger keep`, on the state folder and the store of `up`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.cli.local.child import ChildSpec, without_secrets
from gateway.cli.local.state import StateFolder

NAME = "ledger"


def ledger_child(
    config: Path | None, folder: Path | None, store_url: str, environ: Mapping[str, str], state: StateFolder
) -> ChildSpec:
    """Return the spec of the process that keeps the ledger, in `folder` or else in the state folder.

    It is ready when it has opened its files, and is started before the gateway: so it is stopped after it, and reads
    the gateway's last records. `environ` is what its config needs to be loaded.
    """
    target = folder or state.path / "ledger"
    argv = [sys.executable, "-m", "gateway", "ledger", "keep", "--dir", str(target), "--state", str(state.path)]
    argv += ["--config", str(config)] if config else []
    env = {**without_secrets(os.environ), **environ, "TIERLINE_STORE_URL": store_url}
    return ChildSpec(
        name=NAME,
        argv=tuple(argv),
        env=env,
        log=state.log(NAME),
        is_ready=lambda: _has_begun(target),
        stop_grace_s=8.0,
        parent_dies=signal.SIGTERM,  # it writes what the store still has
    )


async def _has_begun(folder: Path) -> bool:
    return (folder / "requests.jsonl").exists()
