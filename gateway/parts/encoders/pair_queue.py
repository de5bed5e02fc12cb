"""Let requests wait for a cross-encoder, which one thread outside the event loop calls.

Requests are scored by their deadline, the earliest first; the pairs of a request one after the other until one is
trusted: the others take as long, and hardly ever score higher. While requests wait that would be late otherwise, only
the first pair of each is scored, and none of a request that cannot be answered in time. Fail closed: what waits too
long or fails is refused.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.semantic.cross_encoder import Checked
from cache.store.connections import Deadline
from gateway.caching.batches import Batcher
from gateway.parts.encoders.blend import Blend, settled

if TYPE_CHECKING:
    from cache.semantic.cross_encoder import TextPair, TextPairScorer

log = logging.getLogger("tierline.cache")

_REMEMBERED: Final = 4_096
"""Pairs whose score is remembered, in each worker: a megabyte of short questions."""
_OPENED_AFTER_S: Final = 0.3
"""Seconds after the start until the model is opened: the first requests do not wait for that."""


class _Asked(NamedTuple):
    """A pair of one request, which needs no more of its pairs once a score is `enough`."""

    pair: TextPair
    enough: float
    request: object
    due: float
    """Time by `time.monotonic` from which nobody waits for the score."""


class CrossEncoderQueue:
    """Call a cross-encoder on one thread, for all requests of one event loop. Close it when done.

    Up to `most_at_once` pairs that wait at the same moment are scored in one turn, and their requests are answered at
    its end; those of one request are never parted. A request is refused at once where
    more than `most_waiting` pairs wait, or more than can be scored within its time. The scores of the latest pairs are
    remembered.
    """

    blend = Blend
    settled = staticmethod(settled)

    def __init__(
        self,
        scorer: TextPairScorer,
        *,
        opens: Callable[[], None] | None = None,
        most_at_once: int = 1,
        most_waiting: int = 64,
    ) -> None:
        """Ask this scorer. `opens` makes it ready, which takes a tenth of a second; None where it is."""
        self.strict = scorer.strict
        self.scripts = scorer.scripts
        self.languages = scorer.languages
        self._scorer = scorer
        self._most_waiting = most_waiting
        self._calls = Batcher(self._score, most_at_once, "tierline-cross-encoder", self._remember, _due)
        self._dues: list[float] = []  # of each request that waits or is being scored
        self._pair_s = 0.0  # recent time of a call per pair that was read
        self._scored: dict[TextPair, float] = {}
        self._opens = opens
        self._opening: asyncio.Future[None] | None = None
        self._opening_at = 0.0  # the loop's time
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Open the model soon, on the queue's thread, unless it is open or a request has it opened before."""
        if self._opens is not None:
            self._timer = asyncio.get_running_loop().call_later(_OPENED_AFTER_S, self._open, self._opens)

    def _open(self, opens: Callable[[], None]) -> asyncio.Future[None]:
        if self._opening is None:
            self._opening_at = asyncio.get_running_loop().time()
            self._opening = self._calls.on_thread(opens)
            self._opening.add_done_callback(self._is_open)
        return self._opening

    def _is_open(self, opening: asyncio.Future[None]) -> None:
        if opening.cancelled():
            return
        if (error := opening.exception()) is None:
            self._opens = None
        else:
            log.error("the cross-encoder cannot be opened, so nothing that it would have to read is served: %s", error)

    async def _unopened(self, opens: Callable[[], None], limit_s: float) -> str:
        """Return why the model is not open after so many seconds, or '' as soon as it is.

        Returns at once where its opening takes longer than that already, as behind a call that is stuck.
        """
        opening = self._open(opens)
        if not opening.done() and asyncio.get_running_loop().time() - self._opening_at < limit_s:
            await asyncio.wait({opening}, timeout=limit_s)
        if not opening.done():
            return "cross_encoder_late"
        return "cross_encoder_failed" if opening.cancelled() or opening.exception() else ""

    async def check(self, pairs: Sequence[TextPair], limit_s: float, enough: float = math.inf) -> Checked:
        """Score the pairs of one request within `limit_s` seconds, one after the other until a score is `enough`.

        A model that is not open yet has to be within that time too. Never raises but for a cancellation.
        """
        scores: list[float] = []
        for pair in takewhile(self._scored.__contains__, pairs):
            scores.append(self._recall(pair))
            if scores[-1] >= enough:
                return Checked(tuple(scores))
        if len(scores) == len(pairs):
            return Checked(tuple(scores))
        loop = asyncio.get_running_loop()
        began = now = loop.time()
        if self._opens is not None and limit_s > 0:
            refused = await self._unopened(self._opens, limit_s)
            now = loop.time()
            if refused:
                return Checked(refused=refused, waited_s=now - began)
            limit_s -= now - began
        request = object()
        due = time.monotonic() + limit_s
        missing = [_Asked(pair, enough, request, due) for pair in pairs[len(scores) :]]
        if refused := self._refuses(len(missing), limit_s, now):
            return Checked(refused=refused, waited_s=now - began)
        self._dues.append(due)
        try:
            with Deadline(limit_s):
                made = await self._calls.done(missing)
        except TimeoutError:
            return Checked(refused="cross_encoder_late", waited_s=loop.time() - began)
        except Exception:  # noqa: BLE001  (logged once for all that waited)
            return Checked(refused="cross_encoder_failed", waited_s=loop.time() - began)
        finally:
            self._dues.remove(due)
        scores += [score for score, _ in made if score is not None]
        if not scores:
            return Checked(refused="cross_encoder_late", waited_s=loop.time() - began)
        return Checked(tuple(scores), waited_s=loop.time() - began, batch=made[0][1])

    def close(self) -> None:
        """Stop the thread and cancel what waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._calls.close()

    def _refuses(self, count: int, limit_s: float, now: float) -> str:
        """Return why a request for so many pairs would wait in vain, or ''."""
        called_at = self._calls.called_at
        if limit_s <= 0 or (called_at is not None and now - called_at >= limit_s):
            return "cross_encoder_late"  # the call before it is stuck, and so would this one be
        ahead = self._calls.count_waiting()
        if ahead and (ahead + count > self._most_waiting or (ahead + count) * self._pair_s > limit_s):
            return "cross_encoder_busy"
        return ""

    def _recall(self, pair: TextPair) -> float:
        """Return a remembered score, and move it behind those that are forgotten first."""
        score = self._scored[pair] = self._scored.pop(pair)
        return score

    def _score(self, asked: list[_Asked]) -> list[tuple[float | None, int]]:
        """Return each pair's score, None for one that is not needed or would be late, and how many were read."""
        read: dict[TextPair, float] = {}
        scores: list[float | None] = []
        decided: object = None
        last: object = None
        for pair, enough, request, due in asked:  # those of one request stand together
            if request is decided:
                scores.append(None)
                continue
            score = read.get(pair, self._scored.get(pair))
            if score is None:
                if not self._is_timely(due, another=request is last):
                    decided = request
                    scores.append(None)
                    continue
                try:
                    (score,) = self._scorer.scores([pair])
                except Exception:
                    log.exception("the cross-encoder failed")
                    raise
                read[pair] = score
            scores.append(score)
            last = request
            if score >= enough:
                decided = request
        return [(score, len(read)) for score in scores]

    def _is_timely(self, due: float, *, another: bool) -> bool:
        """Return whether to score a pair that is due then; `another` one of its request has been scored.

        One whose request waits alone is scored even if the last pairs took longer than it has: its time is measured.
        """
        now, pair_s = time.monotonic(), self._pair_s
        waiting = sorted(self._dues)  # its own request's too
        if now >= due or (len(waiting) > 1 and now + pair_s > due):
            return False
        if not another:
            return True
        if due in waiting:
            waiting.remove(due)
        return all(now + (place + 2) * pair_s <= other for place, other in enumerate(waiting))

    def _remember(self, asked: list[_Asked], results: list[tuple[float | None, int]], took_s: float) -> None:
        if count := results[0][1]:
            pair_s = took_s / count
            self._pair_s = pair_s if not self._pair_s else 0.8 * self._pair_s + 0.2 * pair_s
        for (pair, *_), (score, _) in zip(asked, results, strict=True):
            if score is not None:
                self._scored[pair] = score
        while len(self._scored) > _REMEMBERED:
            del self._scored[next(iter(self._scored))]


def _due(asked: _Asked) -> float:
    return asked.due
