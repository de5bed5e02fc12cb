"""Say what a provider's prompt cache has to be asked for, and ask for it.

    form     whose API                            what a request gets
    key      OpenAI's, at OpenAI and Azure        `prompt_cache_key`: requests with one key meet the same cache
    markers  Anthropic's, for Claude anywhere     `cache_control` where a beginning ends that will come again
    field    OpenRouter's, for Claude             `cache_control` of the whole request: markers are set for it

Other providers cache unasked, or not at all. Facts, as of November 2026: the guides on prompt caching at
developers.openai.com, platform.claude.com and openrouter.ai. A beginning shorter than a model's least is not cached.

Only what comes again is worth its price, as Claude's costs a quarter more to write than to send: a conversation's turns
are marked once it goes on, and the system text of a question that stands alone when it has been seen before.

Besides, keep backends warm (`KeepWarm`): send a one-token request to an idle backend before it grows cold, where its
config says `warm.keep`.

A backend that no worker has called for 0.8 times `warm.after` gets such a request. Workers exchange the time of the
last answer (see the part `fleet`), so all see the same idle time; each waits a random time longer (up to 0.1 times
`warm.after`), so that one of them calls first and the others learn of it. These requests are counted in a metric of
their own and are in no ledger.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gateway.backends.base import BackendError, BackendRequest, TimedOut
from gateway.cascade.call import ONE_HOUR

if TYPE_CHECKING:
    from gateway.tiers.endpoint import Endpoint

_ALWAYS_THINK: Final = frozenset({"fable", "mythos"})
"""Families of Anthropic's models of which each thinks always."""
_CLAUDE: Final = re.compile(r"(?:(\d)(?:-(\d))?-)?(opus|sonnet|haiku|fable|mythos)(?:-(\d)(?:[-.](\d))?(?!\d))?")


def claude_version(model: str) -> tuple[str, tuple[int, int]] | None:
    """Return the family and version of Anthropic's model of this name, in the form of any platform, such as
    `anthropic.claude-opus-4-6-v1:0`; None for one of others, or without a version.
    """
    match = _CLAUDE.search(model) if "claude" in model else None
    if match is None:
        return None
    family = match[3]
    major, minor = (match[1], match[2]) if match[1] else (match[4], match[5])
    if major is None:
        # Only Mythos Preview has a name without a number; it takes what version 5 does.
        return (family, (5, 0)) if family in _ALWAYS_THINK else None
    return family, (int(major), int(minor or 0))


def claude_always_thinks(model: str) -> bool:
    """Return whether a model is one of Anthropic's whose thinking cannot be switched off."""
    family, version = claude_version(model) or ("", (0, 0))
    return family in _ALWAYS_THINK or (family == "opus" and version >= (5, 5))


def claude_caches_from(model: str) -> int:
    """Return the least tokens of a beginning that Anthropic's model caches; 0 for a model of others."""
    named = claude_version(model)
    if named is None:
        return 0
    family, version = named
    if version >= (4, 8):
        return 512 if family not in ("sonnet", "haiku") and version >= (5, 0) else 1024
    if family == "opus" and version >= (4, 5):
        return 2048 if version == (4, 7) else 4096
    if family == "haiku":
        return 4096 if version >= (4, 5) else 2048
    return 1024


Form = Literal["key", "markers", "field"]
_LEAST: Final = 1024
_OF_A_TOOL: Final = 100
"""Tokens that the definition of a tool has at least, mostly."""
_A_DAY: Final = re.compile(r"^(?:[\w-]+/|ft:)?gpt-(?:4\.1|5|5\.[1245])(?![.\d]|-(?:mini|nano))")
"""OpenAI's models whose cache can be kept for a day: later ones have no such choice, and refuse the field."""
_OWN: Final = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_control")


class ProviderCacheFacts(NamedTuple):
    """What one model's provider takes: the form, the least tokens that it caches, and its longest lifetime, or ''."""

    form: Form
    least: int
    longest: str

    def worth(self, tokens: int, tools: int) -> bool:
        """Return whether a prompt of about so many tokens and tools may be long enough to be cached."""
        return tokens + tools * _OF_A_TOOL >= self.least

    def ask(self, key: str, *, goes_on: bool, long: bool) -> ProviderCacheAsk:
        """Return what one call asks: requests with one `key` meet one cache. `long`: to keep it as long as it can."""
        return ProviderCacheAsk(self.form, self.least, key, goes_on, self.longest if long else "")


def prompt_cache_facts(provider: str, model: str, omit: tuple[str, ...]) -> ProviderCacheFacts | None:
    """Return what is known of a model of this provider, '' if it is not known; None if nothing is to be asked for."""
    if provider in ("openai", "azure") and "prompt_cache_key" not in omit:
        keeps = _A_DAY.match(model) and "prompt_cache_retention" not in omit
        return ProviderCacheFacts("key", _LEAST, "24h" if keeps else "")
    if provider == "openrouter" and "cache_control" not in omit and (least := claude_caches_from(model)):
        return ProviderCacheFacts("field", least, ONE_HOUR)
    return None


