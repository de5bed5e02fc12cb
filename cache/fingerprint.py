"""The keys of a request: equal only for requests that must have the same answer.

Everything in the body counts, fields nobody has heard of too, except what cannot change the answer (DENIED). The
canonical form is JSON with sorted keys and the last user text cut out; that text follows, length-prefixed. Its
hash before the text is the semantic partition, its hash after the text the exact key: one pass gives both.

Both live in a scope of tenant, surface and policy version, so that no request of one tenant ever finds another's
entry, and a new policy starts afresh. All three are BLAKE2b, keyed with the deployment's secret. With one
(TIERLINE_CACHE_SECRET), a key seen in a listing or a slow log tells nothing: nobody can compute the key of a guessed
request and compare. Without one, the default, they are plain hashes: tenants are kept apart all the same, but such
guesses can be checked. Either way it is keys that are hidden, not entries: those lie in the store as they are.
Parts are length-prefixed: no text inside a part can move the border between two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import orjson

SCHEMA = "c1"
"""Part of every key: an older or newer Tierline on the same store never reads these entries."""

DENIED = frozenset(
    {
        "stream", "stream_options", "user", "metadata", "safety_identifier", "store", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    }
)  # fmt: skip
_DENIED_PREFIX = "prompt_cache_"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`scope` starts `key` and `partition`. `question` is the last user text, None where no text can be cut out."""

    scope: str
    key: str
    partition: str
    question: str | None


@lru_cache(maxsize=4_096)
def scope_of(tenant: str, surface: str, policy_version: str, secret: bytes) -> str:
    """The prefix of all keys of one tenant on one surface under one policy. In braces: one slot of a cluster."""
    digest = blake2b(digest_size=_DIGEST_BYTES, key=secret)
    for part in (SCHEMA, tenant, surface, policy_version):
        digest.update(_prefixed(part.encode()))
    return f"tierline:{SCHEMA}:{{{digest.hexdigest()}}}"


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
    canonical = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    if not canonical.isascii():
        canonical = unicodedata.normalize("NFC", canonical.decode()).encode()
    digest = blake2b(_prefixed(scope.encode()), digest_size=_DIGEST_BYTES, key=secret)
    digest.update(_prefixed(canonical))
    if question is None:
        return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", "", None)
    if not question.isascii():
        question = unicodedata.normalize("NFC", question)
    partition = digest.copy()
    partition.update(_prefixed(embedder.encode()))
    # A question of no characters is not the same as none: its length says so.
    digest.update(_prefixed(question.encode()))
    return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", f"{scope}:s:{partition.hexdigest()}", question)


def _prefixed(part: bytes) -> bytes:
    return b"%d:%b" % (len(part), part)


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
