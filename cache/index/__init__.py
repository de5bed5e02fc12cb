"""Find the stored questions nearest to a new one within one partition; the interface is `cache.index.base`.

replica    any server: the vectors in each worker, fed by a stream in the store

`gateway/seams.py` says which part brings an index in the store itself.
"""

from cache.index.base import Choice, IndexKind, IndexState, Neighbour, NewIndex, SemanticIndex, Vector
from cache.index.replica import ReplicaIndex, new_replica

__all__ = [
    "Choice",
    "IndexKind",
    "IndexState",
    "Neighbour",
    "NewIndex",
    "ReplicaIndex",
    "SemanticIndex",
    "Vector",
    "new_replica",
]
