"""Replay the recorded requests of one surface: what they got, and what they would have got by another policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from offline.measures.quality import Opinions, difference, estimate, in_one_word
from offline.progress import OnProgress, silent
from offline.replay.cells import Bools, Ints, VerdictTable
from offline.replay.donors import Pool, hit_strata_of
from offline.replay.figures import IMPUTATIONS, FigureChange, Results, Tally, as_json, combined
from offline.replay.history import History, Read, decided_again, read_history
from offline.replay.lost_hits import LostHits, as_asked, lost_hits
from offline.replay.outcomes import PATHS, CourseFollower, Followed
from offline.replay.records import LedgerReader, Which
from policies.model import Policy
from routing.decide import NoTierError, decide
from routing.decision_basis import CLASSIFIER
from routing.decision_record import outcome_of, unnamed

if TYPE_CHECKING:
    import duckdb

    from routing.decision_basis import DecisionBasis

_RATED: Final = frozenset({"p_adequate", "difficulty", "kind", "quantile", "in_domain"})
"""Values of rules that the classifier gives."""
_EXAMPLES: Final = 5
_PAGE: Final = 500
_LEAST_OF_SLICE: Final = 20


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Whether the recorded policy makes the recorded decisions again.

    `same` of `decided` have the same verdict by their cell; of `checked`, every byte of `identical` decisions is the
    same when each record is decided by itself. `differing` are ids of some of the others.
    """

    decided: int
    same: int
    checked: int
    identical: int
    differing: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all of them are the same."""
        return self.decided == self.same and self.checked == self.identical


@dataclass(frozen=True, slots=True)
class Slice:
    """Requests that share one trait, how many they are, and which share of them takes another path."""

    trait: str
    requests: int
    changed: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay. Shares are of `requests`, but for those of `figures`, which leave out `no_evidence`."""

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
    slices: Sequence[Slice]
    examples: Sequence[str]
    """Ids of requests of the most changed slice that take another course."""
    notes: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        fidelity = self.fidelity
        return {
            "surface": self.surface,
            "candidate": self.candidate,
            "recorded": list(self.recorded),
            "requests": self.requests,
            "from": self.first_s,
            "to": self.last_s,
            "fidelity": {
                "decided": fidelity.decided,
                "same": fidelity.same,
                "checked": fidelity.checked,
                "identical": fidelity.identical,
                "differing": list(fidelity.differing),
            },
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
            "slices": [{"trait": one.trait, "requests": one.requests, "changed": one.changed} for one in self.slices],
            "examples": list(self.examples),
            "notes": list(self.notes),
        }


class NothingRecordedError(Exception):
    """The ledger has no request that could be replayed."""


def replay(
    database: duckdb.DuckDBPyConnection,
    candidate: Policy,
    *,
    since: float | None = None,
    verify: int | None = 20_000,
    on_progress: OnProgress = silent,
    seed: int = 0,
) -> Replayed:
    """Replay the requests of the candidate's surface that began after `since` (Unix seconds; None for all).

    `verify` is how many records are decided one by one, to compare every byte; None for all. Raises BasisError and
    NothingRecordedError.
    """
    reader = LedgerReader(database, Which(candidate.surface, since), VerdictTable())
    if not reader.bases:
        raise NothingRecordedError(f"no decision of the surface {candidate.surface!r} is recorded")
    _check_classifier(reader.bases, candidate)
    read = read_history(reader, candidate, on_progress)
    history = read.history
    fidelity = _fidelity(reader, read, verify, on_progress)
    newest = reader.bases[int(history.basis[np.flatnonzero(history.basis >= 0)[-1]])].policy
    lost = lost_hits(reader, history, newest, candidate)
    read = replace(read, history=as_asked(history, lost))
    follower = CourseFollower(read, reader, candidate, lost, seed)
    before, words = _recorded(reader, read)
    imputations, kept, is_estimated = _impute(reader, read, follower, lost, before, words, candidate, on_progress)
    was = Tally(_only(before, kept), words, newest.slo).figures(_only(before, np.zeros_like(kept)))
    changed = np.zeros(len(history), np.bool_)
    changed[follower.rows] = changed[lost.rows] = True
    slices, examples = _most_changed(reader, history, changed)
    goodput = was["goodput"]
    return Replayed(
        surface=candidate.surface,
        candidate=candidate.label,
        recorded=tuple(sorted({basis.policy.label for basis in reader.bases})),
        requests=len(history),
        first_s=float(history.started_s.min()),
        last_s=float(history.started_s.max()),
        fidelity=fidelity,
        cells=read.cells,
        redecided=follower.redecided,
        changed=int(changed.sum()),
        lost_hits=len(lost.rows),
        estimated=int((is_estimated & kept).sum()),
        estimated_path=int(follower.estimated_path.sum()) + int((~lost.linked).sum()),
        no_evidence=int((~kept).sum()),
        figures=combined(was, imputations),
        goodput_variance=0.0 if math.isnan(goodput) else goodput * (1 - goodput),
        quality=_quality(reader, read, follower),
        slices=slices,
        examples=examples,
        notes=_notes(newest, candidate, follower, reader, lost),
    )


