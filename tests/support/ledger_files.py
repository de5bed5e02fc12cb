"""Write rows of a scripted world as the ledger's files, the way its keeper does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gateway.parts.ledger.columns import FEEDBACK, LABELS, REQUESTS, Row
from gateway.parts.ledger.folder import TableFiles, add_bases
from gateway.parts.recorder.decision_record import DecisionBasis

_SEGMENT = 50_000


def write_ledger(
    folder: Path,
    rows: Iterable[Row],
    bases: Iterable[DecisionBasis],
    feedback: Iterable[Row] = (),
    labels: Iterable[Row] = (),
) -> None:
    """Write the rows in segments, and the bases, the feedback and a judge's labels on them."""
    folder.mkdir(parents=True, exist_ok=True)
    add_bases(folder, dict(basis.encode() for basis in bases))
    for table, some in ((FEEDBACK, feedback), (LABELS, labels)):
        with contextlib.closing(TableFiles(folder, table)) as files:
            if said := list(some):
                files.append(said)
    left = iter(rows)
    with contextlib.closing(TableFiles(folder, REQUESTS)) as files:
        while page := list(islice(left, _SEGMENT)):
            files.append(page)
            files.rotate()
