from __future__ import annotations

import asyncio
import random
import secrets

import numpy as np

from cache.entry import IndexRecord, encode_record
from cache.index import ReplicaIndex, Vector
from cache.store.base import Append
from cache.store.redis_store import RedisStore
from tests.support.store import UNHURRIED, local_store
from tests.support.wait import eventually

DIMENSION = 8


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def unit(seed: int) -> Vector:
    vector = np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)
    return vector / np.linalg.norm(vector)


def record(number: int, partition: str = "p", expires_at: float = 2000.0, key: str | None = None) -> IndexRecord:
    return IndexRecord(partition, key or f"k{number}", f"question {number}", expires_at, unit(number).tobytes())


def make(**limits: int) -> tuple[ReplicaIndex, Clock]:
    clock = Clock()
    return ReplicaIndex(DIMENSION, clock=clock, **limits), clock


def test_the_nearest_come_first() -> None:
    """As a search through all rows would have it, at every size."""
    index, _ = make()
    for count in range(1, 60):
        index.add(record(count))
        target = unit(10_000 + count)
        expected = sorted(range(1, count + 1), key=lambda i: -float(unit(i) @ target))[:5]
        found = index.search("p", target, 5)
        assert [near.key for near in found] == [f"k{i}" for i in expected]
        assert abs(found[0].similarity - float(unit(expected[0]) @ target)) < 1e-4
        assert found[0].question == f"question {expected[0]}"


def test_a_question_is_found_by_its_words_whatever_was_added_and_removed() -> None:
    """Among all that live, and in its own partition alone."""
    index, clock = make(per_partition=12)
    chance = random.Random(3)
    kept: dict[str, tuple[str, float]] = {}
    rows = lambda: index._shares["p"].partitions["p"]  # noqa: E731
    for _ in range(3000):
        number = chance.randrange(40)
        spaces = " " * chance.randint(1, 3)
        if chance.random() < 0.2 and kept:
            rows().remove(chance.choice(list(kept)))
        elif chance.random() < 0.05:
            clock.now += 5
        else:
            key = f"k{number}{len(spaces)}"
            question = f"question{spaces}{number}{' ' * chance.randint(0, 1)}"
            index.add(record(number, key=key, expires_at=clock.now + chance.randint(1, 90))._replace(question=question))
        stored = rows()
        kept = {key: (stored._questions[row], stored._expires[row]) for key, row in stored._row_of.items()}
        words = {" ".join(question.split()) for question, _ in kept.values()}
        assert set(stored._key_of) <= words and set(stored._key_of.values()) <= kept.keys()
        assert index.respaced("other", f"question {number}") is None
        found = index.respaced("p", f" question   {number} ")
        if found is not None:
            question, expires_at = kept[found.key]
            assert found == (found.key, question, 1.0) and expires_at > clock.now
            assert " ".join(question.split()) == f"question {number}"
    index.add(record(1))
    assert index.respaced("p", "question  1") == ("k1", "question 1", 1.0)
    assert index.respaced("p", "question 1 2") is None


def test_partitions_do_not_see_each_other() -> None:
    """A neighbour is always of the same partition."""
    index, _ = make()
    index.add(record(1, "a"))
    assert index.search("b", unit(1), 5) == []
    assert len(index.search("a", unit(1), 5)) == 1


async def test_expired_and_forgotten_rows_are_not_found() -> None:
    """Time passes inside the index too."""
    index, clock = make()
    index.add(record(1, expires_at=1001.0))
    index.add(record(2))
    index.add(record(3))
    await index.forget("p", index.search("p", unit(3), 1)[0])
    clock.now = 1001.0
    assert [near.key for near in index.search("p", unit(1), 5)] == ["k2"]
    index.add(record(4, expires_at=1000.0))
    assert len(index) == 1


