"""Seal and unseal the signed reasoning of chat completions, which servers spell in several ways.

    reasoning_details            OpenRouter and others: a list of objects with `signature` or `data`
    thinking_blocks              LiteLLM's proxy: a list of objects with `signature` or `data`
    tool_calls[].extra_content   Gemini's OpenAI endpoint: `google.thought_signature` of a tool call

See `gateway.dialects.reasoning`. Readable reasoning (`reasoning_content`, `reasoning`) has no maker, and clients of
chat completions get it as it is.

Clients of other dialects know `reasoning_details` alone, of which their APIs keep a text and a signature. They get all
others as such details, whose sealed text says how the server spells it, so that it finds its place again: `blocks`,
`call` and the call's id, `field` and the name of readable reasoning, `detail` and the members of a detail that their
APIs have no place for. What has no signature of its own is sealed at its end: as soon as anything else comes. The
dialect of responses has a place for `extra_content`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dialects.reasoning import DETAILS, Maker, maker_name
from gateway.parts.servers.readable_reasoning import NAMES, name_of_reasoning

_LISTS: Final = ("reasoning_details", "thinking_blocks")
_SIGNED: Final = ("signature", "data")
MAY_HOLD_REASONING: Final = frozenset({*_LISTS, "tool_calls"})
"""Keys of a message or delta that may hold signed texts."""
_PLAIN_MESSAGE: Final = 2
"""Keys of a message with a role and a content alone."""
_AS_BLOCK: Final = "blocks\n"
_OF_CALL: Final = "call\n"
_AS_FIELD: Final = "field\n"
_AS_DETAIL: Final = "detail\n"
_OUTPUT: Final = ("content", "tool_calls", "refusal", "function_call")
_MAY_BE_TRANSLATED: Final = MAY_HOLD_REASONING | set(NAMES)
_MAY_END_REASONING: Final = _MAY_BE_TRANSLATED | set(_OUTPUT)
_KEPT: Final = frozenset({"text", "summary", "signature", "data"})
"""Members of a detail that clients keep."""
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

    __slots__ = ("_begun", "_calls", "_detailed", "_field", "_index", "_maker", "_marks", "_of_server", "watched")

    def __init__(self, maker: Maker, *, calls: bool) -> None:
        """Take the maker. `calls`: whether the signatures of tool calls have no place of their own in the dialect."""
        self._maker = maker
        self._calls = calls
        self._index = 0
        self._begun = False
        """Whether reasoning has begun that is to be sealed at its end."""
        self._field = ""
        """What is sealed of readable reasoning."""
        self._marks: dict[str, Any] = {}
        """Members of the detail that has begun which clients do not keep."""
        self._of_server: Any = None
        """The index and the type of it."""
        self._detailed = False
        """Whether the server gives details, so that the plain text of its reasoning says the same."""
        self.watched = _MAY_BE_TRANSLATED
        """Members of which a delta must have one for `turn` to have anything to do."""

    def turn(self, holder: dict[str, Any], *, ends: bool = False) -> bool:
        """Change a message or delta in place, before `seal_reasoning`; return whether there was anything to change.

        What becomes a detail is sealed here, and `seal_reasoning` must leave it as it is. `ends`: nothing follows it.
        """
        details: list[dict[str, Any]] = []
        if isinstance(given := holder.get(DETAILS), list) and given:
            self._detailed = True
            for detail in given:
                if isinstance(detail, dict):
                    self._add_detail(detail, details)
        blocks = holder.pop("thinking_blocks", None)
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict):
                self._detailed = True
                details.append(self._block(block))
        if not self._detailed and (name := name_of_reasoning(holder)):
            self._begun, self._field = True, f"{_AS_FIELD}{name}"
            details.append({**_piece(holder, holder[name]), "index": self._index})
        if self._begun and (ends or any(holder.get(name) for name in _OUTPUT)):
            self._end(details)
        for call in (holder.get("tool_calls") or ()) if self._calls else ():
            google = _google(call)
            if google is not None and isinstance(text := google.get("thought_signature"), str) and call.get("id"):
                del call[_EXTRA]
                sealed = self._maker.seal(f"{_OF_CALL}{call['id']}\n{text}")
                details.append({"type": "reasoning.encrypted", "data": sealed, "index": self._index})
                self._index += 1
        if details:
            holder[DETAILS] = details
        self.watched = _MAY_END_REASONING if self._begun else _MAY_BE_TRANSLATED
        return blocks is not None or bool(details)

    def _end(self, details: list[dict[str, Any]]) -> None:
        """Seal the reasoning that has begun; what follows is the next block."""
        details.append({**_piece(self._marks, ""), "signature": self._sealed(""), "index": self._index})
        self._close()

    def _sealed(self, own: str) -> str:
        told = self._field or f"{_AS_DETAIL}{orjson.dumps(self._marks).decode()}\n{own}"
        return self._maker.seal(told)

    def _close(self) -> None:
        self._begun, self._field, self._marks = False, "", {}
        self._index += 1

    def _add_detail(self, detail: dict[str, Any], details: list[dict[str, Any]]) -> None:
        """Add a detail of the server's own, with what clients do not keep of it in its sealed text."""
        if self._begun and (detail.get("index"), detail.get("type")) != self._of_server:
            self._end(details)
        self._of_server = detail.get("index"), detail.get("type")
        self._marks |= {name: value for name, value in detail.items() if name not in _KEPT and value is not None}
        if isinstance(data := detail.get("data"), str):
            details.append({"type": "reasoning.encrypted", "data": self._sealed(data), "index": self._index})
            self._close()
            return
        piece = {**_piece(detail, detail.get("text") or detail.get("summary") or ""), "index": self._index}
        details.append(piece)
        if isinstance(signature := detail.get("signature"), str) and signature:
            piece["signature"] = self._sealed(signature)
            self._close()
        else:
            self._begun = True

    def _block(self, block: Mapping[str, Any]) -> dict[str, Any]:
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


