from __future__ import annotations

import pickle
import random
import struct
import zlib

import pytest

from cache.entry import CacheEntry, CorruptEntry, IndexRecord, decode, decode_record, encode, encode_record

ENTRY = CacheEntry(
    body=b'{"choices":[]}' * 20,
    tier="local",
    backend="local-1",
    model="m",
    surface="chat",
    policy="chat@1234567",
    confidence=None,
    created_at=1000.5,
    expires_at=2000.25,
    question="Où ?",
    cost_usd=0.0,
)


def test_an_entry_comes_back_as_it_was() -> None:
    """Every field survives."""
    assert decode("k", encode("k", ENTRY)) == ENTRY
    tags = (("doc:42", ""), ("doc:43", "18c"))
    full = ENTRY._replace(confidence=0.25, body=bytes(range(256)), similarity=0.9, score=0.8, origin="abc", tags=tags)
    full = full._replace(in_doubt=True)
    assert decode("k", encode("k", full)) == full


def test_an_entry_of_an_earlier_version_is_read() -> None:
    """It has the pace at which it came, which nothing asks for any more."""
    data = encode("k", ENTRY)
    length = struct.unpack_from(">I", data, 8)[0]
    head, payload = data[12 : 12 + length], data[12 + length :]
    earlier = head.replace(b"0.0,null,null,", b"0.0,0.4,37.5,")
    assert earlier != head
    rest = earlier + payload
    assert decode("k", struct.pack(">3sBII", b"TLC", 4, zlib.crc32(rest), len(earlier)) + rest) == ENTRY


def test_an_entry_is_not_read_under_another_key() -> None:
    """The key inside must be the key asked for."""
    with pytest.raises(CorruptEntry):
        decode("other", encode("k", ENTRY))


def test_every_truncation_is_seen() -> None:
    """However much is missing."""
    data = encode("k", ENTRY)
    for length in range(len(data)):
        with pytest.raises(CorruptEntry):
            decode("k", data[:length])


def test_every_flipped_bit_is_seen() -> None:
    """Wherever it is."""
    data = encode("k", ENTRY)
    chance = random.Random(3)
    for _ in range(2000):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        with pytest.raises(CorruptEntry):
            decode("k", bytes(broken))


@pytest.mark.parametrize("data", [b"", b"x" * 200, pickle.dumps({"a": 1}), b'{"a":1}', b"TLC\x07" + b"\0" * 40])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    """Other formats, and versions of ours that are not this one."""
    with pytest.raises(CorruptEntry):
        decode("k", data)
    with pytest.raises(CorruptEntry):
        decode_record(data)


def test_records_and_entries_are_not_confused() -> None:
    """Each kind refuses the other's bytes."""
    record = IndexRecord("p", "k", "q", 12.5, b"\0" * 8)
    assert decode_record(encode_record(record)) == record
    with pytest.raises(CorruptEntry):
        decode("k", encode_record(record))
    with pytest.raises(CorruptEntry):
        decode_record(encode("k", ENTRY))


@pytest.mark.parametrize("body", [b"all the same " * 1000, bytes(random.Random(4).randbytes(20_000)), b"x" * 4096])
def test_a_long_answer_comes_back_as_it_was_and_never_takes_more_room(body: bytes) -> None:
    """It is deflated where that helps, and left alone where it does not."""
    entry = ENTRY._replace(body=body)
    assert decode("k", encode("k", entry)) == entry
    assert len(encode("k", entry)) <= len(encode("k", ENTRY)) - len(ENTRY.body) + len(body) + 8


def test_a_short_answer_is_kept_as_it_is() -> None:
    """Nearly all hits cost no inflating."""
    assert ENTRY.body in encode("k", ENTRY)


@pytest.mark.parametrize("said", [1, 12_999, 13_001, 1 << 40, -5])
def test_an_answer_inflates_to_what_it_said_or_to_nothing(said: int) -> None:
    """Whoever can write to the store cannot have a few bytes become gigabytes here."""
    data = encode("k", ENTRY._replace(body=b"all the same " * 1000))
    with pytest.raises(CorruptEntry):
        decode("k", _resealed(data.replace(b'["k",13000,', b'["k",%d,' % said)))


def _resealed(data: bytes) -> bytes:
    """A changed entry whose checksum and length are right again, as a stranger could write it."""
    rest = data[12:]
    return struct.pack(">3sBII", b"TLC", data[3], zlib.crc32(rest), rest.index(b"]x") + 1) + rest
