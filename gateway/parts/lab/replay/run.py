"""Replay the recorded requests of one surface: what they got, and what they would have got by another policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.parts.lab.replay.answer_quality import quality_change
from gateway.parts.lab.replay.cells import Bools, Ints
from gateway.parts.lab.replay.courses import PATHS
from gateway.parts.lab.replay.donors import Pool, hit_strata_of
from gateway.parts.lab.replay.figures import FigureChange, Results, Tally, as_json, combined, imputations_for, reach
from gateway.parts.lab.replay.history import Read, with_candidate
from gateway.parts.lab.replay.lost_hits import LostHits, as_asked, lost_hits
from gateway.parts.lab.replay.outcomes import CourseFollower, Followed
from gateway.parts.lab.replay.path_moves import MoveCounts, PathMove
from gateway.parts.lab.replay.recording import Fidelity, NothingRecordedError, Recording
from gateway.parts.lab.replay.records import LedgerReader, Which
from gateway.parts.lint.rule_values import RATED
from gateway.report import OnProgress, silent
from policies.model import Policy
from routing.difficulty.model import CLASSIFIER

if TYPE_CHECKING:
    import duckdb

    from gateway.parts.recorder.decision_record import DecisionBasis

_EXAMPLES: Final = 5
_LEAST_OF_SLICE: Final = 20


@dataclass(frozen=True, slots=True)
class Slice:
    """Requests that share one trait, how many they are, and which share of them takes another path."""

    trait: str
    requests: int
    changed: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay. Shares are of `requests`; `figures` say how those without evidence count."""

    surface: str
    candidate: str
    recorded: tuple[str, ...]
    """Labels of the policies that the requests were served by."""
    requests: int
    first_s: float
    last_s: float
    """Times of the first and the last request in Unix seconds."""
    fidelity: Fidelity
    cells: int
    redecided: int
    """Requests whose tiers are others, or in another order."""
    changed: int
    """Requests that take another course: other tiers, another verdict on a draft, a hit that is none any more."""
    lost_hits: int
    estimated: int
    """Requests of which some figure is estimated."""
    estimated_path: int
    """Requests of which it is estimated whether a draft is escalated."""
    no_evidence: int
    figures: Mapping[str, FigureChange]
    goodput_variance: float
    """Variance of one request's goodput, before: for the number that a canary takes."""
    quality: Mapping[str, Any]
    moves: Sequence[PathMove]
    """How many requests go from which path and tier to which other, the most frequent first."""
    slices: Sequence[Slice]
    examples: Sequence[str]
    """Ids of requests of the most changed slice that take another course."""
    notes: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "surface": self.surface,
            "candidate": self.candidate,
            "recorded": list(self.recorded),
            "requests": self.requests,
            "from": self.first_s,
            "to": self.last_s,
            "fidelity": asdict(self.fidelity) | {"differing": list(self.fidelity.differing)},
            "cells": self.cells,
            "redecided": self.redecided,
            "changed": self.changed,
            "lost_hits": self.lost_hits,
            "exact": self.requests - self.estimated - self.no_evidence,
            "estimated": self.estimated,
            "estimated_path": self.estimated_path,
            "no_evidence": self.no_evidence,
            "figures": as_json(self.figures),
            "goodput_variance": self.goodput_variance,
            "quality": dict(self.quality),
            "moves": [asdict(move) for move in self.moves],
            "slices": [asdict(part) for part in self.slices],
            "examples": list(self.examples),
            "notes": list(self.notes),
        }


def replay(
    database: duckdb.DuckDBPyConnection,
    candidate: Policy,
    *,
    since: float | None = None,
    last: int | None = None,
    verify: int | None = 20_000,
    on_progress: OnProgress = silent,
    seed: int = 0,
) -> Replayed:
    """Replay the requests of the candidate's surface that began after `since` (Unix seconds; None for all).

    Of these only the `last` that ended, if that is given. `verify` is how many records are decided one by one, to
    compare every byte; None for all. Raises BasisError and NothingRecordedError.
    """
    which = Which(candidate.surface, since)
    which = which if last is None else which.newest(database, last)
    recording = Recording(database, candidate, which, verify=verify, on_progress=on_progress)
    return _replayed(recording, recording.read, candidate, on_progress, seed)


