"""Define what the cache stores and what a lookup returns, and encode entries and index records as bytes.

    magic (3) | version (1) | crc32 of the rest (4) | length of the meta (4) | meta, a JSON array | payload

Input is validated before use, and never unpickled. The entry contains its full key (which includes the tenant's scope)
and compares it on reading, so a value under the wrong key, for whatever reason, is not served. It also contains its
times, so that a lost TTL does not prolong it.

An answer of 4 KiB or more is deflated at level 1 where that helps: it then takes half the room, and a hit 14 us more
(4 KiB of English; 43 us for 16 KiB, at 2.2 to 1). Shorter ones, nearly all, are stored uncompressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from policies.value_type import from_fields, value_type

Outcome = Literal["hit", "miss", "bypass", "error", "timeout", "open"]
Kind = Literal["exact", "semantic"]


@value_type
class StoredAnswer:
    """A finished answer to be stored. `completion` is the response to a client that does not stream."""

    completion: Mapping[str, Any]
    tier: str
    backend: str
    model: str
    confidence: float | None = None
    cost_usd: float | None = None
    dropped: tuple[str, ...] = ()
    """Paths of the request's fields that its backend was not sent; a hit names them too."""


class CacheEntry(NamedTuple):
    """A stored answer. `body` is the completion as JSON; times are seconds since 1970; `question` is its user text.

    `similarity` is set on a copy that a semantic hit stored under another question's key; `score` is then that hit's
    and `origin` the id of the original entry. `tags` are the sources of the answer, each with its version at the time.
    """

    body: bytes
    tier: str
    backend: str
    model: str
    surface: str
    policy: str
    confidence: float | None
    created_at: float
    expires_at: float
    question: str
    cost_usd: float | None
    similarity: float | None = None
    score: float | None = None
    origin: str = ""
    dropped: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    in_doubt: bool = False
    """Whether it is kept for a short time alone, because the answer may depend on when it is asked."""


_entry: Final = from_fields(CacheEntry)


class Hit(NamedTuple):
    """An entry that answers this request, and how it was found. `entry_id` is short hex, for headers and spans.

    `score`: confidence that another question's answer fits this one; None for an answer to exactly this request.
    """

    kind: Kind
    entry: CacheEntry
    entry_id: str
    age_s: float
    similarity: float | None = None
    score: float | None = None


class Lookup(NamedTuple):
    """The result of one lookup. `reason` says why there is no hit.

    `neighbour` (an entry id), `question` (its text, which must not be put on spans), `similarity` and `score` are those
    of the best candidate; `score` is None where a veto applied. `stage` is what decided on it (`decision.Stage`). Where
    a cross-encoder was asked, `read` is its own score, `waited_s` how long that took in seconds, and `batch` the pairs
    in the model's call. `vetoed` are the guards that refused other candidates, each with the candidate's cosine.
    """

    outcome: Outcome
    hit: Hit | None = None
    reason: str = ""
    neighbour: str | None = None
    question: str | None = None
    similarity: float | None = None
    score: float | None = None
    stage: str = ""
    read: float | None = None
    waited_s: float = 0.0
    batch: int = 0
    vetoed: tuple[str, ...] = ()


@value_type
class WriteOutcome:
    """Whether an answer was stored, and if not, why not."""

    stored: bool
    reason: str = ""


ID_CHARS: Final = 12
_HEAD = struct.Struct(">3sBII")
_VERSION = 4
_ENTRY = b"TLC"
_RECORD = b"TLI"
_ENTRY_FIELDS = 19
_RECORD_FIELDS = 4
_DEFLATE_FROM = 4 << 10
_WORTH = 0.9
_LARGEST = 64 << 20
"""Maximum bytes that a payload may inflate to: far above any entry, and small enough for memory."""


_DOUBT: Final = 10
"""Place in the bytes of an entry, behind its length, of `in_doubt`: true or null. Earlier versions have two numbers
there, how fast it came; the place of the second one is left empty.
"""


class CorruptEntry(Exception):
    """The bytes are damaged, in another format, or belong to another key."""


class IndexRecord(NamedTuple):
    """One line of the index's stream: an entry's key, its question, and the vector as little-endian float32."""

    partition: str
    key: str
    question: str
    expires_at: float
    vector: bytes


def id_of(key: str) -> str:
    """Return the id, in headers and traces, of the entry under a key."""
    return key.rpartition(":")[2][:ID_CHARS]