def test_the_same_key_is_one_row() -> None:
    """An answer kept again, or seen twice, replaces its row."""
    index, _ = make()
    for number in range(5):
        index.add(record(number, key="same"))
    assert [near.question for near in index.search("p", unit(4), 5)] == ["question 4"]
    assert len(index) == 1


def test_the_row_to_expire_first_leaves_a_full_partition() -> None:
    """Its newest rows stay findable, by key and by vector."""
    index, _ = make(per_partition=10)
    for number in range(25):
        index.add(record(number, expires_at=2000.0 + number))
    assert len(index) == 10
    found = {near.key for near in index.search("p", unit(24), 100)}
    assert found == {f"k{i}" for i in range(15, 25)}
    assert index.search("p", unit(20), 1)[0].key == "k20"


def test_the_partition_longest_unused_makes_room_in_a_full_index() -> None:
    """A row at a time, for one that has less than its share; one that was searched lately keeps all of its rows."""
    index, _ = make(total=30)
    for partition in ("a", "b", "c"):
        for number in range(10):
            index.add(record(number, partition))
    index.search("a", unit(1), 1)
    for number in range(3):
        index.add(record(number, "d"))
    found = {partition: len(index.search(partition, unit(1), 100)) for partition in "abcd"}
    assert found == {"a": 10, "b": 7, "c": 10, "d": 3}
    assert len(index) == 30


def test_a_partition_that_fills_the_index_makes_room_for_itself() -> None:
    """However much one tenant asks, what others kept stays findable; its own newest rows replace its oldest."""
    index, _ = make(total=30)
    for number in range(5):
        index.add(record(number, "quiet"))
    for number in range(200):
        index.add(record(number, "noisy", expires_at=2000.0 + number))
    assert len(index.search("quiet", unit(1), 100)) == 5
    assert {near.key for near in index.search("noisy", unit(1), 100)} == {f"k{number}" for number in range(175, 200)}
    assert len(index) == 30


def test_many_partitions_are_no_larger_share() -> None:
    """A tenant that asks under ever new system prompts makes room for itself; what another kept stays findable."""
    index, _ = make(total=30)
    for number in range(12):
        index.add(record(number, "t:{quiet}:s:1"))
    for number in range(200):
        index.add(record(number, f"t:{{noisy}}:s:{number}"))
    assert len(index) == 30
    assert len(index.search("t:{quiet}:s:1", unit(1), 100)) == 12
    assert index.search("t:{noisy}:s:199", unit(199), 1)[0].key == "k199"
    assert index.search("t:{noisy}:s:100", unit(100), 1) == []