def _check_classifier(bases: Sequence[DecisionBasis], candidate: Policy) -> None:
    """Raise NothingRecordedError where the candidate would rate requests by another classifier than the recorded one.

    A record holds what its own classifier said, and not the text that another would have to read.
    """
    route = candidate.route
    both = candidate.escalate.speculate.both
    asked = set().union(*(rule.names for rule in (*route.start.values(), both) if rule is not None))
    if route.classifier == "none" or not asked & _RATED:
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


def _impute(
    reader: LedgerReader,
    read: Read,
    follower: CourseFollower,
    lost: LostHits,
    before: Results,
    words: Sequence[str],
    candidate: Policy,
    on_progress: OnProgress,
) -> tuple[list[dict[str, float]], Bools, Bools]:
    """Return the figures of each imputation, which requests they are of, and of which any figure is estimated."""
    history, rows, unlinked = read.history, follower.rows, lost.rows[~lost.linked]
    outcomes = follower.imputations(IMPUTATIONS, on_progress)
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
        outcomes = (outcomes * IMPUTATIONS)[:IMPUTATIONS]
    # Only followed requests and lost hits differ between imputations.
    some = np.flatnonzero(pool.size > 0) if pool is not None else np.zeros(0, np.int64)
    varying = np.concatenate([rows, unlinked[some]])
    fixed = kept.copy()
    fixed[varying] = False
    tally = Tally(_only(before, fixed), words, candidate.slo)
    place = np.full(len(history), -1, np.int64)
    place[rows] = np.arange(len(rows))
    imputations = []
    for outcome in outcomes:
        donors = np.zeros(0, np.int64)
        if pool is not None:
            # Those who got the same answer asked the same: they share a donor, of the first of them with one.
            _, first, which = np.unique(history.question[unlinked[some]], return_index=True, return_inverse=True)
            donors = pool.drawn(pool.resampled(draw), some[first], draw)[which]
        rest = _outcome_of(before, varying, outcome, words, donors, place)
        imputations.append(tally.figures(_only(rest, kept[varying])))
    return imputations, kept, is_estimated


def _recorded(reader: LedgerReader, read: Read) -> tuple[Results, tuple[str, ...]]:
    """Return what the requests got, and the words for their paths."""
    history = read.history
    words = ("", *reader.paths.every)
    words = (*words, *(word for word in PATHS if word not in words))
    results = Results(
        path=history.path.astype(np.int64),
        tier=history.tier.astype(np.int64) - 1,
        cost_usd=history.cost_usd,
        wasted_usd=history.wasted_usd,
        ttft_ms=history.ttft_ms.astype(np.float64),
        total_ms=history.total_ms.astype(np.float64),
        status=history.status.astype(np.int64),
        failed=history.failed,
        stream=history.stream,
    )
    return results, words


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


def _only(results: Results, kept: Bools) -> Results:
    if kept.all():
        return results
    names = ("path", "tier", "cost_usd", "wasted_usd", "ttft_ms", "total_ms", "status", "failed", "stream")
    columns: dict[str, Any] = {name: getattr(results, name)[kept] for name in names}
    return Results(**columns)


# --- fidelity ---------------------------------------------------------------------------------------------------------


