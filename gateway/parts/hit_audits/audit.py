"""Collect labels for the semantic cache off the request path: does a stored answer agree with a new one?

A sample of the requests that a stored answer might serve (see `control`) is answered by a model, and the
client gets the new answer. Afterwards the stored one is fetched and the two are compared; the result becomes a label of
the surface's controller. No request waits for this, and a failure here only loses a label.

`comparison` compares two answers, in a thread and one pair at a time, since a cross-encoder may read them.
If it cannot tell, or a judge model is used and abstains, there is no label. The weight of a sample that a judge should
have labelled is added to its next labels (at most doubling each).

Complaints of clients about hits (`complain`) are processed in the same way.

The batches of all workers are on one stream of the store per surface and kind of score, so that replicas have the same
thresholds and a restart keeps them. They contain scores and verdicts and no text; languages are named, and the tenants
that ask most or have complained. Without a store each worker learns alone.

An `AuditedSurface` knows of one surface its controller, this worker's observations since its last batch, and breaches:
a breach is shown for SHOWN_S, and logged when it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import orjson

from cache.entry import CorruptEntry, decode
from cache.scopes.scope import SCHEMA
from cache.semantic.cross_encoder import StatementScorer
from cache.semantic.hit_bound import Complaint, SurfaceState, group_in_words
from cache.store.base import Append, Command, Store, StoreUnavailable
from cache.store.resp import entries
from gateway.parts.hit_audits.comparison import ALIKE, COMPARISON, AnswerComparer, SampleJudge, contradict, text_of
from gateway.parts.hit_audits.control import RiskControl, RiskFigures
from gateway.parts.hit_audits.groups import MOST, Batch, Label, decode_batch, encode_batch
from gateway.parts.hit_audits.label_errors import AS_THEY_ARE
from gateway.parts.hit_audits.published import LINES, PublishedRisk, publication
from gateway.parts.measures.statements import Embed

if TYPE_CHECKING:
    from policies.caching import AuditJudgeRules, SemanticCache


log = logging.getLogger("tierline.cache")

_MOST_OWED: Final = 20
_NEW: Final = 20
"""Would-be hits of a language in this worker of which the share _SHARE_OF_NEW is compared: where all are wrong, ten
would be served before the first of those that are drawn at random, and a language that hardly asks has no thousand
requests to make up for them."""
_SHARE_OF_NEW: Final = 0.5
SHOWN_S: Final = 600.0
"""Seconds for which a breach is shown: its threshold moves at once, and who watches looks every minute or so."""
Breach = tuple[str, str]
"""Whose bound: (kind of group, its name), or _WHOLE."""
_WHOLE: Final[Breach] = ("", "")


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled candidate: the key of its entry, its score, and the number of such requests that it represents."""

    surface: AuditedSurface
    key: str
    score: float
    weight: float
    language: str = ""
    owner: str = ""

    @property
    def above(self) -> bool:
        """Whether the candidate would be served now."""
        return self.score >= self.surface.control.threshold_for(self.owner, self.language)

    def label(self, *, wrong: bool, weight: float | None = None, judged: bool = False) -> Label:
        """Return the label that a comparison gives."""
        return Label(self.score, wrong, weight or self.weight, judged, self.language, self.owner)