def test_a_large_partition_is_searched_nearly_as_if_row_by_row() -> None:
    """Candidates by sketch, then by vector: the five nearest of thousands are found, whatever was removed between."""
    clock = Clock()
    index = ReplicaIndex(64, clock=clock)
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((40, 64))
    vectors = (centres[rng.integers(0, 40, 3000)] + 0.4 * rng.standard_normal((3000, 64))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for number, vector in enumerate(vectors):
        expires_at = 1500.0 if number % 3 == 0 else 2000.0
        index.add(IndexRecord("p", f"k{number}", f"question {number}", expires_at, vector.tobytes()))
    clock.now = 1600.0
    kept = [number for number in range(3000) if number % 3]
    found, wanted = 0, 0
    for target in vectors[::50]:
        scores = vectors[kept] @ target
        best = {f"k{kept[place]}" for place in np.argsort(-scores)[:5]}
        found += len(best & {near.key for near in index.search("p", target, 5)})
        wanted += 5
    assert found / wanted > 0.97
    assert len(index) == 2000


def test_searches_of_partitions_of_different_sizes_do_not_change_each_other() -> None:
    """Each finds what it would find alone, as the buffers that they share grow with the largest partition."""
    sizes = {"small": 300, "large": 2_000, "few": 10}
    index, _ = make()
    alone = {name: make()[0] for name in sizes}
    for name, size in sizes.items():
        for number in range(size):
            index.add(record(number, name))
            alone[name].add(record(number, name))
    for seed in range(30):
        for name, apart in alone.items():
            assert index.search(name, unit(90_000 + seed), 5) == apart.search(name, unit(90_000 + seed), 5)


def test_many_equally_near_rows_are_not_all_looked_at() -> None:
    """Thousands of one and the same vector cost no more than a thousand, and any of them are the nearest."""
    index, _ = make()
    for number in range(3000):
        index.add(IndexRecord("p", f"k{number}", "q", 2000.0, unit(1).tobytes()))
    found = index.search("p", unit(1), 5)
    assert [round(near.similarity, 3) for near in found] == [1.0] * 5


def test_dead_partitions_are_swept() -> None:
    """Partitions with nothing left to find give their memory back."""
    index, clock = make()
    for number in range(50):
        index.add(record(number, f"p{number}", expires_at=1010.0))
    clock.now = 1100.0
    index.add(record(99))
    assert len(index) == 1


def test_vectors_that_are_none_are_refused() -> None:
    """A NaN or another dimension never gets in (R13)."""
    index, _ = make()
    nan = np.full(DIMENSION, np.nan, np.float32).tobytes()
    for vector in (nan, unit(1).tobytes()[:-4], b""):
        index.add(IndexRecord("p", "k", "q", 2000.0, vector))
    assert len(index) == 0


async def test_every_worker_follows_what_is_appended(store: RedisStore) -> None:
    """What was there at start is read in pages, what comes later as it comes; garbage is skipped."""
    stream = f"test:{secrets.token_hex(8)}"
    await store.apply([Append(stream, encode_record(record(i)), 10_000) for i in range(350)])
    await store.apply([Append(stream, b"garbage", 10_000)])
    indexes = [make()[0] for _ in range(2)]
    tasks = [asyncio.create_task(index.follow(store, stream)) for index in indexes]
    await eventually(lambda: all(len(index) == 350 for index in indexes), what="the warm-up")
    await store.apply([Append(stream, encode_record(record(1000)), 10_000)])
    await eventually(lambda: all(len(index) == 351 for index in indexes), what="the new record")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_worker_passes_over_its_own_records_on_the_stream(store: RedisStore) -> None:
    """It has added them when it wrote them; one that it has forgotten since does not come back."""
    stream = f"test:{secrets.token_hex(8)}"
    index = ReplicaIndex(DIMENSION, store=store, stream=stream, clock=lambda: 1000.0)
    other, _ = make()
    for i in range(3):
        await store.apply(index.operations(record(i)))
        index.kept(record(i))
    await index.forget("p", index.search("p", unit(1), 1)[0])
    tasks = [asyncio.create_task(one.follow(store, stream)) for one in (index, other)]
    await store.apply([Append(stream, encode_record(record(1000)), 10_000)])
    await eventually(lambda: len(other) == 4, what="all records elsewhere")
    await eventually(lambda: len(index.search("p", unit(1000), 9)) == 3, what="the new record here")
    assert {near.key for near in index.search("p", unit(1), 9)} == {"k0", "k2", "k1000"}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_following_goes_on_after_a_restart_of_the_store() -> None:
    """While the store is down the index serves what it has; afterwards it takes what a new, empty store gets."""
    index, _ = make()
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        await store.apply([Append("s", encode_record(record(1)), 100)])
        task = asyncio.create_task(index.follow(store, "s"))
        await eventually(lambda: len(index) == 1, what="the first record")
        server.stop()
        await eventually(lambda: not index.following, what="the outage")
        assert index.search("p", unit(1), 1)[0].key == "k1"
        server.start()
        await eventually(lambda: index.following, 10, "the store's return")
        await store.apply([Append("s", encode_record(record(2)), 100)])
        await eventually(lambda: len(index) == 2, 10, "the second record")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.aclose()
