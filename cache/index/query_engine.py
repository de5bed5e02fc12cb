"""Index with the query engine (FT.*, in Redis Stack, in Redis 8 with its modules, and in compatible servers).

Each record is a hash that the engine indexes: its partition as a tag, its vector in one HNSW graph for all partitions.
The engine searches by vector within a tag (a hybrid query). Where few documents have the tag it compares them all, so a
small partition is searched exactly. Hashes expire like keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b

from cache.entry import IndexRecord
from cache.index.base import IndexState, Neighbour, Vector
from cache.store.base import DocumentIndex, DocumentQuery, IndexDocument, Store
from cache.store.resp import PARTITION, VECTOR

_KEY = b"key"
_QUESTION = b"question"


class QueryEngineIndex:
    """The index. `name` is its name and the prefix of its hashes' keys. `clock` is the wall clock, in seconds."""

    def __init__(self, store: Store, name: str, dimension: int, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._index = DocumentIndex(name, f"{name}:", dimension)
        self._clock = clock

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return the nearest neighbours; see SemanticIndex."""
        data = vector.astype("<f4").tobytes()
        query = DocumentQuery(self._index.name, _tag(partition), data, k, (_KEY, _QUESTION))
        return [
            Neighbour(fields[_KEY].decode(), fields[_QUESTION].decode(), similarity)
            for fields, similarity in await self._store.matching(query)
            if _KEY in fields and _QUESTION in fields
        ]

    def operations(self, record: IndexRecord) -> tuple[IndexDocument, ...]:
        """Return the operation that adds a record; see SemanticIndex."""
        fields = (
            (PARTITION, _tag(record.partition).encode()),
            (VECTOR, record.vector),
            (_KEY, record.key.encode()),
            (_QUESTION, record.question.encode()),
        )
        return (IndexDocument(self._document(record.key), fields, record.expires_at - self._clock()),)

    def kept(self, record: IndexRecord) -> None:
        """Do nothing: the record is in the store only."""

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Remove a neighbour; see SemanticIndex."""
        await self._store.delete(self._document(neighbour.key))

    async def start(self) -> None:
        """Create the index in the engine if it is missing."""
        await self._store.define(self._index)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def state(self) -> IndexState:
        """Return the index's state; see SemanticIndex."""
        return IndexState("query_engine")

    def _document(self, key: str) -> str:
        """Return a record's key: it contains the entry's hash tag, and so is in the entry's slot."""
        return self._index.prefix + key


def _tag(partition: str) -> str:
    """Hash a partition to hex, which needs no escaping in a query."""
    return blake2b(partition.encode(), digest_size=16).hexdigest()
