"""Batches of observations on a stream."""

from __future__ import annotations

import pytest

from cache.entry import CorruptEntry
from cache.semantic.hit_bound import Complaint
from gateway.parts.hit_audits.groups import Batch, Label, decode_batch, encode_batch


def test_a_batch_survives_the_stream_and_garbage_does_not() -> None:
    """What is on a stream may be anything."""
    batch = Batch(7, (0.5, 0.25), (Label(0.5, True, 10.0), Label(0.25, False, 2.0, judged=True)))
    assert decode_batch(encode_batch(batch)) == batch
    told = Batch(7, complaints=(Complaint(0.123456789, "tenant:acme", "ab"),), asked={"tenant:acme": 3})
    assert decode_batch(encode_batch(told)) == told
    by_group = Batch(2, labels=(Label(0.5, True, 10.0, language="Han", owner="tenant:acme"),), languages={"Han": 2},
                     owners={"tenant:acme": 1})  # fmt: skip
    assert decode_batch(encode_batch(by_group)) == by_group
    undone = Batch(0, withdrawn=("ab", "cd"))
    assert decode_batch(encode_batch(undone)) == undone
    for garbage in (
        b"", b"{}", b"[1]", b"[1, [], []]", b'{"requests": -1}', b'{"requests": 1, "text": "?"}',
        b'{"requests": 1, "scores": ["x"]}', b'{"requests": 1, "withdrawn": 3}', b'{"requests": 1, "asked": 3}',
        b'{"requests": 1, "labels": [[0.5, true, 0, false, "", ""]]}', b'{"requests": 1, "labels": [[0.5, true, 2]]}',
        b'{"requests": 1, "complaints": [["x", "o", "r"]]}', b'{"requests": 1, "owners": {"o": -1}}',
    ):  # fmt: skip
        with pytest.raises(CorruptEntry):
            decode_batch(garbage)