@dataclass(slots=True)
class AuditedSurface:
    """Audit state of one surface: all that was learned, and this worker's observations since its last batch."""

    name: str
    stream: str
    control: RiskControl
    semantic: SemanticCache
    """The rules it was learned under. Reloading a policy gives an equal object, not the same one."""
    requests: int = 0
    scores: list[float] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Would-be hits by language, while they are few: of these more are compared."""
    breaches: dict[Breach, float] = field(default_factory=dict)
    """When the bound was last breached, in seconds since 1970, for SHOWN_S."""
    owed: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Weights of samples that a judge should have labelled: [below the threshold, above it]."""
    last: str = "0"
    quiet_s: float = 0.0
    published: RiskFigures | None = None
    published_at: float = 0.0
    changed: bool = True
    """Whether figures may differ from those that were published."""

    def state(self) -> SurfaceState:
        """Return the threshold in force, and what is known by language and by tenant."""
        control, breaches = self.control, self.breaches
        languages, tenants = (
            {name: (groups.kind, name) in breaches for name in (*groups.own, *_named(breaches, groups.kind))}
            for groups in (control.languages, control.tenants)
        )
        return SurfaceState(control.threshold, control.labels, _WHOLE in breaches, languages, tenants)

    def state_for(self, owner: str, language: str) -> SurfaceState:
        """Return the threshold in force for a request of this owner in this language."""
        control, breaches = self.control, self.breaches
        breached = bool(breaches) and not breaches.keys().isdisjoint(
            (_WHOLE, ("language", language), ("tenant", owner))
        )
        threshold = control.threshold if control.alike else control.threshold_for(owner, language)
        return SurfaceState(threshold, control.labels, breached)

    def count(self, owner: str, language: str) -> None:
        """Count a request of this owner in this language."""
        self.requests += 1
        self.languages[language] = self.languages.get(language, 0) + 1
        self.owners[owner] = self.owners.get(owner, 0) + 1
        if owner in self.control.own:
            self.asked[owner] = self.asked.get(owner, 0) + 1

    def weight_of(self, score: float, threshold: float, language: str) -> float:
        """Record a candidate without a veto; return its label's weight if it is drawn for comparison, else 0.0.

        `threshold` is that of its request.
        """
        self.scores.append(score)
        least = 0.0
        if score >= threshold and self.control.languages.main not in (None, language):
            seen = self.seen.get(language, 0)
            if seen < _NEW:
                self.seen[language], least = seen + 1, _SHARE_OF_NEW
        return self.control.weight(score, random.random(), threshold, least)  # noqa: S311

    def taken(self) -> Batch:
        """Return the batch of what this worker observed since the last call, and begin a new one."""
        batch = Batch(
            self.requests,
            tuple(self.scores),
            tuple(self.labels),
            tuple(self.complaints),
            self.asked,
            languages=_most(self.languages),
            owners=_most(self.owners),
        )
        self.requests, self.scores, self.labels, self.complaints = 0, [], [], []
        self.asked, self.languages, self.owners = {}, {}, {}
        self.quiet_s = 0.0
        return batch

    def owe(self, sample: Sample) -> None:
        """Add the weight of a sample that got no label to what the judge's next labels stand for."""
        above = sample.above
        self.owed[above] = min(self.owed[above] + sample.weight, _MOST_OWED * sample.weight)

    def paid(self, sample: Sample) -> float:
        """Return the weight of a judge's label: the sample's own, and at most as much again of what is owed."""
        above = sample.above
        beside = min(self.owed[above], sample.weight)
        self.owed[above] -= beside
        return sample.weight + beside

    def fold(self, batch: Batch, at: float, now: float) -> None:
        """Process a batch of the time `at`, and log a warning when the bound on wrong hits begins to be exceeded."""
        self.changed = True
        control, threshold = self.control, self.control.threshold
        control.fold(batch)
        breached: list[Breach] = [_WHOLE] if control.breached else []
        breached += [(groups.kind, name) for groups in (control.languages, control.tenants) for name in groups.breached]
        if now - at >= SHOWN_S:
            return
        for breach in breached:
            if breach not in self.breaches:
                kind, name = breach
                moved = f"the threshold goes from {threshold:.4f} to {control.threshold:.4f}"
                if kind:
                    moved = "the threshold rises for these alone"
                whose = f"surface {self.name}{kind and f', {group_in_words(kind, name)}'}"
                log.warning("%s: more than %.2g of the requests were answered wrongly by the semantic cache; %s",
                            whose, control.max_error, moved)  # fmt: skip
            self.breaches[breach] = max(at, self.breaches.get(breach, at))

    def forget_breaches(self, now: float) -> None:
        """Forget the breaches that have been shown for SHOWN_S seconds at the Unix time `now`."""
        for breach in [one for one, at in self.breaches.items() if now - at >= SHOWN_S]:
            del self.breaches[breach]
            self.changed = True

    def figures(self) -> RiskFigures:
        """Return what is known, with breaches as long as they are shown."""
        found = self.control.figures()
        groups = tuple(replace(one, breached=(one.kind, one.name) in self.breaches) for one in found.groups)
        return replace(found, breached=_WHOLE in self.breaches, groups=groups)


