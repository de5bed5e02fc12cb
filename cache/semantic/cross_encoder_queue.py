"""Let requests wait for a cross-encoder, which one thread outside the event loop calls.

Pairs that wait at the same moment are scored in one call. Fail closed: what waits too long or fails is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cache.store.deadline import Deadline

if TYPE_CHECKING:
    from cache.semantic.cross_encoder import Pair, TextPairScorer

log = logging.getLogger("tierline.cache")

_REMEMBERED: Final = 4_096
"""Pairs whose score is remembered, in each worker: a megabyte of short questions."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The scores of one request's pairs, or why there are none (`refused`).

    `waited_s` is the time until then in seconds, `batch` the number of pairs in the model's call, 0 without a call.
    """

    scores: tuple[float, ...] = ()
    refused: str = ""
    waited_s: float = 0.0
    batch: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    """One request's pairs. The future gets their scores and the size of the batch; it is done if the request left."""

    pairs: list[Pair]
    future: asyncio.Future[tuple[list[float], int]]


class CrossEncoderQueue:
    """Call a cross-encoder on one thread, for all requests of one event loop. Close it when done.

    Up to `most_at_once` pairs that wait at the same moment are scored in one call. A request is refused at once where
    more than `most_waiting` pairs wait, or more than can be scored within its time. The scores of the latest pairs are
    remembered.
    """

    def __init__(self, scorer: TextPairScorer, *, most_at_once: int = 8, most_waiting: int = 64) -> None:
        self.strict = scorer.strict
        self.scripts = scorer.scripts
        self._scorer = scorer
        self._most_at_once = most_at_once
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-cross-encoder")
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self._called_at: float | None = None  # the loop's time at which the running call began
        self._pair_s = 0.0  # recent time of a call per pair
        self._scored: dict[Pair, float] = {}

    async def check(self, pairs: Sequence[Pair], limit_s: float) -> Checked:
        """Score the pairs of one request within `limit_s` seconds. Never raises but for a cancellation."""
        known = {pair: self._recall(pair) for pair in pairs if pair in self._scored}
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in known]
        if not missing:
            return Checked(tuple(known[pair] for pair in pairs))
        loop = asyncio.get_running_loop()
        began = loop.time()
        if refused := self._refuses(len(missing), limit_s, began):
            return Checked(refused=refused)
        waiting = _Waiting(missing, loop.create_future())
        self._waiting.append(waiting)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="cache-cross-encoder")
        try:
            with Deadline(limit_s):
                scores, batch = await waiting.future
        except TimeoutError:
            return Checked(refused="cross_encoder_late", waited_s=loop.time() - began)
        except Exception:  # noqa: BLE001  (logged once for all that waited)
            return Checked(refused="cross_encoder_failed", waited_s=loop.time() - began)
        known.update(zip(missing, scores, strict=True))
        return Checked(tuple(known[pair] for pair in pairs), waited_s=loop.time() - began, batch=batch)

    def close(self) -> None:
        """Stop the thread and cancel what waits."""
        if self._running is not None:
            self._running.cancel()
        for one in self._waiting:
            one.future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _refuses(self, count: int, limit_s: float, now: float) -> str:
        """Return why a request for so many pairs would wait in vain, or ''."""
        if limit_s <= 0 or (self._called_at is not None and now - self._called_at >= limit_s):
            return "cross_encoder_late"  # the call before it is stuck, and so would this one be
        ahead = sum(len(one.pairs) for one in self._waiting if not one.future.done())
        if ahead and (ahead + count > self._most_waiting or (ahead + count) * self._pair_s > limit_s):
            return "cross_encoder_busy"
        return ""

    def _recall(self, pair: Pair) -> float:
        """Return a remembered score, and move it behind those that are forgotten first."""
        score = self._scored[pair] = self._scored.pop(pair)
        return score

    async def _run(self) -> None:
        try:
            while batch := self._next():
                await self._call(batch)
        finally:
            self._running = None

    def _next(self) -> list[_Waiting]:
        """Take the requests of the next call: as many as fit, and at least one."""
        waiting = [one for one in self._waiting if not one.future.done()]  # done: the client left, or it was late
        batch: list[_Waiting] = []
        count = 0
        for one in waiting:
            if batch and count + len(one.pairs) > self._most_at_once:
                break
            batch.append(one)
            count += len(one.pairs)
        self._waiting = waiting[len(batch) :]
        return batch

    async def _call(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        pairs = list(dict.fromkeys(pair for one in batch for pair in one.pairs))
        self._called_at = loop.time()
        try:
            scores = await loop.run_in_executor(self._thread, self._scorer.scores, pairs)
            made = dict(zip(pairs, scores, strict=True))
            took_s = (loop.time() - self._called_at) / len(pairs)
            self._pair_s = took_s if not self._pair_s else 0.8 * self._pair_s + 0.2 * took_s
            self._remember(made)
            for one in batch:
                if not one.future.done():
                    one.future.set_result(([made[pair] for pair in one.pairs], len(pairs)))
        except Exception as error:
            log.exception("the cross-encoder failed")
            for one in batch:
                if not one.future.done():
                    one.future.set_exception(error)
        finally:
            self._called_at = None
            for one in batch:  # only when this was cancelled is one still open
                one.future.cancel()

    def _remember(self, made: Mapping[Pair, float]) -> None:
        self._scored.update(made)
        while len(self._scored) > _REMEMBERED:
            del self._scored[next(iter(self._scored))]
