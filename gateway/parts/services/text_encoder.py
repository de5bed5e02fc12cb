"""Encode the texts of the embeddings API with the gateway's own encoder, in a thread and in batches.

It has a thread of its own, not that of `QuestionEmbedder`: a client's thousand texts must not delay the questions of
chats, which go on without a semantic cache after half a second.

Vectors are stored one entry a text, a whole batch in one round trip each way. A key is a hash of the text (or its
tokens) and of everything else that makes its vector: the model, its settings and the scope of tenant, surface and
policy, so that nobody's entry is found by anybody else. Each entry holds its own key, which is checked when it is read.
A scope's vectors have caps of their own, as large as those of its answers.
"""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cache.scopes.scope import DIGEST_BYTES, ENTRY, Caps, Scopes, prefixed, put
from cache.store.base import Command, Store
from gateway.caching.batches import Batcher
from policies.value_type import value_type

if TYPE_CHECKING:
    from policies.model import Policy
    from routing.embedder import PublicEncoder, Vector


_BATCH: Final = 32
"""Most texts in one call of the encoder, of all requests together."""
_IN_TURN: Final = 32
"""Most texts of one request that wait in the queue, so that a short request does not wait for all of a long one."""


class EncodedText(NamedTuple):
    """The unit vector of a text and its number of tokens; None if it is too long to be read whole."""

    vector: Vector
    tokens: int | None


class TextEncoder:
    """Encode texts for one event loop. Close it when done."""

    def __init__(self, encoder: PublicEncoder) -> None:
        self.encoder = encoder
        self._batches = Batcher(self._work, _BATCH, "tierline-encode")

    async def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Return the texts, encoded, in their order. Raises whatever the encoder does."""
        encoded: list[EncodedText] = []
        for start in range(0, len(texts), _IN_TURN):
            encoded += await self._batches.done(texts[start : start + _IN_TURN])
        return encoded

    def close(self) -> None:
        """Stop the thread and cancel what still waits."""
        self._batches.close()

    def _work(self, texts: list[str]) -> list[EncodedText]:
        counts = [self.encoder.count_tokens(text) for text in texts]
        vectors = self.encoder.embed(
            [text if count is not None else "" for text, count in zip(texts, counts, strict=True)]
        )
        return [EncodedText(vector, count) for vector, count in zip(vectors, counts, strict=True)]


_HEAD: Final = struct.Struct(">3sBIIdd16s")
_MAGIC: Final = b"TLV"
_VERSION: Final = 1
_CHECKED_FROM: Final = 8
"""Where the part of an entry begins that its checksum covers."""
_SLICE: Final = 64
"""Number of vectors that are decoded or written at a time: about a millisecond."""
_READ_S: Final = 0.25
"""Most seconds for the vectors of a whole batch, which may be megabytes."""


@value_type
class StoredVector:
    """The vector of one text, little-endian float32, and its number of tokens. `created_at` is in Unix seconds."""

    vector: bytes
    tokens: int
    created_at: float
    expires_at: float


class VectorCache:
    """The stored vectors. `clock` is the wall clock in seconds since 1970. Its methods raise StoreUnavailable."""

    def __init__(
        self, store: Store, scopes: Scopes, secret: bytes, caps: Caps, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._scopes = scopes
        self._secret = secret
        self._caps = caps
        self.clock = clock

    def keys(self, tenant: str, policy: Policy, model: Mapping[str, Any], inputs: Sequence[Any]) -> list[str]:
        """Return the keys of these inputs, texts or lists of tokens. `model` is what else makes a vector, as JSON."""
        prefix = f"{self._scopes.of(tenant, policy).prefix}:e"
        common = blake2b(prefixed(prefix.encode()), digest_size=DIGEST_BYTES, key=self._secret)
        common.update(prefixed(orjson.dumps(model, option=orjson.OPT_SORT_KEYS)))
        keys = []
        for text in inputs:
            digest = common.copy()
            digest.update(prefixed(orjson.dumps(text)))
            keys.append(f"{prefix}{ENTRY}{digest.hexdigest()}")
        return keys

    async def read(self, keys: Sequence[str]) -> list[StoredVector | None]:
        """Return what is stored under each key; None where nothing is, or nothing that can be used."""
        if not keys:
            return []
        (values,) = await self._store.ask([Command((b"MGET", *(key.encode() for key in keys)))], _READ_S)
        if not isinstance(values, list) or len(values) != len(keys):
            return [None] * len(keys)
        vectors = []
        for done, (key, value) in enumerate(zip(keys, values, strict=True), start=1):
            if done % _SLICE == 0:
                await asyncio.sleep(0)
            vectors.append(self._decoded(key, value))
        return vectors

    async def write(self, vectors: Mapping[str, StoredVector]) -> None:
        """Store vectors by their keys, in slices, between which the event loop serves others."""
        now = self.clock()
        fresh = [(key, vector) for key, vector in vectors.items() if vector.expires_at > now]
        for start in range(0, len(fresh), _SLICE):
            puts = [
                put(key, _encoded(key, one), one.expires_at - now, one.created_at, self._caps)
                for key, one in fresh[start : start + _SLICE]
            ]
            await self._store.apply(puts)

    def _decoded(self, key: str, value: object) -> StoredVector | None:
        if not isinstance(value, bytes) or len(value) < _HEAD.size:
            return None
        magic, version, checksum, tokens, created_at, expires_at, digest = _HEAD.unpack_from(value)
        if magic != _MAGIC or version != _VERSION or digest != _digest_of(key) or expires_at <= self.clock():
            return None
        if zlib.crc32(value[_CHECKED_FROM:]) != checksum:
            return None
        return StoredVector(value[_HEAD.size :], tokens, created_at, expires_at)


def _encoded(key: str, vector: StoredVector) -> bytes:
    head = _HEAD.pack(_MAGIC, _VERSION, 0, vector.tokens, vector.created_at, vector.expires_at, _digest_of(key))
    value = bytearray(head + vector.vector)
    struct.pack_into(">I", value, 4, zlib.crc32(value[_CHECKED_FROM:]))
    return bytes(value)


def _digest_of(key: str) -> bytes:
    return bytes.fromhex(key.rpartition(":")[2])
