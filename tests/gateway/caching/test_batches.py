"""Work for many requests on one thread: what waits meanwhile is one call, and nobody gets another's result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from gateway.caching.batches import Batcher


class Doubling:
    """Work that doubles numbers, waits until it is let go, and remembers its calls and its threads."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.threads: set[int] = set()
        self.let_go = threading.Event()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.calls.append(numbers)
        self.threads.add(threading.get_ident())
        assert self.let_go.wait(20)
        if -1 in numbers:
            raise ValueError("a negative number")
        return [2 * number for number in numbers if number != 100]

    async def under_way(self) -> None:
        """Return when it has been called."""
        while not self.calls:
            await asyncio.sleep(0.001)


@pytest.fixture
def work() -> Doubling:
    return Doubling()


@pytest.fixture
async def batches(work: Doubling) -> AsyncIterator[Batcher[int, int]]:
    batcher = Batcher(work, 3, "tierline-test")
    yield batcher
    work.let_go.set()
    batcher.close()


def asked(batches: Batcher[int, int], *numbers: int) -> asyncio.Task[list[int]]:
    return asyncio.create_task(batches.done(numbers))


async def test_what_waits_meanwhile_is_one_call(work: Doubling, batches: Batcher[int, int]) -> None:
    """Up to the limit, in the order of arrival, on one thread that is not the loop's; nobody's items are parted."""
    tasks = [asked(batches, 1)]
    await work.under_way()
    assert batches.called_at is not None
    tasks += [asked(batches, 2), asked(batches, 3, 4), asked(batches, 5, 6), asked(batches, 7, 8, 9, 10)]
    await asyncio.sleep(0)
    assert batches.count_waiting() == 9
    work.let_go.set()
    assert await asyncio.gather(*tasks) == [[2], [4], [6, 8], [10, 12], [14, 16, 18, 20]]
    assert work.calls == [[1], [2, 3, 4], [5, 6], [7, 8, 9, 10]]
    assert len(work.threads) == 1 and threading.get_ident() not in work.threads
    assert batches.called_at is None and batches.count_waiting() == 0


async def test_who_has_left_costs_no_work(work: Doubling, batches: Batcher[int, int]) -> None:
    """Nor does it take a place in the call of others."""
    first = asked(batches, 1)
    await work.under_way()
    left, stays = asked(batches, 2, 3), asked(batches, 4, 5)
    await asyncio.sleep(0)
    left.cancel()
    work.let_go.set()
    assert (await first, await stays) == ([2], [8, 10])
    assert left.cancelled() and work.calls == [[1], [4, 5]]


async def test_an_error_is_that_of_its_call(work: Doubling, batches: Batcher[int, int]) -> None:
    """All of the call hear it, and the next call is made; too few results are an error too."""
    first = asked(batches, 1)
    await work.under_way()
    failed = [asked(batches, -1), asked(batches, 2)]
    later = [asked(batches, 3, 4), asked(batches, 100), asked(batches, 5)]
    await asyncio.sleep(0)
    work.let_go.set()
    assert await first == [2]
    said = await asyncio.gather(*failed, *later, return_exceptions=True)
    assert [str(each) for each in said[:2]] == ["a negative number"] * 2
    assert work.calls == [[1], [-1, 2], [3, 4, 100], [5]]
    assert [str(each) for each in said[2:4]] == ["2 results for 3 items"] * 2 and said[4] == [10]


async def test_calls_are_told_in_the_loop(work: Doubling) -> None:
    """With their items, results and time, but not those that failed."""
    told: list[tuple[list[int], list[int], bool, int]] = []
    batches = Batcher(work, 3, "tierline-test", lambda *of: told.append((*of[:2], of[2] > 0, threading.get_ident())))
    work.let_go.set()
    assert await batches.done([1, 2]) == [2, 4]
    with pytest.raises(ValueError, match="negative"):
        await batches.done([-1])
    assert told == [([1, 2], [2, 4], True, threading.get_ident())]
    batches.close()


async def test_closing_cancels_what_waits(work: Doubling, batches: Batcher[int, int]) -> None:
    tasks = [asked(batches, 1)]
    await work.under_way()
    tasks.append(asked(batches, 2))
    await asyncio.sleep(0)
    batches.close()
    work.let_go.set()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert work.calls == [[1]]
