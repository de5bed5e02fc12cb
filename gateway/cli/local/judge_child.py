"""Judge candidates as a child process: `tierline policy judge`, on the store and the ledger of `up`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cache.store.base import StoreUnavailable
from gateway.cli.local.child import ChildSpec, without_secrets
from gateway.cli.local.state import StateFolder
from gateway.registry.records import JUDGE

NAME = "judge"


def judge_child(folder: Path | None, store_url: str, state: StateFolder) -> ChildSpec:
    """Return the spec of the process that judges candidates, with the ledger in `folder` or else in the state folder.

    It is ready once a judge is at work, this one or another on the same store.
    """
    target = folder or state.path / "ledger"
    return ChildSpec(
        name=NAME,
        argv=(sys.executable, "-m", "gateway", "policy", "judge", "--dir", str(target), "--state", str(state.path)),
        env={**without_secrets(os.environ), "TIERLINE_STORE_URL": store_url},
        log=state.log(NAME),
        is_ready=lambda: _is_judged(store_url),
        parent_dies=signal.SIGTERM,  # it gives its lease back
    )


async def _is_judged(store_url: str) -> bool:
    from cache.store.redis_store import RedisStore  # imported here: needed only where policies come from the store

    store = RedisStore.from_url(store_url)
    try:
        return await store.get(JUDGE) is not None
    except StoreUnavailable:
        return False
    finally:
        await store.aclose()
