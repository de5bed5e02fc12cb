"""Hold what a replay reads of one surface, and all of its result that does not depend on the candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.parts.lab.replay.cells import Bools, Ints, VerdictTable
from gateway.parts.lab.replay.courses import PATHS
from gateway.parts.lab.replay.figures import Results
from gateway.parts.lab.replay.history import History, Read, decided_again, read_history
from gateway.parts.lab.replay.records import LedgerReader, Which
from gateway.parts.lab.replay.tier_figures import TierFigures
from gateway.parts.measures.quality import Opinions
from gateway.parts.recorder.decision_record import outcome_of
from gateway.report import OnProgress, silent
from policies.model import Policy
from routing.decide import NoTierError, decide

if TYPE_CHECKING:
    import duckdb

    from gateway.parts.recorder.decision_record import DecisionBasis

_EXAMPLES: Final = 5
_PAGE: Final = 500
_LENGTHS: Final = ("under 100", "100 to 500", "500 to 2,000", "2,000 to 8,000", "over 8,000")


class NothingRecordedError(Exception):
    """The ledger has no request that could be replayed."""


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
        """Whether every decision that was made again equals the recorded one."""
        return self.decided == self.same and self.checked == self.identical


@dataclass(frozen=True, slots=True)
class RatedAnswers:
    """Answers of which somebody said how good they are: the request's place in the history, the tier's number.

    `rated` answers have feedback, `judged` ones a label, `held_out` of them were drawn. `before` is the quality of
    those that were served, 0 to 1; None where none of them was rated.
    """

    row: Ints
    tier: Ints
    opinions: Opinions
    rated: int
    judged: int
    held_out: int
    before: float | None


class Recording:
    """Recorded requests of one surface, each decided again by its own policy, and by a candidate."""

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        candidate: Policy,
        which: Which,
        *,
        verify: int | None = 0,
        keep_inputs: bool = False,
        on_progress: OnProgress = silent,
    ) -> None:
        """Read them; with `keep_inputs` other candidates may follow. `verify` is as in `replay`.

        Raises BasisError and NothingRecordedError.
        """
        self.reader = LedgerReader(database, which, VerdictTable())
        if not self.reader.bases:
            raise NothingRecordedError(f"no decision of the surface {candidate.surface!r} is recorded")
        self.read = read_history(self.reader, candidate, on_progress, keep_inputs=keep_inputs)
        history = self.read.history
        self.fidelity = _fidelity(self.reader, self.read, verify, on_progress)
        self.newest: Policy = self.reader.bases[int(history.basis[np.flatnonzero(history.basis >= 0)[-1]])].policy
        """The policy that served the latest of them."""
        self.words = ("", *self.reader.paths.every)
        """The words for paths, by their number in `results`."""
        self.words += tuple(word for word in PATHS if word not in self.words)
        self.results = _results(history)
        """What the requests got."""
        self.traits = _traits(self.reader, history)
        """Groups of requests: what they share, which they are, and how many."""
        self.answers = _rated_answers(self.reader, history)
        self._figures: dict[int, TierFigures] = {}
        self._ids = self.reader.every_id() if keep_inputs else None

    def tier_figures(self, policy: Policy) -> TierFigures:
        """Return the figures of the tiers, for a policy whose tiers are among them."""
        first = self.read.tiers.index(policy.tiers[0])
        if first not in self._figures:
            self._figures[first] = TierFigures(self.read.history, len(self.read.tiers), first)
        return self._figures[first]

    def request_ids(self, rows: Ints) -> list[str]:
        """Return the ids of the requests at these places of the history."""
        if self._ids is not None:
            return [self._ids[row] for row in rows.tolist()]
        return self.reader.request_ids(self.read.history.place[rows])


def _results(history: History) -> Results:
    return Results(
        path=history.path.astype(np.int64),
        tier=history.tier.astype(np.int64) - 1,
        cost_usd=history.cost_usd,
        wasted_usd=history.wasted_usd,
        ttft_ms=history.ttft_ms.astype(np.float64),
        total_ms=history.total_ms.astype(np.float64),
        status=history.status.astype(np.int64),
        failed=history.failed,
        stream=history.stream,
        tpot_ms=history.tpot_ms.astype(np.float64),
        gap_ms=history.gap_ms.astype(np.float64),
    )


def _traits(reader: LedgerReader, history: History) -> list[tuple[str, Bools, int]]:
    length = np.digitize(np.nan_to_num(history.tokens), (100, 500, 2000, 8000))
    traits = [
        *((f"tenant {name}", history.tenant == number) for number, name in enumerate(reader.tenants.every, start=1)),
        *((f"kind {name}", history.kind == number) for number, name in enumerate(reader.kinds.every, start=1)),
        *((f"prompts of {words} tokens", length == number) for number, words in enumerate(_LENGTHS)),
    ]
    return [(trait, np.asarray(own), int(own.sum())) for trait, own in traits]


def _rated_answers(reader: LedgerReader, history: History) -> RatedAnswers:
    """Return all answers to requests of the history that were rated or judged, also those that no client got."""
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
    rows, tiers = (np.array([answer[at] for answer in answers], np.int64) for at in (0, 1))
    opinions = Opinions.of([answer[2:] for answer in answers])
    served = tiers == history.tier[rows]
    rated, judged = (np.unique(rows[~np.isnan(scores)]) for scores in (opinions.people, opinions.judge))
    held_out = int((history.holdout[np.union1d(rated, judged)] == 1).sum())
    before = opinions.take(served).estimate().value if served.any() else None
    return RatedAnswers(rows, tiers, opinions, len(rated), len(judged), held_out, before)


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
        return list(outcome_of(decide(basis.policy, basis.input_of(given))))
    except NoTierError:
        return None
