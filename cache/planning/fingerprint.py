"""Compute the keys of a request: equal only for requests that must have the same answer.

Everything in the body counts, unknown fields too, except what cannot change the answer (DENIED). The canonical form is
JSON with sorted keys and the last user text cut out; that text follows, length-prefixed. The hash before the text is
the semantic partition, the hash after the text the exact key: one pass gives both.

Strings, names of fields too, are compared in Unicode's composed form NFC (UAX #15). Composing takes time that grows
with the square of the number of consecutive marks, so a text with more than 30 of them (UAX #15 calls texts below that
stream-safe), or of more than 64 Ki characters, is hashed as written, as are all texts of a longer request. Numbers are
hashed as written, so 1 and 1.0 differ, which costs a miss and never serves a wrong answer.

Both keys belong to a scope (see `cache.scopes.scope`), so no request of one tenant can find another's entry. All three
are BLAKE2b, keyed with the deployment's secret. With one (TIERLINE_CACHE_SECRET), a key seen in a listing or a slow log
reveals nothing: nobody else can compute the key of a guessed request and compare. Without one, the default, they are
plain hashes: tenants are still separated, but such guesses can be checked. Either way only keys are hidden; entries are
stored in the clear. Parts are length-prefixed, so no text inside a part can move the boundary between two.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

from cache.scopes.scope import DIGEST_BYTES, prefixed

DENIED = frozenset(
    {
        "stream", "stream_options", "user", "metadata", "safety_identifier", "store", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    }
)  # fmt: skip
_DENIED_PREFIX = "prompt_cache_"
_COMPOSED_CHARS: Final = 64 << 10
_SURELY_SAFE_CHARS: Final = 256
_MARKS_IN_A_ROW: Final = re.compile(r"[^\w\s\x00-\x7f]{31}")
"""`re` counts no mark as a word character. Rows of emoji and of dashes match too, which costs at most a miss."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`scope` prefixes `key` and `partition`. `question` is the last user text; None without a plain one."""

    scope: str
    key: str
    partition: str
    question: str | None


def fingerprint(body: Mapping[str, Any], scope: str, secret: bytes, model: str | None, embedder: str) -> Fingerprint:
    """Return the keys of one checked request. `model`, if given (a surface or a pinned tier), replaces the body's.

    `secret` has at most 64 bytes. `embedder` identifies the vectors, so that two encoders never share a partition.
    """
    request = {
        name: value for name, value in body.items() if name not in DENIED and not name.startswith(_DENIED_PREFIX)
    }
    if model is not None:
        request["model"] = model
    request["messages"], question = _cut(body["messages"])
    digest = blake2b(prefixed(scope.encode()), digest_size=DIGEST_BYTES, key=secret)
    digest.update(prefixed(_canonical(request)))
    if question is None:
        return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", "", None)
    if not question.isascii() and _composable(question):
        question = unicodedata.normalize("NFC", question)
    partition = digest.copy()
    partition.update(prefixed(embedder.encode()))
    # An empty question differs from none: its length prefix is hashed.
    digest.update(prefixed(question.encode()))
    return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", f"{scope}:s:{partition.hexdigest()}", question)


def _canonical(request: dict[str, Any]) -> bytes:
    """Return JSON with sorted keys and composed strings. Most requests are ASCII, most others composed already."""
    canonical = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    if canonical.isascii() or len(canonical) > _COMPOSED_CHARS:
        return canonical
    # JSON escapes never compose with what follows, so a text is composed exactly if its JSON is.
    text = canonical.decode()
    if not _composable(text) or unicodedata.is_normalized("NFC", text):
        return canonical
    return orjson.dumps(_composed(request), option=orjson.OPT_SORT_KEYS)


def _composable(text: str) -> bool:
    """Return whether composing the text takes about linear time."""
    if len(text) <= _SURELY_SAFE_CHARS:
        return True
    return len(text) <= _COMPOSED_CHARS and _MARKS_IN_A_ROW.search(text) is None


def _composed(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        composed = {unicodedata.normalize("NFC", name): _composed(part) for name, part in value.items()}
        # Two names may become equal when composed: the names then stay as written, so that neither is lost.
        return composed if len(composed) == len(value) else {name: _composed(part) for name, part in value.items()}
    return [_composed(part) for part in value] if isinstance(value, list) else value


def _cut(messages: list[Any]) -> tuple[list[Any], str | None]:
    """Return the messages without the last user text, and that text; unchanged messages if it is not plain text."""
    last = messages[-1]
    if last["role"] != "user":
        return messages, None
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": None}], content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return [*messages[:-1], {**last, "content": [{**part, "text": None}]}], part["text"]
    return messages, None
