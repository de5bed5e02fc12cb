"""The semantic index: which kept questions are nearest to this one, within one partition. See `cache.index.base`.

vector_sets    Redis 8: one vector set per partition, in the store
query_engine   Redis with the query engine: one index of all partitions, by tag, in the store
replica        any server: the vectors in each worker, fed by a stream of the store
probe          which of them, as the server has it
"""

from cache.index.base import Choice, IndexKind, IndexState, Neighbour, SemanticIndex, Vector
from cache.index.probe import ChosenIndex, carried
from cache.index.query_engine import QueryEngineIndex
from cache.index.replica import ReplicaIndex
from cache.index.vector_sets import VectorSetIndex

__all__ = [
    "Choice",
    "ChosenIndex",
    "IndexKind",
    "IndexState",
    "Neighbour",
    "QueryEngineIndex",
    "ReplicaIndex",
    "SemanticIndex",
    "Vector",
    "VectorSetIndex",
    "carried",
]
