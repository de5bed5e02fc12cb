"""The query engine's commands and replies, as its documentation has them: no server with it can be fetched here."""

from __future__ import annotations

import pytest

from cache.index import QueryEngineIndex
from cache.store.base import DocumentIndex, DocumentQuery, IndexDocument, StoreUnavailable
from cache.store.redis_store import RedisStore
from cache.store.resp import command, document_index, document_query, index_operation
from tests.cache.index.rig import DIMENSION, partition_of, record, unit
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED


def test_the_commands_are_those_of_the_documentation() -> None:
    """An HNSW index by cosine over hashes, and a nearest-neighbour query within a tag, in dialect 2."""
    assert document_index(DocumentIndex("i", "i:", 256)) == command(
        *b"FT.CREATE i ON HASH PREFIX 1 i: SCHEMA partition TAG vector VECTOR HNSW 6 "
        b"TYPE FLOAT32 DIM 256 DISTANCE_METRIC COSINE".split()
    )
    wanted = b"(@partition:{0a1b})=>[KNN 5 @vector $v AS distance]"
    assert document_query(DocumentQuery("i", "0a1b", b"\x00\x01", 5, (b"key", b"question"))) == command(
        b"FT.SEARCH", b"i", wanted, b"PARAMS", b"2", b"v", b"\x00\x01",
        *b"RETURN 3 key question distance LIMIT 0 5 DIALECT 2".split(),
    )  # fmt: skip
    assert index_operation(IndexDocument("i:k", ((b"key", b"k"),), 2.0)) == (
        command(b"HSET", b"i:k", b"key", b"k"),
        command(b"PEXPIRE", b"i:k", b"2000"),
    )


async def test_a_reply_is_read_nearest_first() -> None:
    """A cosine is one less the distance; what expired while it was sought has no fields, and is passed over."""
    rows = (
        b"$2\r\nd1\r\n" + command(b"key", b"far", b"question", b"Q far", b"distance", b"0.25"),
        b"$2\r\nd2\r\n*-1\r\n",
        b"$2\r\nd3\r\n" + command(b"key", b"near", b"question", b"Q near", b"distance", b"0.05"),
    )
    async with scripted_redis(b"*7\r\n:3\r\n" + b"".join(rows)) as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        found = await QueryEngineIndex(store, "i", DIMENSION).nearest(partition_of(), unit(1), 5)
        assert [(near.key, near.question) for near in found] == [("near", "Q near"), ("far", "Q far")]
        assert [near.similarity for near in found] == pytest.approx([0.95, 0.75])
        await store.aclose()


async def test_an_index_that_is_there_is_taken_and_one_that_is_gone_is_said() -> None:
    """Making it twice is no error; a search in one that is lost is refused, which has it made again."""
    async with scripted_redis(b"-Index already exists\r\n") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        index = QueryEngineIndex(store, "i", DIMENSION)
        await index.start()
        server.reply = b"-i: no such index\r\n"
        with pytest.raises(StoreUnavailable) as refused:
            await index.nearest(partition_of(), unit(1), 5)
        assert refused.value.reason == "index"
        assert store.state().status == "ok"
        await store.aclose()


def test_a_document_lies_in_the_slot_of_its_entry() -> None:
    """Its name holds the entry's key, and so its hash tag."""
    one = record(1, partition_of("tag"))
    store = RedisStore.from_url("redis://127.0.0.1:1")
    (document,) = QueryEngineIndex(store, "i", DIMENSION).operations(one)
    assert document.key == f"i:{one.key}"
    assert "{tag}" in document.key
