"""Which answers were found lately, so that the next look for one of them can be the cheap one."""

from __future__ import annotations

from typing import Final

_MOST: Final = 8_192


class RecentKeys:
    """Keys under which an answer was found lately, the latest few thousand.

    What was there a while ago is likely there still, and a bare GET costs a fifth less than a look that would take the
    right to make the answer; what is new is likely absent, and then the look saves a round trip.
    """

    __slots__ = ("_keys", "_most")

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def found(self, key: str, *, there: bool) -> None:
        """What a lookup has shown of a key."""
        if not there:
            self._keys.pop(key, None)
        elif key not in self._keys:
            self._keys[key] = None
            if len(self._keys) > self._most:
                del self._keys[next(iter(self._keys))]
