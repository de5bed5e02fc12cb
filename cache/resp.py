"""The few commands of the Redis protocol that the store sends, packed by hand, and stream replies, unpacked."""

from __future__ import annotations

from typing import Any

from cache.store import Append, Write


def command(*words: bytes) -> bytes:
    """A command as the protocol wants it: `command(b"GET", b"key")`."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def operation(what: Write | Append) -> bytes:
    """One write or append as a command."""
    if isinstance(what, Write):
        milliseconds = b"%d" % max(1, round(what.ttl_s * 1000))
        return command(b"SET", what.key.encode(), what.value, b"PX", milliseconds)
    stream, keep = what.stream.encode(), b"%d" % what.keep
    return command(b"XADD", stream, b"MAXLEN", b"~", keep, b"*", b"v", what.value)


def part_of(reply: Any, stream: bytes) -> list[Any]:
    """The entries of one stream in a reply to XREAD; none when it waited in vain. Errors as `entries`."""
    return dict(reply)[stream] if reply else []


def entries(reply: list[Any]) -> list[tuple[str, bytes]]:
    """Stream entries as (id, value); one that is not ours has no field `v` and an empty value.

    TypeError, ValueError, LookupError or AttributeError when the reply is not entries at all.
    """
    return [(name.decode(), fields[1] if fields[0] == b"v" else b"") for name, fields in reply]
