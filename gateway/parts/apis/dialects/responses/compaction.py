"""Compact a conversation (`POST /v1/responses/compact`): its user's messages, and a summary that only we can read.

The summary is asked for as any answer is, so the policy chooses who writes it. It comes as an item `compaction`, whose
`encrypted_content` is encrypted and signed for its owner, a team within a tenant or else the tenant; in a later request
it stands for what it sums up, at every tier. An ordinary request whose input ends with an item `compaction_trigger`
asks for it, too: its answer is that item alone. Nothing is stored. The cipher is the output of SHAKE-256 for a key and
a number used once, the signature BLAKE2b.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.errors import UpstreamFailed
from gateway.parts.apis.dialects.responses.events import ResponseEvents
from gateway.parts.apis.dialects.responses.items import Json

MARK: Final = "tlc1."
FIELDS: Final = frozenset(
    {
        "model", "input", "previous_response_id", "instructions", "service_tier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention",
    }
)  # fmt: skip
"""Fields of a request to compact that count; others say how an answer is to be made."""
TRIGGERED_FIELDS: Final = FIELDS | {"stream", "stream_options", "store", "metadata", "user", "safety_identifier"}
"""Fields that count of a request whose input ends with an item `compaction_trigger`."""
_NONCE: Final = 16
_TAG: Final = 16
_ASK: Final = (
    "The text between the marks is a conversation with an assistant that has become too long. Write what its assistant "
    "needs to know to go on in its place: what the user wants and has decided, what was done and found, names, values "
    "and paths exactly as they are, and what is left to do. Write the summary alone; do not answer the conversation."
)
_SUMMARY: Final = "Summary of the conversation before:\n"


def asked_of(entries: Sequence[tuple[str, Any]]) -> Json:
    """Return the item that asks for the summary of a conversation."""
    lines = (_line(item) for _, item in entries if type(item) is dict)
    text = f"{_ASK}\n\n<conversation>\n{chr(10).join(line for line in lines if line)}\n</conversation>"
    return {"type": "message", "role": "user", "content": text}


def _line(item: Mapping[str, Any]) -> str:
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return ""
    if kind == "message":
        return f"{item.get('role')}: {_text_of(item.get('content'))}"
    text = next((item[name] for name in ("arguments", "input", "output") if name in item), "")
    return f"[{kind} {item.get('name', '')}] {_text_of(text)}"


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return " ".join(str(part.get("text") or part.get("refusal") or f"[{part.get('type')}]") for part in parts)


def sealed(secret: bytes, owner: str, summary: str) -> str:
    """Return a summary as the `encrypted_content` of an item."""
    key, nonce = _key(secret, owner), secrets.token_bytes(_NONCE)
    hidden = nonce + _mixed(summary.encode("utf-8", "surrogatepass"), key + nonce)
    return MARK + urlsafe_b64encode(_tag(hidden, key) + hidden).decode()


def opened_summary(secret: bytes, owner: str, item: Mapping[str, Any]) -> Json | None:
    """Return the message with the summary that a compaction item hides; None if it was not made here for this owner.

    It is never longer than what was sent: where there is no secret, anybody can sign what would unpack to gigabytes.
    """
    key = _key(secret, owner)
    try:
        raw = urlsafe_b64decode(item["encrypted_content"][len(MARK) :].encode())
        tag, hidden = raw[:_TAG], raw[_TAG:]
        if not hmac.compare_digest(tag, _tag(hidden, key)):
            return None
        text = _mixed(hidden[_NONCE:], key + hidden[:_NONCE]).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return {"type": "message", "role": "user", "content": _SUMMARY + text}


def is_trigger(item: Any) -> bool:
    """Return whether an item asks for a compaction of the conversation before it, in place of an answer."""
    return type(item) is dict and item.get("type") == "compaction_trigger"


def is_compaction(item: Any) -> bool:
    """Return whether an item is a compaction that this gateway, or one like it, may have made."""
    if type(item) is not dict or item.get("type") != "compaction":
        return False
    content = item.get("encrypted_content")
    return type(content) is str and content.startswith(MARK)


def _key(secret: bytes, owner: str) -> bytes:
    return hashlib.blake2b(b"compaction:" + owner.encode(), key=secret, digest_size=32).digest()


def _mixed(text: bytes, key: bytes) -> bytes:
    size = len(text)
    stream = hashlib.shake_256(key).digest(size)
    return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def _tag(hidden: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(hidden, key=key, digest_size=_TAG).digest()


class CompactionEvents:
    """Write one stream. It implements `gateway.parts.apis.dialects.client.StreamWriter`."""

    def __init__(self, events: ResponseEvents, item_of: Callable[[str], Json]) -> None:
        """Write by `events`. `item_of` returns the item for a summary, or raises UpstreamFailed."""
        self._events = events
        self._item_of = item_of
        self._pieces: list[str] = []

    def begin(self) -> bytes:
        """See `StreamWriter.begin`."""
        return self._events.begin()

    def alive(self) -> bytes:
        """See `StreamWriter.alive`."""
        return self._events.alive()

    def chunk(self, value: Mapping[str, Any]) -> bytes:
        """Return the events that begin the stream; the summary's text is kept."""
        choices = []
        for choice in value["choices"][:1]:
            text = (choice.get("delta") or {}).get("content")
            if isinstance(text, str):
                self._pieces.append(text)
            choices.append({**choice, "delta": {}})
        return self._events.chunk({**value, "choices": choices})

    def done(self) -> bytes:
        """Return the events of the item, and the last one."""
        try:
            item = self._item_of("".join(self._pieces))
        except UpstreamFailed as failed:
            return self.error({"message": failed.message, "code": failed.code})
        written: list[bytes] = []
        self._events.add_item(item, written)
        return b"".join(written) + self._events.done()

    def prepared(self) -> bytes:
        """Return all events of a response that is to have no output."""
        return self._events.prepared()

    def error(self, error: Mapping[str, Any]) -> bytes:
        """See `StreamWriter.error`."""
        return self._events.error(error)
