"""Read the labels of one surface, and the feedback beside them, for `tierline fit learn`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.cli.commands import CommandError
from gateway.cli.store_flags import ledger_folder
from gateway.parts.ledger.quality import SurfaceLabels, labels_to_fit

_NEEDED: Final = frozenset({"better", "judged_at", "request_id", "small", "strong", "surface", "tenant"})


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


def labels_named(args: argparse.Namespace) -> SurfaceLabels:
    """Return what the options name. Raises CommandError."""
    if args.surface is None:
        raise CommandError("name the surface with --surface")
    if args.labels is not None:
        try:
            rows = [orjson.loads(line) for line in args.labels.read_bytes().splitlines() if line.strip()]
            if not all(row.keys() >= _NEEDED for row in rows):
                raise ValueError
            return SurfaceLabels(sorted((row for row in rows if row["surface"] == args.surface), key=_time))
        except OSError as error:
            raise CommandError(f"{args.labels} cannot be read: {error.strerror}") from None
        except orjson.JSONDecodeError as error:
            raise CommandError(f"{args.labels} is not a file of JSON lines: {error}") from None
        except (AttributeError, TypeError, ValueError):
            raise CommandError(f"{args.labels} holds no labels: --help says what prints them") from None
    return labels_to_fit(ledger_folder(args), args.surface)


def _time(row: Mapping[str, Any]) -> float:
    return float(row["judged_at"])
