"""Count where recorded requests start with each of two policies: all of them, decided once for each cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.parts.lab.replay.cells import CellDecider, VerdictTable
from gateway.parts.lab.replay.records import LedgerReader, Which
from gateway.report import OnProgress, silent

if TYPE_CHECKING:
    import duckdb

    from gateway.parts.recorder.decision_record import DecisionBasis
    from policies.model import Policy

NO_START: Final = "no tier"
_EXAMPLES: Final = 3

Pair = tuple[str, str]


@dataclass(slots=True)
class StartMoves:
    """How many requests start where, by the tiers of both policies; `examples` are ids of the latest of each pair."""

    counts: Counter[Pair] = field(default_factory=Counter)
    examples: dict[Pair, list[str]] = field(default_factory=dict)


def start_moves(
    database: duckdb.DuckDBPyConnection,
    which: Which,
    deployed: Callable[[DecisionBasis], tuple[Policy, Policy]],
    on_progress: OnProgress = silent,
) -> StartMoves:
    """Decide every recorded request again by two policies. Raises BasisError.

    `deployed` returns both as the deployment of a basis would have had them.
    """
    table = VerdictTable()
    reader = LedgerReader(database, which, table)
    deciders = [tuple(CellDecider(policy, basis, table) for policy in deployed(basis)) for basis in reader.bases]
    moves = StartMoves()
    latest: dict[Pair, list[tuple[float, int, int]]] = {}
    for batch in reader.decided(on_progress):
        for number, (rows, inputs) in batch.inputs.items():
            before, after = (decider.decide(inputs) for decider in deciders[number])
            starts = [verdict.tiers[0] if verdict.tiers else NO_START for verdict in table.verdicts]
            pairs, which_pair, counts = np.unique(
                np.stack([before, after]), axis=1, return_inverse=True, return_counts=True
            )
            for at, (column, other) in enumerate(pairs.T.tolist()):
                pair = starts[column], starts[other]
                moves.counts[pair] += int(counts[at])
                own = rows[which_pair.ravel() == at]
                own = own[np.argsort(batch.started_s[own], kind="stable")[-_EXAMPLES:]]
                seen = [
                    (float(batch.started_s[row]), int(batch.place[row][0]), int(batch.place[row][1])) for row in own
                ]
                latest[pair] = sorted([*latest.get(pair, ()), *seen], reverse=True)[:_EXAMPLES]
    places = [place[1:] for newest in latest.values() for place in newest]
    names = iter(reader.request_ids(np.array(places, np.int64).reshape(-1, 2)))
    moves.examples = {pair: [next(names) for _ in newest] for pair, newest in latest.items()}
    return moves
