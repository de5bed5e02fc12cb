"""Hold the keys that a worker has used lately, those that it knows to be none, and what no key can be.

All are bounded: HELD callers, REFUSED refusals, and a Bloom filter of 2 MiB of the store's digests. A digest is an
HMAC, so its first four numbers of 24 bits are as good as four hashes: with a million keys one in 400 unknown ones
passes the filter, and is looked up.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

from gateway.parts.access.keys.key_caller import KeyCaller
from gateway.parts.access.keys.records import KeyRecord

HELD: Final = 10_000
REFUSED: Final = 10_000
_BYTES: Final = 1 << 21
_NEVER: Final = float("inf")

UNKNOWN: Final = "The API key is missing or unknown. Send it as 'Authorization: Bearer KEY'."
_STATES: Final = {
    "disabled": "This API key is disabled; whoever administers it can enable it again.",
    "revoked": "This API key was revoked.",
    "expired": "This API key has expired, or its grace after a rotation is over.",
}


class HeldKey(NamedTuple):
    """What is known of one key: its caller until a time (Unix seconds), or why it is refused."""

    until: float
    caller: KeyCaller | None
    refused: str = ""


_UNKNOWN: Final = HeldKey(_NEVER, None, UNKNOWN)


class HeldKeys:
    """What a worker knows of keys, by their digests; beyond its size the least recently used ones are forgotten."""

    def __init__(self, most: int = HELD, most_refused: int = REFUSED) -> None:
        self._most, self._most_refused = most, most_refused
        self._callers: OrderedDict[bytes, HeldKey] = OrderedDict()
        self._refused: OrderedDict[bytes, HeldKey] = OrderedDict()
        self._filter: bytearray | None = None
        """None until the store's was read: then anything may be a key."""

    def __len__(self) -> int:
        return len(self._callers)

    def get(self, digest: bytes) -> HeldKey | None:
        """Return what is known of a key, its caller or its refusal; None for nothing. Either takes the same work."""
        table = self._refused if digest in self._refused else self._callers
        held = table.get(digest)
        if held is None:
            return None
        table.move_to_end(digest)
        return held if held.until > time.time() else HeldKey(_NEVER, None, _STATES["expired"])

    def hold(self, digest: bytes, caller: KeyCaller | None, *, there: bool = True) -> HeldKey:
        """Remember whom a key stands for, nobody if it is not `there`, and return what is known of it now.

        For what stands in for a key that is not there the same is done.
        """
        held = _UNKNOWN if caller is None or caller.record is None else _held(caller, caller.record)
        held = held if there else _UNKNOWN
        table, most = (self._refused, self._most_refused) if held.caller is None else (self._callers, self._most)
        table[digest] = held
        if len(table) > most:
            table.popitem(last=False)
        return held

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of any key."""
        return not self._callers and not self._refused

    @property
    def lacks_filter(self) -> bool:
        """Whether the store's filter was not read yet."""
        return self._filter is None

    def forget(self, digest: bytes) -> None:
        """Forget what is known of a key."""
        self._callers.pop(digest, None)
        self._refused.pop(digest, None)

    def drop(self, digest: bytes) -> None:
        """Forget what is known of a key that has changed; one that is new may be a key from now on."""
        self.forget(digest)
        if self._filter is not None:
            for place in _places(digest):
                self._filter[place >> 3] |= 0x80 >> (place & 7)

    def drop_owners(self, teams: Collection[str], tenants: Collection[str]) -> None:
        """Forget the callers of these teams and tenants, whose terms have changed."""
        for digest, held in list(self._callers.items()):
            if (caller := held.caller) is None:
                continue
            of_team = caller.team in teams or f"{caller.tenant}/{caller.team}" in teams
            if of_team or caller.tenant in tenants:
                del self._callers[digest]

    def reset(self, bits: bytes) -> None:
        """Forget everything; `bits` is the store's filter now."""
        self._callers.clear()
        self._refused.clear()
        self._filter = bytearray(bits.ljust(_BYTES, b"\0"))

    def may_be(self, digest: bytes) -> bool:
        """Return whether the store may have a key of this digest, by its filter: False is certain, True is not."""
        bits = self._filter
        return bits is None or all(bits[place >> 3] & 0x80 >> (place & 7) for place in _places(digest))


def _held(caller: KeyCaller, record: KeyRecord) -> HeldKey:
    if record.state != "active":
        return HeldKey(_NEVER, None, _STATES[record.state])
    until = _NEVER if record.expires is None else record.expires
    return HeldKey(until, caller) if until > time.time() else HeldKey(_NEVER, None, _STATES["expired"])


def _places(digest: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(digest[start : start + 3]) for start in range(0, 12, 3))
