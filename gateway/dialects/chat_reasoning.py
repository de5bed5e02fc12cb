"""Seal and unseal the signed reasoning of chat completions, which servers spell in several ways.

    reasoning_details            OpenRouter and others: a list of objects with `signature` or `data`
    thinking_blocks              LiteLLM's proxy: a list of objects with `signature` or `data`
    tool_calls[].extra_content   Gemini's OpenAI endpoint: `google.thought_signature` of a tool call

See `gateway.dialects.reasoning`. Readable reasoning (`reasoning_content`, `reasoning`) has no maker and is passed on.

Clients of other dialects know `reasoning_details` alone. They get the other two as such details, whose sealed text says
how the server spells it (`blocks`, `call` and the call's id), so that it finds its place again. The dialect of
responses has a place for `extra_content`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.dialects.reasoning import DETAILS, Maker, maker_name

_LISTS: Final = ("reasoning_details", "thinking_blocks")
_SIGNED: Final = ("signature", "data")
MAY_HOLD_REASONING: Final = frozenset({*_LISTS, "tool_calls"})
"""Keys of a message or delta that may hold signed texts."""
_PLAIN_MESSAGE: Final = 2
"""Keys of a message with a role and a content alone."""
_AS_BLOCK: Final = "blocks\n"
_OF_CALL: Final = "call\n"
_EXTRA: Final = "extra_content"
_UNSIGNED: Final = "skip_thought_signature_validator"
"""What Google documents for calls that another model made, in place of a signature."""
_GEMINI: Final = re.compile(r"gemini-(\d+)?")
_FIRST_THAT_CHECKS: Final = 3
_LONGEST_ID: Final = 40
"""Longest id of a tool call that OpenAI's chat completions take; vLLM's have 46 characters."""


def checks_calls(model: str) -> bool:
    """Return whether a model refuses unsigned tool calls in the turn in progress, as Gemini does from version 3 on."""
    match = _GEMINI.search(model)
    return match is not None and (match[1] is None or int(match[1]) >= _FIRST_THAT_CHECKS)


def seal_reasoning(holder: Mapping[str, Any], maker: Maker) -> bool:
    """Seal the signed texts of a message or delta in place; return whether there were any.

    A text must come whole: servers send signatures in one piece, unlike the readable reasoning before them.
    """
    if MAY_HOLD_REASONING.isdisjoint(holder):
        return False
    sealed = False
    for item, name in _signed_texts(holder):
        if maker.unseal(item[name]) is None:  # a detail that `TranslatedReasoning` made is sealed
            item[name] = maker.seal(item[name])
        sealed = True
    return sealed


class TranslatedReasoning:
    """Turn the reasoning of one reply into `reasoning_details`, for a client of another dialect; call it per delta."""

    def __init__(self, maker: Maker, *, calls: bool) -> None:
        """Take the maker. `calls`: whether the signatures of tool calls have no place of their own in the dialect."""
        self._maker = maker
        self._calls = calls
        self._index = 0

    def turn(self, holder: dict[str, Any]) -> bool:
        """Change a message or delta in place, before `seal_reasoning`; return whether there was anything to change.

        What becomes a detail is sealed here, and `seal_reasoning` must leave it as it is.
        """
        blocks = holder.pop("thinking_blocks", None)
        given = blocks if isinstance(blocks, list) else ()
        details = [self._detail(block) for block in given if isinstance(block, dict)]
        for call in (holder.get("tool_calls") or ()) if self._calls else ():
            google = _google(call)
            if google is not None and isinstance(text := google.get("thought_signature"), str) and call.get("id"):
                del call[_EXTRA]
                sealed = self._maker.seal(f"{_OF_CALL}{call['id']}\n{text}")
                details.append({"type": "reasoning.encrypted", "data": sealed, "index": self._index})
                self._index += 1
        if details:
            holder[DETAILS] = [*(holder.get(DETAILS) or ()), *details]
        return blocks is not None or bool(details)

    def _detail(self, block: Mapping[str, Any]) -> dict[str, Any]:
        detail: dict[str, Any] = {"index": self._index}
        if isinstance(data := block.get("data"), str):
            detail |= {"type": "reasoning.encrypted", "data": self._maker.seal(_AS_BLOCK + data)}
        else:
            detail |= {"type": "reasoning.text", "text": block.get("thinking") or ""}
            if isinstance(signature := block.get("signature"), str) and signature:
                detail["signature"] = self._maker.seal(_AS_BLOCK + signature)
        if "data" in detail or "signature" in detail:
            self._index += 1  # what follows is the next block
        return detail


def last_maker(messages: Sequence[Any]) -> str | None:
    """Return the name of the maker of a conversation's latest sealed text; None if it has none."""
    for message in reversed(messages):
        if not _is_plain(message) and not MAY_HOLD_REASONING.isdisjoint(message):
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
        if MAY_HOLD_REASONING.isdisjoint(message) or _is_plain(message):
            continue
        if any(maker_name(item[name]) is not None for item, name in _signed_texts(message)):
            found[position], lost_here = _of_maker(message, maker)
            lost = lost or lost_here
    if not found:
        return None
    return [found.get(position, message) for position, message in enumerate(messages)], lost


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Return whether a message has a role and a content alone. One that calls tools may have no content."""
    return len(message) <= _PLAIN_MESSAGE and "tool_calls" not in message


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
    if message.get("content") is None and not message.get("tool_calls"):
        changed["content"] = ""  # reasoning alone, as in a reply that was cut: without it there must be a text
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
    if DETAILS in changed:
        _put_back(changed)
    return changed, lost


def _put_back(message: dict[str, Any]) -> None:
    """Move details that were not details when the server sent them to where they were."""
    kept: list[Any] = []
    for detail in message[DETAILS]:
        name = "signature" if isinstance(detail, dict) and "signature" in detail else "data"
        text = detail.get(name) if isinstance(detail, dict) else None
        if not isinstance(text, str):
            kept.append(detail)
        elif text.startswith(_AS_BLOCK):
            block = (
                {"type": "redacted_thinking"} if name == "data" else {"type": "thinking", "thinking": detail["text"]}
            )
            block[name] = text.removeprefix(_AS_BLOCK)
            message.setdefault("thinking_blocks", []).append(block)
        elif text.startswith(_OF_CALL):
            call_id, _, signature = text.removeprefix(_OF_CALL).partition("\n")
            message["tool_calls"] = [
                {**call, _EXTRA: {"google": {"thought_signature": signature}}} if call.get("id") == call_id else call
                for call in message.get("tool_calls") or ()
            ]
        else:
            kept.append(detail)
    message[DETAILS] = kept
    if not kept:
        del message[DETAILS]
    if not message.get("tool_calls", True):
        del message["tool_calls"]


def with_signed_calls(messages: Sequence[Any]) -> list[Any] | None:
    """Return the messages with a signature on the first call of each message of the turn in progress, the ones without
    marked as another model's; None if none lacks one.
    """
    changed: dict[int, Any] = {}
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.get("role") == "user":
            break
        calls = message.get("tool_calls")
        if calls and isinstance(calls[0], dict) and "thought_signature" not in (_google(calls[0]) or ()):
            extra = calls[0].get(_EXTRA) or {}
            google = {**(_google(calls[0]) or {}), "thought_signature": _UNSIGNED}
            first = {**calls[0], _EXTRA: {**extra, "google": google}}
            changed[position] = {**message, "tool_calls": [first, *calls[1:]]}
    return [changed.get(position, message) for position, message in enumerate(messages)] if changed else None


def with_short_ids(messages: Sequence[Any]) -> list[Any] | None:
    """Return the messages with ids of tool calls that OpenAI takes, derived from longer ones; None if all are short."""
    changed: dict[int, Any] = {}
    for position, message in enumerate(messages):
        if "tool_call_id" in message:
            ident = message["tool_call_id"]
            if isinstance(ident, str) and len(ident) > _LONGEST_ID:
                changed[position] = {**message, "tool_call_id": _short(ident)}
        elif calls := message.get("tool_calls"):
            made = [
                {**call, "id": _short(ident)}
                if isinstance(call, dict) and isinstance(ident := call.get("id"), str) and len(ident) > _LONGEST_ID
                else call
                for call in calls
            ]
            if any(one is not call for one, call in zip(made, calls, strict=True)):
                changed[position] = {**message, "tool_calls": made}
    return [changed.get(position, message) for position, message in enumerate(messages)] if changed else None


def _short(ident: str) -> str:
    return f"call_{hashlib.sha256(ident.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


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
