"""Define the interface of every semantic index.

An index finds the stored questions nearest to a given one within one partition, and never searches another. It only
ranks by similarity: the guards decide whether a neighbour's answer may be served, and the store knows whether it still
exists. So an index may list deleted entries and lack existing ones: both end as a miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cache.entry import IndexRecord
    from cache.store.base import IndexOperation, Store

Vector = NDArray[np.float32]
IndexKind = Literal["vector_sets", "replica"]
Choice = Literal["auto", "vector_sets", "replica"]
"""Values of `store.index` in the config: one kind, or `auto` for the best that the server supports."""


class Neighbour(NamedTuple):
    """A stored question: the key of its entry, its text, and the cosine of its vector and the query's."""

    key: str
    question: str
    similarity: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index's state in `/readyz`. `kind` is None while there is none; `reason` is the fault, or ''.

    `entries` is the number of questions it can find; None where counting would require a scan of the store.
    """

    kind: IndexKind | None
    entries: int | None = None
    reason: str = ""


class SemanticIndex(Protocol):
    """A semantic index. Vectors have norm 1 and the index's dimension. Raises only StoreUnavailable."""

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return the `k` nearest, nearest first. Of those below `at_least`, it may return only the first."""

    def operations(self, record: IndexRecord) -> tuple[IndexOperation, ...]:
        """Return the operations that add a record, or replace it under its key; they join its entry's round trip."""

    def kept(self, record: IndexRecord) -> None:
        """Record that the operations for this record were executed."""

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Remove a neighbour whose cache entry no longer exists."""

    def refused(self, why: str) -> None:
        """Record that the server refused an operation of this index."""

    async def start(self) -> None:
        """Prepare for searches, as far as the store allows now."""

    async def aclose(self) -> None:
        """Stop what `start` began."""

    def state(self) -> IndexState:
        """Return the index's state."""


NewIndex = Callable[["Store", str, int, Callable[[], float]], SemanticIndex]
"""Returns an index over a store for vectors of a name and a dimension, with a clock of wall time, not started yet."""


def scope_in(partition: str) -> str:
    """Return the common prefix of the names of a scope's partitions and of its entries' keys: up to the hash tag."""
    return partition[: partition.find("}") + 1] or partition