def replay_again(recording: Recording, candidate: Policy, seed: int = 0) -> Replayed:
    """Replay a recording whose inputs are kept by another candidate, as `replay` would, within a fraction of its time.

    The candidate's tiers must be among those of the recording's. Raises NothingRecordedError.
    """
    read = with_candidate(recording.read, recording.reader.bases, candidate)
    return _replayed(recording, read, candidate, silent, seed)


def _replayed(recording: Recording, read: Read, candidate: Policy, on_progress: OnProgress, seed: int) -> Replayed:
    """Return what the candidate makes of the recording, whose decisions by it are read."""
    reader = recording.reader
    _check_classifier(reader.bases, candidate)
    history = read.history
    lost = lost_hits(reader, history, recording.newest, candidate)
    read = replace(read, history=as_asked(history, lost))
    follower = CourseFollower(read, reader, candidate, lost, recording.tier_figures(candidate), seed)
    before, words = recording.results, recording.words
    estimates = _impute(recording, read, follower, lost, candidate, on_progress)
    kept = estimates.kept
    was = Tally(before, words, recording.newest.slo).figures(before.only(np.zeros_like(kept)))
    changed = np.zeros(len(history), np.bool_)
    changed[follower.rows] = changed[lost.rows] = True
    slices, examples = _most_changed(recording, changed)
    goodput = was["goodput"]
    no_evidence = int((~kept).sum())
    estimated = int((estimates.is_estimated & kept).sum())
    estimated_path = int((follower.estimated_path & kept[follower.rows]).sum())
    estimated_path += int((~lost.linked & kept[lost.rows]).sum())
    of_figures = dict.fromkeys(was, estimated + no_evidence)
    of_figures |= dict.fromkeys(("escalated", "degraded"), estimated_path + no_evidence) | {"hits": no_evidence}
    return Replayed(
        surface=candidate.surface,
        candidate=candidate.label,
        recorded=tuple(sorted({basis.policy.label for basis in reader.bases})),
        requests=len(history),
        first_s=float(history.started_s.min()),
        last_s=float(history.started_s.max()),
        fidelity=recording.fidelity,
        cells=read.cells,
        redecided=follower.redecided,
        changed=int(changed.sum()),
        lost_hits=len(lost.rows),
        estimated=estimated,
        estimated_path=estimated_path,
        no_evidence=no_evidence,
        figures=combined(was, estimates.figures, reach(before, ~kept, words, candidate.slo), of_figures),
        goodput_variance=0.0 if math.isnan(goodput) else goodput * (1 - goodput),
        quality=quality_change(recording.answers, follower, len(lost.rows)),
        moves=estimates.moves,
        slices=slices,
        examples=examples,
        notes=_notes(recording.newest, candidate, follower, reader, lost),
    )


def _check_classifier(bases: Sequence[DecisionBasis], candidate: Policy) -> None:
    """Raise NothingRecordedError where the candidate would rate requests by another classifier than the recorded one.

    A record holds what its own classifier said, and not the text that another would have to read.
    """
    route = candidate.route
    if route.classifier == "none" or not candidate.asked & RATED:
        return
    wanted = None if route.pinned is None else route.pinned.version[:12]
    by = {
        ("none" if basis.policy.route.classifier == "none" else basis.artefacts.get(CLASSIFIER, "")[:12]): basis.policy
        for basis in bases
    }
    if by.keys() == {wanted} or (wanted is None and not any(one.route.classifier != "default" for one in by.values())):
        return
    own = f"the classifier {wanted}" if wanted else "the deployment's classifier"
    raise NothingRecordedError(
        f"{candidate.label} rates requests by {own}, and the records were rated by {', '.join(sorted(by))}: "
        "what the other says of them is not known; try the policy as a shadow or a canary"
    )


@dataclass(slots=True)
class _Estimates:
    """The figures of each imputation, which requests they are of, of which any figure is estimated, and the moves."""

    figures: list[dict[str, float]]
    kept: Bools
    is_estimated: Bools
    moves: Sequence[PathMove] = ()