def _fidelity(reader: LedgerReader, read: Read, verify: int | None, on_progress: OnProgress) -> Fidelity:
    decided, same = decided_again(read)
    checked = identical = 0
    differing: list[str] = []
    total = decided if verify is None else min(verify, decided)
    for basis, request_id, given, decision in reader.decisions(total):
        checked += 1
        if _again(reader.bases[basis], given) == decision:
            identical += 1
        elif len(differing) < _EXAMPLES:
            differing.append(request_id)
        if checked % _PAGE == 0 or checked == total:
            on_progress("verifying", checked, total)
    if same < decided and not differing:
        history = read.history
        rows = np.flatnonzero((history.basis >= 0) & (history.again != history.recorded))
        differing = reader.request_ids(history.place[rows[:_EXAMPLES]])
    return Fidelity(decided, same, checked, identical, tuple(differing))


def _again(basis: DecisionBasis, given: Mapping[str, Any]) -> list[Any] | None:
    """Return the decision on a recorded input, made again by the recorded policy; None where no tier can answer."""
    try:
        return list(outcome_of(decide(basis.policy, basis.input_of(unnamed(given)))))
    except NoTierError:
        return None


# --- what changed, and what it is worth -------------------------------------------------------------------------------


def _most_changed(reader: LedgerReader, history: History, changed: Bools) -> tuple[list[Slice], list[str]]:
    """Return the slices by tenant, kind and prompt length that change most, and some requests of the first."""
    if not changed.any():
        return [], []
    length = np.digitize(np.nan_to_num(history.tokens), (100, 500, 2000, 8000))
    lengths = ("under 100", "100 to 500", "500 to 2,000", "2,000 to 8,000", "over 8,000")
    traits: list[tuple[str, Bools]] = []
    for number, name in enumerate(reader.tenants.every, start=1):
        traits.append((f"tenant {name}", np.asarray(history.tenant == number)))
    for number, name in enumerate(reader.kinds.every, start=1):
        traits.append((f"kind {name}", np.asarray(history.kind == number)))
    traits += [(f"prompts of {words} tokens", np.asarray(length == number)) for number, words in enumerate(lengths)]
    slices = [
        (Slice(trait, int(own.sum()), float(changed[own].mean())), own)
        for trait, own in traits
        if own.sum() >= _LEAST_OF_SLICE
    ]
    slices.sort(key=lambda pair: -pair[0].changed)
    rows = np.flatnonzero(changed & slices[0][1]) if slices else np.flatnonzero(changed)
    few = rows[np.linspace(0, len(rows) - 1, min(_EXAMPLES, len(rows))).astype(np.int64)] if len(rows) else rows
    return [one for one, _ in slices[:_EXAMPLES]], reader.request_ids(history.place[few])


