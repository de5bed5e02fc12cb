"""Labels for the semantic cache, gathered off the request path: was the stored answer the one that a fresh one gives?

A share of the requests that a stored answer might serve (see `cache.risk.control`) is answered afresh; the client gets
the fresh answer. Afterwards the stored one is fetched and the two are compared, and the verdict becomes a label of the
surface's controller. Nobody waits for any of this, and what fails here costs a label.

How two answers are compared stands in `cache.risk.comparison`. Where a judge is to compare and says nothing, that is no
label: what it stood for is owed, and the judge's next labels stand for it too, each for at most one more like itself.

What clients say of hits afterwards (`complain`) goes the same way.

The batches of all workers lie on one stream of the store per surface and kind of score, so that replicas have the same
thresholds and a restart keeps them. They hold scores and verdicts and no text; a tenant is named only where it has
complained. Without a store each worker learns for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.codec import CorruptEntry, decode
from cache.risk.comparison import ALIKE, Judge, contradict, text_of
from cache.risk.control import Batch, Complaint, Label, RiskControl, decode_batch, encode_batch
from cache.scopes.scope import SCHEMA
from cache.store.base import Append, Command, Store, StoreUnavailable
from policies.caching import AuditJudgeRules, SemanticCache

log = logging.getLogger("tierline.cache")

Embed = Callable[[Sequence[str]], NDArray[np.float32]]

_EVERY_S: Final = 2.0
_LINES: Final = 2_000
_PAGE: Final = 100
_FULL: Final = 100
_QUIET_S: Final = 30.0
_TRIES: Final = 3
_PAUSE_S: Final = 0.2
_MOST_WAITING: Final = 64
_HOUR_S: Final = 3_600
_ASK_S: Final = 1.0
_CLOSE_S: Final = 1.0
_MOST_OWED: Final = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """A candidate that was drawn: the key of its entry, its score, and how many such requests it stands for."""

    surface: AuditedSurface
    key: str
    score: float
    weight: float


@dataclass(frozen=True, slots=True)
class SurfaceState:
    """What `/readyz` says of a surface: the threshold in force, and of how many labels it is."""

    threshold: float
    labels: int
    breached: bool


@dataclass(slots=True)
class AuditedSurface:
    """What one surface has learned, and what this worker has seen since its last batch."""

    name: str
    stream: str
    control: RiskControl
    semantic: SemanticCache
    """The rules it was learned under. A policy that is loaded anew brings equal ones that are not the same object."""
    requests: int = 0
    scores: list[float] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    owed: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """The weights of samples below the threshold, and above it, of which the judge said nothing."""
    last: str = "0"
    quiet_s: float = 0.0

    def state(self, owner: str = "") -> SurfaceState:
        """The threshold in force, for this owner if one is named, and of how many labels."""
        return SurfaceState(self.control.threshold_for(owner), self.control.labels, self.control.breached)

    def count(self, owner: str) -> None:
        """Notes a request of this owner."""
        self.requests += 1
        if owner in self.control.own:
            self.asked[owner] = self.asked.get(owner, 0) + 1

    def taken(self) -> Batch:
        """What has been seen since the last call."""
        batch = Batch(self.requests, tuple(self.scores), tuple(self.labels), tuple(self.complaints), self.asked)
        self.requests, self.scores, self.labels, self.complaints, self.asked = 0, [], [], [], {}
        self.quiet_s = 0.0
        return batch

    def owe(self, sample: Sample) -> None:
        """The judge was to compare this one, and said nothing."""
        above = sample.score >= self.control.threshold
        self.owed[above] = min(self.owed[above] + sample.weight, _MOST_OWED * sample.weight)

    def paid(self, sample: Sample) -> float:
        """The weight of a label by the judge, with what it stands for beside itself."""
        above = sample.score >= self.control.threshold
        beside = min(self.owed[above], sample.weight)
        self.owed[above] -= beside
        return sample.weight + beside

    def fold(self, batch: Batch) -> None:
        """Takes in a batch, and says so when the bound is broken, or is kept again."""
        before, threshold = self.control.breached, self.control.threshold
        self.control.fold(batch)
        if self.control.breached and not before:
            moved = f"the threshold goes from {threshold:.4f} to {self.control.threshold:.4f}"
            log.warning("surface %s: more than %.2g of the requests were answered wrongly by the semantic cache; %s",
                        self.name, self.control.max_error, moved)  # fmt: skip


class Audits:
    """See the module's docstring. `embed` is safe to call in a thread; without it only the texts are compared.

    `kind` names what makes the scores, and `cross_encoder` the model that has a say in them where the policy wants it:
    labels of another verifier, another model or other vectors say nothing of these.
    """

    def __init__(
        self,
        store: Store,
        kind: str,
        embed: Embed | None = None,
        *,
        alike: float = ALIKE["static"],
        cross_encoder: str = "",
        judge: Judge | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`alike`: see `comparison.ALIKE`. `clock` is the wall clock, in seconds since 1970."""
        self._store = store
        self._alike = alike
        self._judge = judge
        self._clock = clock
        self._kind = kind
        self._cross_encoder = cross_encoder
        self._embed = embed
        self._surfaces: dict[str, AuditedSurface] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def surface(self, name: str, semantic: SemanticCache, strict: float) -> AuditedSurface:
        """What is known of a surface under these rules; `strict` is its threshold while that is little.

        Other rules go on with the labels in the store wherever those that make the scores are equal.
        """
        found = self._surfaces.get(name)
        if found is None or (found.semantic is not semantic and found.semantic != semantic):
            control = RiskControl(semantic.max_error, strict, semantic.audit)
            stream = self._stream_of(name, semantic)
            found = self._surfaces[name] = AuditedSurface(name, stream, control, semantic)
        found.semantic = semantic
        return found

    def in_force(self, name: str, owner: str = "") -> SurfaceState | None:
        """The state of the surface of this name, for this owner; None before its first request."""
        found = self._surfaces.get(name)
        return None if found is None else found.state(owner)

    def _stream_of(self, name: str, semantic: SemanticCache) -> str:
        rules = [name, self._kind, semantic.verify, *semantic.guards, str(semantic.min_similarity), str(self._alike)]
        if semantic.cross_encoder is not None:
            asked = semantic.cross_encoder
            # Where its score takes the other's place, `min_score` is where the threshold starts: it refuses nothing.
            least = asked.min_score if asked.decides == "veto" else None
            rules += [self._cross_encoder, asked.decides, str(least), str(asked.ask_from)]
        if semantic.audit_judge is not None:
            rules.append(semantic.audit_judge.backend)
        digest = blake2b(orjson.dumps(rules), digest_size=8).hexdigest()
        return f"tierline:{SCHEMA}:risk:{{{digest}}}"

    def drawn(self, surface: AuditedSurface, key: str, score: float) -> Sample | None:
        """Notes a candidate without a veto; the sample, when chance has it that it is to be compared."""
        surface.scores.append(score)
        weight = surface.control.weight(score, random.random())  # noqa: S311
        return Sample(surface, key, score, weight) if weight else None

    def compare(self, sample: Sample, fresh: Mapping[str, Any], question: str = "") -> None:
        """Compares the sample's stored answer with a fresh completion of this question, in its own time."""
        if len(self._waiting) < _MOST_WAITING:
            task = asyncio.create_task(self._compared(sample, fresh, question))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def complain(self, surface: AuditedSurface, complaint: Complaint) -> None:
        """Takes in that a hit was wrong. One that tightens a threshold is shared with the other workers at once."""
        if surface.control.has_heard(complaint.request):
            return
        surface.complaints.append(complaint)
        if complaint.score >= surface.control.threshold_for(complaint.owner):
            self._wake.set()

    async def _compared(self, sample: Sample, fresh: Mapping[str, Any], question: str) -> None:
        try:
            data = await self._stored(sample.key)
            if data is None:
                return
            stored = text_of(orjson.loads(decode(sample.key, data).body))
            label = await self._label(sample, stored, text_of(fresh), question)
        except (StoreUnavailable, CorruptEntry, orjson.JSONDecodeError):
            return
        if label is None:
            return
        sample.surface.labels.append(label)
        if label.wrong and sample.score >= sample.surface.control.threshold:
            self._wake.set()

    async def _label(self, sample: Sample, stored: str, fresh: str, question: str) -> Label | None:
        surface = sample.surface
        if stored == fresh:
            return Label(sample.score, False, sample.weight)
        if contradict(stored, fresh, question):
            return Label(sample.score, True, sample.weight)
        judge = surface.semantic.audit_judge
        if judge is None or self._judge is None or not await self._affords(sample, judge):
            return Label(sample.score, not await self._near(stored, fresh), sample.weight)
        same = await self._judge(surface.name, judge, question, stored, fresh)
        if same is None:
            surface.owe(sample)
            return None
        return Label(sample.score, not same, surface.paid(sample))

    async def _affords(self, sample: Sample, judge: AuditJudgeRules) -> bool:
        """Whether the judge may be called once more within this hour, by all workers together.

        Near misses, of which there are many, leave half of the calls to would-be hits.
        """
        surface = sample.surface
        most = judge.per_hour if sample.score >= surface.control.threshold else judge.per_hour // 2
        key = f"tierline:{SCHEMA}:judged:{{{surface.name}}}:{int(self._clock() // _HOUR_S)}".encode()
        counting = [Command((b"INCR", key)), Command((b"EXPIRE", key, b"%d" % (2 * _HOUR_S)))]
        count, _ = await self._store.ask(counting, _ASK_S)
        if int(count) <= most:
            return True
        await self._store.ask([Command((b"DECR", key))], _ASK_S)
        return False

    async def _stored(self, key: str) -> bytes | None:
        """What lies under the key. A store that is late is asked again: nobody waits, and a label is worth it."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(StoreUnavailable):
                return await self._store.get(key)
            await asyncio.sleep(_PAUSE_S)
        return await self._store.get(key)

    async def _near(self, stored: str, fresh: str) -> bool:
        if self._embed is None:
            return True
        vectors = await asyncio.to_thread(self._embed, (stored, fresh))
        return float(vectors[0] @ vectors[1]) >= self._alike

    async def run(self) -> None:
        """Shares what was learned with the other workers, again and again. Cancel it to stop."""
        while True:
            for surface in list(self._surfaces.values()):
                with contextlib.suppress(StoreUnavailable):
                    await self._exchange(surface)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _exchange(self, surface: AuditedSurface) -> None:
        """Appends this worker's batch to the stream, and folds what all have appended since."""
        surface.quiet_s += _EVERY_S
        told = surface.labels or surface.complaints
        if told or surface.requests >= _FULL or (surface.requests and surface.quiet_s >= _QUIET_S):
            batch = surface.taken()
            try:
                await self._store.apply([Append(surface.stream, encode_batch(batch), _LINES)])
            except StoreUnavailable:
                surface.fold(batch)
                raise
        page = await self._store.after(surface.stream, surface.last, _PAGE, 1)
        while page:
            for name, value in page:
                surface.last = name
                with contextlib.suppress(CorruptEntry):
                    surface.fold(decode_batch(value))
            await asyncio.sleep(0)
            page = await self._store.after(surface.stream, surface.last, _PAGE, 1) if len(page) == _PAGE else []

    def state(self) -> dict[str, SurfaceState]:
        """Of each surface that has had a request."""
        return {one.name: one.state() for one in self._surfaces.values()}

    async def aclose(self) -> None:
        """Waits a moment for what is being compared, and gives up the rest."""
        if self._waiting:
            _, late = await asyncio.wait(self._waiting, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
