"""Pack the Redis-protocol commands that the store sends, and unpack their replies.

Functions that unpack raise TypeError, ValueError, LookupError or AttributeError for a malformed reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from cache.store.base import Append, Command, Release, StoreMemory, Write

IF_HELD: Final = b"if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call(%b) end return 0"
"""Script that does something with a lease if this holder still has it."""
# A server that cannot write (a full one, a replica) has still been read, so only the lease is unavailable.
_LOOK: Final = b"""
local value = redis.call('GET', KEYS[1])
if value then return {value, false} end
local taken = redis.pcall('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken then return {false, redis.call('GET', KEYS[2])} end
return {false, not taken.err and ARGV[1]}
"""
_LET_GO: Final = IF_HELD % b"'DEL',KEYS[1]"


def command(*words: bytes) -> bytes:
    """Pack a command for the protocol: `command(b"GET", b"key")`."""
    parts = [b"*%d" % len(words)]
    for word in words:
        parts += b"\r\n$%d\r\n" % len(word), word  # to format a word, too, would copy it, slowly if it is long
    parts.append(b"\r\n")
    return b"".join(parts)


def operation(what: Write | Append | Command | Release) -> bytes:
    """Pack one write, append or other operation as a command."""
    if isinstance(what, Command):
        return command(*what.words)
    if isinstance(what, Write):
        return command(b"SET", what.key.encode(), what.value, b"PX", _milliseconds(what.ttl_s))
    if isinstance(what, Release):
        return command(b"EVAL", _LET_GO, b"1", what.lease.encode(), what.holder)
    stream, keep = what.stream.encode(), b"%d" % what.keep
    return command(b"XADD", stream, b"MAXLEN", b"~", keep, b"*", b"v", what.value)


def key_of(what: Write | Append | Command | Release) -> bytes:
    """Return the key that determines the cluster node; b"" where a command has none."""
    if isinstance(what, Write):
        return what.key.encode()
    if isinstance(what, Append):
        return what.stream.encode()
    if isinstance(what, Release):
        return what.lease.encode()
    words = what.words
    return words[3] if words[0] == b"EVAL" else words[1] if len(words) > 1 else b""


_LOOK_UP: Final = b"*7\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n$1\r\n2\r\n" % (len(_LOOK), _LOOK)


def look(key: bytes, lease: bytes, holder: bytes, ttl_s: float) -> bytes:
    """Pack one command: get `key`; without a value, take the lease unless it is held, and return its holder.

    Sent for every cacheable request, so the constant part is packed once.
    """
    lasting = _milliseconds(ttl_s)
    words = (len(key), key, len(lease), lease, len(holder), holder, len(lasting), lasting)
    return _LOOK_UP + b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % words


def claim(lease: bytes, holder: bytes, ttl_s: float, beside: bytes) -> tuple[bytes, bytes, bytes]:
    """Pack three commands: take the lease unless it is held, get its holder, and check whether `beside` exists.

    `SET ... NX GET` would save one command, but Redis 6 does not support it.
    """
    take = command(b"SET", lease, holder, b"NX", b"PX", _milliseconds(ttl_s))
    return take, command(b"GET", lease), command(b"EXISTS", beside)


MEMORY: Final = command(b"INFO", b"memory") + command(b"INFO", b"stats")
"""The two commands that ask one server what `memory` reads."""


_OF_MEMORY: Final = re.compile(r"^(maxmemory|maxmemory_policy|evicted_keys):(.*?)\r?$", re.MULTILINE)


def memory(nodes: Sequence[Sequence[Any]]) -> StoreMemory:
    """Return the memory of one or several servers, from each one's two replies to INFO."""
    facts = [dict(_OF_MEMORY.findall("\n".join(reply.decode() for reply in replies))) for replies in nodes]
    limits = [int(server["maxmemory"]) for server in facts]
    return StoreMemory(
        min((limit for limit in limits if limit), default=0),
        min(str(node["maxmemory_policy"]) for node in facts),  # allkeys-..., which takes most, is the first by its name
        sum(int(server["evicted_keys"]) for server in facts),
    )


def part_of(reply: Any, stream: bytes) -> list[Any]:
    """Return the entries of one stream in a reply to XREAD; none after a timeout. Raises what `entries` does."""
    return dict(reply)[stream] if reply else []


def entries(reply: list[Any]) -> list[tuple[str, bytes]]:
    """Return stream entries as (id, value); an entry without the field `v` has an empty value.

    Raises TypeError, ValueError, LookupError or AttributeError if the reply does not consist of entries.
    """
    return [(name.decode(), fields[1] if fields[0] == b"v" else b"") for name, fields in reply]


def known(names: Sequence[str], reply: list[Any]) -> frozenset[str]:
    """Return those of the names that a reply to COMMAND INFO describes."""
    return frozenset(name for name, described in zip(names, reply, strict=True) if described)


@lru_cache(maxsize=64)
def _milliseconds(seconds: float) -> bytes:
    return b"%d" % max(1, round(seconds * 1000))
