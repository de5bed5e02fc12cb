"""Mark where beginnings of a request end that will come again, for the prompt cache of Anthropic's Messages API.

At most four markers, each behind what comes before it: the tools, the system text, and the user's last two turns. The
last one's beginning is written for the next turn to read; that of the turn before is what this one reads, which the API
would find by itself no more than 20 blocks back. A request with markers of its client's own gets none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.parts.apis.dialects.messages.backend import content_blocks
from gateway.parts.apis.dialects.messages.turns import CACHE, THINKING_BLOCKS
from routing.features import estimated_tokens

_TURNS: Final = 2
_SEEN_S: Final = 300.0
_MOST_SEEN: Final = 512
_OF_A_TOOL: Final = 100


class SystemTexts:
    """Remember, by hash, which system texts and tools were sent in the last five minutes.

    Where they come again, they are marked for the provider's cache in a request of one message too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, float] = {}  # the latest last

    def come_again(self, texts: tuple[str, ...]) -> bool:
        """Return whether these texts came within the last five minutes, the time for which they are cached."""
        now, key = self._clock(), hash(texts)
        before = self._seen.pop(key, None)
        self._seen[key] = now
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return before is not None and now - before <= _SEEN_S


def add_markers(
    sent: dict[str, Any], control: Mapping[str, str], least: int, seen: SystemTexts, *, goes_on: bool
) -> tuple[str, ...]:
    """Add markers to a request, in place, changing no block of it; return where: `tools`, `system`, `messages[I]`.

    `least` is the length in tokens from which the model caches a beginning.
    """
    tools, system, messages = sent.get("tools") or (), sent.get("system") or (), sent["messages"]
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
    if CACHE in sent or any(CACHE in block for block in (*tools, *blocks, *content_blocks(sent))):
        return ()
    added: list[str] = []
    texts = [block["text"] for block in blocks]
    head = sum(map(estimated_tokens, texts)) + len(tools) * _OF_A_TOOL
    if head >= least and (goes_on or seen.come_again((*texts, *(str(tool.get("name")) for tool in tools)))):
        taking = [i for i, tool in enumerate(tools) if not tool.get("defer_loading")]
        if taking:
            sent["tools"] = _with_marker(tools, taking[-1], control)
            added.append("tools")
        if filled := [i for i, text in enumerate(texts) if text.strip()]:
            sent["system"] = _with_marker(blocks, filled[-1], control)
            added.append("system")
    if not goes_on:
        return tuple(added)
    made = list(messages)
    turns: list[str] = []
    for i in range(len(made) - 1, -1, -1):
        if made[i]["role"] == "user" and (marked := _marked_turn(made[i], control)) is not None:
            made[i] = marked
            turns.append(f"messages[{i}]")
            if len(turns) == _TURNS:
                break
    sent["messages"] = made
    return (*added, *reversed(turns))


def _marked_turn(message: Mapping[str, Any], control: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a turn with a marker on its last block that takes one; None if there is none."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for i in range(len(blocks) - 1, -1, -1):
        block = blocks[i]
        if block["type"] not in THINKING_BLOCKS and (block["type"] != "text" or block["text"].strip()):
            return {**message, "content": _with_marker(blocks, i, control)}
    return None


def _with_marker(blocks: Any, place: int, control: Mapping[str, str]) -> list[Any]:
    return [{**block, CACHE: control} if i == place else block for i, block in enumerate(blocks)]
