"""Limit the size of each scope and list its entries.

A scope has two keys besides its entries: a hash from each entry's digest to its size in bytes and, for a copy, the
digest of the original, with the sum of all bytes under ''; and a sorted set of the digests by time of creation. One
script writes an entry and both: if the scope then exceeds its limit of entries or bytes, the oldest are deleted until
it fits (at most 100 at a time), so that a tenant that fills its scope evicts only its own entries (S16). Expired
entries are removed in the same way, so the counts are exact except for entries that the server itself evicted. A copy
is not written once its original is gone, since that may have been purged while the copy was on its way.
All keys of a scope are in one slot of a cluster, and both keys are deleted with the last entry.

A scope whose entries live for different times orders them by the end of their lives instead: then those that end first
are deleted first, and an entry's life can be made longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cache.store.base import Command

ENTRY: Final = ":x:"

_STRIKE: Final = b"""
local prefix = string.sub(KEYS[1], 1, -(#ARGV[1] + 1))
local function strike(digest)
  local record = redis.call('HGET', KEYS[2], digest)
  redis.call('DEL', prefix .. digest)
  redis.call('ZREM', KEYS[3], digest)
  if not record then return 0 end
  redis.call('HDEL', KEYS[2], digest)
  return redis.call('HINCRBY', KEYS[2], '', -tonumber(string.match(record, '^%d+')))
end
"""
_PUT: Final = (
    _STRIKE
    + b"""
if ARGV[5] ~= '' and redis.call('EXISTS', prefix .. ARGV[5]) == 0 then return 0 end
local ttl, size = tonumber(ARGV[3]), #ARGV[2]
local record = redis.call('HGET', KEYS[2], ARGV[1])
local before = record and tonumber(string.match(record, '^%d+')) or 0
redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl)
redis.call('HSET', KEYS[2], ARGV[1], size .. ' ' .. ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
local bytes = redis.call('HINCRBY', KEYS[2], '', size - before)
for _ = 1, 100 do
  local oldest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local full = redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[6]) or bytes > tonumber(ARGV[7])
  if oldest[1] == ARGV[1] or not (full or tonumber(oldest[2]) <= tonumber(ARGV[8])) then break end
  bytes = strike(oldest[1])
end
for i = 2, 3 do
  if redis.call('PTTL', KEYS[i]) < ttl then redis.call('PEXPIRE', KEYS[i], ttl) end
end
if KEYS[4] then redis.call('DEL', KEYS[4]) end
return bytes
"""
)
_DROP: Final = (
    _STRIKE
    + b"""
local there = redis.call('EXISTS', KEYS[1])
for i = 1, #ARGV do strike(ARGV[i]) end
return there
"""
)


_PROLONG: Final = b"""
local prefix, ttl, ends = string.sub(KEYS[1], 1, -(#ARGV[1] + 1)), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 1, #ARGV do
  local digest = i == 1 and ARGV[1] or i > 3 and ARGV[i]
  local score = digest and redis.call('ZSCORE', KEYS[2], digest)
  if score and tonumber(score) < ends then
    redis.call('PEXPIRE', prefix .. digest, ttl)
    redis.call('ZADD', KEYS[2], ARGV[3], digest)
  end
end
for _, key in ipairs({KEYS[2], KEYS[3]}) do
  local left = redis.call('PTTL', key)
  if left >= 0 and left < ttl then redis.call('PEXPIRE', key, ttl) end
end
"""


@dataclass(slots=True)
class Caps:
    """Limits of one scope, in entries and in bytes as stored. Who owns them may change them at any time."""

    entries: int = 20_000
    bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """One entry as the size hash records it: its digest, its bytes, and the original's digest if it is a copy."""

    digest: str
    bytes: int
    origin: str


def put(
    key: str, value: bytes, ttl_s: float, created_at: float, caps: Caps, origin: str = "", lease: str = ""
) -> Command:
    """Return the command that writes an entry under its scope's caps. Times in seconds of the writer's wall clock.

    A scope that orders its entries by the end of their lives gives that time as `created_at`.
    `lease` is the key of the lease under which the answer was produced; it is deleted, because lookups now hit.
    """
    prefix, _, digest = key.rpartition(ENTRY)
    ttl_ms = max(1, round(ttl_s * 1000))
    created_us = round(created_at * 1e6)
    keys = (key.encode(), *_keys(prefix), *((lease.encode(),) if lease else ()))
    return Command(
        (
            b"EVAL", _PUT, b"%d" % len(keys), *keys, digest.encode(), value, b"%d" % ttl_ms,
            b"%d" % created_us, origin.encode(), b"%d" % caps.entries, b"%d" % caps.bytes,
            b"%d" % (created_us - 1000 * ttl_ms),
        )
    )  # fmt: skip


def drop(prefix: str, digests: Iterable[str]) -> Command:
    """Return the command that deletes entries of one scope; its reply is 1 if the first of them existed, else 0."""
    first, *rest = digests
    key = f"{prefix}{ENTRY}{first}".encode()
    return Command((b"EVAL", _DROP, b"3", key, *_keys(prefix), *(each.encode() for each in (first, *rest))))


def prolong(prefix: str, digests: Sequence[str], ttl_s: float, ends_at: float) -> Command:
    """Return the command that lets entries live `ttl_s` seconds, to `ends_at` of the wall clock, or as long as they do.

    For a scope that orders its entries by the end of their lives. There is at least one digest.
    """
    first, *rest = (digest.encode() for digest in digests)
    sizes, ages = _keys(prefix)
    times = (b"%d" % max(1, round(ttl_s * 1000)), b"%d" % round(ends_at * 1e6))
    key = f"{prefix}{ENTRY}".encode() + first
    return Command((b"EVAL", _PROLONG, b"3", key, ages, sizes, first, *times, *rest))


def measured(prefix: str) -> tuple[Command, Command]:
    """Return the commands that read the number of entries (plus 1) and of bytes in a scope."""
    sizes, _ = _keys(prefix)
    return Command((b"HLEN", sizes)), Command((b"HGET", sizes, b""))


def page(prefix: str, cursor: bytes = b"0") -> Command:
    """Return the command that reads a page of a scope's entries; `paged` reads the reply."""
    return Command((b"HSCAN", _keys(prefix)[0], cursor, b"COUNT", b"1000"))


def paged(reply: object) -> tuple[bytes, list[Placed]]:
    """Return the cursor of the next page (b"0" after the last), and the entries of this one."""
    if not isinstance(reply, list) or len(reply) != 2:
        return b"0", []
    cursor, fields = reply
    entries = []
    for name, value in zip(fields[::2], fields[1::2], strict=False):
        size, _, origin = value.partition(b" ")
        if name and size.isdigit():
            entries.append(Placed(name.decode(), int(size), origin.decode()))
    return cursor, entries


def _keys(prefix: str) -> tuple[bytes, bytes]:
    """Return the keys of a scope's size hash and of its sorted set of creation times."""
    return f"{prefix}:sizes".encode(), f"{prefix}:ages".encode()
