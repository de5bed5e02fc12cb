"""Read the labels of one surface, and the feedback beside them, for `tierline learn`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.archive.folder import ArchiveError
from gateway.archive.query import ask, opened
from gateway.cli.commands import CommandError

_UNJUDGED = """
SELECT r.tier, f.score FROM requests r JOIN feedback f USING (tenant, request_id)
ANTI JOIN labels l USING (tenant, request_id)
WHERE r.surface = $surface AND r.status = 200 AND r.tier <> '' AND r.path NOT LIKE 'cache-%'
"""
_SHADOWS = """
SELECT candidate, conversation, shadow.adequate, served.adequate,
CASE better WHEN 'shadow' THEN 'new' WHEN 'served' THEN 'present' ELSE '' END
FROM shadow_labels WHERE surface = $surface ORDER BY judged_at
"""


@dataclass(frozen=True, slots=True)
class SurfaceLabels:
    """Labels, oldest first; people's scores by (tenant, request id); scores of answers without a label, by tier."""

    rows: Sequence[Mapping[str, Any]]
    feedback: Mapping[tuple[str, str], float]
    unjudged: Mapping[str, Sequence[float]]
    shadows: Mapping[str, Sequence[tuple[int, float, float, str]]]
    """By candidate policy in shadow mode, as `offline.measures.quality.paired_quality` takes them."""


def add_label_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where labels are."""
    parser.add_argument("--surface", metavar="NAME", help="the surface whose labels to take")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--ledger", type=Path, metavar="DIR", help="the ledger's folder (default: STATE/ledger of `tierline up`)"
    )
    source.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help='labels as JSON lines, no feedback: what `tierline ledger query --json "SELECT * FROM labels"` prints',
    )


def surface_labels(args: argparse.Namespace, state: Path) -> SurfaceLabels:
    """Return what the options name. Raises CommandError."""
    if args.surface is None:
        raise CommandError("name the surface with --surface")
    if args.labels is not None:
        try:
            rows = [orjson.loads(line) for line in args.labels.read_bytes().splitlines() if line.strip()]
        except OSError as error:
            raise CommandError(f"{args.labels} cannot be read: {error.strerror}") from None
        except orjson.JSONDecodeError as error:
            raise CommandError(f"{args.labels} is not a file of JSON lines: {error}") from None
        return SurfaceLabels(sorted((row for row in rows if row["surface"] == args.surface), key=_time), {}, {}, {})
    try:
        with opened(args.ledger or state / "ledger") as database:
            values = {"surface": args.surface}
            found = ask(database, "SELECT * FROM labels WHERE surface = $surface ORDER BY judged_at", values)
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
            scores = ask(database, "SELECT tenant, request_id, score FROM feedback WHERE surface = $surface", values)
            feedback = {(tenant, request): float(score) for tenant, request, score in scores.fetchall()}
            unjudged: dict[str, list[float]] = {}
            for tier, score in ask(database, _UNJUDGED, values).fetchall():
                unjudged.setdefault(tier, []).append(float(score))
            shadows: dict[str, list[tuple[int, float, float, str]]] = {}
            for candidate, *pair in ask(database, _SHADOWS, values).fetchall():
                shadows.setdefault(candidate, []).append((pair[0], pair[1], pair[2], pair[3]))
    except ArchiveError as error:
        raise CommandError(str(error)) from None
    return SurfaceLabels(rows, feedback, unjudged, shadows)


def _time(row: Mapping[str, Any]) -> float:
    return float(row["judged_at"])
