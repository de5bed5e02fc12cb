"""What the audits know of one surface: its controller, this worker's observations since its last batch, and breaches.

A breach is shown for SHOWN_S, and logged when it begins.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cache.semantic.hit_bound import Complaint, SurfaceState, group_in_words
from gateway.parts.hit_audits.control import RiskControl, RiskFigures
from gateway.parts.hit_audits.groups import MOST
from gateway.parts.hit_audits.observations import Batch, Label

if TYPE_CHECKING:
    from policies.caching import SemanticCache

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
        return SurfaceState(control.threshold_for(owner, language), control.labels, breached)

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
        """Return what was observed since the last call, and reset it."""
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
        """Record a sample without a label, so that its weight goes to the judge's next labels."""
        above = sample.above
        self.owed[above] = min(self.owed[above] + sample.weight, _MOST_OWED * sample.weight)

    def paid(self, sample: Sample) -> float:
        """Return the weight of a label by the judge: the sample's own, plus at most as much of the recorded weight."""
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
        """Forget breaches that are no longer shown."""
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
