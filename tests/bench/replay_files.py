"""Write rows of a scripted world as the ledger's files, the way its keeper does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gateway.archive.columns import FEEDBACK, REQUESTS, Row
from gateway.archive.folder import TableFiles, add_bases
from routing.decision_basis import DecisionBasis

_SEGMENT = 50_000


def write_ledger(
    folder: Path, rows: Iterable[Row], bases: Iterable[DecisionBasis], feedback: Iterable[Row] = ()
) -> None:
    """Write the rows in segments, and the bases and the feedback on them."""
    folder.mkdir(parents=True, exist_ok=True)
    add_bases(folder, dict(basis.encode() for basis in bases))
    with contextlib.closing(TableFiles(folder, FEEDBACK)) as files:
        if rated := list(feedback):
            files.append(rated)
    left = iter(rows)
    with contextlib.closing(TableFiles(folder, REQUESTS)) as files:
        while page := list(islice(left, _SEGMENT)):
            files.append(page)
            files.rotate()