def _impute(
    recording: Recording,
    read: Read,
    follower: CourseFollower,
    lost: LostHits,
    candidate: Policy,
    on_progress: OnProgress,
) -> _Estimates:
    """Estimate what the requests get by the candidate."""
    history, rows, unlinked = read.history, follower.rows, lost.rows[~lost.linked]
    before, words = recording.results, recording.words
    count = imputations_for(len(rows) + len(unlinked))
    outcomes = follower.imputations(count, on_progress)
    kept = np.ones(len(history), np.bool_)
    kept[rows[follower.no_evidence]] = False
    is_estimated = np.zeros(len(history), np.bool_)
    is_estimated[rows[follower.estimated]] = True
    draw = np.random.default_rng(len(history))
    pool = None
    if len(unlinked):
        decided = (history.basis >= 0) & kept & (history.status != 499)
        pool = Pool.of(decided, hit_strata_of(history), unlinked, history.question, draw)
        kept[unlinked[pool.size == 0]] = False
        is_estimated[unlinked] = True
        outcomes = (outcomes * count)[:count]
    # Only followed requests and lost hits differ between imputations.
    some = np.flatnonzero(pool.size > 0) if pool is not None else np.zeros(0, np.int64)
    varying = np.concatenate([rows, unlinked[some]])
    fixed = np.ones_like(kept)  # those without evidence count as they were recorded
    fixed[varying[kept[varying]]] = False
    tally = Tally(before.only(fixed), words, candidate.slo)
    place = np.full(len(history), -1, np.int64)
    place[rows] = np.arange(len(rows))
    estimates, of = _Estimates([], kept, is_estimated), kept[varying]
    moves = MoveCounts(before.only(varying).only(of), words, read.tiers)
    for outcome in outcomes:
        donors = np.zeros(0, np.int64)
        if pool is not None:
            # Those who got the same answer asked the same: they share a donor, of the first of them with one.
            _, first, which = np.unique(history.question[unlinked[some]], return_index=True, return_inverse=True)
            donors = pool.drawn(pool.resampled(draw), some[first], draw)[which]
        rest = _outcome_of(before, varying, outcome, words, donors, place).only(of)
        estimates.figures.append(tally.figures(rest))
        moves.add(rest)
    estimates.moves = moves.mean(len(outcomes))
    return estimates


def _outcome_of(
    before: Results, varying: Ints, outcome: Followed, words: Sequence[str], donors: Ints, place: Ints
) -> Results:
    """Return what the varying requests got: first those followed, then those who got what their donors got.

    `place` is the position of each request among those followed, -1 if it is not.
    """
    codes = np.array([words.index(word) for word in PATHS])
    failed = outcome.tier < 0
    new: dict[str, Any] = {
        "path": codes[outcome.path],
        "tier": outcome.tier,
        "cost_usd": outcome.cost_usd,
        "wasted_usd": outcome.wasted_usd,
        "ttft_ms": outcome.ttft_ms,
        "total_ms": outcome.total_ms,
        "tpot_ms": outcome.tpot_ms,
        "gap_ms": outcome.gap_ms,
        "status": np.where(failed, 502, 200),
        "failed": failed,
    }
    followed = np.flatnonzero(place[donors] >= 0)
    columns: dict[str, Any] = {"stream": before.stream[varying]}
    for name, values in new.items():
        copied = getattr(before, name)[donors]
        copied[followed] = values[place[donors[followed]]]
        columns[name] = np.concatenate([values, copied])
    return Results(**columns)


# --- what changed, and what it is worth -------------------------------------------------------------------------------


def _most_changed(recording: Recording, changed: Bools) -> tuple[list[Slice], list[str]]:
    """Return the slices by tenant, kind and prompt length that change most, and some requests of the first."""
    if not changed.any():
        return [], []
    slices = [
        (Slice(trait, size, int((changed & own).sum()) / size), own)
        for trait, own, size in recording.traits
        if size >= _LEAST_OF_SLICE
    ]
    slices.sort(key=lambda pair: -pair[0].changed)
    rows = np.flatnonzero(changed & slices[0][1]) if slices else np.flatnonzero(changed)
    few = rows[np.linspace(0, len(rows) - 1, min(_EXAMPLES, len(rows))).astype(np.int64)] if len(rows) else rows
    return [part for part, _ in slices[:_EXAMPLES]], recording.request_ids(few)


