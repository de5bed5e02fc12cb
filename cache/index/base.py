"""What every semantic index does, wherever its vectors lie.

An index finds the kept questions nearest to one, within one partition, and never looks into another. Only similarity
is decided here: whether a neighbour's answer may be served is the guards' question, and whether it still exists the
store's, so an index may know entries that are gone, and may lack one that is there: both end as a miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cache.codec import IndexRecord
from cache.store.base import IndexOperation

Vector = NDArray[np.float32]
IndexKind = Literal["vector_sets", "query_engine", "replica"]
Choice = Literal["auto", "vector_sets", "query_engine", "replica"]
"""What a deployment may ask for: one kind, or the best that its server can carry."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A kept question: the key of its entry, its text, and the cosine of its vector and the one looked for."""

    key: str
    question: str
    similarity: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """What `/readyz` says of the index. `kind` is None while there is none; `reason` is why it is not well, or ''.

    `entries` counts what this index can find; None where the store would have to be walked to know.
    """

    kind: IndexKind | None
    entries: int | None = None
    reason: str = ""


class SemanticIndex(Protocol):
    """Vectors are unit length, of the index's dimension. What asks the store raises StoreUnavailable, and no more."""

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """The `k` nearest, nearest first. Where none is similar `at_least` so, the nearest alone may do."""

    def operations(self, record: IndexRecord) -> tuple[IndexOperation, ...]:
        """What makes a record findable, for the round trip that writes its entry; it replaces one of the same key."""

    def kept(self, record: IndexRecord) -> None:
        """Hears that those operations were carried out."""

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Drops a neighbour whose entry is gone."""

    async def start(self) -> None:
        """Makes ready for searches, as far as the store allows now."""

    async def aclose(self) -> None:
        """Ends what `start` began."""

    def state(self) -> IndexState:
        """How it is."""


def scope_in(partition: str) -> str:
    """What the names of all partitions of one scope begin with, and the keys of its entries: up to its hash tag."""
    return partition[: partition.find("}") + 1] or partition
