"""Read and write durations, shares and sizes as configs have them (`400ms`, `1%`, `4MiB`); say quantities to people.

What `read_*` reads, `write_*` writes. The others are for people: `12.3 ms`, `98.7%`, `+1.2 points`, `$0.0123`.
"""

from __future__ import annotations

import math
import re
from typing import Final

DURATION: Final = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
SIZE: Final = re.compile(r"^(\d+)(B|KiB|MiB|GiB)$")
UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LEAST_USD: Final = 1e-7
OF_STAGES: Final = "stages_"
"""How the names of stages' objectives begin, such as `stages_queue_p99`."""


def read_duration(value: object) -> float:
    """Convert a written duration, such as 400ms, 6s, 5m or 24h, to seconds. Raises ValueError."""
    match = DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write a number with its unit, such as 400ms, 6s, 5m or 24h")
    return float(match[1]) / 1000 if match[2] == "ms" else float(match[1]) * UNIT_SECONDS[match[2]]


def write_duration(seconds: float) -> str:
    """Write seconds as `400ms`, `6s`, `5m`, `24h` or `7d`."""
    for unit, length, least in (("d", 86400, 2), ("h", 3600, 1), ("m", 60, 2), ("s", 1, 1)):
        count = seconds / length
        if count >= least and (unit == "s" or math.isclose(count, round(count), rel_tol=1e-12)):
            return f"{count:.10g}{unit}"
    return f"{seconds * 1000:.10g}ms" if seconds else "0s"


def read_share(value: object) -> object:
    """Convert a written share, such as 1%, to 0..1; numbers stay unchanged. Raises ValueError."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            raise ValueError(f"{value!r} is not a share; write 1% or 0.01") from None
    return read_number(value)


def write_share(value: float) -> str:
    """Write a share of 1 as `1%`, with all its digits."""
    return f"{value * 100:.10g}%"


def read_number(value: object) -> object:
    """Return the value unless it is a bool, which Python would accept as a number. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number; write digits, such as 0.5")
    return value


def read_size(value: object) -> int:
    """Convert a written size, such as 512KiB or 4MiB, to bytes. Raises ValueError."""
    match = SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size; write a whole number with its unit, such as 512KiB or 4MiB")
    return int(match[1]) * _UNIT_BYTES[match[2]]


def byte_size(count: float) -> str:
    """Format a number of bytes with the largest unit of which there is one, such as `1.5 MiB`."""
    unit, size = next(((unit, size) for unit, size in reversed(_UNIT_BYTES.items()) if count >= size), ("B", 1))
    return f"{round(count / size, 1):.10g} {unit}"


def milliseconds(value: float, *, signed: bool = False) -> str:
    """Format a duration given in milliseconds as ms, s or min; with a plus or minus if `signed`."""
    size = abs(value)
    if size < 1000:
        text = f"{size:.{2 if size < 1 else 1 if size < 100 else 0}f} ms"
    else:
        text = f"{size / 1000:.2f} s" if size < 120_000 else f"{size / 60_000:.1f} min"
    return _with_sign(value, text, signed)


def period(seconds: float) -> str:
    """Format how long something is or takes, for a person: to the second, the minute, or a tenth of an hour or day."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    count, unit = (seconds / 3600, "h") if seconds < 2 * 86400 else (seconds / 86400, "days")
    return f"{round(count, 1):.10g} {unit}"


def percent(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """Format a share of 1 as `12.3%`; only what is whole is 100%, and 0 has no minus."""
    value = share if share >= 1 or share <= 0 else min(share, 1 - 10 ** -(digits + 2))
    return f"{round(100 * value, digits) + 0.0:{'+' if signed else ''}.{digits}f}%"


def points(difference: float, digits: int = 1) -> str:
    """Format a difference of two shares of 1 in percentage points, with its sign and without a unit: `+1.2`."""
    return f"{round(100 * difference, digits) + 0.0:+.{digits}f}"


NANO: Final = 1_000_000_000
"""Nanodollars in a US dollar: sums of money that must be exact are whole numbers of them."""


def dollars(value: float, *, signed: bool = False) -> str:
    """Format an amount of US dollars: two decimals from $1, below up to four significant digits."""
    amount = abs(value)
    if amount >= 1:
        text = f"${amount:,.2f}"
    elif amount >= _LEAST_USD:
        whole, _, decimals = f"{amount:.{3 - math.floor(math.log10(amount))}f}".partition(".")
        text = f"${whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"
    else:
        text = f"<${_LEAST_USD:.7f}" if amount else "$0"
    return _with_sign(value, text, signed and value != 0)


def figure(value: float, unit: str, *, signed: bool = False) -> str:
    """Format a figure of a replay, whose unit is share, ms or usd; if `signed`, a difference of two such figures."""
    if unit == "share":
        return f"{points(value, 2)} points" if signed else percent(value, 2)
    return milliseconds(value, signed=signed) if unit == "ms" else dollars(value, signed=signed)


def _with_sign(value: float, text: str, signed: bool) -> str:
    return f"{'-' if value < 0 else '+' if signed else ''}{text}"
