"""Run `tierline policy diff`: what two policies say differently, and which recorded requests that moves."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from gateway.cli.flags import duration
from gateway.cli.store_flags import add_registry_flags, ledger_folder, take_running
from gateway.exit_codes import Exit
from gateway.parts.lint.difference import DROPS, Difference, PolicyChange, difference
from gateway.parts.rollout.commands._policy_files import policy_in
from gateway.report import Report, progress, show, table
from policies.model import Policy
from policies.quantities import percent
from policies.yaml_source import Document

if TYPE_CHECKING:
    from gateway.parts.lab.replay.starts import StartMoves

_WIDTH: Final = 120
_HEADINGS: Final = {"rewritten": "written differently, the same meaning", "aside": "rules nothing in force"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy diff`."""
    parser.add_argument("before", metavar="A")
    parser.add_argument("after", metavar="B")
    parser.add_argument("--since", type=duration, metavar="TIME")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="the ledger's files (default: STATE/ledger)")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, print the differences and return the exit code."""
    take_running(args)
    (before, _), (after, document) = policy_in(args.before, args), policy_in(args.after, args)
    changes = difference(before, after, lambda path: document.problem(path, "").line)
    moves: StartMoves | None = None
    more_notes: list[str] = []
    if args.since is not None:
        from gateway.parts.lab.commands._recorded_policies import moves_between

        with progress(quiet=args.json) as on_progress:
            moves, more_notes = moves_between(before, after, ledger_folder(args), time.time() - args.since, on_progress)
    show(_report(before, after, document, changes, moves, more_notes), as_json=args.json)
    return Exit.FINDINGS if changes.in_force or changes.drops_answers else Exit.OK


def _report(
    before: Policy,
    after: Policy,
    document: Document,
    changes: Difference,
    moves: StartMoves | None,
    more_notes: list[str],
) -> Report:
    values: dict[str, Any] = {
        "before": before.label,
        "after": after.label,
        "changes": [asdict(change) for change in changes.changes],
        "drops_answers": changes.drops_answers,
    }
    lines: list[str | Text | Table] = [f"{before.label} -> {after.label}"]
    for change in changes.in_force:
        lines += _lines(document, change)
    for weight, heading in _HEADINGS.items():
        others = [change for change in changes.changes if change.weight == weight]
        if others:
            lines += ["", f"{heading}:"]
            for change in others:
                lines += _lines(document, change, with_effect=False)
    count = len(changes.in_force)
    counted = "1 difference" if count == 1 else f"{count or 'no'} differences"
    same = "" if count or before.version == after.version else ": the version is another, and nothing in force changes"
    notes = [DROPS] if changes.drops_answers else []
    lines += ["", counted + same] if changes.changes else [counted]
    if moves is not None:
        values["moves"] = [
            {"before": pair[0], "after": pair[1], "requests": number, "examples": moves.examples[pair]}
            for pair, number in moves.counts.most_common()
        ]
        lines += ["", *_moved(moves)]
        notes += more_notes
    return Report(values, lines, notes, width=_WIDTH)


def _lines(document: Document, change: PolicyChange, *, with_effect: bool = True) -> list[Text]:
    place = f"{document.file.name}:{change.line}" if change.line else document.file.name
    flat = f"{place:<14}  {change.path}: {change.before} -> {change.after}"
    lines = [flat]
    if len(flat) > _WIDTH:
        lines = [f"{place:<14}  {change.path}", f"{'':14}  - {change.before}", f"{'':14}  + {change.after}"]
    return [Text(line) for line in [*lines, *([f"{'':16}{change.effect}"] if with_effect else [])]]


def _moved(moves: StartMoves) -> Iterator[str | Table]:
    total = moves.counts.total()
    moved = Counter({pair: number for pair, number in moves.counts.items() if pair[0] != pair[1]})
    share = f", {percent(moved.total() / total)}" if total else ""
    yield f"of {total} recorded requests, {moved.total()} start elsewhere{share}"
    if moved:
        shown = table("start before", "after", "requests", "share", "examples", left=2)
        shown.columns[-1].justify = "left"
        shown.columns[-1].overflow = "fold"
        for (tier, other), number in moved.most_common():
            shown.add_row(tier, other, str(number), f"{percent(number / total)}", " ".join(moves.examples[tier, other]))
        yield shown
