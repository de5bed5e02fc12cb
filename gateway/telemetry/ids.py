"""Make ids that begin with the time: whoever has one of them, or its beginning, knows where to look for its record.

A trace id is 32 hex digits and a request id `req_` with 24: first the Unix time in milliseconds in 11 digits (44 bits,
until the year 2527), then random bits. Ids of one service so sort by time, as those of UUID version 7 (RFC 9562) do,
and the low 64 bits of a trace id, by which sampling decides, are all random, as W3C Trace Context level 2 asks.
"""

from __future__ import annotations

import random
import time
from typing import Final

_PREFIX: Final = "req_"
_TIME_DIGITS: Final = 11
_FEWEST_DIGITS: Final = 8
_LONGEST_MS: Final = 3_600_000
_CLOCKS_MS: Final = 60_000
"""How much earlier the store's clock may be, by which records are placed."""
_REQUEST_RANDOM_BITS: Final = 52
TRACE_RANDOM_BITS: Final = 84
"""Bits of a trace id behind its time."""
# Seeded by the system once per process: ids must be unique but not secret, and a system call for each costs 2 us.
_random = random.Random()  # noqa: S311


def new_request_id() -> str:
    """Return the id of a request that begins now."""
    now_ms = time.time_ns() // 1_000_000
    return f"{_PREFIX}{now_ms << _REQUEST_RANDOM_BITS | _random.getrandbits(_REQUEST_RANDOM_BITS):024x}"


def recorded_between(beginning: str) -> tuple[int, int] | None:
    """Return the Unix milliseconds between which the record of an id with this beginning was written.

    None for what is not the beginning of one of our ids, or less than the first eight digits of it (4 s). A client may
    choose an id that looks like ours, and a request may take hours: what is not found then may yet be elsewhere.
    """
    digits = beginning.removeprefix(_PREFIX)[:_TIME_DIGITS]
    if len(digits) < _FEWEST_DIGITS or any(digit not in "0123456789abcdef" for digit in digits):
        return None
    first, last = (int(digits.ljust(_TIME_DIGITS, end), 16) for end in "0f")
    return first - _CLOCKS_MS, last + _LONGEST_MS
