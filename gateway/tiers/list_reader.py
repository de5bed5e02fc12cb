"""Read from servers of open models how many tokens their models hold, so that no request has to be refused for it.

Only servers whose context nobody states are asked, and no provider of hosted models: `GET /models`, and llama.cpp's
`/props` where the list has no length. A server that does not answer yet is asked again, later each time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import BackendError, BadStatus
from gateway.backends.service import ServiceClient
from gateway.dialects.model_lengths import context_in_props, contexts_in
from gateway.tiers.lengths import KEPT_S

if TYPE_CHECKING:
    from pydantic import SecretStr

    from gateway.config.schema import BackendConfig
    from gateway.tiers.endpoint import Endpoint

_SOON_S: Final = 5.0
_LATEST_S: Final = 300.0
_SILENCE_S: Final = 10.0
_MOST_BYTES: Final = 4 << 20
_ANY: Final = ""


class ListReader:
    """Read the lists of one worker's servers with one task each. Start and close it on the worker's event loop."""

    def __init__(self, endpoints: Iterable[Endpoint], soon_s: float = _SOON_S) -> None:
        """Ask a server that does not answer again after `soon_s` seconds, and after twice the time before then."""
        self._servers: dict[tuple[str, SecretStr | None], list[Endpoint]] = {}
        for endpoint in endpoints:
            if _may_ask(endpoint.config):
                self._servers.setdefault((endpoint.config.base_url, endpoint.config.key), []).append(endpoint)
        self._soon_s = soon_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start one task for each server that is to be asked."""
        self._tasks = [
            asyncio.create_task(self._keep(endpoints), name=f"tierline.lengths.{endpoints[0].config.name}")
            for endpoints in self._servers.values()
        ]

    async def aclose(self) -> None:
        """Cancel the tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, endpoints: Sequence[Endpoint]) -> None:
        delay_s = self._soon_s
        while True:
            try:
                contexts = await _contexts(endpoints[0].config)
                for endpoint in endpoints:
                    endpoint.lengths.state(contexts.get(endpoint.config.model, contexts.get(_ANY)))
                await asyncio.sleep(KEPT_S)
                delay_s = self._soon_s
            except BackendError:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LATEST_S)


def _may_ask(config: BackendConfig) -> bool:
    """Return whether a backend's server is asked: one that may have a list, is nobody's service, and has no length."""
    speaks = config.kind in ("openai", "responses") and config.auth is None and config.http.proxy is None
    return speaks and config.configured and not config.provider and config.context is None


async def _contexts(config: BackendConfig) -> dict[str, int]:
    """Return the tokens that each model of a backend's server holds, and under `_ANY` those of a server of one model.

    Raises BackendError if the server cannot be reached, or is not ready.
    """
    root = config.base_url.removesuffix("/v1")
    key = None if config.key is None else config.key.get_secret_value()
    made = partial(ServiceClient, root, key, max_in_flight=1, max_reply=_MOST_BYTES)
    client = made(connect_timeout_s=config.connect_timeout, idle_timeout_s=_SILENCE_S)
    try:
        listed = await _read(client, f"{config.base_url[len(root) :]}/models")
        with contextlib.suppress(LookupError, TypeError, AttributeError):  # it is no list of models
            if contexts := contexts_in(listed["data"]):
                return contexts if len(listed["data"]) > 1 else {**contexts, _ANY: max(contexts.values())}
        context = context_in_props(await _read(client, "/props"))
        return {} if context is None else {_ANY: context}
    finally:
        await client.aclose()


async def _read(client: ServiceClient, path: str) -> Any:
    """Return the JSON at a path, None where there is none. Raises BackendError."""
    try:
        with contextlib.closing(await client.send("GET", path, {})) as reply:
            return orjson.loads(await reply.read())
    except BadStatus as refused:
        if refused.status >= 500:
            raise
    except orjson.JSONDecodeError:
        pass
    return None
