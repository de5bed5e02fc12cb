"""The index in the query engine (FT.*, in Redis Stack, Redis 8 with its modules, and what speaks like them).

Each record is a hash that the engine indexes by itself: its partition as a tag, its vector in one HNSW graph for all.
The engine searches by vector within a tag (a hybrid query), and where few documents have the tag it compares them all,
so a small partition is searched exactly. Hashes expire as keys do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b

from cache.codec import IndexRecord
from cache.index.base import IndexState, Neighbour, Vector
from cache.store.base import DocumentIndex, DocumentQuery, IndexDocument, Store
from cache.store.search_commands import PARTITION, VECTOR

_KEY = b"key"
_QUESTION = b"question"


class QueryEngineIndex:
    """See above. `name` names the index, and begins the keys of its hashes. `clock` is the wall clock, in seconds."""

    def __init__(self, store: Store, name: str, dimension: int, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._index = DocumentIndex(name, f"{name}:", dimension)
        self._clock = clock

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """See SemanticIndex."""
        data = vector.astype("<f4").tobytes()
        query = DocumentQuery(self._index.name, _tag(partition), data, k, (_KEY, _QUESTION))
        return [
            Neighbour(fields[_KEY].decode(), fields[_QUESTION].decode(), similarity)
            for fields, similarity in await self._store.matching(query)
            if _KEY in fields and _QUESTION in fields
        ]

    def operations(self, record: IndexRecord) -> tuple[IndexDocument, ...]:
        """See SemanticIndex."""
        fields = (
            (PARTITION, _tag(record.partition).encode()),
            (VECTOR, record.vector),
            (_KEY, record.key.encode()),
            (_QUESTION, record.question.encode()),
        )
        return (IndexDocument(self._document(record.key), fields, record.expires_at - self._clock()),)

    def kept(self, record: IndexRecord) -> None:
        """Nothing is held here."""

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """See SemanticIndex."""
        await self._store.delete(self._document(neighbour.key))

    async def start(self) -> None:
        """Sees to it that the engine has the index."""
        await self._store.define(self._index)

    async def aclose(self) -> None:
        """Nothing is open."""

    def state(self) -> IndexState:
        """See SemanticIndex."""
        return IndexState("query_engine")

    def _document(self, key: str) -> str:
        """In the slot of the entry: its hash tag is in its key."""
        return self._index.prefix + key


def _tag(partition: str) -> str:
    """Hex, which needs no escaping in a query."""
    return blake2b(partition.encode(), digest_size=16).hexdigest()
