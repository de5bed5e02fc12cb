"""Find the cache hits that a policy would not give, and which request asked for the stored answer of each.

Who asked first says what a lost hit would have become: it asked the same, so what the classifier said of the one holds
of the other, and what its answer was like too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.parts.lab.replay.cells import Bools, Floats, Ints, mixed
from gateway.parts.lab.replay.history import History
from gateway.parts.lab.replay.records import LedgerReader, RecordedHit

if TYPE_CHECKING:
    from policies.caching import ExactCache, SemanticCache
    from policies.model import Policy

_OK: Final = 200
_LONGEST_S: Final = 600.0
"""An answer is stored at most so long after its request began."""
_CLOCKS_S: Final = 1.0
"""Most by which the clocks of two replicas differ."""
_OF_QUESTION: Final = ("kind", "quantile", "rules", "lasting", "question", "budget_s", "limit_s")
_OF_QUESTION_BY_TIER: Final = ("forecast_ttft_s", "forecast_whole_s")


@dataclass(frozen=True, slots=True)
class LostHits:
    """Hits that the candidate would not give, an array each."""

    rows: Ints
    entry: Ints
    """Number of the stored answer that each got."""
    origin: Ints
    """The request that was first answered so; -1 where no record shows it."""

    @property
    def linked(self) -> Bools:
        """Which of them have an origin."""
        return np.asarray(self.origin >= 0)


def lost_hits(reader: LedgerReader, history: History, recorded: Policy, candidate: Policy) -> LostHits:
    """Return the hits that the candidate's cache rules would not give, as far as the record shows.

    With a shorter life of answers a hit after its end is a call, whose answer is stored afresh for those after it.
    """
    old, new = recorded.cache, candidate.cache
    lost: list[_Hits] = []
    # The semantic cache finds the same words too, so an exact hit is lost only when both have forgotten the answer.
    for path, before, after in (
        ("cache-exact", _life(old.exact, old.semantic), _life(new.exact, new.semantic)),
        ("cache-semantic", _life(old.semantic), _life(new.semantic)),
    ):
        least = new.semantic.min_similarity if new.semantic is not None and path == "cache-semantic" else 0.0
        stricter = old.semantic is not None and least > old.semantic.min_similarity
        number = reader.paths.number(path)
        if not number or (after >= before and not stricter):
            continue
        hits = _Hits.of(reader, history, path, number)
        gone = hits.similarity < least
        if not after:
            gone[:] = True
        elif after < before:
            kept = np.flatnonzero(~gone)
            gone[kept[_expired(hits.only(kept), history, after)]] = True
        lost.append(hits.only(np.flatnonzero(gone)))
    if not lost:
        nothing = np.zeros(0, np.int64)
        return LostHits(nothing, nothing, nothing)
    rows = np.concatenate([hits.rows for hits in lost])
    entries = [entry for hits in lost for entry in hits.entries]
    _, numbers = np.unique(np.array(entries), return_inverse=True)
    created = np.concatenate([hits.created_s for hits in lost])
    return LostHits(rows, numbers.astype(np.int64), _origins(history, rows, created))


@dataclass(frozen=True, slots=True)
class _Hits:
    """Hits of one path: each one's request, the stored entry that it got, how old that was, since when, how alike."""

    rows: Ints
    entries: list[str]
    age_s: Floats
    created_s: Floats
    similarity: Floats
    """0 to 1; NaN for exact hits."""

    @classmethod
    def of(cls, reader: LedgerReader, history: History, path: str, number: int) -> _Hits:
        rows = np.flatnonzero(history.path == number)
        stored, unknown = reader.hits(path), RecordedHit()
        own = [stored.get((ms, seq), unknown) for ms, seq in history.place[rows].tolist()]
        age, created, similarity = np.array([hit[1:] for hit in own], np.float64).reshape(-1, 3).T
        created = np.where(np.isnan(created), history.started_s[rows] - age, created)
        return cls(rows, [hit.entry for hit in own], age, created, similarity)

    def only(self, at: Ints) -> _Hits:
        entries = [self.entries[place] for place in at.tolist()]
        return _Hits(self.rows[at], entries, self.age_s[at], self.created_s[at], self.similarity[at])


def as_asked(history: History, lost: LostHits) -> History:
    """Return the history with what its origin's record says of each lost hit: how the classifier and the rules saw it.

    A lost hit without an origin asks what those ask who got the same stored answer.
    """
    if not len(lost.rows):
        return history
    columns: dict[str, Any] = {}
    rows, origin = lost.rows[lost.linked], lost.origin[lost.linked]
    for name in _OF_QUESTION:
        columns[name] = getattr(history, name).copy()
        columns[name][rows] = columns[name][origin]
    for name in _OF_QUESTION_BY_TIER:
        columns[name] = getattr(history, name).copy()
        columns[name][:, rows] = columns[name][:, origin]
    columns["question"][lost.rows[~lost.linked]] = history.question.max() + 1 + lost.entry[~lost.linked]
    return replace(history, **columns)


def _origins(history: History, rows: Ints, created_s: Floats) -> Ints:
    """Return the latest request that began before each stored answer and got it: by its tier and both token counts."""
    whole = (history.status == _OK) & ~history.failed & ~np.isnan(history.answer_out)
    answered = (history.basis >= 0) & (history.tier > 0) & whole
    served = np.flatnonzero(answered)
    every = np.concatenate([served, rows])
    tokens = [
        np.nan_to_num(column[every], nan=-1.0).astype(np.int64) for column in (history.answer_in, history.answer_out)
    ]
    keys = mixed([history.tier[every].astype(np.int64), *tokens], len(every))
    times = np.concatenate([history.started_s[served], created_s + _CLOCKS_S])
    is_hit = np.arange(len(every)) >= len(served)
    order = np.lexsort((is_hit, times, keys))
    # The place in this order of the last request before each one that got an answer, of whatever key.
    last = np.maximum.accumulate(np.where(is_hit[order], -1, np.arange(len(every))))
    hits = np.flatnonzero(is_hit[order])
    found = order[np.maximum(last[hits], 0)]
    own = order[hits]
    good = (last[hits] >= 0) & (keys[found] == keys[own]) & (times[own] - times[found] <= _LONGEST_S)
    origins = np.full(len(rows), -1, np.int64)
    origins[own[good] - len(served)] = every[found[good]]
    return origins


def _life(*rules: ExactCache | SemanticCache | None) -> float:
    """Return for how many seconds the longest of these caches keeps an answer; 0 without any."""
    return max(rule.ttl if rule is not None else 0.0 for rule in rules)


def _expired(hits: _Hits, history: History, ttl_s: float) -> Bools:
    """Return which of these hits come after the end of their answer's life."""
    renewed: dict[str, float] = {}
    expired = np.zeros(len(hits.rows), np.bool_)
    started, age_s = history.started_s[hits.rows], hits.age_s.tolist()
    for at in np.argsort(started, kind="stable").tolist():
        entry, now = hits.entries[at], float(started[at])
        if now - max(now - age_s[at], renewed.get(entry, -math.inf)) >= ttl_s:
            expired[at] = True
            renewed[entry] = now
    return expired
