"""Follow each request through the candidate's cascade: with what was recorded where it was, else with a donor's.

What each does next is asked of the cascade that serves (`courses`). A request whose decision and whose verdicts on the
recorded drafts are the same under the candidate keeps all that was recorded: it is exact. The others are followed
attempt by attempt, in order; hedges and speculation are left out. A lost cache hit is followed too where it is known
who asked first: by the decision that this candidate makes of such a request in the moment of another one alike (tiers
down, the holdout's draw), with the confidence and the length that the answers to this question had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.parts.lab.replay.cells import Bools, Floats, Ints, mixed
from gateway.parts.lab.replay.courses import FAILURE, GOOD, NONE, POOR, Courses
from gateway.parts.lab.replay.donors import APART, Likeness, Pool, Strata, strata_of
from gateway.parts.lab.replay.history import ACCEPTED, FAILED, NOT_CALLED, REJECTED, Read
from gateway.parts.lab.replay.lost_hits import LostHits
from gateway.parts.lab.replay.tier_figures import TierFigures
from gateway.parts.lab.walk import asked_before
from gateway.report import OnProgress, silent
from routing.cascade import MIN_ATTEMPT_S
from routing.confidence.calls import CALL_FAULTS
from routing.confidence.judge import CALIBRATED

if TYPE_CHECKING:
    from gateway.parts.lab.replay.records import LedgerReader
    from policies.model import Policy

_CLIENT_LEFT: Final = 499
_TOGETHER: Final = 60_000
"""Followed requests of several imputations that are followed together: more would not fit into a core's cache."""
_SELDOM: Final = 2
"""A request that lacks a donor in more imputations is without evidence."""
_FAULTS: Final = {
    "refusal": ("refusal", None),
    "repetition loop": ("repetition", None),
    "cut off": ("finish", "length"),
    "content filter": ("finish", "content_filter"),
    "invalid JSON": ("invalid", "json"),
    "invalid tool arguments": ("invalid", "tool_args"),
    "not what the JSON schema says": ("invalid", "json_schema"),
    "tool arguments that do not fit the tool's parameters": ("invalid", "tool_args"),
    **dict.fromkeys(CALL_FAULTS, ("invalid", "tool_calls")),
}


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of the followed requests: an array each, of the length of `CourseFollower.rows`."""

    path: Ints
    tier: Ints
    """Row of the tier that answered; -1 if none did."""
    cost_usd: Floats
    wasted_usd: Floats
    ttft_ms: Floats
    total_ms: Floats
    tpot_ms: Floats
    """Time per token of the stream; NaN where there is none, or it is not known, as with `gap_ms`."""
    gap_ms: Floats
    escalated: Bools
    """Whether the first tier's draft was replaced by a stronger tier's answer, whatever became of that."""
    unknown: Bools
    """Whether something was to be drawn and there was nothing to draw from."""
    basis: Ints
    """Number of the basis of the answer's confidence; 0 if it was not judged."""
    confidence: Floats

    def part(self, begin: int, end: int) -> Followed:
        """Return the requests at the positions from `begin` to before `end`."""
        return Followed(*(getattr(self, column.name)[begin:end] for column in fields(self)))

    def take(self, other: Followed, at: Ints) -> None:
        """Copy the outcomes of the requests at these positions from another imputation, in place."""
        for column in fields(self):
            getattr(self, column.name)[at] = getattr(other, column.name)[at]


