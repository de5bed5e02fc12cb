"""Make the turns of a conversation for Anthropic's Messages API from the messages of chat completions."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from gateway.dialects.reasoning import DETAILS, Maker, joined_details
from routing.features import url_of_file

REASONING: Final = "reasoning"
"""Entry of `dropped` for reasoning of another backend that was left out."""
CACHE: Final = "cache_control"
THINKING_BLOCKS: Final = frozenset({"thinking", "redacted_thinking"})
_NOTHING_SAID: Final = "."
"""Text for the user where the API requires a turn with some: at the beginning, and for a message without any."""
_NOT_IN_AN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL: Final = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+)?(?:;[a-z0-9=-]+)*?(;base64)?,", re.IGNORECASE)


_PLAIN: Final = 2
"""Members of a message with a role and a content alone, and of a block with a type and a text alone."""


class MessageTurns:
    """Make the turns of a conversation from its messages, in their order."""

    def __init__(self, maker: Maker, dropped: list[str]) -> None:
        self.system: list[dict[str, Any]] = []
        """The texts of all system messages."""
        self.of_parts = False
        """Whether the content of a message was a list of parts."""
        self._maker = maker
        self._dropped = dropped
        self._turns: list[dict[str, Any]] = []
        self._ids = CallIds()
        self._legacy: dict[Any, str] = {}
        """Id of the last call without an id of each function: messages of role `function` answer by name."""

    def of(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the turns, roles alternating."""
        for i, message in enumerate(messages):
            role = message["role"]
            if not self.of_parts and type(message.get("content")) is list:
                self.of_parts = True
            if "name" in message and message["name"] and role != "function":
                self._dropped.append(f"messages[{i}].name")
            if role in ("system", "developer"):
                self.system += blocks_of(message.get("content"), i, self._dropped)
            elif role == "assistant":
                self._add_assistant(message, i)
            elif role == "tool":
                self._add_result(self._ids.of_result(message.get("tool_call_id")), message, i)
            elif role == "function":
                self._add_function_result(message, i)
            else:
                self._add_user(message, i)
        self._fit_ends()
        for turn in self._turns:
            content = turn["content"]
            if len(content) == 1 and len(block := content[0]) == _PLAIN and "text" in block:
                turn["content"] = block["text"]
        return self._turns

    def _add_user(self, message: Mapping[str, Any], i: int) -> None:
        blocks = blocks_of(message.get("content"), i, self._dropped)
        if blocks:
            append_turn(self._turns, "user", blocks)
        elif self._turns and self._turns[-1]["role"] == "assistant":
            self._turns.append({"role": "user", "content": [{"type": "text", "text": _NOTHING_SAID}]})

    def _add_assistant(self, message: Mapping[str, Any], i: int) -> None:
        if len(message) == _PLAIN and "content" in message:
            append_turn(self._turns, "assistant", blocks_of(message["content"], i, self._dropped))
            return
        blocks = self._said(message, i)
        thinking = _thinking(message, self._maker, self._dropped)
        append_turn(self._turns, "assistant", thinking + blocks if blocks else [])
        if thinking and not blocks:
            self._dropped.append(REASONING)  # the API refuses thinking that nothing follows, as in a reply that was cut

    def _said(self, message: Mapping[str, Any], i: int) -> list[dict[str, Any]]:
        """Return the texts and tool calls of an assistant's message."""
        blocks = blocks_of(message.get("content"), i, self._dropped)
        if isinstance(refusal := message.get("refusal"), str) and refusal:
            blocks.append({"type": "text", "text": refusal})
        if message.get("audio"):
            self._dropped.append(f"messages[{i}].audio")
        for j, call in enumerate(message.get("tool_calls") or ()):
            if (function := call.get("function")) is not None:
                blocks.append(_tool_use(self._ids.of_call(call.get("id")), function))
            elif (custom := call.get("custom")) is not None:  # of a tool that takes a text
                given = {"input": custom.get("input") or ""}
                ident = self._ids.of_call(call.get("id"))
                blocks.append({"type": "tool_use", "id": ident, "name": custom.get("name"), "input": given})
            else:
                self._dropped.append(f"messages[{i}].tool_calls[{j}]")
            if "extra_content" in call:
                self._dropped.append(REASONING)  # Gemini's signature of the call
        if function := message.get("function_call"):
            ident = self._legacy[function.get("name")] = self._ids.of_call(f"call_{i}")
            blocks.append(_tool_use(ident, function))
        return blocks

    def _add_result(self, ident: Any, message: Mapping[str, Any], i: int) -> None:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": ident}
        if content := message.get("content"):
            result["content"] = content if isinstance(content, str) else blocks_of(content, i, self._dropped)
        append_turn(self._turns, "user", [result])

    def _add_function_result(self, message: Mapping[str, Any], i: int) -> None:
        ident = self._legacy.pop(message.get("name"), None)
        if ident is None:  # chat completions take such a message alone, the API only after its call
            ident = self._ids.of_call(f"call_{i}")
            append_turn(self._turns, "assistant", [_tool_use(ident, message)])
        self._add_result(ident, message, i)

    def _fit_ends(self) -> None:
        """Let the conversation begin with the user, and no text to continue end in white space."""
        turns = self._turns
        if not turns and self.system:
            turns.append({"role": "user", "content": self.system})
            self.system = []
        elif not turns or turns[0]["role"] == "assistant":
            turns.insert(0, {"role": "user", "content": [{"type": "text", "text": _NOTHING_SAID}]})
        last = turns[-1]["content"][-1]
        if turns[-1]["role"] == "assistant" and last["type"] == "text":
            turns[-1]["content"][-1] = {**last, "text": last["text"].rstrip()}


