"""Hold all replayed requests in compact columns: what each was, what was decided, and what each tier did with it.

About 200 bytes a request: 1,000,000 take 200 MB. Whatever is per tier has shape (tiers, n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.lab.replay.cells import (
    Bools,
    CellDecider,
    Floats,
    Inputs,
    Ints,
    VerdictTable,
    lasting_cells,
    numbered,
    policy_on,
    question_hashes,
    rule_cells,
)
from gateway.parts.lab.replay.records import Columns, LedgerReader, RecordBatch
from gateway.parts.recorder.decision_record import DecisionBasis
from gateway.report import OnProgress, silent
from policies.model import Policy

NOT_CALLED: Final = 0
ACCEPTED: Final = 1
REJECTED: Final = 2
FAILED: Final = 3
_STATES: Final = {
    "accepted": ACCEPTED,
    "low_confidence": REJECTED,
    "unfit": REJECTED,
    "lost": NOT_CALLED,
    "caller_gone": NOT_CALLED,
}

Small = NDArray[np.int32]
Tiny = NDArray[np.int8]
Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class History:
    """The columns; missing numbers are NaN. Costs are in US dollars, times in milliseconds if not named otherwise."""

    basis: Small
    """Position of the decision's basis; -1 where nothing was decided, as for a cache hit."""
    recorded: Small
    """Number of the recorded verdict."""
    again: Small
    """Number of the verdict by the recorded policy, decided again."""
    candidate: Small
    """Number of the candidate's verdict."""
    path: Small
    tier: Small
    tenant: Small
    stream: Bools
    status: Small
    failed: Bools
    cost_usd: Floats
    wasted_usd: Floats
    ttft_ms: Singles
    tpot_ms: Singles
    gap_ms: Singles
    total_ms: Singles
    started_s: Floats
    score: Singles
    holdout: Tiny
    place: Ints
    attempts: Tiny
    tokens: Singles
    """Prompt tokens: as the rules saw them, or of a hit's stored answer."""
    answer_in: Singles
    """Prompt tokens as the backend counted them, those of the stored answer for a hit."""
    answer_out: Singles
    """Tokens of the answer, likewise."""
    question: Ints
    """Number from 0, equal for requests that ask the same; a number of its own where that is not known."""
    budget_s: Singles
    limit_s: Singles
    kind: Tiny
    """Number of its kind of task from 1, 0 outside the classifier's domain."""
    quantile: Singles
    rules: Ints
    """Number from 0 of where the request lies between the constants of the recorded policies' start rules."""
    lasting: Ints
    """Hash of what the candidate's decision is made of, but for the moment and whether it streams."""
    state: Tiny
    """NOT_CALLED, ACCEPTED, REJECTED or FAILED."""
    signal: Tiny
    """Number of the basis of the tier's confidence, 0 if its answer was not judged."""
    fault: Tiny
    finish: Tiny
    confidence: Floats
    call_tokens_in: Singles
    call_tokens_out: Singles
    call_usd: Singles
    call_ttft_ms: Singles
    call_total_ms: Singles
    call_start_ms: Singles
    forecast_ttft_s: Singles
    forecast_whole_s: Singles

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.basis)


@dataclass(frozen=True, slots=True)
class Read:
    """A history as read from the ledger, with the tiers and verdicts that its numbers stand for."""

    history: History
    tiers: tuple[str, ...]
    """Name of each row of what is per tier."""
    table: VerdictTable
    cells: int
    """Number of times that `decide` ran, for both policies."""
    inputs: tuple[tuple[int, Ints, Inputs], ...] = ()
    """Where they are kept: the inputs of the decisions, each part with its basis and the places of its requests."""


_NAMES: Final = [column.name for column in fields(History)]
_PER_TIER: Final = frozenset(_NAMES[_NAMES.index("state") :])
"""Columns of shape (tiers, n): the last ones of a History."""


def read_history(
    reader: LedgerReader, candidate: Policy, on_progress: OnProgress = silent, *, keep_inputs: bool = False
) -> Read:
    """Read all requests, and decide each by its recorded policy and by the candidate.

    With `keep_inputs`, for another 250 bytes a request, `with_candidate` decides them by further candidates.
    """
    ladders = [name for basis in reader.bases for name in basis.policy.tiers]
    tiers = tuple(dict.fromkeys([*reader.tiers.every, *ladders, *candidate.tiers]))
    table = reader.table
    own = [CellDecider(basis.policy, basis, table) for basis in reader.bases]
    other = [CellDecider(policy_on(basis, candidate), basis, table) for basis in reader.bases]
    recorded = list({basis.policy.version: basis.policy for basis in reader.bases}.values())
    parts: list[Columns] = []
    kept: list[tuple[int, Ints, Inputs]] = []
    before = 0
    for batch in reader.batches(on_progress):
        part = _of_requests(batch)
        part |= _of_calls(reader, batch, tiers)
        for number, (rows, inputs) in batch.inputs.items():
            part["again"][rows] = own[number].decide(inputs)
            part["candidate"][rows] = other[number].decide(inputs)
            part["rules"][rows] = rule_cells(recorded, reader.bases[number], inputs)
            part["lasting"][rows] = lasting_cells(other[number], inputs)
            part["question"][rows] = question_hashes(inputs)
            _add_inputs(part, rows, inputs, [tiers.index(tier.name) for tier in reader.bases[number].tiers])
            if keep_inputs:
                kept.append((number, rows + before, inputs))
        parts.append(part)
        before += len(batch)
    columns = (
        {name: np.concatenate([part[name] for part in parts], axis=1 if name in _PER_TIER else 0) for name in _NAMES}
        if parts
        else _nothing(len(tiers))
    )
    unknown = np.flatnonzero(columns["question"] == 0)
    columns["question"][unknown] = -1 - unknown
    for name in ("question", "rules"):
        columns[name] = numbered(columns[name])
    return Read(History(**columns), tiers, table, sum(part.cells for part in (*own, *other)), tuple(kept))