def _named(breaches: Mapping[Breach, float], kind: str) -> list[str]:
    return [name for one, name in breaches if one == kind]


def _most(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the largest counts: twice as many as groups have thresholds."""
    return dict(sorted(counts.items(), key=lambda one: -one[1])[: 2 * MOST])


_EVERY_S: Final = 2.0
_PAGE: Final = 100
_FULL: Final = 100
_QUIET_S: Final = 30.0
_TRIES: Final = 3
_PAUSE_S: Final = 0.2
_MOST_WAITING: Final = 64
_HOUR_S: Final = 3_600
_ASK_S: Final = 1.0
_CLOSE_S: Final = 1.0
_AGAIN_S: Final = 60.0
"""Seconds after which figures that have not changed are published again."""


def _time_of(name: str, now: float) -> float:
    """Return when an entry was appended to a stream, in seconds since 1970, from its name `milliseconds-number`."""
    milliseconds = name.partition("-")[0]
    return int(milliseconds) / 1000 if milliseconds.isdecimal() else now


def _next_page(stream: str, last: str) -> tuple[bytes, ...]:
    """Return the words of the command that reads what follows an entry of a stream."""
    return (b"XRANGE", stream.encode(), b"(" + last.encode(), b"+", b"COUNT", b"%d" % _PAGE)


class Audits:
    """Audit all surfaces. `embed` must be safe to call in a thread; without it only the texts are compared.

    `kind` identifies the verifier and the vectors, `cross_encoder` the model that scores what the verifier leaves open,
    '' without one, and `cosine_weight` how it is blended: labels of others do not apply to these scores. `scorer` is
    that model, which reads the answers too.
    """

    def __init__(
        self,
        store: Store,
        kind: str,
        embed: Embed | None = None,
        *,
        alike: float = ALIKE["static"],
        cross_encoder: str = "",
        cosine_weight: float = 0.0,
        scorer: StatementScorer | None = None,
        judge: SampleJudge | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the audits. `alike`: see `comparison.ALIKE`. `clock` is the wall clock, in seconds since 1970."""
        self._store = store
        self._alike = alike
        self._judge = judge
        self._clock = clock
        self._kind = kind
        self._cross_encoder = cross_encoder
        self._cosine_weight = cosine_weight
        self._statements = "" if scorer is None else f"{scorer.same_answer}/{scorer.other_answer}"
        self._comparer = AnswerComparer(embed, scorer, alike=alike)
        self._reading = asyncio.Lock()
        self._surfaces: dict[str, AuditedSurface] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def surface(self, name: str, semantic: SemanticCache, strict: float) -> AuditedSurface:
        """Return the state of a surface under these rules; `strict` is its threshold while there are few labels.

        If the rules change, labels in the store stay valid as long as the rules that determine the scores are equal.
        """
        audited = self._surfaces.get(name)
        if audited is None or (audited.semantic is not semantic and audited.semantic != semantic):
            errors = self._comparer.errors if semantic.audit_judge is None else AS_THEY_ARE
            control = RiskControl(semantic.max_error, strict, semantic.audit, errors)
            stream = self._stream_of(name, semantic, strict)
            audited = self._surfaces[name] = AuditedSurface(name, stream, control, semantic)
        audited.semantic = semantic
        return audited

    def threshold(
        self, surface: str, semantic: SemanticCache, strict: float, owner: str, language: str, *, again: bool
    ) -> float:
        """Return the score from which semantic hits are served to this owner in this language.

        The request is counted, unless it was before (`again`).
        """
        audited = self.surface(surface, semantic, strict)
        if not again:
            audited.count(owner, language)
        control = audited.control
        return control.threshold if control.alike else control.threshold_for(owner, language)

    def in_force(self, surface: str, owner: str = "", language: str = "") -> SurfaceState | None:
        """Return a surface's state for requests of this owner and language; None before the surface's first request."""
        audited = self._surfaces.get(surface)
        return None if audited is None else audited.state_for(owner, language)

    def _stream_of(self, name: str, semantic: SemanticCache, strict: float) -> str:
        rules = [name, self._kind, semantic.verify, *semantic.guards, str(semantic.min_similarity), str(self._alike)]
        rules += [COMPARISON, self._statements]
        if self._cross_encoder and semantic.verify == "default":
            rules += [self._cross_encoder, str(semantic.cross_encoder.ask_from)]
            if self._cosine_weight:  # the score then depends on the strict threshold too: see `Blend`
                rules += [str(self._cosine_weight), str(strict)]
        if semantic.audit_judge is not None:
            rules.append(semantic.audit_judge.backend)
        digest = blake2b(orjson.dumps(rules), digest_size=8).hexdigest()
        return f"tierline:{SCHEMA}:risk:{{{digest}}}"

    def drawn(self, surface: str, key: str, score: float, threshold: float, language: str, owner: str) -> Sample | None:
        """Record a candidate without a veto; return it as a sample if it was drawn at random for comparison.

        `threshold` is the request's.
        """
        audited = self._surfaces[surface]
        weight = audited.weight_of(score, threshold, language)
        return Sample(audited, key, score, weight, language, owner) if weight else None

    def compare(self, sample: Sample, fresh: Mapping[str, Any], question: str = "") -> None:
        """Compare the sample's stored answer with a new completion of this question, in a task of its own."""
        if len(self._waiting) < _MOST_WAITING:
            task = asyncio.create_task(self._compared(sample, fresh, question))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def complain(self, surface: str, semantic: SemanticCache, strict: float, complaint: Complaint) -> None:
        """Record that a hit was wrong. A complaint that raises a threshold is shared with other workers at once."""
        audited = self.surface(surface, semantic, strict)
        if audited.control.has_heard(complaint.request):
            return
        audited.complaints.append(complaint)
        if complaint.score >= audited.control.threshold_for(complaint.owner):
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
        if label.wrong and sample.above:
            self._wake.set()

    async def _label(self, sample: Sample, stored: str, fresh: str, question: str) -> Label | None:
        surface, rule, ask = sample.surface, sample.surface.semantic.audit_judge, self._judge
        if stored == fresh:
            return sample.label(wrong=False, judged=rule is not None)
        async with self._reading:
            contradiction = await asyncio.to_thread(contradict, stored, fresh, question)
            verdict = await asyncio.to_thread(self._comparer.read, stored, fresh, question, contradiction)
        if verdict == "different":
            return sample.label(wrong=True)
        if rule is not None and ask is not None and await self._affords(sample, rule):
            judged = await ask(surface.name, rule, question, stored, fresh, sample.owner)
            if judged is not None:
                return sample.label(wrong=not judged, weight=surface.paid(sample), judged=True)
        else:
            verdict = await asyncio.to_thread(self._comparer.settle, stored, fresh, question, verdict, contradiction)
            if verdict != "unknown":
                return sample.label(wrong=verdict == "different")
        if rule is not None:
            surface.owe(sample)
        return None

    async def _affords(self, sample: Sample, judge: AuditJudgeRules) -> bool:
        """Return whether the judge may be called once more within this hour, by all workers together.

        Candidates below the threshold, which are many, may use at most half of the calls.
        """
        surface = sample.surface
        most = judge.per_hour if sample.above else judge.per_hour // 2
        key = f"tierline:{SCHEMA}:judged:{{{surface.name}}}:{int(self._clock() // _HOUR_S)}".encode()
        counting = [Command((b"INCR", key)), Command((b"EXPIRE", key, b"%d" % (2 * _HOUR_S)))]
        count, _ = await self._store.ask(counting, _ASK_S)
        if int(count) <= most:
            return True
        await self._store.ask([Command((b"DECR", key))], _ASK_S)
        return False

    async def _stored(self, key: str) -> bytes | None:
        """Return the value of a key. A slow store is retried: no request waits for this, and labels are scarce."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(StoreUnavailable):
                return await self._store.get(key)
            await asyncio.sleep(_PAUSE_S)
        return await self._store.get(key)

    async def run(self) -> None:
        """Exchange batches with the other workers periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if surfaces := list(self._surfaces.values()):
                await self._exchange(surfaces)
            timer = loop.call_later(_EVERY_S, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()

    async def _exchange(self, surfaces: Sequence[AuditedSurface]) -> None:
        """Append this worker's batches to the surfaces' streams, and process what all workers have appended since."""
        for surface in surfaces:
            if surface.breaches:
                surface.forget_breaches(self._clock())
            await self._append(surface)
        asked = [Command(_next_page(surface.stream, surface.last), optional=True) for surface in surfaces]
        try:
            replies = await self._store.ask(asked, _ASK_S)
        except StoreUnavailable:
            return
        for surface, reply in zip(surfaces, replies, strict=True):
            try:
                page = [] if reply == [] else entries(reply)
            except (TypeError, ValueError, LookupError, AttributeError):
                continue  # the key has a value of another kind
            try:
                if page:
                    await self._take(surface, page)
                await self._publish(surface)
            except StoreUnavailable:
                continue

    async def _append(self, surface: AuditedSurface) -> None:
        """Append this worker's batch to the stream, if it is time. Without the store it counts in this worker alone."""
        surface.quiet_s += _EVERY_S
        urgent = surface.labels or surface.complaints
        if urgent or surface.requests >= _FULL or (surface.requests and surface.quiet_s >= _QUIET_S):
            batch, now = surface.taken(), self._clock()
            try:
                await self._store.apply([Append(surface.stream, encode_batch(batch), LINES)])
            except StoreUnavailable:
                surface.fold(batch, now, now)

    async def _take(self, surface: AuditedSurface, page: Sequence[tuple[str, bytes]]) -> None:
        """Process a page of the stream and those after it. Raises StoreUnavailable."""
        now = self._clock()
        while page:
            for name, value in page:
                surface.last = name
                with contextlib.suppress(CorruptEntry):
                    surface.fold(decode_batch(value), _time_of(name, now), now)
                await asyncio.sleep(0)  # after a restart there are thousands, of a millisecond or two each
            page = await self._store.after(surface.stream, surface.last, _PAGE, 1) if len(page) == _PAGE else []

    async def _publish(self, surface: AuditedSurface) -> None:
        """Publish the surface's figures if they changed, or were published long ago."""
        now = self._clock()
        recent = 0 <= now - surface.published_at < _AGAIN_S
        if recent and not surface.changed:
            return
        figures, surface.changed = surface.figures(), False
        if recent and figures == surface.published:
            return
        await self._store.ask([publication(PublishedRisk(surface.name, surface.stream, now, figures))], _ASK_S)
        surface.published, surface.published_at = figures, now

    def state(self) -> dict[str, SurfaceState]:
        """Return the state of each surface that has had a request."""
        return {one.name: one.state() for one in self._surfaces.values()}

    async def aclose(self) -> None:
        """Wait up to a second for running comparisons, and cancel the rest."""
        if self._waiting:
            _, late = await asyncio.wait(self._waiting, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