def encode(key: str, entry: CacheEntry) -> bytes:
    """Return the bytes to store under `key`."""
    length, payload = _deflated(entry.body) if len(entry.body) >= _DEFLATE_FROM else (0, entry.body)
    meta = (
        key, length, entry.tier, entry.backend, entry.model, entry.surface, entry.policy, entry.confidence,
        entry.created_at, entry.expires_at, entry.question, entry.cost_usd, entry.in_doubt or None, None,
        entry.similarity, entry.score, entry.origin, entry.dropped, entry.tags,
    )  # fmt: skip
    return _frame(_ENTRY, meta, payload)


def decode(key: str, data: bytes) -> CacheEntry:
    """Decode the bytes read from `key`. Raises CorruptEntry."""
    meta, payload = _unframe(_ENTRY, data, _ENTRY_FIELDS)
    if meta[0] != key:
        raise CorruptEntry("key")
    _, length, *fields = meta
    body = _inflated(payload, length) if length else payload
    try:
        fields[-1] = () if fields[-1] == [] else tuple((tag, version) for tag, version in fields[-1])
        fields[-2] = tuple(fields[-2])
    except (TypeError, ValueError):
        raise CorruptEntry("tags") from None
    fields.append(fields[_DOUBT] is True)
    del fields[_DOUBT : _DOUBT + 2]
    return _entry((body, *fields))


def encode_record(record: IndexRecord) -> bytes:
    """Return the bytes to append to the index's stream."""
    return _frame(_RECORD, (record.partition, record.key, record.question, record.expires_at), record.vector)


def decode_record(data: bytes) -> IndexRecord:
    """Decode one line of the stream. Raises CorruptEntry."""
    meta, vector = _unframe(_RECORD, data, _RECORD_FIELDS)
    partition, key, question, expires_at = meta
    return IndexRecord(partition, key, question, expires_at, vector)


def _deflated(body: bytes) -> tuple[int, bytes]:
    """Return the inflated length and the deflated body; 0 and the body as it is where that is hardly shorter."""
    deflated = zlib.compress(body, 1)
    return (len(body), deflated) if len(deflated) < _WORTH * len(body) else (0, body)


def _inflated(payload: bytes, length: int) -> bytes:
    """Return the inflated body; never inflates to more than `length` bytes. Raises CorruptEntry."""
    if not 0 < length <= _LARGEST:
        raise CorruptEntry("length")
    inflating = zlib.decompressobj()
    try:
        body = inflating.decompress(payload, length)
    except zlib.error:
        raise CorruptEntry("deflate") from None
    if len(body) != length or not inflating.eof:
        raise CorruptEntry("length")
    return body


def _frame(magic: bytes, meta: tuple[Any, ...], payload: bytes) -> bytes:
    head = orjson.dumps(meta)
    rest = head + payload
    return _HEAD.pack(magic, _VERSION, zlib.crc32(rest), len(head)) + rest


def _unframe(magic: bytes, data: bytes, fields: int) -> tuple[list[Any], bytes]:
    if len(data) < _HEAD.size:
        raise CorruptEntry("short")
    actual, version, checksum, length = _HEAD.unpack_from(data)
    if actual != magic or version != _VERSION:
        raise CorruptEntry("foreign")
    rest = data[_HEAD.size :]
    if zlib.crc32(rest) != checksum:
        raise CorruptEntry("checksum")
    try:
        meta = orjson.loads(rest[:length])
    except orjson.JSONDecodeError:
        raise CorruptEntry("meta") from None
    if not isinstance(meta, list) or len(meta) != fields:
        raise CorruptEntry("meta")
    return meta, rest[length:]


@dataclass(frozen=True, slots=True)
class Demands:
    """A request's own conditions on a stored answer, in addition to its policy's.

    Maximum age and minimum remaining lifetime in seconds, and the minimum similarity (cosine) of its question. They can
    only narrow what the policy allows.
    """

    max_age_s: float | None = None
    min_fresh_s: float = 0.0
    min_similarity: float = 0.0

    def unmet(self, age_s: float, left_s: float, similarity: float | None) -> str:
        """Return the first condition that an answer fails, or ''. `similarity` is None for an exact answer."""
        if self.max_age_s is not None and age_s > self.max_age_s:
            return "max-age"
        if left_s < self.min_fresh_s:
            return "min-fresh"
        return "min-similarity" if similarity is not None and similarity < self.min_similarity else ""


NO_DEMANDS: Final = Demands()
