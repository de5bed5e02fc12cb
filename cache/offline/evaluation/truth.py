"""Which requests want the same answer, from labelled pairs: what is told of a pair, and what follows from several."""

from __future__ import annotations

from collections.abc import Iterable


class Truth:
    """Requests by number. What no label says, directly or by way of others that want the same, counts as different."""

    def __init__(self, count: int, labels: Iterable[tuple[int, int, bool]]) -> None:
        """`labels`: (one request, another, whether they want the same answer)."""
        self._parent = list(range(count))
        self._told: dict[tuple[int, int], bool] = {}
        for one, other, same in labels:
            self._told[min(one, other), max(one, other)] = same
            if same:
                self._parent[self._root(one)] = self._root(other)

    def same(self, one: int, other: int) -> bool:
        """Whether both want the same answer. Of a pair that has a label, the label counts."""
        told = self._told.get((min(one, other), max(one, other)))
        return self._root(one) == self._root(other) if told is None else told

    def told(self, one: int, other: int) -> bool:
        """Whether this very pair has a label."""
        return (min(one, other), max(one, other)) in self._told

    def _root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number
