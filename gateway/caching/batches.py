"""Work in batches: what is left to do after replies, in the background; what requests wait for, on one thread."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MOST_AT_ONCE: Final = 32
"""Most items of one batch."""
_CLOSE_S: Final = 1.0
"""Most seconds for the rest of the queue when the process stops."""


class BatchTask(Generic[T]):
    """One task, and its queue, to which a subclass adds by `_add`, within a bound of its own."""

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        """Prepare the task of this name. After the first item of a batch it waits for the others, `linger_s` seconds at
        most.
        """
        self._name = name
        self._linger_s = linger_s
        self._queue: deque[T] = deque()
        self._waiting = asyncio.Event()
        self._full = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _finish(self, batch: list[T]) -> None:
        """Do the work of a batch. It must not raise: the batches after it would be lost."""

    def start(self) -> None:
        """Start the task on the running event loop."""
        self._task = asyncio.create_task(self._run(), name=self._name)

    def _add(self, item: T) -> None:
        self._queue.append(item)
        if len(self._queue) == 1:
            self._waiting.set()
        elif len(self._queue) == MOST_AT_ONCE:
            self._full.set()

    async def aclose(self) -> None:
        """Finish what is queued, within a time limit, and stop."""
        self._closing = True
        self._waiting.set()
        self._full.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            self._task.cancel()

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._waiting.wait()
            if self._linger_s and not self._closing and len(self._queue) < MOST_AT_ONCE:
                self._full.clear()
                timer = asyncio.get_running_loop().call_later(self._linger_s, self._full.set)
                await self._full.wait()
                timer.cancel()
            for left in range(len(self._queue), 0, -MOST_AT_ONCE):  # what comes meanwhile waits for others again
                await self._finish([self._queue.popleft() for _ in range(min(MOST_AT_ONCE, left))])
            if not self._queue:
                self._waiting.clear()


Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Work on the items of all requests of one event loop in batches, on one thread. Close it when done.

    While a call is under way, the items of later requests wait; up to `most` of them are the next call's. The items of
    one request are never parted, so a request with more than `most` is a call of its own.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Iterable[Result]],
        most: int,
        name: str,
        on_results: Callable[[list[Item], list[Result], float], None] | None = None,
        due: Callable[[Item], float] | None = None,
    ) -> None:
        """`on_results` is told, in the event loop, of each call that succeeded, with the seconds that it took.

        Requests are taken in the order of `due` of their first item, the lowest first; in that of arrival without it.
        """
        self.called_at: float | None = None
        """The loop's time at which the call that is under way began."""
        self._work = work
        self._most = most
        self._name = name
        self._on_results = on_results
        self._due = due
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._waiting: list[tuple[list[Item], asyncio.Future[list[Result]]]] = []
        self._running: asyncio.Task[None] | None = None

    async def done(self, items: Sequence[Item]) -> list[Result]:
        """Return a result for each item, in their order. Raises whatever the work does."""
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(items), future))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=self._name)
        return await future

    def on_thread(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Do this on the thread too, after the call that is under way."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Stop the thread and cancel what waits."""
        if self._running is not None:
            self._running.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def count_waiting(self) -> int:
        """Return the number of items that no call has taken yet."""
        return sum(len(items) for items, future in self._waiting if not future.done())

    async def _run(self) -> None:
        try:
            while batch := self._next():
                await self._fulfil(batch)
        finally:
            self._running = None

    def _next(self) -> list[tuple[list[Item], asyncio.Future[list[Result]]]]:
        """Take the requests of the next call: as many as fit, and at least one."""
        waiting = [each for each in self._waiting if not each[1].done()]  # done: nobody waits any more
        if (due := self._due) is not None:
            waiting.sort(key=lambda each: due(each[0][0]))
        taken = count = 0
        for items, _ in waiting:
            count += len(items)
            if taken and count > self._most:
                break
            taken += 1
        self._waiting = waiting[taken:]
        return waiting[:taken]

    async def _fulfil(self, batch: list[tuple[list[Item], asyncio.Future[list[Result]]]]) -> None:
        loop = asyncio.get_running_loop()
        items = [item for wanted, _ in batch for item in wanted]
        self.called_at = loop.time()
        try:
            results = list(await loop.run_in_executor(self._thread, self._work, items))
            if len(results) != len(items):  # they cannot be assigned to what they are of
                raise ValueError(f"{len(results)} results for {len(items)} items")
            if self._on_results is not None:
                self._on_results(items, results, loop.time() - self.called_at)
            start = 0
            for wanted, future in batch:
                if not future.done():
                    future.set_result(results[start : start + len(wanted)])
                start += len(wanted)
        except Exception as error:  # noqa: BLE001  (whatever went wrong is the requests' to hear)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self.called_at = None
            for _, future in batch:  # only when this was cancelled is one still open
                future.cancel()
