"""Start what Tierline runs as processes of its own: the gateway, the ledger's keeper, the canaries' judge, the console.

Each is a command, `python -m tierline ROLE`, told by the environment where the store and the local model are.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cache.store.base import StoreUnavailable
from gateway.config.addresses import open_store
from gateway.config.launch import Launch
from gateway.parts.local.child import ChildSpec, without_secrets
from gateway.parts.local.http_probe import get
from gateway.parts.local.state import StateFolder
from gateway.server.listeners import Address

CONSOLE = "console"
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

    async def is_alive(self) -> bool:
        """Return whether something there answers `GET /healthz` with 200."""
        return (await get(self.reachable_host, self.port, "/healthz"))[0] == 200


@dataclass(frozen=True, slots=True)
class Roles:
    """What the processes share. `known` are the variables that their config needs to be loaded, without any key."""

    launch: Launch
    state: StateFolder
    store_url: str
    ledger: Path
    known: Mapping[str, str]

    def gateway(self, listen: Listen, listens: tuple[Address, ...], extra_env: Mapping[str, str]) -> ChildSpec:
        """Return the gateway's spec; `extra_env` holds the URLs of the store and the local model.

        `listens` are all addresses that it listens at, with the admin API's.
        """
        env = {**os.environ, **extra_env}
        if listen.workers > 1:  # the workers share their metrics through this folder; each start empties it
            env["PROMETHEUS_MULTIPROC_DIR"] = str((self.state.path / "metrics").resolve())
        args = ["serve", "--host", listen.host, "--port", str(listen.port), "--workers", str(listen.workers)]
        args += self._files()
        return self._spec("gateway", args, listen.is_alive, _STOP_GRACE_S, env, vital=True, listens=listens)

    def keeper(self) -> ChildSpec:
        """Return the spec of the process that keeps the ledger in files; it is ready when it has opened them.

        Started before the gateway, it is stopped after it, and so reads the gateway's last records.
        """
        args = ["ledger", "keep", "--dir", str(self.ledger), "--state", str(self.state.path)]
        args += self._files(policies=False)

        async def has_begun() -> bool:
            return (self.ledger / "requests.jsonl").exists()

        return self._spec("ledger", args, has_begun, 8.0)

    def judge(self) -> ChildSpec:
        """Return the spec of the process that judges candidates; it is ready once a judge is at work on this store."""
        args = ["policy", "judge", "--dir", str(self.ledger), "--state", str(self.state.path)]
        env = {**without_secrets(os.environ), "TIERLINE_STORE_URL": self.store_url}
        return self._spec("judge", args, self._is_judged, 5.0, env)

    def console(self, listen: Listen, gateway: str) -> ChildSpec:
        """Return the console's spec; `gateway` is the address that it asks how the gateway stands.

        Nothing depends on it: what it cannot do, it says on its pages.
        """
        args = ["console", "--state", str(self.state.path), "--gateway", gateway]
        args += ["--host", listen.host, "--port", str(listen.port), *self._files()]
        return self._spec(CONSOLE, args, listen.is_alive, 4.0)

    def _files(self, *, policies: bool = True) -> list[str]:
        config, folder = self.launch.config, self.launch.policies if policies else None
        return [*(["--config", str(config)] if config else []), *(["--policies", str(folder)] if folder else [])]

    def _spec(
        self,
        name: str,
        args: list[str],
        is_ready: Callable[[], Awaitable[bool]],
        stop_grace_s: float,
        env: Mapping[str, str] | None = None,
        *,
        vital: bool = False,
        listens: tuple[Address, ...] = (),
    ) -> ChildSpec:
        return ChildSpec(
            name=name,
            argv=(sys.executable, "-m", "tierline", *args),
            env=env or {**without_secrets(os.environ), **self.known, "TIERLINE_STORE_URL": self.store_url},
            log=self.state.log(name),
            is_ready=is_ready,
            stop_grace_s=stop_grace_s,
            vital=vital,
            parent_dies=signal.SIGTERM,  # SIGKILL would leave workers running, and what is in hand unwritten
            listens=listens,
        )

    async def _is_judged(self) -> bool:
        from gateway.parts.rollout.registry.records import JUDGE

        store = open_store(self.store_url)
        try:
            return await store.get(JUDGE) is not None
        except StoreUnavailable:
            return False
        finally:
            await store.aclose()
