"""Say what a provider's prompt cache has to be asked for, and ask for it.

    form     whose API                            what a request gets
    key      OpenAI's, at OpenAI and Azure        `prompt_cache_key`: requests with one key meet the same cache
    markers  Anthropic's, for Claude anywhere     `cache_control` where a beginning ends that will come again
    field    OpenRouter's, for Claude             `cache_control` of the whole request: markers are set for it

Other providers cache unasked, or not at all. Facts, as of November 2026: the guides on prompt caching at
developers.openai.com, platform.claude.com and openrouter.ai. A beginning shorter than a model's least is not cached.

Only what comes again is worth its price, as Claude's costs a quarter more to write than to send: a conversation's turns
are marked once it goes on, and the system text of a question that stands alone when it has been seen before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from gateway.cascade.call import ONE_HOUR
from gateway.parts.servers.claude import claude_caches_from

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
