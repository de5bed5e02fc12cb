"""Ask servers of open models whether a model's chat template renders tools at all.

A template without them drops tools in silence: llama.cpp answers 200 and the model never hears of them, `tool_choice:
required` included. What a server counts in `usage` is no evidence, as some count no tools and others nothing cached. So
it is asked for what it would render, of the same short message with and without one tool; no token is generated.

    llama.cpp       POST /apply-template    {"prompt": ...}, the text
    vLLM            POST /tokenize          {"count": ...}, its length in tokens

Only where both replies come and do not differ are tools dropped. What another reply means is not guessed. Providers
with a price are not asked: they have neither path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import BackendError
from gateway.backends.http1_transport import Http1Transport

if TYPE_CHECKING:
    from gateway.tiers import Endpoint

log = logging.getLogger("tierline.servers")

FIRST_S: Final = 2.0
"""How long after the start of a worker its servers are asked first."""
AGAIN_S: Final = 600.0
"""How long an answer holds: the server may be started anew with another template."""
DOWN_S: Final = 30.0
"""How long a server that does not answer is left alone."""
UNKNOWN_S: Final = 6 * 3600.0
"""How long a server that knows neither path is left alone."""
_PATIENCE_S: Final = 10.0
_MESSAGES: Final = [{"role": "user", "content": "Which day is it?"}]
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "day_of_the_calendar",
        "description": "Return the day of the week and the date in one time zone, as the calendar of that zone has it.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "description": "A time zone, such as Europe/Paris."}},
            "required": ["zone"],
        },
    },
}


class ToolProbe:
    """Keep `drops_tools` of one worker's endpoints true to what their servers render."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        clock: Callable[[], float] = time.monotonic,
        first_s: float = FIRST_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """Ask those that may have a template of their own, first after `first_s` seconds, then each `again_s`."""
        self._due = {endpoint: 0.0 for endpoint in endpoints if _may_render(endpoint)}
        """When each is to be asked next, by the clock."""
        self._clock = clock
        self._first_s = first_s
        self._again_s = again_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, where there is anybody to ask."""
        if self._due:
            self._task = asyncio.create_task(self._run(), name="tierline.tool-probe")

    async def aclose(self) -> None:
        """Cancel the task and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        await asyncio.sleep(self._first_s)
        while True:
            for endpoint in [each for each, due in self._due.items() if due <= self._clock()]:
                self._due[endpoint] = self._clock() + await self._ask(endpoint)
            await asyncio.sleep(max(0.0, min(self._due.values()) - self._clock()))

    async def _ask(self, endpoint: Endpoint) -> float:
        """Note what the server renders; return the seconds until it is to be asked again."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                drops = await drops_tools(endpoint)
        except (BackendError, TimeoutError, OSError):
            return DOWN_S  # what is known holds: tools that are dropped are worse than a tier that is passed over
        if drops and not endpoint.drops_tools:
            log.warning(
                "backend %s: its server's chat template drops tools, so requests with tools pass it over; give the "
                "server a template that has them, or leave tools out of its capabilities",
                endpoint.config.name,
            )
        endpoint.drops_tools = drops
        return UNKNOWN_S if drops is None else self._again_s


async def drops_tools(endpoint: Endpoint) -> bool | None:
    """Return whether the server renders a prompt with a tool as it does without; None if it does not tell.

    Raises BackendError where it cannot be reached.
    """
    config = endpoint.config
    root = config.base_url.removesuffix("/v1")
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "tierline"}
    if config.key is not None:
        headers["Authorization"] = f"Bearer {config.key.get_secret_value()}"
    for path, rendered in (("/apply-template", _prompt), ("/tokenize", _count)):
        transport = Http1Transport(f"{root}{path}", max_in_flight=1, connect_timeout_s=2.0, max_reply=1 << 20)
        try:
            plain, with_tool = [
                rendered(await _reply(transport, headers, {"model": config.model, "messages": _MESSAGES, **more}))
                for more in ({}, {"tools": [_TOOL]})
            ]
        finally:
            await transport.aclose()
        if plain is not None and with_tool is not None:
            return plain == with_tool
    return None


async def _reply(transport: Http1Transport, headers: Mapping[str, str], body: Mapping[str, Any]) -> Any:
    response = await transport.send(headers, orjson.dumps(body))
    try:
        raw = await response.read()
        return orjson.loads(raw) if response.status == 200 else None
    except orjson.JSONDecodeError:
        return None
    finally:
        response.close()


def _prompt(reply: Any) -> str | None:
    prompt = reply.get("prompt") if isinstance(reply, dict) else None
    return prompt if isinstance(prompt, str) and _MESSAGES[0]["content"] in prompt else None


def _count(reply: Any) -> int | None:
    """Return the tokens that were counted: llama.cpp has this path too, and counts none of messages."""
    count = reply.get("count") if isinstance(reply, dict) else None
    return count if isinstance(count, int) and count > 0 else None


def _may_render(endpoint: Endpoint) -> bool:
    """Return whether its server may have a template of its own, and it is to be sent tools."""
    config = endpoint.config
    free = config.price is None or config.price.is_free
    chats = config.configured and not config.in_process and config.dialect == "chat" and config.auth is None
    return chats and free and "tools" in config.can