class CourseFollower:
    """Follow the requests whose course the candidate changes."""

    def __init__(
        self, read: Read, reader: LedgerReader, candidate: Policy, lost: LostHits, tiers: TierFigures, seed: int = 0
    ) -> None:
        """Find those requests, and what there is to draw from. The history knows what the lost hits ask.

        `tiers` are the figures of the same history, as it was before.
        """
        self.read = read
        self._of_tiers = tiers
        self.strata: Strata = strata_of(read.history) if len(lost.rows) else tiers.strata
        """The strata of all requests."""
        self.history = history = read.history
        self.candidate = candidate
        self._draw = np.random.default_rng(seed)
        self._signals = ("", *reader.signals.every)
        self._active_fault = np.array([False, *(self._counts(fault) for fault in reader.faults.every)])
        # A finish that was never recorded has no number, and 0 is no finish at all: no draft has -1.
        self._cut_off = (reader.finishes.number("length") or -1) if "length" in candidate.escalate.when.finish else -1
        rows = np.array([read.tiers.index(name) for name in candidate.tiers])
        self._first_tier = int(rows[0])
        self._tables(read)
        self._told = _told(candidate, [basis.policy for basis in reader.bases], self._signals)
        changed = np.flatnonzero(self._changed(reader))
        self._hits = np.arange(len(changed), len(changed) + int(lost.linked.sum()))
        self._origin = lost.origin[lost.linked]
        self.rows: Ints = np.concatenate([changed, lost.rows[lost.linked]])
        self.asked_by: Ints = np.concatenate([changed, self._origin])
        """The request whose answer each of them got: its own, or for a hit, the one that asked first."""
        self.estimated_path: Bools = np.zeros(len(self.rows), np.bool_)
        """Whether it rests on a donor which attempts are made."""
        self.estimated: Bools = np.zeros(len(self.rows), np.bool_)
        """Whether any of its figures rests on a donor."""
        self.last: Followed | None = None
        """The latest imputation."""
        self.no_evidence: Bools = np.zeros(len(self.rows), np.bool_)
        self._unknown: Bools = np.zeros(0, np.bool_)
        self._numbers: Ints = np.zeros(0, np.int64)
        """Number of the candidate's verdict on each followed request."""
        self._count = 1
        """Number of imputations that are made together.

        Positions at which requests are followed go through all requests of the first of them, then of the next:
        `_target` is the request of each, `_which` its imputation, and `_row` its place in the history.
        """
        self._target = self._which = self._row = np.zeros(0, np.int64)
        self.estimated_path[self._hits] = self.estimated[self._hits] = True
        self._likeness: dict[tuple[str, int], Likeness] = {}
        self._pools: dict[tuple[str, int], Pool] = {}
        self._moments: Pool | None = None
        rules = candidate.escalate.stream
        self._drafts = [draft or (rules.hold_max * 500, float(rules.hold_tokens)) for draft in tiers.drafts]
        """By tier, how long a stream's draft is held back in milliseconds, and its tokens."""
        started = history.call_start_ms[:, self.rows]
        first = np.fmin.reduce(started, axis=0) if len(self.rows) else np.zeros(0)
        self._start_ms = np.nan_to_num(first, nan=tiers.start_ms)

    def follow(self, count: int = 1) -> list[Followed]:
        """Return imputations of what became of the requests. They are made together: each step is one of arrays."""
        history, n = self.history, count * len(self.rows)
        self._count = count
        self._target = np.tile(np.arange(len(self.rows)), count)
        self._which = np.repeat(np.arange(count), len(self.rows))
        self._row = rows = np.tile(self.rows, count)
        self._numbers = numbers = history.candidate[rows].astype(np.int64)
        self._decide_hits()
        self._unknown = np.zeros(n, np.bool_)
        elapsed = np.tile(self._start_ms.astype(np.float64), count)
        drafts_usd = np.zeros(n)
        out = Followed(
            np.full(n, NONE), np.full(n, -1), np.zeros(n), np.zeros(n), np.full(n, np.nan), elapsed.copy(),
            np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.bool_), np.zeros(n, np.bool_),
            np.zeros(n, np.int64), np.full(n, np.nan),
        )  # fmt: skip
        resampled: dict[tuple[str, int], Any] = {}
        base = self._covariate(resampled)
        courses = self._courses
        course = courses.begin(numbers, history.stream[rows])
        active = np.flatnonzero(courses.tier[course] >= 0)
        while len(active):
            onward: list[Ints] = []
            tiers = courses.tier[course[active]]
            for tier in np.unique(tiers):
                at = active[tiers == tier]
                before = course[at]
                got = self._attempt(int(tier), at, courses.judged[before], resampled, base)
                rejected = ~got["failed"] & ~got["passes"]
                stream = history.stream[rows[at]]
                spent = np.where(got["failed"], got["failed_ms"], np.where(stream, got["draft_ms"], got["whole_ms"]))
                in_time = self._in_time(at, courses.above[before], elapsed[at] + spent)
                ends = np.where(got["failed"], FAILURE, np.where(rejected, POOR, GOOD))
                course[at] = courses.after(before, ends, in_time)
                goes_on = courses.tier[course[at]] >= 0
                self._end(out, int(tier), at, got, goes_on, elapsed, drafts_usd, course[at])
                moved = at[goes_on]
                elapsed[moved] += spent[goes_on]
                drafts_usd[moved] += np.where(got["failed"], 0.0, np.where(stream, got["draft_usd"], got["whole_usd"]))[
                    goes_on
                ]
                out.escalated[at[goes_on & rejected]] = True
                onward.append(moved)
            active = np.concatenate(onward)
        out.unknown[:] = self._unknown
        own = np.arange(count + 1) * len(self.rows)
        return [out.part(begin, end) for begin, end in pairwise(own.tolist())]

    def imputations(self, count: int, on_progress: OnProgress = silent) -> list[Followed]:
        """Return imputations, one if nothing is estimated, and note which requests are without evidence.

        A request that lacks a donor in a few of them only, as after a failure that hardly ever happens, takes what
        became of it in another one.
        """
        outcomes: list[Followed] = []
        together = min(max(_TOGETHER // max(len(self.rows), 1), 1), count)
        while len(outcomes) < count:
            outcomes += self.follow(min(together, count - len(outcomes)))
            on_progress("estimating", len(outcomes), count)
            if not self.estimated.any():
                outcomes = outcomes[:1]  # nothing is drawn, so every imputation is the same
                break
        unknown = np.stack([outcome.unknown for outcome in outcomes])
        self.no_evidence = without = unknown.sum(axis=0) > _SELDOM
        for number, outcome in enumerate(outcomes):
            if not outcome.unknown.any():
                continue
            for other in outcomes[number + 1 :] + outcomes[:number]:
                at = np.flatnonzero(outcome.unknown & ~other.unknown & ~without)
                outcome.take(other, at)
                outcome.unknown[at] = False
        self.last = outcomes[-1]
        return outcomes

    def _end(
        self,
        out: Followed,
        tier: int,
        at: Ints,
        got: dict[str, Any],
        goes_on: Bools,
        elapsed: Floats,
        drafts_usd: Floats,
        course: Ints,
    ) -> None:
        """Note what became of those of these requests that make no further attempt."""
        stream, served = self.history.stream[self._row[at]], self._courses.served[course]
        over = at[~goes_on]
        out.path[over], out.tier[over] = self._courses.path[course[~goes_on]], served[~goes_on]
        done = ~goes_on & ~got["failed"] & (served >= 0)
        where = at[done]
        out.basis[where], out.confidence[where] = got["basis"][done], got["confidence"][done]
        out.total_ms[where] = elapsed[where] + got["whole_ms"][done]
        out.ttft_ms[where] = np.where(stream[done], elapsed[where] + got["first_ms"][done], out.total_ms[where])
        out.tpot_ms[where], out.gap_ms[where] = got["tpot_ms"][done], got["gap_ms"][done]
        out.cost_usd[where] = drafts_usd[where] + got["whole_usd"][done]
        out.wasted_usd[where] = drafts_usd[where]
        # Nothing was served, or an earlier draft, which is better than nothing.
        gone = ~goes_on & ~done
        lost = at[gone]
        spent_usd = np.where(got["failed"], 0.0, got["whole_usd"])[gone]
        out.cost_usd[lost] = out.wasted_usd[lost] = drafts_usd[lost] + spent_usd
        out.total_ms[lost] = elapsed[lost] + np.where(got["failed"], got["failed_ms"], got["whole_ms"])[gone]
        out.ttft_ms[lost] = out.total_ms[lost]

    def _attempt(
        self, tier: int, at: Ints, judged: Bools, resampled: dict[tuple[str, int], Any], base: tuple[Floats, Floats]
    ) -> dict[str, Any]:
        """Return what the tier does with the requests at these positions, drawing what is not recorded."""
        history, rows = self.history, self._row[at]
        state = history.state[tier, rows]
        source = rows.copy()
        unknown = np.flatnonzero(state == NOT_CALLED)
        source[unknown] = self._donors("called", tier, at[unknown], resampled)
        self.estimated[self._target[at[unknown]]] = True
        failed = state == FAILED
        failed_ms = history.call_total_ms[tier, source].astype(np.float64)
        failed[unknown], failed_ms[unknown] = self._failures(tier, failed_ms[unknown], at[unknown], resampled)
        # The verdict on the draft.
        graded = rows.copy()
        ungraded = np.flatnonzero(judged & ((history.signal[tier, rows] == 0) | (state == NOT_CALLED)) & ~failed)
        graded[ungraded] = self._donors("judged", tier, at[ungraded], resampled)
        self.estimated_path[self._target[at[ungraded]]] = self.estimated[self._target[at[ungraded]]] = True
        passes = ~judged | self._passes(tier, graded, self._numbers[at])
        unheard = at[judged & ~failed & (self._told[history.basis[graded], history.signal[tier, graded]] < 0)]
        self._unknown[unheard] = self.estimated[self._target[unheard]] = True
        # The whole answer.
        stream = history.stream[rows]
        whole = rows.copy()
        cut = np.flatnonzero(((state == REJECTED) & stream | (state == NOT_CALLED)) & ~failed & (passes | ~stream))
        whole[cut] = self._donors("whole", tier, at[cut], resampled)
        self.estimated[self._target[at[cut]]] = True
        tokens_out = history.call_tokens_out[tier, whole].astype(np.float64)
        tokens_out[cut] *= np.exp(
            self._slope(tier, resampled)[self._which[at[cut]]] * self._difference(at[cut], whole[cut], base)
        )
        per_answer = history.call_total_ms[tier, whole] - np.nan_to_num(history.call_ttft_ms[tier, whole])
        scale = tokens_out / np.maximum(history.call_tokens_out[tier, whole], 1)
        first_token = np.nan_to_num(history.call_ttft_ms[tier, source])
        counted = source.copy()
        counted[cut] = whole[cut]
        tokens_in = self._tokens_in(tier, rows, counted)
        price_in, price_out = self._of_tiers.prices[tier]
        known_whole = (state == ACCEPTED) | ((state == REJECTED) & ~stream)
        held = np.where(judged, self._drafts[tier][0], 0.0)
        served = history.tier[rows] == self._ledger_tier[tier]
        first_ms = np.where(
            served & (state == ACCEPTED), history.ttft_ms[rows] - history.call_start_ms[tier, rows], first_token + held
        )
        whole_ms = np.where(known_whole, history.call_total_ms[tier, rows], first_token + per_answer * scale)
        drafted = state == REJECTED
        # A stream that this tier served is recorded as its client got it; of others there is the call's own pace.
        recorded = history.tier[whole] == self._ledger_tier[tier]
        pace = per_answer / np.maximum(history.call_tokens_out[tier, whole] - 1, 1)
        return {
            "failed": failed,
            "passes": passes,
            "basis": np.where(judged, history.signal[tier, graded], 0),
            "confidence": np.where(judged, history.confidence[tier, graded], np.nan),
            "failed_ms": failed_ms,
            "whole_usd": np.where(
                known_whole, history.call_usd[tier, rows], tokens_in * price_in + tokens_out * price_out
            ),
            "draft_usd": np.where(
                drafted,
                history.call_usd[tier, rows],
                tokens_in * price_in + self._drafts[tier][1] * price_out,
            ),
            "tpot_ms": np.where(stream, np.where(recorded, history.tpot_ms[whole], pace), np.nan),
            "gap_ms": np.where(stream & recorded, history.gap_ms[whole], np.nan),
            "first_ms": first_ms.astype(np.float64),
            "whole_ms": whole_ms.astype(np.float64),
            "draft_ms": np.where(drafted, history.call_total_ms[tier, rows], first_ms).astype(np.float64),
        }

    def _donors(self, what: str, tier: int, at: Ints, resampled: dict[tuple[str, int], Any]) -> Ints:
        """Return a donor for each position; the request itself where there is none: it then is without evidence."""
        if not len(at):
            return at
        key = (what, tier)
        pool = self._pool(what, tier)
        if key not in resampled:
            resampled[key] = pool.resampled(self._draw, self._count)
        targets, which, donors = self._target[at], self._which[at], self._row[at]
        some = (pool.size[targets] > 0) | (pool.same_size[targets] > 0)
        self._unknown[at[~some]] = True
        concentration = np.full(self._count, APART) if what == "called" else self._concentration(key, resampled)
        donors[some] = pool.shared(resampled[key], targets[some], concentration[which[some]], self._draw, which[some])
        return donors

    def _failures(
        self, tier: int, whole_ms: Floats, positions: Ints, resampled: dict[tuple[str, int], Any]
    ) -> tuple[Bools, Floats]:
        """Draw which of some calls at a tier fail, and how long each took until then in milliseconds.

        A failure is the tier's, whatever was asked, and rare: among the few requests alike there is none, or far too
        many. So its rate is drawn from what all the tier's calls say of it, with the prior of Jeffreys, by which a
        failure that was never seen is not impossible. One that was never seen takes as long as an answer, `whole_ms`.
        """
        history, key = self.history, ("failures", tier)
        state = history.state[tier]
        seen = np.flatnonzero(state == FAILED)
        if key not in resampled:
            calls = int((state != NOT_CALLED).sum())
            resampled[key] = self._draw.beta(len(seen) + 0.5, calls - len(seen) + 0.5, self._count)
        failed = self._draw.random(len(whole_ms)) < resampled[key][self._which[positions]]
        at = np.flatnonzero(failed)
        until = whole_ms.copy()
        if len(seen):
            until[at] = history.call_total_ms[tier, self._draw.choice(seen, len(at))]
        return failed, until

    def _pool(self, what: str, tier: int) -> Pool:
        key = (what, tier)
        if key not in self._pools:
            is_donor, history = self._of_tiers.is_donor(what, tier), self.history
            # Times belong to the moment, not to what is asked: there every request stands for itself.
            each = what != "called"
            self._pools[key] = Pool.of(is_donor, self.strata, self.rows, history.question, self._draw, one_each=each)
            if what == "called":
                return self._pools[key]
            at = np.flatnonzero(is_donor)
            values = history.confidence[tier, at] if what == "judged" else np.log1p(history.call_tokens_out[tier, at])
            self._likeness[key] = Likeness.of(values.astype(np.float64), history.question[at], self.strata[1][at])
        return self._pools[key]

    def _concentration(self, key: tuple[str, int], resampled: dict[tuple[str, int], Any]) -> Floats:
        """Return how far the answers to one question differ, the same all through each imputation."""
        own = (f"likeness of {key[0]}", key[1])
        if own not in resampled:
            every = [self._likeness[key].concentration(self._draw) for _ in range(self._count)]
            resampled[own] = np.array(every)
        found: Floats = resampled[own]
        return found

    def _decide_hits(self) -> None:
        """Give each lost hit the candidate's verdict on a request like it at another moment, else on its origin."""
        if not len(self._hits):
            return
        history = self.history
        if self._moments is None:
            decided = (history.basis >= 0) & (history.status != _CLIENT_LEFT)
            own = np.stack([history.lasting, history.stream.astype(np.int64)])
            alike = mixed(list(own), len(history))
            hits = self.rows[self._hits]
            self._moments = Pool.of(decided, (alike,), hits, history.question, self._draw, one_each=False)
        pool, count = self._moments, self._count
        moments = np.tile(self._origin, (count, 1))
        some = np.flatnonzero(pool.size > 0)
        which = np.repeat(np.arange(count), len(some))
        drawn = pool.drawn(pool.resampled(self._draw, count), np.tile(some, count), self._draw, which)
        moments[:, some] = drawn.reshape(count, len(some))
        self._numbers.reshape(count, len(self.rows))[:, self._hits] = history.candidate[moments]

    # --- what was recorded, and what the candidate makes of it --------------------------------------------------------

    def _changed(self, reader: LedgerReader) -> Bools:
        """Return which requests do not keep what was recorded."""
        history = self.history
        decided = (history.basis >= 0) & (history.status != _CLIENT_LEFT)
        same = self._route_of[history.candidate] == self._route_of[history.recorded]
        changed = decided & ~same
        self.redecided = int(changed.sum())
        for tier in range(len(self.read.tiers)):
            state = history.state[tier]
            judged = decided & (history.signal[tier] > 0) & ((state == ACCEPTED) | (state == REJECTED))
            at = np.flatnonzero(judged)
            unheard = self._told[history.basis[at], history.signal[tier, at]] < 0
            passes = self._passes(tier, at, history.candidate[at].astype(np.int64))
            changed[at[unheard | (passes != (state[at] == ACCEPTED))]] = True
        own = self.candidate.escalate.max_attempts
        theirs = np.array([basis.policy.escalate.max_attempts for basis in reader.bases] or [own])[history.basis]
        several = self._length_of[history.candidate] > 1
        fewer = np.minimum(theirs, own)
        changed |= decided & several & (theirs != own) & ((fewer == 1) | (history.attempts >= fewer))
        return np.asarray(changed)

    def _passes(self, tier: int, rows: Ints, numbers: Ints) -> Bools:
        """Return whether the candidate, by the verdicts of these numbers, accepts the drafts recorded of these rows."""
        history, when = self.history, self.candidate.escalate.when
        confidence = history.confidence[tier, rows]
        least = np.array([when.threshold(calibrated=name in CALIBRATED) for name in self._signals])
        ease = self._ease[numbers, tier]
        asked = (self.candidate.escalate.no_signal == "escalate" and when.asks_for_confidence) & (ease > 0)
        told = self._told[history.basis[rows], history.signal[tier, rows]] != 0
        enough = np.where(np.isnan(confidence) | ~told, ~asked, confidence >= ease * least[history.signal[tier, rows]])
        fault = self._active_fault[history.fault[tier, rows]] | (history.finish[tier, rows] == self._cut_off)
        return np.asarray(enough & ~fault)

    def _counts(self, fault: str) -> bool:
        """Return whether the candidate rejects an answer for this structural fault."""
        key, value = _FAULTS.get(fault, ("", None))
        if not key:
            return True
        rule = getattr(self.candidate.escalate.when, key)
        return bool(rule) if value is None else value in rule

    def _tables(self, read: Read) -> None:
        """Make the arrays that give the parts of a verdict by its number."""
        verdicts = read.table.verdicts
        place = {name: row for row, name in enumerate(read.tiers)}
        self._ease = np.ones((len(verdicts), len(read.tiers)))
        routes: dict[Any, int] = {}
        for number, verdict in enumerate(verdicts):
            for name, ease in zip(verdict.tiers, verdict.ease, strict=False):
                self._ease[number, place[name]] = ease
        self._route_of = np.array([routes.setdefault(verdict[:5], len(routes)) for verdict in verdicts])
        self._length_of = np.array([len(verdict.tiers) for verdict in verdicts])
        self._courses = Courses(self.candidate, verdicts, read.tiers)
        self._ledger_tier = np.arange(len(read.tiers)) + 1

    def _in_time(self, at: Ints, above: Ints, elapsed_ms: Floats) -> Bools:
        """Return whether the tier above is expected to answer in the time that is left after `elapsed_ms`."""
        history, rows = self.history, self._row[at]
        row = np.maximum(above, 0)
        left = history.budget_s[rows] - elapsed_ms / 1000
        first_left = np.fmin(left, history.limit_s[rows] - elapsed_ms / 1000)
        ttft, whole = history.forecast_ttft_s[row, rows], history.forecast_whole_s[row, rows]
        stream = history.stream[rows]
        fits = np.where(stream, np.nan_to_num(ttft) <= first_left, np.nan_to_num(whole) <= left)
        return np.asarray(fits & (left >= MIN_ATTEMPT_S))

    def _tokens_in(self, tier: int, rows: Ints, source: Ints) -> Floats:
        """Return the prompt's tokens at a tier: recorded there, or else by the donor's ratio to our own count.

        A stream that was given up has no usage: what is recorded of it is our own count, so it takes a donor's too.
        """
        history = self.history
        own = history.call_tokens_in[tier, rows]
        ratio = history.call_tokens_in[tier, source] / np.maximum(history.tokens[source], 1)
        told = ~np.isnan(own) & (rows == source)
        return np.where(told, own, history.tokens[rows] * np.where(np.isnan(ratio), 1.0, ratio)).astype(np.float64)

    def _slope(self, tier: int, resampled: dict[tuple[str, int], Any]) -> Floats:
        """Return the slope in each imputation."""
        key = ("slope", tier)
        if key not in resampled:
            slope, error = self._of_tiers.trends[tier]
            resampled[key] = slope + error * self._draw.standard_normal(self._count)
        found: Floats = resampled[key]
        return found

    def _covariate(self, resampled: dict[tuple[str, int], Any]) -> tuple[Floats, Floats]:
        """Return the first tier's confidence in each followed request, NaN if unknown, and one drawn from its likes.

        Where it is not recorded the first is drawn too.
        """
        history, tier = self.history, self._first_tier
        sure = np.where(history.signal[tier, self._row] > 0, history.confidence[tier, self._row], np.nan)
        like = np.full(len(sure), np.nan)
        pool = self._pool("judged", tier)
        if len(pool.donors):
            drawn = resampled["judged", tier] = pool.resampled(self._draw, self._count)
            at = np.flatnonzero(pool.size[self._target] > 0)
            like[at] = history.confidence[tier, pool.drawn(drawn, self._target[at], self._draw, self._which[at])]
            unknown = at[np.isnan(sure[at])]
            which = self._which[unknown]
            concentration = self._concentration(("judged", tier), resampled)[which]
            donors = pool.shared(drawn, self._target[unknown], concentration, self._draw, which)
            sure[unknown] = history.confidence[tier, donors]
        return sure, like

    def _difference(self, at: Ints, donors: Ints, base: tuple[Floats, Floats]) -> Floats:
        """Return by how much the first tier is surer of the targets than of their donors; 0 where unknown."""
        history, tier = self.history, self._first_tier
        theirs = np.where(history.signal[tier, donors] > 0, history.confidence[tier, donors], np.nan)
        sure, like = base
        # A donor whose first tier was not called, as in the holdout, may be any of those alike.
        theirs = np.where(np.isnan(theirs), like[at], theirs)
        same = history.question[donors] == history.question[self._row[at]]
        return np.where(same, 0.0, np.nan_to_num(sure[at] - theirs))


def _told(candidate: Policy, recorded: Sequence[Policy], signals: Sequence[str]) -> Ints:
    """Return what recorded evidence is to the candidate, by the policy it was recorded under and its basis.

    1: it tells as much; 0: nobody would have been asked for it; -1: somebody would have been asked whose word nobody
    recorded. Shape (policies, signals).
    """
    told = np.ones((max(len(recorded), 1), len(signals)), np.int64)
    for row, policy in enumerate(recorded):
        for column, basis in enumerate(signals):
            before, then = asked_before(policy.escalate, basis)
            now, asked = asked_before(candidate.escalate, basis)
            none = basis in ("", "none")
            told[row, column] = -1 if set(now) - set(before) else int(asked or none or not then)
    return told