def append_turn(turns: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add blocks to the turns: to the last if it has the same role, since roles alternate."""
    if not blocks:
        return
    if turns and (last := turns[-1])["role"] == role:
        before = last["content"]
        listed = [{"type": "text", "text": before}] if isinstance(before, str) else before
        turns[-1] = {**last, "content": [*listed, *blocks]}
    else:
        turns.append({"role": role, "content": blocks})


def _thinking(message: Mapping[str, Any], maker: Maker, dropped: list[str]) -> list[dict[str, Any]]:
    """Return the thinking blocks of an assistant's message that this backend made."""
    blocks: list[dict[str, Any]] = []
    details = message.get(DETAILS)
    if message.get("thinking_blocks"):
        dropped.append(REASONING)  # another server's, in the words of LiteLLM's proxy
    if not isinstance(details, list) or not details:
        if message.get("reasoning_content") or message.get("reasoning"):
            dropped.append(REASONING)
        return blocks
    for detail in joined_details(details):
        if detail.get("type") == "reasoning.encrypted":
            data = maker.unseal(detail.get("data") or "")
            if data is not None:
                blocks.append({"type": "redacted_thinking", "data": data})
                continue
        elif detail.get("type") == "reasoning.text":
            signature = maker.unseal(detail.get("signature") or "")
            if signature is not None:
                blocks.append({"type": "thinking", "thinking": detail.get("text") or "", "signature": signature})
                continue
        dropped.append(REASONING)
    return blocks


def _tool_use(ident: Any, function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        given = orjson.loads(function.get("arguments") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        given = None
    # The API takes objects only; an invalid call is shown to the model as the text that it was.
    arguments = given if isinstance(given, dict) else {"arguments": function.get("arguments")}
    return {"type": "tool_use", "id": ident, "name": function.get("name"), "input": arguments}


class CallIds:
    """Give tool calls ids that the API takes: of few characters, and each once in a conversation."""

    __slots__ = ("_given", "_used")

    def __init__(self, used: Iterable[str] = ()) -> None:
        """Prepare for a conversation in which these ids are in use."""
        self._used = set(used)
        self._given: dict[Any, str] = {}

    def of_call(self, ident: Any) -> str:
        """Return an id for the next tool call, which the client knows by `ident`."""
        base = fitting = _NOT_IN_AN_ID.sub("_", ident) if isinstance(ident, str) and ident else "call"
        number = 1
        while fitting in self._used:
            number += 1
            fitting = f"{base}_{number}"
        self._used.add(fitting)
        self._given[ident] = fitting
        return fitting

    def of_result(self, ident: Any) -> Any:
        """Return the id that was given to the latest tool call that the client knows by `ident`."""
        call = self._given.get(ident)
        return call or (_NOT_IN_AN_ID.sub("_", ident) if isinstance(ident, str) else ident)


def blocks_of(content: Any, at: int, dropped: list[str]) -> list[dict[str, Any]]:
    """Return the content of the message at this place as blocks; empty texts, which the API refuses, are left out."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content and not content.isspace() else []
    blocks: list[dict[str, Any]] = []
    for j, part in enumerate(content or ()):
        if len(part) == _PLAIN and part.get("type") == "text" and type(text := part.get("text")) is str:
            if text and not text.isspace():
                blocks.append({"type": "text", "text": text})
            continue
        path = f"messages[{at}].content[{j}]"
        block = _block(part, path, dropped)
        if block is None:
            dropped.append(path)
        elif block["type"] != "text" or block["text"].strip():
            if CACHE in part and CACHE not in block:
                block[CACHE] = part[CACHE]
            if part.get("prompt_cache_breakpoint") is not None:
                block.pop("prompt_cache_breakpoint", None)
                dropped.append(f"{path}.prompt_cache_breakpoint")
            blocks.append(block)
    return blocks


def _block(part: Mapping[str, Any], path: str, dropped: list[str]) -> dict[str, Any] | None:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text") or ""}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal") or ""}
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(image, dict) and image.get("detail") not in (None, "auto"):
            dropped.append(f"{path}.image_url.detail")
        return {"type": "image", "source": _source(url)} if isinstance(url, str) else None
    if kind == "file" and isinstance(file := part.get("file"), dict):
        return _document(file)
    if kind in ("input_audio", "video_url", "file"):
        return None
    own = dict(part)  # a block of the API's own
    if isinstance(inner := own.get("content"), list):
        own["content"] = [dict(block) if isinstance(block, dict) else block for block in inner]  # may lose its marker
    return own


def _source(url: str) -> dict[str, Any]:
    match = _DATA_URL.match(url)
    if match is None or not match[2]:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": match[1] or "image/png", "data": url[match.end() :]}


def _document(file: Mapping[str, Any]) -> dict[str, Any] | None:
    data, name = file.get("file_data"), file.get("filename")
    if (url := url_of_file(file)) is not None:
        source = {"type": "url", "url": url}
    elif isinstance(data, str):
        match = _DATA_URL.match(data)
        kind = (match and match[1]) or "application/pdf"
        encoded = data[match.end() :] if match else data
        if kind.startswith("text/"):  # the API takes such files as texts only
            text = base64.b64decode(encoded).decode(errors="replace") if match and match[2] else unquote(encoded)
            source = {"type": "text", "media_type": "text/plain", "data": text}
        else:
            source = {"type": "base64", "media_type": kind, "data": encoded}
    elif isinstance(ident := file.get("file_id"), str):
        source = {"type": "file", "file_id": ident}
    else:
        return None
    block: dict[str, Any] = {"type": "document", "source": source}
    if isinstance(name, str):
        block["title"] = name
    return block


_ENCRYPTED: Final = ("encrypted_content", "encrypted_index")


def readable_message(message: Any, number: int, maker: Maker, dropped: list[str]) -> Any:
    """Return the message of this number with its signed and encrypted texts unsealed, without those of other backends.

    Returns None if nothing is left of it.
    """
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    kept: list[Any] = []
    unreadable: set[str] = set()
    for j, block in enumerate(content):
        readable = _unsealed(block, maker)
        if readable is not None:
            kept.append(readable)
        else:
            unreadable.add(block.get("tool_use_id", ""))
        uncited = readable is not None and "citations" in block and "citations" not in readable
        if readable is None or uncited:
            dropped.append(REASONING)
            if block.get("type") not in THINKING_BLOCKS:
                dropped.append(f"messages[{number}].content[{j}]{'.citations' if uncited else ''}")
    if unreadable - {""}:
        # A server tool's call is sent with its result or not at all.
        dropped += [f"messages[{number}].content[{j}]" for j, one in enumerate(content) if one.get("id") in unreadable]
        kept = [block for block in kept if block.get("id") not in unreadable]
    return {**message, "content": kept} if kept else None


def _unsealed(block: Any, maker: Maker) -> Any:
    kind = block.get("type")
    if kind == "thinking":
        signature = maker.unseal(block.get("signature") or "")
        return None if signature is None else {**block, "signature": signature}
    if kind == "redacted_thinking":
        data = maker.unseal(block.get("data") or "")
        return None if data is None else {**block, "data": data}
    if kind in ("text", "tool_use") and not block.get("citations"):
        return block
    own = _each_encrypted(block, maker.unseal)
    return {"type": kind, "text": block["text"]} if own is None and kind == "text" else own


def seal(block: Any, maker: Maker) -> Any:
    """Return a content block with its signed and encrypted texts sealed, to hand it out."""
    kind = block.get("type")
    if kind == "thinking":
        return {**block, "signature": maker.seal(block["signature"])} if block.get("signature") else block
    if kind == "redacted_thinking":
        return {**block, "data": maker.seal(block["data"])} if block.get("data") else block
    if kind in ("text", "tool_use") and not block.get("citations"):
        return block
    return _each_encrypted(block, maker.seal)


def _each_encrypted(value: Any, change: Any) -> Any:
    """Return a value with all its encrypted texts changed; None if `change` returns None for one of them."""
    if isinstance(value, dict):
        changed = {}
        for name, member in value.items():
            new = change(member) if name in _ENCRYPTED and isinstance(member, str) else _each_encrypted(member, change)
            if new is None and member is not None:
                return None
            changed[name] = new
        return changed
    if isinstance(value, list):
        items = [_each_encrypted(item, change) for item in value]
        return None if any(new is None and old is not None for new, old in zip(items, value, strict=True)) else items
    return value