def _quality(reader: LedgerReader, read: Read, follower: CourseFollower) -> dict[str, Any]:
    """Return the quality of the replies, and by how much it would change: by that of each tier within its strata.

    It is estimated from people's feedback and a judge's labels, as everywhere (`offline.measures.quality`); a label
    speaks of two tiers' answers to its request. The difference rests on the assumption that within a stratum a tier's
    answers are rated alike whoever gets them; the holdout, whose members are drawn, checks it.
    """
    history, answers = read.history, _opinions(reader, read.history)
    served = answers.tier == history.tier[answers.row]
    rated, judged = (np.unique(answers.row[~np.isnan(one)]) for one in (answers.said.people, answers.said.judge))
    result: dict[str, Any] = {
        "labels": len(rated),
        "judged": len(judged),
        "held_out": int((history.holdout[np.union1d(rated, judged)] == 1).sum()),
        "before": estimate(answers.said.take(served)).value if served.any() else None,
        "difference": None,
        "interval_95": None,
        "word": None,
    }
    moves = _moves(follower)
    if moves == {} and len(rated) + len(judged):
        return result | {"difference": 0.0, "interval_95": [0.0, 0.0]}
    terms: list[tuple[float, Opinions]] = []
    for (was, now), (count, strata) in (moves or {}).items():
        for tier, sign in ((now, 1.0), (was, -1.0)):
            own = np.flatnonzero(answers.tier == tier + 1)
            alike = own[np.isin(follower.strata[2][answers.row[own]], strata)]
            said = answers.said.take(alike if len(alike) >= 10 else own)
            terms.append((sign * count / len(history), said))
    spoken = in_one_word([said for _, said in terms])
    if spoken is None:
        return result
    word, qualities = spoken
    found = difference([(part, one) for (part, _), one in zip(terms, qualities, strict=True)], word)
    return result | {"difference": found.value, "interval_95": [found.low, found.high], "word": word}


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers of which somebody said how good they are: the request's place in the history, the tier's number."""

    row: Ints
    tier: Ints
    said: Opinions


def _opinions(reader: LedgerReader, history: History) -> _Answers:
    """Return all answers to requests of the history that were rated or judged, those for nobody included."""
    decided = (history.tier > 0) & (history.basis >= 0)
    score = {row: float(history.score[row]) for row in np.flatnonzero(~np.isnan(history.score) & decided).tolist()}
    answers: list[tuple[int, int, float | None, float | None]] = []
    labels = reader.labels()
    near = np.flatnonzero(np.isin(history.place[:, 0], [place[0] for place in labels]) & decided)
    for row in near.tolist():
        for tier, served, adequate in labels.get(tuple(history.place[row].tolist()), ()):
            number = reader.tiers.number(tier)
            if number:  # no recorded request was answered by any other
                answers.append((row, number, score.pop(row, None) if served else None, adequate))
    answers += [(row, int(history.tier[row]), rating, None) for row, rating in score.items()]
    rows, tiers = (np.array([one[at] for one in answers], np.int64) for at in (0, 1))
    return _Answers(rows, tiers, Opinions.of([one[2:] for one in answers]))


def _moves(follower: CourseFollower) -> dict[tuple[int, int], tuple[int, Ints]] | None:
    """Return how many requests another tier answers than did, by both tiers, with the strata that they are from."""
    outcome = follower.last
    if outcome is None:
        return None
    history = follower.history
    was = history.tier[follower.rows] - 1
    moved = np.flatnonzero((was >= 0) & (outcome.tier >= 0) & (was != outcome.tier) & ~follower.no_evidence)
    result: dict[tuple[int, int], tuple[int, Ints]] = {}
    for pair in {(int(was[at]), int(outcome.tier[at])) for at in moved.tolist()}:
        own = moved[(was[moved] == pair[0]) & (outcome.tier[moved] == pair[1])]
        result[pair] = len(own), np.unique(follower.strata[2][follower.rows[own]])
    return result


def _notes(
    recorded: Policy, candidate: Policy, follower: CourseFollower, reader: LedgerReader, lost: LostHits
) -> list[str]:
    """Return what the figures do not cover."""
    notes = _cache_notes(recorded, candidate)
    if recorded.output != candidate.output:
        notes.append("output changes: answers are taken as long as they were")
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
    if unlinked := int((~lost.linked).sum()):
        notes.append(
            f"{unlinked:,} lost hits got answers of requests that are not among these: "
            "each is taken for some request with a prompt as long"
        )
    if follower.no_evidence.any():
        notes.append("requests without evidence are left out of all figures, before and after")
    return notes


def _cache_notes(recorded: Policy, candidate: Policy) -> list[str]:
    notes = []
    old, new = recorded.cache, candidate.cache
    if new.exact is not None and (old.exact is None or new.exact.ttl > old.exact.ttl):
        notes.append("more exact hits are to be expected: no record shows which; none are counted")
    if new.semantic is not None and (old.semantic is None or new.semantic.ttl > old.semantic.ttl):
        notes.append("more semantic hits are to be expected: no record shows which; none are counted")
    if old.semantic is not None and new.semantic is not None:
        apart = {"ttl"}
        was, now = (one.model_dump(exclude=apart) for one in (old.semantic, new.semantic))
        if was != now:
            notes.append("the rules for semantic hits change: hits are counted as they were recorded")
    if old.semantic is not None and new.semantic is None and new.exact is not None:
        notes.append("semantic hits are counted as calls; some of them would then be exact hits of each other")
    if old.never != new.never:
        notes.append("cache.never changes: its values are not recorded, so hits are counted as they were recorded")
    if (recorded.tiers, recorded.output, old) != (candidate.tiers, candidate.output, new):
        notes.append("answers stored until now are not served by this policy: its first hours have fewer hits")
    return notes