@dataclass(slots=True)
class ProviderCacheAsk:
    """What one call asks of the provider's prompt cache. `added` is what its request was given for that."""

    form: Form
    least: int
    key: str
    goes_on: bool
    """Whether the conversation will likely go on, so that its turns come again."""
    lifetime: str
    """How long to keep it; '' for what is usual."""
    added: tuple[str, ...] = field(default=())

    @property
    def control(self) -> dict[str, str]:
        """The value of `cache_control`."""
        return {"type": "ephemeral", **({"ttl": self.lifetime} if self.lifetime else {})}

    def add_fields(self, body: dict[str, Any]) -> None:
        """Add fields to a request of chat completions or of the Responses API, in place, unless it has its own."""
        self.added = ()
        if any(body.get(name) is not None for name in _OWN) or self.form == "markers":
            return
        if self.form == "key":
            fields: Mapping[str, Any] = {"prompt_cache_key": self.key}
            if self.lifetime:
                fields = {**fields, "prompt_cache_retention": self.lifetime}
        elif not self.goes_on or _marked(body["messages"]):
            return
        else:
            fields = {"cache_control": self.control}
        body.update(fields)
        self.added = tuple(fields)

    def left_out(self, paths: Iterable[str]) -> None:
        """Note what the model refuses, and is not sent."""
        lost = frozenset(paths)
        if any(path.endswith("].cache_control") for path in lost):
            self.added = ()
        self.added = tuple(marker for marker in self.added if marker not in lost)


def _marked(messages: list[Any]) -> bool:
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    return any(isinstance(part, dict) and "cache_control" in part for content in contents for part in content)


_DUE: Final = 0.8
_SPREAD: Final = 0.1
_FIRST_SPREAD_S: Final = 2.0
_PATIENCE: Final = 3.0
_NO_SOONER_S: Final = 0.05
_CALL: Final = BackendRequest({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, ask_logprobs=False)

Warmed = Literal["warmed", "failed"]
Clock = Callable[[], float]


class KeepWarm:
    """Keep one worker's endpoints warm with one task each. Start and close it on the worker's event loop."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        counted: Callable[[str, Warmed], None],
        clock: Clock = time.monotonic,
        chance: Callable[[], float] = random.random,
        with_fields: Callable[[BackendRequest, Endpoint], BackendRequest] = lambda asked, _: asked,
    ) -> None:
        """Call `counted` with a backend's name and a request's outcome; `with_fields` adds what its config sets."""
        self._endpoints = [one for one in endpoints if one.config.configured and one.config.warm is not None]
        self._counted = counted
        self._clock = clock
        self._chance = chance
        self._with_fields = with_fields
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start one task for each backend that is to be kept warm."""
        self._tasks = [
            asyncio.create_task(
                self._keep(endpoint, warm.after, warm.ttft), name=f"tierline.warm.{endpoint.config.name}"
            )
            for endpoint in self._endpoints
            if (warm := endpoint.config.warm) is not None and warm.keep
        ]

    async def aclose(self) -> None:
        """Cancel the tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _keep(self, endpoint: Endpoint, after_s: float, cold_s: float) -> None:
        # All workers start at the same time, when the backend may be cold: spread their first requests.
        await asyncio.sleep(self._chance() * min(_FIRST_SPREAD_S, _SPREAD * after_s))
        while True:
            due_s = after_s * (_DUE + _SPREAD * self._chance())
            idle_s = endpoint.idle_s(self._clock())
            if idle_s is not None and idle_s < due_s:
                await asyncio.sleep(max(_NO_SOONER_S, due_s - idle_s))
            elif endpoint.in_flight or endpoint.unavailable() or not await self._warm(endpoint, cold_s):
                await asyncio.sleep(_SPREAD * after_s)

    async def _warm(self, endpoint: Endpoint, cold_s: float) -> bool:
        """Send the request; return whether it was answered. It takes a slot, and its time counts as a TTFT."""
        slot = endpoint.take()
        try:
            async with asyncio.timeout(max(endpoint.config.patience, _PATIENCE * cold_s)):
                await endpoint.backend.complete(self._with_fields(_CALL, endpoint))
            slot.began()
            slot.succeeded()
        except BackendError as error:
            slot.failed(error)
        except TimeoutError:
            slot.failed(TimedOut("no answer to the keep-warm request"))
        else:
            self._counted(endpoint.config.name, "warmed")
            return True
        finally:
            slot.free()
        self._counted(endpoint.config.name, "failed")
        return False
