"""The prompt caches of scripted providers, as their guides describe them: what is read, written, and refused.

    with CachingMessages() as claude, CachingChat() as gpt: ...
    claude.read / claude.sent      # share of all prompt tokens that came from the cache

Tokens are counted as four characters of JSON each.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from gateway.parts.servers.prompt_cache import claude_caches_from
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_chat import NotTaken, StrictChat
from tests.support.strict_messages import RefusedError, StrictMessages
from tests.support.upstream import Reply

Json = dict[str, Any]
_BACK = 20
"""Blocks before a marker within which Anthropic's API looks for what an earlier request wrote."""
_PER_MACHINE = 15
"""Requests with one beginning and key that one of OpenAI's machines takes in a minute, which here is a whole test."""
_STEP = 128


def _tokens(value: Any) -> int:
    return len(json.dumps(value)) // 4


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def bare(value: Any) -> Any:
    """A value without its markers: what the model is shown."""
    if isinstance(value, list):
        return [bare(one) for one in value]
    if isinstance(value, dict):
        return {name: bare(member) for name, member in value.items() if name != "cache_control"}
    return value


def marker_faults(body: Json) -> list[str]:
    """What Anthropic's API refuses of the markers in a body."""
    found: list[tuple[str, Json]] = []
    for place, block in blocks_of(body):
        inner = block.get("content")
        found += [(place, one) for one in inner if "cache_control" in one] if isinstance(inner, list) else []
        found += [(place, block)] if "cache_control" in block else []
    faults = [f"A maximum of 4 blocks with cache_control may be provided. Found {len(found)}."] * (len(found) > 4)
    short = False
    for place, block in found:
        control = block["cache_control"]
        if control.get("type") != "ephemeral" or control.keys() - {"type", "ttl"}:
            faults.append(f"{place}.cache_control: Input should be {{'type': 'ephemeral'}}")
        if control.get("ttl", "5m") not in ("5m", "1h"):
            faults.append(f"{place}.cache_control.ttl: Input should be '5m' or '1h'")
        if block.get("type") == "text" and not block["text"].strip():
            faults.append(f"{place}.text: cache_control cannot be set for empty text blocks")
        if block.get("type") in ("thinking", "redacted_thinking"):
            faults.append(f"{place}: cache_control cannot be set for thinking blocks")
        if block.get("defer_loading"):
            faults.append(f"{place}: tools with defer_loading cannot have cache_control")
        if control.get("ttl") == "1h" and short:
            faults.append(f"{place}: a ttl of 1h must come before one of 5m")
        short = short or control.get("ttl", "5m") == "5m"
    return faults


def blocks_of(body: Json) -> list[tuple[str, Json]]:
    """The blocks of a request in the order in which the prompt has them, and where each stands."""
    listed: list[tuple[str, Json]] = [(f"tools.{i}", tool) for i, tool in enumerate(body.get("tools") or ())]
    system = body.get("system") or []
    texts = [{"type": "text", "text": system}] if isinstance(system, str) else system
    listed += [(f"system.{i}", block) for i, block in enumerate(texts)]
    for i, message in enumerate(body["messages"]):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        listed += [(f"messages.{i}.content.{j}", block) for j, block in enumerate(blocks)]
    return listed


class CachingMessages(StrictMessages):
    """Anthropic's API with its cache: a marked beginning is written, the longest written one near a marker is read."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = self.read = self.written = self.hour_written = 0
        self.divides = True
        """Whether its usage tells what it keeps for an hour."""
        self._kept: set[str] = set()

    def _check(self, body: Any, headers: dict[str, str]) -> None:
        super()._check(body, headers)
        for fault in marker_faults(body):
            raise RefusedError(fault)

    def _message(self, body: Json) -> Json:
        shown, total, ends = [], 0, []
        for _, block in blocks_of(body):
            shown.append(bare(block))
            total += _tokens(shown[-1])
            ends.append((total, _digest([body["model"], shown]), "cache_control" in block or "cache_control" in body))
        least = claude_caches_from(body["model"])
        marks = [i for i, (size, _, marked) in enumerate(ends) if marked and size >= least]
        near = {j for i in marks for j in range(max(0, i - _BACK), i + 1)}
        read = max((ends[j][0] for j in near if ends[j][1] in self._kept), default=0)
        reached = max((ends[i][0] for i in marks), default=0)
        written = max(0, reached - read)
        self._kept |= {ends[i][1] for i in marks}
        self.sent, self.read, self.written = self.sent + total, self.read + read, self.written + written
        for_an_hour = written if '"ttl": "1h"' in json.dumps(body) else 0
        self.hour_written += for_an_hour
        message = super()._message(body)
        message["usage"] |= {
            "input_tokens": total - read - written,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
        }
        if self.divides:
            message["usage"]["cache_creation"] = {
                "ephemeral_5m_input_tokens": written - for_an_hour,
                "ephemeral_1h_input_tokens": for_an_hour,
            }
        return message


class PrefixCache:
    """OpenAI's cache: of the machine that a beginning and the key lead to; beyond its rate, further ones take over."""

    def __init__(self) -> None:
        self.sent = self.read = 0
        self._came: Counter[str] = Counter()
        self._kept: dict[str, list[str]] = {}

    def look(self, prompt: Any, key: object) -> tuple[int, int]:
        """The prompt's tokens, and how many of them were read."""
        text = json.dumps(prompt)
        begins = _digest([text[:1024], key])
        machine = f"{begins} {self._came[begins] // _PER_MACHINE if key is None else self._came[begins] // 100}"
        self._came[begins] += 1
        total = len(text) // 4
        common = max((_common(text, other) for other in self._kept.get(machine, [])), default=0) // 4
        read = common // _STEP * _STEP if common >= 1024 else 0
        self._kept.setdefault(machine, []).append(text)
        self.sent, self.read = self.sent + total, self.read + read
        return total, read


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


class CachingChat(StrictChat):
    """OpenAI's chat completions with its cache; `refuses` are fields that the model does not know."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        super().__init__("plain")
        self.cache = PrefixCache()
        self._refuses = refuses

    def _check(self, body: Json) -> None:
        for name in self._refuses:
            if name in body:
                raise NotTaken(name, f"{name} is not supported on this model")
        super()._check(body)

    def _usage(self, body: Json, words: int) -> Json:
        total, read = self.cache.look([body.get("tools"), body["messages"]], body.get("prompt_cache_key"))
        details = {"cached_tokens": read}
        return {
            "prompt_tokens": total,
            "completion_tokens": words,
            "total_tokens": total + words,
            "prompt_tokens_details": details,
        }


class CachingResponses(ResponsesUpstream):
    """The Responses API with OpenAI's cache."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        super().__init__(refuses=refuses)
        self.cache = PrefixCache()

    def response(self, reply: Reply, body: Json) -> Json:
        """See `ResponsesUpstream.response`."""
        prompt = [body.get("tools"), body.get("instructions"), body["input"]]
        total, read = self.cache.look(prompt, body.get("prompt_cache_key"))
        made = super().response(reply, body)
        made["usage"] |= {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": 0},
            "total_tokens": total + made["usage"]["output_tokens"],
        }
        return made
