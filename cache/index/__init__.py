"""Find the stored questions nearest to a new one within one partition; the interface is `cache.index.base`.

in_store   Redis 8: one vector set per partition
replica    any server: the vectors in each worker, fed by a stream in the store
probe      chooses one of them by what the server supports
"""

from cache.index.base import Choice, IndexKind, IndexState, Neighbour, SemanticIndex, Vector
from cache.index.in_store import VectorSetIndex
from cache.index.probe import ChosenIndex, carried
from cache.index.replica import ReplicaIndex

__all__ = [
    "Choice",
    "ChosenIndex",
    "IndexKind",
    "IndexState",
    "Neighbour",
    "ReplicaIndex",
    "SemanticIndex",
    "Vector",
    "VectorSetIndex",
    "carried",
]
