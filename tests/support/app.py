"""Runs the gateway's ASGI application in this process, over scripted upstreams: where no socket of ours matters.

async with in_process(folder, local=local.url) as app:
    reply = await app.ask("hello")
    app.steps.embedder.embedder = Broken()    # any part can be changed or looked at
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from cache.store.redis_store import RedisStore
from gateway.assembly import build, running
from gateway.config.launch import Launch
from gateway.parts.apis.service import ServiceClient
from gateway.parts.services.part import Services
from gateway.server.app import App
from gateway.steps import Steps
from tests.support.gateway import config, secrets_of, write_deployment
from tests.support.store import UNHURRIED


@dataclass(frozen=True)
class InProcess:
    """A running application and a client of it."""

    steps: Steps
    client: httpx2.AsyncClient

    async def ask(self, question: str = "hello", headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        """The response to one chat completion; `more` are further members of the body."""
        body = {"model": "chat", "messages": [{"role": "user", "content": question}], **more}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Any:
        """The response to a GET."""
        return await self.client.get(path, headers=headers)

    def service(self, name: str) -> ServiceClient:
        """The client of a service."""
        return next(api for api in self.steps.client_apis if isinstance(api, Services)).clients[name]

    async def stored(self, question: str = "hello", **more: Any) -> bool:
        """Whether this very request would be answered from the store. A store that had no time is asked again."""
        headers = {"x-tierline-cache": "only-if-cached", "x-tierline-debug": "1"}
        while True:
            answer = await self.ask(question, headers, **more)
            assert answer.status_code in (200, 504), answer.text
            if "cache.exact: timeout" not in answer.headers["x-tierline-reason"]:
                return bool(answer.status_code == 200)

    async def kept(self, question: str = "hello", **more: Any) -> None:
        """Returns once the answer to this request is in the store: its write is done after the reply."""
        async with asyncio.timeout(30):
            while not await self.stored(question, **more):
                await asyncio.sleep(0.002)


@asynccontextmanager
async def in_process(
    folder: Path,
    local: str,
    hosted: str | None = None,
    *,
    store_url: str | None = None,
    policies: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[InProcess]:
    """The application over these tiers, with the arguments of `tests.support.gateway.serve`."""
    write_deployment(folder, config(local, hosted, store_url, **(settings or {})), policies)
    launch = Launch(config=folder / "tierline.yaml", policies=folder / "policies")
    deployment = launch.deployment(secrets_of(hosted, env))
    store = None if store_url is None else RedisStore.from_url(store_url, slack=UNHURRIED)
    steps = build(deployment, launch.policy_source(deployment), store=store)
    transport = httpx2.ASGITransport(app=App(steps), raise_app_exceptions=False)
    async with running(steps), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield InProcess(steps, client)
