"""Seal and unseal the signed reasoning of chat completions, which servers spell in several ways.

    reasoning_details            OpenRouter and others: a list of objects with `signature` or `data`
    thinking_blocks              LiteLLM's proxy: a list of objects with `signature` or `data`
    tool_calls[].extra_content   Gemini's OpenAI endpoint: `google.thought_signature` of a tool call

See `gateway.dialects.reasoning`. Readable reasoning (`reasoning_content`, `reasoning`) has no maker and is passed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.dialects.reasoning import Maker, maker_name

_LISTS: Final = ("reasoning_details", "thinking_blocks")
_SIGNED: Final = ("signature", "data")
MAY_HOLD_REASONING: Final = frozenset({*_LISTS, "tool_calls"})
"""Keys of a message or delta that may hold signed texts."""
_PLAIN_MESSAGE: Final = 2
"""Keys of a message with a role and a content alone."""


def seal_reasoning(holder: Mapping[str, Any], maker: Maker) -> bool:
    """Seal the signed texts of a message or delta in place; return whether there were any.

    A text must come whole: servers send signatures in one piece, unlike the readable reasoning before them.
    """
    if MAY_HOLD_REASONING.isdisjoint(holder):
        return False
    sealed = False
    for item, name in _signed_texts(holder):
        item[name] = maker.seal(item[name])
        sealed = True
    return sealed


def last_maker(messages: Sequence[Any]) -> str | None:
    """Return the name of the maker of a conversation's latest sealed text; None if it has none."""
    for message in reversed(messages):
        if len(message) > _PLAIN_MESSAGE and not MAY_HOLD_REASONING.isdisjoint(message):
            makers = [name for item, key in _signed_texts(message) if (name := maker_name(item[key])) is not None]
            if makers:
                return makers[-1]
    return None


def own_reasoning(messages: Sequence[Any], maker: Maker) -> tuple[list[Any], bool] | None:
    """Return the messages with the texts that `maker` sealed as they were, and without those that others sealed.

    The flag says whether any was removed. None if no message has a sealed text: then the messages stay as they are. A
    text that nobody sealed was not handed out here, and is passed on.
    """
    found: dict[int, Any] = {}
    lost = False
    for position, message in enumerate(messages):
        if len(message) <= _PLAIN_MESSAGE or MAY_HOLD_REASONING.isdisjoint(message):
            continue
        if any(maker_name(item[name]) is not None for item, name in _signed_texts(message)):
            found[position], lost_here = _of_maker(message, maker)
            lost = lost or lost_here
    if not found:
        return None
    return [found.get(position, message) for position, message in enumerate(messages)], lost


def _signed_texts(holder: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object with a signed text, and the key of that text."""
    for name in _LISTS:
        items = holder.get(name)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                yield from ((item, key) for key in _SIGNED if isinstance(item.get(key), str) and item[key])
    calls = holder.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        google = _google(call)
        if google is not None and isinstance(google.get("thought_signature"), str):
            yield google, "thought_signature"


def _google(call: Any) -> dict[str, Any] | None:
    extra = call.get("extra_content") if isinstance(call, dict) else None
    google = extra.get("google") if isinstance(extra, dict) else None
    return google if isinstance(google, dict) else None


def _of_maker(message: Mapping[str, Any], maker: Maker) -> tuple[dict[str, Any], bool]:
    """Return a message for `maker`'s backend, and whether reasoning of others was removed. `message` stays as it is."""
    changed, lost = dict(message), False
    for name in _LISTS:
        if isinstance(message.get(name), list):
            kept = [_unsealed(item, _SIGNED, maker) for item in message[name]]
            changed[name] = [item for item in kept if item is not None]
            lost = lost or len(changed[name]) < len(kept)
            if not changed[name]:
                del changed[name]
    if isinstance(message.get("tool_calls"), list):
        calls = []
        for call in message["tool_calls"]:
            google = _google(call)
            if google is None:
                calls.append(call)
                continue
            own = _unsealed(google, ("thought_signature",), maker)
            lost = lost or own is None
            rest = {name: value for name, value in call.items() if name != "extra_content"}
            calls.append(rest if own is None else {**call, "extra_content": {**call["extra_content"], "google": own}})
        changed["tool_calls"] = calls
    return changed, lost


def _unsealed(item: Any, names: Sequence[str], maker: Maker) -> Any:
    """Return an object with its texts unsealed; None if another maker sealed one of them."""
    if not isinstance(item, dict):
        return item
    unsealed = dict(item)
    for name in names:
        text = item.get(name)
        if isinstance(text, str) and maker_name(text) is not None:
            own = maker.unseal(text)
            if own is None:
                return None
            unsealed[name] = own
    return unsealed
