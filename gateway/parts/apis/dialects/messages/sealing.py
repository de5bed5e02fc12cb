"""Seal the signed and encrypted texts of a message's own blocks, and unseal those that one backend made."""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects.reasoning import Maker
from gateway.parts.apis.dialects.messages.turns import REASONING, THINKING_BLOCKS

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
