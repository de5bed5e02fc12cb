"""Step 11: prepare an answer's cache write, and once the reply is out write cache, ledger and trace.

What observers want of an answer is handed on from here too.

Nothing here can fail or delay a request. Answers are stored in batches, one round trip to the store for all that came
within a few milliseconds. The queue is bounded; when it is full the cache write is dropped and counted, and the request
is recorded all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cache.entry import NO_DEMANDS, CacheEntry, StoredAnswer, WriteOutcome
from cache.planning.plan import CachePlan
from cache.write import CacheWrite, PendingWrite
from gateway.caching.batches import MOST_AT_ONCE, BatchTask
from gateway.cascade.streaming import LiveStream
from gateway.chat.completions import completion_text, evidence_of
from gateway.request.context import AnswerEnd, Reply, SharedAnswer
from gateway.telemetry import names
from gateway.telemetry.sink import slice_of
from routing.confidence.judge import structural_fault

if TYPE_CHECKING:
    from cache.response_cache import ResponseCache
    from gateway.accounting import Finalizer
    from gateway.cascade.attempt import JsonAnswer
    from gateway.cascade.runner import Served
    from gateway.config.policy_reload import Policies
    from gateway.request.context import HeldLimits, RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.sink import Telemetry
    from gateway.telemetry.trace import Hop, Trace
    from routing.confidence.judge import Evidence
    from routing.embedder import Vector

log = logging.getLogger("tierline.write_behind")

_QUEUE: Final = 1024
_LINGER_S: Final = 0.01

Whole = Callable[[], Mapping[str, Any] | None]
"""Return an answer once it has ended; None if it is not whole."""


class Take(NamedTuple):
    """What an observer wants of an answer.

    `whole` says whether it will read all of it. `served` is called before the answer is sent, with its request, the
    question's vector, what returns the whole, and the evidence of an answer that is no stream.
    """

    whole: bool
    served: Callable[[RequestContext, Vector | None, Whole, Evidence | None], None]


class Observer(Protocol):
    """What looks at fresh answers. Nothing in it can fail or delay a request."""

    @property
    def keys(self) -> Collection[str]:
        """Keys of policies: it is asked about requests whose policy has one, and about all while a candidate runs."""

    def wants(self, request: RequestContext) -> Sequence[Take]:
        """Return what this observer will take of the answer to a request; nothing if it is not interested."""

    def start(self) -> None:
        """Start on the running event loop."""

    async def aclose(self) -> None:
        """Stop."""


@dataclass(slots=True, eq=False)
class Finished:
    """A request whose reply is out: what `WriteBehind` still has to record, store and release of it."""

    trace: Trace
    ledger: Ledger
    write: PendingWrite | None = None
    shared: SharedAnswer | None = None
    hold: HeldLimits | None = None


class WriteBehind(BatchTask[Finished]):
    """One background task that finishes finished requests."""

    def __init__(
        self,
        cache: ResponseCache,
        telemetry: Telemetry,
        finalizer: Finalizer,
        observers: Sequence[Observer],
        policies: Policies,
    ) -> None:
        super().__init__("tierline.write_behind", _LINGER_S)
        self._observers = observers
        self._policies = policies
        self._cache = cache
        self._telemetry = telemetry
        self._finalizer = finalizer
        telemetry.settle = finalizer.close
        self._open: dict[AnswerEnd, Finished] = {}  # their answers go on for other readers

    def reply_with(self, request: RequestContext, plan: CachePlan, vector: Vector | None, served: Served) -> Reply:
        """Return the reply of a served answer. An answer that may be stored is in `ResponseCache.pending` as soon as it
        is whole, so that equal requests of this worker find it before it is in the store.
        """
        answer = served.answer
        if request.trace.captures:
            request.trace.answer = partial(_text_of, answer)
        takes: list[Take] = []
        for observer in self._observers:
            if self._policies.current.rolling or not request.policy.content.keys().isdisjoint(observer.keys):
                takes += observer.wants(request)
        may_store = served.may_store and plan.write and not plan.reason
        whole: Whole = _nothing
        if isinstance(answer, LiveStream):
            if may_store or any(take.whole for take in takes):
                whole = answer.remember()
            reply = Reply(events=answer.events(), stream=answer, pass_on=answer.pass_on)
        else:
            completion = answer.value
            whole = lambda: completion  # noqa: E731
            may_store = may_store and answer.sound
            reply = Reply(body=answer.body)
        for take in takes:
            take.served(request, vector, whole, None if isinstance(answer, LiveStream) else answer.evidence)
        if may_store:
            judged = not isinstance(answer, LiveStream) and answer.evidence is not None
            reply.write = write = _pending_write(request, plan, vector, whole, judged=judged)
            if isinstance(answer, LiveStream):
                answer.on_whole = partial(self._cache.pending.add, write)
            else:
                self._cache.pending.add(write)
        return reply

    def finish(self, trace: Trace, ledger: Ledger, reply: Reply | None, hold: HeldLimits | None = None) -> None:
        """Finish one request: settle its cost, and leave its cache write and record to the background task.

        This is the only entry to step 11; it never blocks or raises. `reply` is None if the request has none. If other
        requests read the same answer, finishing waits until that has ended. `hold` is what the request holds of its
        owners' limits.
        """
        write: PendingWrite | None = None
        shared: SharedAnswer | None = None
        if reply is not None:
            if (end := reply.shared_end) is None:
                write = reply.write if reply.write is not None and reply.is_whole() else None
            elif end.over:
                write, shared = end.write, end.shared
            else:
                self._open[end] = Finished(trace, ledger, hold=hold)
                end.then(partial(self._ended, end))
                return
        self._take(trace, ledger, hold, write, shared)

    def _ended(self, end: AnswerEnd) -> None:
        finished = self._open.pop(end, None)
        if finished is not None:
            self._take(finished.trace, finished.ledger, finished.hold, end.write, end.shared)

    def _settle(self, trace: Trace, ledger: Ledger, hold: HeldLimits | None) -> None:
        self._finalizer.close(trace, ledger)
        if hold is not None:
            hold.settle(ledger)

    def _take(
        self,
        trace: Trace,
        ledger: Ledger,
        hold: HeldLimits | None,
        write: PendingWrite | None,
        shared: SharedAnswer | None,
    ) -> None:
        # Where nothing waits for what it cost, telemetry settles it, with others: one by one, that takes twice as long.
        if hold is not None or trace.after is not None or ledger.surface in self._finalizer.hedging:
            self._settle(trace, ledger, hold)
            if (after := trace.after) is not None:
                after(ledger)
        if write is None:
            self._telemetry.record(trace, ledger)
            if shared is not None:
                shared.stored(written=False)
            return
        finished = Finished(trace, ledger, write, shared)
        if len(self._queue) >= _QUEUE:
            hop = trace.begin(names.CACHE_WRITE, {names.CACHE_OUTCOME: "dropped"})
            hop.end("queue_full")
            self._record(finished, written=False)
        else:
            self._queue.append(finished)  # as `_add` does
            if len(self._queue) == 1:
                self._waiting.set()
            elif len(self._queue) == MOST_AT_ONCE:
                self._full.set()

    async def aclose(self) -> None:
        """Finish what is queued, within a time limit, record the rest, and stop."""
        await super().aclose()
        for finished in self._open.values():
            self._settle(finished.trace, finished.ledger, finished.hold)
        for finished in (*self._queue, *self._open.values()):
            self._record(finished, written=False)

    async def _finish(self, batch: list[Finished]) -> None:
        written: set[Finished] = set()
        left = deque(batch)
        try:
            await self._write(batch, written)
            while left:
                for _ in range(min(slice_of(self._behind(left)), len(left))):
                    finished = left.popleft()
                    self._record(finished, written=finished in written)
                if left:
                    await asyncio.sleep(0)
        except Exception:
            # The replies have been sent. An error here may lose these cache writes, but not the records or the next
            # batch.
            log.exception("%d cache writes failed", len(batch))
        finally:  # also when the store hangs while the process stops
            for finished in left:
                self._record(finished, written=finished in written)

    async def _write(self, batch: list[Finished], written: set[Finished]) -> None:
        writes: list[CacheWrite] = []
        writing: list[tuple[Finished, Hop]] = []
        size = slice_of(self._behind(batch))
        for number, finished in enumerate(batch):
            if number and number % size == 0:
                await asyncio.sleep(0)
            hop = finished.trace.begin(names.CACHE_WRITE)
            write = _built(finished)
            if write is None:
                _end(hop, WriteOutcome(False, "unfinished"))
            else:
                writes.append(write)
                writing.append((finished, hop))
        outcomes = await self._cache.write_all(writes, at_once=size)
        for (finished, hop), write, outcome in zip(writing, writes, outcomes, strict=True):
            entry = write.made
            if outcome.stored and isinstance(entry, CacheEntry) and entry.in_doubt:
                hop.attributes[names.CACHE_DOUBT_TTL] = round(entry.expires_at - entry.created_at, 1)
            _end(hop, outcome)
            if outcome.stored:
                written.add(finished)

    def _behind(self, batch: Sized) -> int:
        return len(batch) + len(self._queue)

    def _record(self, finished: Finished, *, written: bool) -> None:
        self._telemetry.record(finished.trace, finished.ledger)
        if finished.write is not None:
            self._cache.pending.done(finished.write)
        if finished.shared is not None:
            finished.shared.stored(written=written)


def _nothing() -> None:
    """Return None: the whole of a stream that nothing keeps."""


def _text_of(answer: JsonAnswer | LiveStream) -> str:
    return answer.text if isinstance(answer, LiveStream) else completion_text(answer.value)


def _pending_write(
    request: RequestContext,
    plan: CachePlan,
    vector: Vector | None,
    completion: Whole,
    *,
    judged: bool,
) -> PendingWrite:
    """Return the write of an answer, built once it has ended: `completion` returns the whole of it, or None.

    `judged`: whether the judge has accepted the first choice after reading all of it, and so found no fault there.
    """
    ledger = request.ledger

    def make() -> CacheWrite | None:
        value = completion()
        if value is None:
            return None
        answer = StoredAnswer(
            value,
            ledger.tier,
            ledger.backend,
            ledger.model,
            ledger.confidence,
            None if ledger.cost_unknown else ledger.cost_usd,
            ledger.dropped,
        )
        contested = not plan.read or request.clamp is not None or plan.demands is not NO_DEMANDS
        fault = "" if judged and len(value["choices"]) == 1 else _fault_of(request, value)
        return CacheWrite(plan, answer, plan.vector_of(vector), contested, fault)

    return PendingWrite(plan, make)


def _fault_of(request: RequestContext, completion: Mapping[str, Any]) -> str:
    """Return the fault of a whole answer, or ''.

    The judge has not seen all of it: only the first tokens of a stream, and nothing of the last tier's answers.
    """
    rules, wants_json = request.call_rules(), request.features.wants_json
    for choice in completion["choices"]:
        evidence = evidence_of(
            {"choices": [choice]}, wants_json=wants_json, own_limit=request.own_limit, call_rules=rules
        )
        if fault := structural_fault(evidence, request.policy.escalate):
            return fault
    return ""


def _built(finished: Finished) -> CacheWrite | None:
    """Return the cache write of an answer; None if it must not be stored, or its JSON is unusual and cannot be."""
    try:
        write = finished.write.keep() if finished.write is not None else None
    except Exception:
        log.exception("the answer of request %s could not be put together", finished.ledger.request_id)
        return None
    if write is not None and finished.shared is not None:
        write.lease = finished.shared.lease
    return write


def _end(hop: Hop, outcome: WriteOutcome) -> None:
    hop.attributes[names.CACHE_OUTCOME] = "stored" if outcome.stored else "refused"
    if outcome.reason:
        hop.attributes[names.CACHE_REASON] = outcome.reason
    hop.end()
