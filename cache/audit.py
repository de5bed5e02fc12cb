"""Labels for the semantic cache, gathered off the request path: was the stored answer the one that a fresh one gives?

A share of the requests that a stored answer might serve (see `cache.risk`) is answered afresh; the client gets the
fresh answer. Afterwards the stored one is fetched and the two are compared, and the verdict becomes a label of the
surface's controller. Nobody waits for any of this, and what fails here costs a label.

Two answers count as one when their vectors are near each other and they do not contradict each other in what a vector
does not show: whether they say yes or no, and most of the numbers and names that the shorter one gives. A cautious
measure: two good answers that put it differently may count as different, which makes the cache stricter, not laxer.

The batches of all workers lie on one stream of the store per surface and kind of score, so that replicas have the same
threshold and a restart keeps it. They hold scores and verdicts, no text, and no tenant. Without a store each worker
learns for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.codec import CorruptEntry, decode
from cache.reading import read
from cache.risk import Batch, Label, RiskControl
from cache.scope import SCHEMA
from cache.store import Append, Store, StoreUnavailable
from policies.model import SemanticCache

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
_ALIKE: Final = 0.75
_SHARED: Final = 0.5
_READ_CHARS: Final = 2_000
_POLAR: Final = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Sample:
    """A candidate that was drawn: the key of its entry, its score, and how many such requests it stands for."""

    surface: Surface
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
class Surface:
    """What one surface has learned, and what this worker has seen since its last batch."""

    name: str
    stream: str
    control: RiskControl
    requests: int = 0
    scores: list[float] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    last: str = "0"
    quiet_s: float = 0.0

    def state(self) -> SurfaceState:
        """The threshold in force, and of how many labels."""
        return SurfaceState(self.control.threshold, self.control.labels, self.control.breached)

    def taken(self) -> Batch:
        """What has been seen since the last call."""
        batch = Batch(self.requests, tuple(self.scores), tuple(self.labels))
        self.requests, self.scores, self.labels, self.quiet_s = 0, [], [], 0.0
        return batch

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

    def __init__(self, store: Store, kind: str, embed: Embed | None = None, *, cross_encoder: str = "") -> None:
        self._store = store
        self._kind = kind
        self._cross_encoder = cross_encoder
        self._embed = embed
        self._surfaces: dict[str, Surface] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def surface(self, label: str, semantic: SemanticCache, strict: float) -> Surface:
        """What is known of the surface of the policy with this label; `strict` is its threshold while that is little.

        Another version of a policy goes on with what was learned wherever the rules that make the scores are equal.
        """
        found = self._surfaces.get(label)
        if found is None:
            name = label.partition("@")[0]
            self._surfaces = {other: one for other, one in self._surfaces.items() if one.name != name}
            control = RiskControl(semantic.max_error, strict, semantic.audit)
            found = self._surfaces[label] = Surface(name, self._stream_of(name, semantic), control)
        return found

    def in_force(self, label: str) -> SurfaceState | None:
        """The state of the surface of the policy with this label; None before its first request."""
        found = self._surfaces.get(label)
        return None if found is None else found.state()

    def _stream_of(self, name: str, semantic: SemanticCache) -> str:
        rules = [name, self._kind, semantic.verify, *semantic.guards, str(semantic.min_similarity)]
        if semantic.cross_encoder is not None:
            asked = semantic.cross_encoder
            # Where its score takes the other's place, `min_score` is where the threshold starts: it refuses nothing.
            least = asked.min_score if asked.decides == "veto" else None
            rules += [self._cross_encoder, asked.decides, str(least), str(asked.ask_from)]
        digest = blake2b(orjson.dumps(rules), digest_size=8).hexdigest()
        return f"tierline:{SCHEMA}:risk:{{{digest}}}"

    def drawn(self, surface: Surface, key: str, score: float) -> Sample | None:
        """Notes a candidate without a veto; the sample, when chance has it that it is to be compared."""
        surface.scores.append(score)
        weight = surface.control.weight(score, random.random())  # noqa: S311
        return Sample(surface, key, score, weight) if weight else None

    def compare(self, sample: Sample, fresh: Mapping[str, Any]) -> None:
        """Compares the sample's stored answer with a fresh completion, in its own time."""
        if len(self._waiting) < _MOST_WAITING:
            task = asyncio.create_task(self._compared(sample, fresh))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def wrong(self, name: str, similarity: float) -> None:
        """A hit that this surface served was wrong, someone says.

        How similar the questions were is not their score; that was the threshold's at least.
        """
        del similarity
        for surface in self._surfaces.values():
            if surface.name == name:
                surface.labels.append(Label(surface.control.threshold, True, 1.0))
                self._wake.set()

    async def _compared(self, sample: Sample, fresh: Mapping[str, Any]) -> None:
        try:
            data = await self._stored(sample.key)
            if data is None:
                return
            stored = text_of(orjson.loads(decode(sample.key, data).body))
            wrong = not await self._same(stored, text_of(fresh))
        except (StoreUnavailable, CorruptEntry, orjson.JSONDecodeError):
            return
        sample.surface.labels.append(Label(sample.score, wrong, sample.weight))
        if wrong and sample.score >= sample.surface.control.threshold:
            self._wake.set()

    async def _stored(self, key: str) -> bytes | None:
        """What lies under the key. A store that is late is asked again: nobody waits, and a label is worth it."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(StoreUnavailable):
                return await self._store.get(key)
            await asyncio.sleep(_PAUSE_S)
        return await self._store.get(key)

    async def _same(self, stored: str, fresh: str) -> bool:
        if contradict(stored, fresh):
            return False
        if self._embed is None or stored == fresh:
            return True
        vectors = await asyncio.to_thread(self._embed, (stored, fresh))
        return float(vectors[0] @ vectors[1]) >= _ALIKE

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

    async def _exchange(self, surface: Surface) -> None:
        """Appends this worker's batch to the stream, and folds what all have appended since."""
        surface.quiet_s += _EVERY_S
        if surface.labels or surface.requests >= _FULL or (surface.requests and surface.quiet_s >= _QUIET_S):
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
        """Waits for what is being compared."""
        await asyncio.gather(*self._waiting, return_exceptions=True)


