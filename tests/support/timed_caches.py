"""A scripted provider that keeps prompts for a while only, and takes time to read what it does not hold.

    with TimedChat() as openai:
        openai.cache.lifetime_s = 0.5
        ...
        assert openai.calls[-1].cached > 1024

It keeps the beginning of each prompt of 1024 tokens or more in blocks of 128, as OpenAI does, for each model by itself.
A token is four characters of the prompt's JSON, and takes `cold_s` seconds where it is read cold.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.connection import Received
from tests.support.upstream import Reply, Upstream

LEAST = 1024
BLOCK = 128


@dataclass(frozen=True)
class ReadPrompt:
    """One call: its model, its prompt in tokens, and how many of them were read from the cache."""

    model: str
    tokens: int
    cached: int


@dataclass
class TimedCache:
    """Prefixes by their hash, each with the time of its last use. The clock can be set forward."""

    lifetime_s: float = 300.0
    ahead_s: float = 0.0
    _used: dict[tuple[str, bytes], float] = field(default_factory=dict)

    def holds(self, model: str, prefix: bytes) -> bool:
        """Return whether it holds a prefix, and count that as a use."""
        now, key = time.monotonic() + self.ahead_s, (model, prefix)
        if now - self._used.get(key, -1e9) >= self.lifetime_s:
            return False
        self._used[key] = now
        return True

    def keep(self, model: str, prefix: bytes) -> None:
        """Hold a prefix from now on."""
        self._used[model, prefix] = time.monotonic() + self.ahead_s


def _prefixes(parts: Sequence[str]) -> Iterator[bytes]:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part.encode())
        yield hashed.digest()


class TimedChat(Upstream):
    """A server of chat completions with OpenAI's prompt cache; its script says what it answers."""

    def __init__(self, cold_s: Mapping[str, float] | None = None) -> None:
        """`cold_s` are seconds for each token that is read cold, by model."""
        super().__init__()
        self.cache = TimedCache()
        self.cold_s = cold_s or {}
        self.calls: list[ReadPrompt] = []

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        reply = super().reply_to(request)
        body = request.body
        if not request.path.endswith("/chat/completions") or reply.status != 200:
            return reply
        prompt = json.dumps([body.get("tools"), body["messages"]])
        tokens, model = len(prompt) // 4, body["model"]
        cached = 0
        prefixes = list(_prefixes([prompt[i : i + 4 * BLOCK] for i in range(0, tokens * 4 - 4 * BLOCK + 1, 4 * BLOCK)]))
        if tokens >= LEAST:
            for number, prefix in enumerate(prefixes, 1):
                if not self.cache.holds(model, prefix):
                    break
                cached = number * BLOCK
            cached = cached if cached >= LEAST else 0
            for prefix in prefixes:
                self.cache.keep(model, prefix)
        self.calls.append(ReadPrompt(model, tokens, cached))
        out = len(reply.pieces())
        usage = {
            "prompt_tokens": tokens, "completion_tokens": out, "total_tokens": tokens + out,
            "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip
        more = {name: getattr(reply, name) for name in ("text", "tokens", "logprob", "finish_reason", "tool_calls")}
        return Reply(
            **more, usage=usage, before_first_s=reply.before_first_s + (tokens - cached) * self.cold_s.get(model, 0.0)
        )
