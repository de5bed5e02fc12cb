"""The keys of a request: equal only for requests that must have the same answer.

Everything in the body counts, fields nobody has heard of too, except what cannot change the answer (DENIED). The
canonical form is JSON with sorted keys and the last user text cut out; that text follows, length-prefixed. Its
hash before the text is the semantic partition, its hash after the text the exact key: one pass gives both.

Texts count by what they say: strings are compared in Unicode's form C, composed (UAX #15), names of fields too.
How long composing takes grows with the square of the marks in a row, so a text of more than 30 of them (UAX #15 calls
what has no more stream-safe), or of more than 64 Ki characters, counts as it is written, as do all of a longer request.
Numbers count as they are written, so 1 and 1.0 differ, which costs a miss and never an answer to something else.

Both live in a scope (see `cache.scopes.scope`), so that no request of one tenant ever finds another's entry. All three
are BLAKE2b, keyed with the deployment's secret. With one (TIERLINE_CACHE_SECRET), a key seen in a listing or a slow log
tells nothing: nobody can compute the key of a guessed request and compare. Without one, the default, they are plain
hashes: tenants are kept apart all the same, but such guesses can be checked. Either way it is keys that are hidden, not
entries: those lie in the store as they are. Parts are length-prefixed: no text inside a part can move the border
between two.
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
"""No mark is a word's letter to `re`; rows of emoji and of dashes are found too, which costs a miss at the most."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`scope` starts `key` and `partition`. `question` is the last user text, None where no text can be cut out."""

    scope: str
    key: str
    partition: str
    question: str | None


def fingerprint(body: Mapping[str, Any], scope: str, secret: bytes, model: str | None, embedder: str) -> Fingerprint:
    """The keys of one checked request. `model`, when given, counts instead of the body's: a surface, or a pinned tier.

    `secret` has 64 bytes at most. `embedder` names the vectors, so that two encoders never share a partition.
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
    # A question of no characters is not the same as none: its length says so.
    digest.update(prefixed(question.encode()))
    return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", f"{scope}:s:{partition.hexdigest()}", question)


def _canonical(request: dict[str, Any]) -> bytes:
    """JSON with sorted keys and composed strings. Most is ASCII, and most of the rest is composed already."""
    canonical = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    if canonical.isascii() or len(canonical) > _COMPOSED_CHARS:
        return canonical
    # What JSON escapes never composes with what follows, so a text is composed where its JSON is.
    text = canonical.decode()
    if not _composable(text) or unicodedata.is_normalized("NFC", text):
        return canonical
    return orjson.dumps(_composed(request), option=orjson.OPT_SORT_KEYS)


def _composable(text: str) -> bool:
    """Whether composing it takes no longer than reading it, more or less."""
    if len(text) <= _SURELY_SAFE_CHARS:
        return True
    return len(text) <= _COMPOSED_CHARS and _MARKS_IN_A_ROW.search(text) is None


def _composed(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        composed = {unicodedata.normalize("NFC", name): _composed(part) for name, part in value.items()}
        # Two names that are one when composed: none may be lost, so they stay as they came.
        return composed if len(composed) == len(value) else {name: _composed(part) for name, part in value.items()}
    return [_composed(part) for part in value] if isinstance(value, list) else value


def _cut(messages: list[Any]) -> tuple[list[Any], str | None]:
    """The messages without the last user text, and that text; the messages as they are when it is not plain text."""
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
