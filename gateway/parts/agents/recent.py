"""Keep the values that were used last."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A mapping of at most `most` values that evicts the least recently used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[int, T] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def get(self, key: int) -> T | None:
        """Return the value, which counts as a use; None if there is none."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: int, value: T) -> None:
        """Keep a value, in place of the one not used for longest if there are too many."""
        self._values.pop(key, None)
        if len(self._values) >= self._most:
            del self._values[next(iter(self._values))]
        self._values[key] = value
