"""Numbers in words: read as configs have them, and said to people."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from policies import quantities as q

_FIGURE = partial(q.figure, signed=True)


@pytest.mark.parametrize("text", ["0s", "5ms", "400ms", "1s", "60s", "90s", "5m", "24h", "2d", "7d", "1.5s", "1h"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    """What is written back is the shortest form, of the same length."""
    assert q.write_duration(q.read_duration(text)) == text


@pytest.mark.parametrize("text", ["1%", "0.1%", "12.5%", "100%"])
def test_a_share_is_written_as_it_is_read(text: str) -> None:
    """With all its digits and no others."""
    share = q.read_share(text)
    assert isinstance(share, float) and q.write_share(share) == text


@pytest.mark.parametrize(
    ("read", "value", "what"),
    [
        (q.read_duration, "400", "write a number with its unit, such as 400ms"),
        (q.read_duration, 400, "write a number with its unit, such as 400ms"),
        (q.read_share, "x%", "write 1% or 0.01"),
        (q.read_share, True, "write digits"),
        (q.read_size, "4MB", "such as 512KiB or 4MiB"),
    ],
)
def test_a_wrong_text_says_how_to_write_it(read: Callable[[object], object], value: object, what: str) -> None:
    """A ValueError with an example, which pydantic and argparse pass on."""
    with pytest.raises(ValueError, match=what):
        read(value)


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (q.milliseconds, 0.0893, "0.09 ms"),
        (q.milliseconds, 12.34, "12.3 ms"),
        (q.milliseconds, 587.4, "587 ms"),
        (q.milliseconds, 1843, "1.84 s"),
        (q.milliseconds, -200_000, "-3.3 min"),
        (q.period, 90, "90 s"),
        (q.period, 3600, "60 min"),
        (q.period, 21_600, "6 h"),
        (q.period, 216_000, "2.5 days"),
        (q.dollars, 0, "$0"),
        (q.dollars, 1e-9, "<$0.0000001"),
        (q.dollars, 0.0000021, "$0.0000021"),
        (q.dollars, 0.0623437, "$0.06234"),
        (q.dollars, 0.5, "$0.50"),
        (q.dollars, 0.99999, "$1.00"),
        (q.dollars, 1234.5, "$1,234.50"),
        (q.dollars, -0.02, "-$0.02"),
        (q.percent, 0.98765, "98.8%"),
        (q.percent, 0.99999, "99.9%"),
        (q.percent, 1.0, "100.0%"),
        (q.percent, -0.0001, "0.0%"),
        (partial(q.percent, signed=True), -0.017, "-1.7%"),
        (q.points, 0.0123, "+1.2"),
        (q.points, -0.0001, "+0.0"),
        (q.byte_size, 0, "0 B"),
        (q.byte_size, 1536, "1.5 KiB"),
        (q.byte_size, 32 << 20, "32 MiB"),
        (partial(_FIGURE, unit="share"), 0.0123, "+1.23 points"),
        (partial(_FIGURE, unit="ms"), -20.0, "-20.0 ms"),
        (partial(_FIGURE, unit="usd"), 0.25, "+$0.25"),
        (partial(_FIGURE, unit="usd"), 0.0, "$0"),
    ],
)
def test_a_quantity_is_said_as_a_person_would(say: Callable[[float], str], value: float, text: str) -> None:
    """Only what is whole is 100%, nothing but zero is $0, and no zero has a minus."""
    assert say(value) == text
