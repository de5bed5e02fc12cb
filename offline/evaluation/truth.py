"""Determine which requests want the same answer, from labelled pairs and what follows from them by transitivity."""

from __future__ import annotations

from collections.abc import Iterable


class Truth:
    """Equivalence of requests, by number. Pairs without a label, direct or by transitivity, count as different."""

    def __init__(self, count: int, labels: Iterable[tuple[int, int, bool]]) -> None:
        """Take the `labels`: (one request, another, whether they want the same answer)."""
        self._parent = list(range(count))
        self._told: dict[tuple[int, int], bool] = {}
        for one, other, same in labels:
            self._told[min(one, other), max(one, other)] = same
            if same:
                self._parent[self._root(one)] = self._root(other)

    def same(self, one: int, other: int) -> bool:
        """Return whether both want the same answer. A pair's own label takes precedence."""
        label = self._told.get((min(one, other), max(one, other)))
        return self._root(one) == self._root(other) if label is None else label

    def told(self, one: int, other: int) -> bool:
        """Return whether this pair itself has a label."""
        return (min(one, other), max(one, other)) in self._told

    def _root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number
