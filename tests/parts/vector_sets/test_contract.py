"""What every semantic index does, on every kind of server."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cache.index import Choice
from tests.parts.vector_sets.rig import Hire, hiring, partition_of, record, unit
from tests.support.store import LocalStore

KINDS: tuple[tuple[Choice, str], ...] = (
    ("replica", "valkey"),
    ("replica", "redis8"),
    ("vector_sets", "redis8"),
)


@pytest.fixture(params=KINDS, ids="-".join)
def make(request: pytest.FixtureRequest) -> Callable[[int], Hire]:
    """What makes workers of each kind, for so many entries."""
    choice, server = request.param
    found: LocalStore = request.getfixturevalue(server)
    return lambda entries: hiring(found.url, choice, entries)


@pytest.fixture
def hire(make: Callable[[int], Hire]) -> Hire:
    return make(1000)


async def test_the_nearest_come_first_with_their_cosines(hire: Hire) -> None:
    """As a search through all would have it: key, question and similarity, which 8 bits move by up to 0.003."""
    partition = partition_of()
    async with hire() as worker:
        await worker.keep(*(record(number, partition) for number in range(100)))
        target = unit(1000)
        expected = sorted(range(100), key=lambda number: -float(unit(number) @ target))[:5]
        found = await worker.index.nearest(partition, target, 5)
        scope = partition[: partition.index("}") + 1]
        assert [near.key for near in found] == [f"{scope}:x:{number}" for number in expected]
        assert [near.question for near in found] == [f"Question {number}?" for number in expected]
        cosines = [float(unit(number) @ target) for number in expected]
        assert [near.similarity for near in found] == pytest.approx(cosines, abs=3e-3)


async def test_any_question_comes_back_as_it_was(hire: Hire) -> None:
    """Whatever characters are in it, for the guards read what was kept."""
    partition = partition_of()
    odd = "Où est «Æsop»\x00\r\n$5\r\n*1 \U0001f9ed {a|b} @x:[1 2]?"
    async with hire() as worker:
        one = record(1, partition)
        await worker.keep(type(one)(one.partition, one.key, odd, one.expires_at, one.vector))
        (near,) = await worker.nearest(partition, 1)
        assert (near.key, near.question) == (one.key, odd)


async def test_partitions_do_not_see_each_other(hire: Hire) -> None:
    """A neighbour is always of the same partition, in the same scope or in another."""
    first, second, third = partition_of("a"), partition_of("a"), partition_of("b")
    async with hire() as worker:
        await worker.keep(*(record(number, first) for number in range(50)), record(1, third))
        assert await worker.nearest(second, 1) == []
        assert len(await worker.nearest(third, 1)) == 1
        assert len(await worker.nearest(first, 1, 100)) == 50


async def test_an_answer_kept_again_is_found_once(hire: Hire) -> None:
    """A key has one place, with the vector that was kept last."""
    partition = partition_of()
    async with hire() as worker:
        first = record(1, partition)
        await worker.keep(first)
        await worker.keep(type(first)(partition, first.key, first.question, first.expires_at, unit(2).tobytes()))
        (near,) = await worker.nearest(partition, 2)
        assert near.similarity == pytest.approx(1, abs=1e-3)


async def test_what_is_forgotten_is_not_found(hire: Hire) -> None:
    """Nor does it cost the others their place; to forget it twice is no error."""
    partition = partition_of()
    async with hire() as worker:
        await worker.keep(*(record(number, partition) for number in range(3)))
        (near,) = await worker.nearest(partition, 1, 1)
        for _ in range(2):
            await worker.index.forget(partition, near)
        assert {other.question for other in await worker.nearest(partition, 1)} == {"Question 0?", "Question 2?"}


async def test_what_has_expired_goes(hire: Hire) -> None:
    """At the latest when something else is kept, so that it takes no live neighbour's place for long."""
    partition = partition_of()
    async with hire() as worker:
        await worker.keep(record(1, partition, ttl_s=0.05))
        deadline = time.monotonic() + 5
        while "Question 1?" in {near.question for near in await worker.nearest(partition, 1)}:
            assert time.monotonic() < deadline
            await worker.keep(record(2, partition))
        await worker.keep(record(2, partition))
        assert [near.question for near in await worker.nearest(partition, 1)] == ["Question 2?"]


async def test_a_full_partition_lets_go_of_what_expires_first(make: Callable[[int], Hire]) -> None:
    """What was kept last stays findable."""
    partition = partition_of()
    async with make(10)() as worker:
        for number in range(25):
            await worker.keep(record(number, partition, ttl_s=600 + number))
        found = await worker.nearest(partition, 24, 100)
        assert {near.question for near in found} == {f"Question {number}?" for number in range(15, 25)}


async def test_another_worker_finds_what_one_has_kept(hire: Hire) -> None:
    """Where the index lies in the store, with its next request; where a stream feeds it, as soon as that has come."""
    partition = partition_of()
    async with hire() as writer, hire() as reader:
        await writer.keep(record(1, partition))
        if reader.index.state().kind == "replica":
            await reader.comes_to_find(partition, [1])
        assert await reader.finds(partition, [1])


async def test_a_worker_that_starts_later_finds_what_was_kept_before(hire: Hire) -> None:
    """It is warm before long, without having been there."""
    partition = partition_of()
    async with hire() as writer:
        await writer.keep(*(record(number, partition) for number in range(200)))
        async with hire() as late:
            await late.comes_to_find(partition, range(0, 200, 20))
