"""Provide what `policy lint` and `policy schema` ask of the lab: see `gateway.seams`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.parts.lab.evidence import archive_evidence, lint_against
from gateway.parts.lab.policy_tests.schema import tests_schema_text

if TYPE_CHECKING:
    from policies.errors import Finding
    from policies.model import Policy

__all__ = ["recorded_doubts", "tests_schema_text"]


@contextmanager
def recorded_doubts(folder: Path, oldest: float | None) -> Iterator[Callable[[Policy], list[Finding]]]:
    """Yield what holds a policy against what the ledger's files have recorded since `oldest`. Raises CommandError."""
    from gateway.parts.ledger.query import connect  # tests of policies need no ledger

    with connect(folder) as database:
        yield lambda policy: list(lint_against(policy, archive_evidence(database, policy, oldest)))