def with_candidate(read: Read, bases: Sequence[DecisionBasis], candidate: Policy) -> Read:
    """Return what was read, whose inputs were kept, with another candidate's decisions. Its tiers must be of `tiers`.

    `cells` is then the number of times that `decide` ran for this candidate.
    """
    table = read.table.copy()
    deciders = {
        number: CellDecider(policy_on(bases[number], candidate), bases[number], table)
        for number in {number for number, *_ in read.inputs}
    }
    verdicts, lasting = read.history.candidate.copy(), read.history.lasting.copy()
    for number, rows, inputs in read.inputs:
        verdicts[rows] = deciders[number].decide(inputs)
        lasting[rows] = lasting_cells(deciders[number], inputs)
    history = replace(read.history, candidate=verdicts, lasting=lasting)
    return replace(read, history=history, table=table, cells=sum(decider.cells for decider in deciders.values()))


def _of_requests(batch: RecordBatch) -> Columns:
    """Return what is known of the batch's requests, and empty columns for what their decisions give."""
    n = len(batch)
    return batch.requests | {
        "again": np.full(n, -1, np.int32),
        "candidate": np.full(n, -1, np.int32),
        **{name: np.full(n, np.nan, np.float32) for name in ("budget_s", "limit_s", "quantile")},
        **{name: np.zeros(n, np.int64) for name in ("question", "rules", "lasting")},
        "kind": np.zeros(n, np.int8),
    }


def _of_calls(reader: LedgerReader, batch: RecordBatch, tiers: Sequence[str]) -> Columns:
    """Return what each tier did: of several calls at one tier the last, at the cost of all of them."""
    calls, n = batch.calls, len(batch)
    shape = (len(tiers), n)
    states = np.array([NOT_CALLED, *(_STATES.get(name, FAILED) for name in reader.outcomes.every)], np.int8)
    state = states[calls.outcome]
    part: Columns = {name: np.zeros(shape, np.int8) for name in ("state", "signal", "fault", "finish")}
    part["confidence"] = np.full(shape, np.nan)
    numbers = {
        "call_tokens_in": calls.tokens_in,
        "call_tokens_out": calls.tokens_out,
        "call_ttft_ms": calls.ttft_ms,
        "call_total_ms": calls.total_ms,
        "call_start_ms": calls.start_ms,
    }
    part |= {name: np.full(shape, np.nan, np.float32) for name in (*numbers, "forecast_ttft_s", "forecast_whole_s")}
    part["call_usd"] = np.zeros(shape, np.float32)
    for row, tier in enumerate(tiers):
        number = reader.tiers.number(tier)
        at = np.flatnonzero((calls.tier == number) & (calls.attempt > 0) & (state != NOT_CALLED))
        if not number or not len(at):
            continue
        request = calls.request[at]
        part["state"][row, request] = state[at]
        part["signal"][row, request] = calls.basis[at]
        part["fault"][row, request] = calls.fault[at]
        part["finish"][row, request] = calls.finish[at]
        part["confidence"][row, request] = calls.confidence[at]
        for name, column in numbers.items():
            part[name][row, request] = column[at]
        part["call_usd"][row] = np.bincount(request, calls.cost_usd[at], n)
    part["attempts"] = np.bincount(calls.request[calls.attempt > 0], minlength=n).clip(0, 100).astype(np.int8)
    return part


def _add_inputs(part: Columns, rows: Ints, inputs: Inputs, places: Sequence[int]) -> None:
    part["tokens"][rows] = inputs.tokens_in
    part["budget_s"][rows] = inputs.budget_s
    part["limit_s"][rows] = inputs.limit_s
    part["kind"][rows] = np.where(inputs.in_domain, inputs.kind, 0)
    part["quantile"][rows] = np.where(inputs.in_domain, inputs.quantile, np.nan)
    for column, place in enumerate(places):
        part["forecast_ttft_s"][place, rows] = inputs.ttft_s[:, column]
        part["forecast_whole_s"][place, rows] = inputs.whole_s[:, column]


def _nothing(tiers: int) -> Columns:
    return {name: np.zeros((tiers, 0) if name in _PER_TIER else (0, 2) if name == "place" else 0) for name in _NAMES}


def decided_again(read: Read) -> tuple[int, int]:
    """Return how many decisions are recorded, and how many of them the recorded policy makes again."""
    history = read.history
    decided = history.basis >= 0
    return int(decided.sum()), int((decided & (history.again == history.recorded)).sum())
