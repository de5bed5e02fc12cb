"""Provide the seam `index` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.parts.vector_sets.chosen import ChosenIndex, carried

if TYPE_CHECKING:
    from cache.index import Choice, NewIndex
    from cache.store.base import Store

__all__ = ["carried", "index_of"]


def index_of(choice: Choice) -> NewIndex:
    """Return what makes the index of a worker: this kind, or the best that the server supports."""

    def new(store: Store, name: str, dimension: int, clock: Callable[[], float]) -> ChosenIndex:
        return ChosenIndex(store, name, dimension, choice=choice, clock=clock)

    return new
