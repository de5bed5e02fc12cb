"""Commands of the Redis protocol as bytes, and what replies to them mean."""

from __future__ import annotations

import pytest

from cache.store import resp
from cache.store.base import Append, Command, Release, StoreMemory, Write


def words_of(packed: bytes) -> list[bytes]:
    """Unpack one command, whose lengths have to be right."""
    count, _, rest = packed.removeprefix(b"*").partition(b"\r\n")
    words = []
    for _ in range(int(count)):
        length, _, rest = rest.removeprefix(b"$").partition(b"\r\n")
        words.append(rest[: int(length)])
        assert rest[int(length) :][:2] == b"\r\n"
        rest = rest[int(length) + 2 :]
    assert rest == b""
    return words


def test_words_may_hold_any_bytes() -> None:
    """Each goes with its length, so line ends and empty words are safe."""
    words = [b"SET", b"a\r\nb", b"", b"\x00\xff"]
    assert words_of(resp.command(*words)) == words


@pytest.mark.parametrize(
    ("what", "words", "key"),
    [
        (Write("k", b"v", 1.5), [b"SET", b"k", b"v", b"PX", b"1500"], b"k"),
        (Write("k", b"v", 0.0001), [b"SET", b"k", b"v", b"PX", b"1"], b"k"),  # 0 would be an error
        (Append("s", b"v", 9), [b"XADD", b"s", b"MAXLEN", b"~", b"9", b"*", b"v", b"v"], b"s"),
        (Command((b"GET", b"k")), [b"GET", b"k"], b"k"),
        (Command((b"PING",)), [b"PING"], b""),
        (Command((b"EVAL", b"...", b"1", b"k")), [b"EVAL", b"...", b"1", b"k"], b"k"),
    ],
)
def test_an_operation_is_one_command_and_has_one_key(
    what: Write | Append | Command, words: list[bytes], key: bytes
) -> None:
    """The key decides which node of a cluster gets it."""
    assert words_of(resp.operation(what)) == words
    assert resp.key_of(what) == key


def test_a_lookup_takes_the_lease_in_the_same_command() -> None:
    """Its constant part is packed once, and the whole is still one command with two keys."""
    words = words_of(resp.look(b"key", b"lease", b"me", 2.0))
    assert (words[0], words[2:]) == (b"EVAL", [b"2", b"key", b"lease", b"me", b"2000"])


def test_a_lease_is_touched_by_its_holder_alone() -> None:
    """The script compares before it acts; letting go has the lease for its key."""
    words = words_of(resp.operation(Release("lease", b"me")))
    assert b"redis.call('GET',KEYS[1])==ARGV[1]" in words[1]
    assert words[2:5] == [b"1", b"lease", b"me"]
    assert resp.key_of(Release("lease", b"me")) == b"lease"


def test_the_memory_of_several_servers_is_the_least_of_them() -> None:
    """The smallest limit, the policy that evicts most, and all keys that were evicted; no limit is 0."""

    def said(limit: int, policy: str, evicted: int) -> list[bytes]:
        return [
            f"# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n".encode(),
            b"evicted_keys:%d\r\n" % evicted,
        ]

    nodes = [said(100, "noeviction", 1), said(0, "allkeys-lru", 2), said(70, "volatile-ttl", 0)]
    assert resp.memory(nodes) == StoreMemory(70, "allkeys-lru", 3)
    assert resp.memory([said(0, "noeviction", 0)]) == StoreMemory(0, "noeviction", 0)


def test_replies_are_read() -> None:
    """Entries of a stream, and which commands a server knows."""
    assert resp.entries([[b"1-0", [b"v", b"a"]], [b"2-0", [b"x", b"b"]]]) == [("1-0", b"a"), ("2-0", b"")]
    assert resp.part_of([[b"s", [[b"1-0", [b"v", b"a"]]]]], b"s") == [[b"1-0", [b"v", b"a"]]]
    assert resp.part_of(None, b"s") == []
    assert resp.known(["vadd", "ft.search"], [[b"vadd"], None]) == {"vadd"}


@pytest.mark.parametrize("reply", [[b"1-0"], [[b"1-0", []]], "text", [[None, [b"v", b"a"]]]])
def test_a_reply_that_is_no_entries_is_an_error(reply: object) -> None:
    """One of four kinds, which the store takes for a broken connection."""
    with pytest.raises((TypeError, ValueError, LookupError, AttributeError)):
        resp.entries(reply)  # type: ignore[arg-type]