def is_name_of_field(sealed: object) -> bool:
    """Return whether a seal holds no signature, but the name under which a server gave readable reasoning."""
    return isinstance(sealed, str) and maker_name(sealed) is not None and f".{_AS_FIELD}" in sealed


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
    """Move details that were not details when the server sent them to where they were, and give all others their
    own members back.
    """
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
        elif text.startswith(_AS_FIELD):
            field = text.removeprefix(_AS_FIELD)
            message[field] = (message.get(field) or "") + (detail.get("text") or "")
        elif text.startswith(_AS_DETAIL):
            kept.append(_own_detail(detail, name, text))
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


def _own_detail(detail: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """Return a detail as its server gave it; `text` is its unsealed signature or data, the member of this `name`."""
    marks, _, own = text.removeprefix(_AS_DETAIL).partition("\n")
    made: dict[str, Any] = orjson.loads(marks)
    if name == "data":
        made["data"] = own
    else:
        made |= _piece(made, detail.get("text") or detail.get("summary") or "")
        if own:
            made["signature"] = own
    return made


def _piece(of: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a piece of readable reasoning, a summary where it is one."""
    if of.get("type") == "reasoning.summary":
        return {"type": "reasoning.summary", "summary": text}
    return {"type": "reasoning.text", "text": text}


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


def with_joined_calls(messages: Sequence[Any]) -> list[Any] | None:
    """Return the messages with calls of neighbouring turns of the assistant in one turn; None if there are no such.

    Their results follow the last of them, and each message with calls must have all of its results behind it.
    """
    made: list[Any] | None = None
    before: Any = None
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and before is not None and before.get("tool_calls"):
            if made is None:
                made = list(messages[:at])
            texts = [part["content"] for part in (before, message) if isinstance(part.get("content"), str)]
            joined = {**before, **message, "tool_calls": [*before["tool_calls"], *calls]}
            if "content" in joined:
                joined["content"] = "".join(texts) or None
            made[-1] = before = joined
            continue
        if made is not None:
            made.append(message)
        before = message if message.get("role") == "assistant" else None
    return made


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
            if any(copy is not call for copy, call in zip(made, calls, strict=True)):
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
