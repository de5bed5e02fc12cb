"""A console over requests that a test gives."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import httpx2

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.recorder.decision_record import DecisionRecorder
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, Ledger, ledger_blob
from gateway.telemetry.trace import Trace

CONFIG = """
policies: {source: files}
tiers:
  - {name: local, backends: [{name: small, kind: scripted,
                              price: {input: 1, output: 5, cached_input: 0.1, cache_write: 1.25},
                              script: [{reply: {text: Hello.}}]}]}
  - {name: hosted, backends: [{name: large, kind: scripted, price: {input: 3, output: 15, cached_input: 0.3},
                               script: [{reply: {text: Hello.}}]}]}
"""


async def record(store: RedisStore, ledgers: Iterable[Ledger]) -> None:
    """Record requests."""
    recorder = DecisionRecorder({})
    for ledger in ledgers:
        trace = Trace(names.REQUEST)
        trace.root.end()
        await store.apply([Append(TRACES, ledger_blob(trace, ledger, recorder), 100_000)])


@contextlib.asynccontextmanager
async def console(folder: Path, store: RedisStore, ledgers: Sequence[Ledger]) -> AsyncIterator[httpx2.AsyncClient]:
    """A console that has seen these requests."""
    await record(store, ledgers)
    config = folder / "tierline.yaml"
    config.write_text(CONFIG)
    launch = Launch(config=config)
    deployment = launch.deployment()
    places = PolicyPlaces(deployment, launch.policy_source(deployment), folder, config, f"redis://{store}")
    archive = LiveArchive(folder, store)
    try:
        await archive.catch_up()
        app = ConsoleApp(archive, store, places, ConsoleAccess({})).asgi()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8790") as client:
            yield client
    finally:
        await archive.aclose()
