"""Server-sent events, however they are cut and whichever line ends they have."""

from __future__ import annotations

import time

import pytest

from gateway.backends.base import InvalidReply
from gateway.backends.sse import EventParser

STREAM = b': hello\n\nevent: x\ndata: {"a":1}\n\ndata:{"b":2}\n\ndata: {"c":\ndata: 3}\nid: 7\n\n\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a":1}', b'{"b":2}', b'{"c":\n3}', b"[DONE]"]


def fed(*chunks: bytes) -> list[bytes]:
    parser = EventParser()
    return [data for chunk in chunks for data in parser.feed(chunk)]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_cut_and_any_line_end(newline: bytes, size: int) -> None:
    """Comments, other fields, a missing space, data over several lines: the same events at every cut."""
    stream = STREAM.replace(b"\n", newline)
    assert fed(*(stream[at : at + size] for at in range(0, len(stream), size))) == EVENTS


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_an_event_is_out_with_its_last_byte(newline: bytes) -> None:
    """No event waits for the first byte of the next one."""
    parser = EventParser()
    assert parser.feed(b"data: 1" + newline) == []
    assert parser.feed(newline) == [b"1"]
    assert parser.feed(b"data: 2" + newline * 2) == [b"2"]


def test_an_unfinished_event_is_none() -> None:
    """What no blank line ends is not an event."""
    assert fed(b"data: 1\n\ndata: 2\n") == [b"1"]


def test_a_large_event_is_joined_once() -> None:
    """3 MiB in small pieces come out whole, in time that grows with their size and not with its square."""
    began = time.process_time()
    pieces = [b"x" * 64] * (3 << 14)
    assert fed(b"data: ", *pieces, b"\n\n") == [b"".join(pieces)]
    assert time.process_time() - began < 2


def test_a_giant_event_is_refused() -> None:
    """An event that does not end within 4 MiB is invalid, and is not collected further."""
    with pytest.raises(InvalidReply):
        fed(b"data: ", *[b"x" * (1 << 16)] * 65)


@pytest.mark.parametrize(
    ("chunk", "comments"),
    [
        (b": ping\n\n", 1), (b": ping\n", 1), (b":\n: b\n", 2), (b"event: ping\n\n", 1), (b":\r\n\r\n", 1),
        (b": pi", 0), (b"data: {", 0), (b"data: 1\n\n", 0), (b"\n\n", 0),
    ],
)  # fmt: skip
def test_signs_of_life_are_counted(chunk: bytes, comments: int) -> None:
    """A comment, or an event without data, counts once it is whole; a byte of anything does not."""
    parser = EventParser()
    parser.feed(chunk)
    assert parser.comments == comments


def test_comment_lines_before_an_event_are_none_of_it() -> None:
    """Comments that no blank line ends are left out as they come, however many there are."""
    parser = EventParser()
    for _ in range(1000):
        assert parser.feed(b": still here\n") == []
    assert parser.feed(b"data: 1\n\n") == [b"1"]
    assert parser.comments == 1000