def contradict(one: str, other: str) -> bool:
    """Whether two answers differ in what a vector does not show. What stands first in them counts."""
    if one == other:
        return False
    a, b = read(one[:_READ_CHARS]), read(other[:_READ_CHARS])
    first = [_POLAR.get(text.lstrip().partition(" ")[0].strip(",.!:;").lower()) for text in (one, other)]
    if None not in first and first[0] != first[1]:
        return True
    if (
        len(a.content) <= 12
        and len(b.content) <= 12
        and {word for _, word in a.negations} != {w for _, w in b.negations}
    ):
        return True
    return not all(_agree(*facts) for facts in ((set(a.numbers), set(b.numbers)), (set(a.names), set(b.names))))


def _agree(one: set[str], other: set[str]) -> bool:
    fewer = min(len(one), len(other))
    return fewer == 0 or len(one & other) >= _SHARED * fewer


def text_of(completion: Mapping[str, Any]) -> str:
    """What all choices of a completion say; '' for what says nothing, or is none."""
    choices = completion.get("choices")
    messages = [choice.get("message") for choice in choices if isinstance(choice, dict)] if choices else []
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def encode_batch(batch: Batch) -> bytes:
    """A batch as a line of the stream: JSON, scores to six digits."""
    labels = [(round(label.score, 6), label.wrong, label.weight) for label in batch.labels]
    return orjson.dumps((batch.requests, [round(score, 6) for score in batch.scores], labels))


def decode_batch(data: bytes) -> Batch:
    """The batch in a line of the stream; raises CorruptEntry."""
    try:
        requests, scores, labels = orjson.loads(data)
        batch = Batch(
            int(requests), tuple(map(float, scores)), tuple(Label(float(s), bool(w), float(h)) for s, w, h in labels)
        )
    except (ValueError, TypeError) as error:
        raise CorruptEntry(f"batch: {error}") from None
    if (
        batch.requests < 0
        or not all(map(math.isfinite, batch.scores))
        or any(label.weight < 1 for label in batch.labels)
    ):
        raise CorruptEntry("batch: out of range")
    return batch