def _notes(
    recorded: Policy, candidate: Policy, follower: CourseFollower, reader: LedgerReader, lost: LostHits
) -> list[str]:
    """Return what the figures do not cover."""
    notes = _cache_notes(recorded, candidate)
    if recorded.output != candidate.output:
        notes.append("output changes: answers are taken as long as they were")
    if recorded.content.get("input") != candidate.content.get("input"):
        left = reader.tokens_left_out
        notes.append(
            f"input changes: what it leaves out is not known, as no record holds a conversation, and counts nowhere; "
            f"{left:,} tokens were left out of these requests. A shadow or a canary shows it"
        )
    was_escalate, now_escalate = recorded.escalate, candidate.escalate
    if (was_escalate.stream.hold_tokens, was_escalate.stream.hold_max) != (
        now_escalate.stream.hold_tokens,
        now_escalate.stream.hold_max,
    ):
        notes.append("hold_tokens or hold_max changes: drafts keep the confidence that they had")
    if was_escalate.hedge != now_escalate.hedge or was_escalate.speculate != now_escalate.speculate:
        notes.append("hedges and speculation change: calls beside the first are counted as they were recorded")
    added = (now_escalate.when.invalid - was_escalate.when.invalid) | {
        name
        for name in ("repetition", "refusal")
        if getattr(now_escalate.when, name) and not getattr(was_escalate.when, name)
    }
    if added:
        notes.append(f"no evidence for {', '.join(sorted(added))}: drafts were not checked for it")
    unknown = [name for name in candidate.tiers if name not in reader.tiers.every]
    if unknown:
        notes.append(f"{', '.join(unknown)} answered no recorded request")
    if reader.unpriced:
        notes.append(
            f"{reader.unpriced:,} requests called a backend of unknown price: cost and waste are too low by theirs, "
            "before and after (tierline prices check)"
        )
    if unlinked := int((~lost.linked).sum()):
        notes.append(
            f"{unlinked:,} lost hits got answers of requests that are not among these: "
            "each is taken for some request with a prompt as long"
        )
    if follower.no_evidence.any():
        notes.append(
            "requests without evidence count as they were recorded; the intervals reach to the least and the most that "
            "they could have got"
        )
    return notes


def _cache_notes(recorded: Policy, candidate: Policy) -> list[str]:
    notes = []
    old, new = recorded.cache, candidate.cache
    if new.exact is not None and (old.exact is None or new.exact.ttl > old.exact.ttl):
        notes.append("more exact hits are to be expected: no record shows which; none are counted")
    if new.semantic is not None and (old.semantic is None or new.semantic.ttl > old.semantic.ttl):
        notes.append("more semantic hits are to be expected: no record shows which; none are counted")
    if old.semantic is not None and new.semantic is not None:
        apart = {"ttl", "min_similarity"}
        if new.semantic.min_similarity < old.semantic.min_similarity:
            notes.append("hits of less similar questions are to be expected: no record shows which; none are counted")
        elif new.semantic.min_similarity > old.semantic.min_similarity:
            notes.append("hits of less similar questions are counted as calls; some might get another stored answer")
        was, now = (policy.model_dump(exclude=apart) for policy in (old.semantic, new.semantic))
        if was != now:
            notes.append("the rules for semantic hits change: hits are counted as they were recorded")
    if old.semantic is not None and new.semantic is None and new.exact is not None:
        notes.append("semantic hits are counted as calls; some of them would then be exact hits of each other")
    if old.never != new.never:
        notes.append("cache.never changes: its values are not recorded, so hits are counted as they were recorded")
    if old.doubt_ttl != new.doubt_ttl:
        notes.append("cache.doubt_ttl changes: what was in doubt is not recorded; hits are counted as they were")
    if (recorded.tiers, recorded.output, old) != (candidate.tiers, candidate.output, new):
        notes.append("answers stored until now are not served by this policy: its first hours have fewer hits")
    return notes
