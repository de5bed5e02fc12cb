"""Run `tierline policy diff`: what two policies say differently, and which recorded requests that moves."""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import duration
from gateway.cli.commands.policy._policies import policy_of
from gateway.cli.commands.policy._recorded import deployed_as
from gateway.cli.commands.policy._registry import add_registry_flags
from gateway.exit_codes import Exit
from offline.progress import OnProgress, progress
from offline.report import Report, show, table
from policies.diff import DROPS, Difference, PolicyChange, difference
from policies.model import Policy
from policies.yaml_source import Document
from routing.decide import NoTierError, decide
from routing.decision_basis import BasisError, DecisionBasis
from routing.decision_record import unnamed

DESCRIPTION = (
    "Compare what two policies mean. Units, defaults, comments and the order of keys make no difference; the order of "
    "tiers and of start rules does. With --since, recorded requests are decided again with both. Nothing is called."
)
EXAMPLES = """examples:
  tierline policy diff policies/chat.yaml chat.yaml              what the new file changes
  tierline policy diff policies/chat.yaml chat.yaml --since 7d   and which requests would start elsewhere
  tierline policy diff chat@f00d policies/chat.yaml              an applied version, and a file
  tierline policy diff a.yaml b.yaml --json | jq '.changes[].path'

Exit code 1: they differ in what is in force."""

_WIDTH: Final = 120
_MOST: Final = 100_000
_PAGE: Final = 5_000
_EXAMPLES_EACH: Final = 3
_COUNT: Final = "SELECT count(*) FROM requests WHERE surface = $surface AND started_s >= $oldest AND given IS NOT NULL"
_LATEST: Final = (
    "SELECT request_id, basis, given FROM requests WHERE surface = $surface AND started_s >= $oldest "
    "AND given IS NOT NULL ORDER BY started_s DESC LIMIT $most"
)
_NO_TIER: Final = "no tier"
_HEADINGS: Final = {"rewritten": "written differently, the same meaning", "aside": "rules nothing in force"}


@dataclass(slots=True)
class _StartMoves:
    """Where recorded requests start with each of two policies."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy diff`."""
    parser.add_argument("before", metavar="A", help="a policy file, or a version in the store such as chat@f00d")
    parser.add_argument("after", metavar="B", help="the other")
    parser.add_argument(
        "--since", type=duration, metavar="TIME", help="decide the requests of the last TIME again, such as 2h or 7d"
    )
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="the ledger's files (default: STATE/ledger)")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, print the differences and return the exit code."""
    (before, _), (after, document) = policy_of(args.before, args), policy_of(args.after, args)
    found = difference(before, after, lambda path: document.problem(path, "").line)
    moves = None
    if args.since is not None:
        with progress(quiet=args.json) as on_progress:
            moves = _moves(
                before, after, args.ledger or Path(args.state) / "ledger", time.time() - args.since, on_progress
            )
    show(_report(before, after, document, found, moves), as_json=args.json)
    return Exit.FINDINGS if found.in_force or found.drops_answers else Exit.OK


def _report(before: Policy, after: Policy, document: Document, found: Difference, moves: _StartMoves | None) -> Report:
    values: dict[str, Any] = {
        "before": before.label,
        "after": after.label,
        "changes": [asdict(change) for change in found.changes],
        "drops_answers": found.drops_answers,
    }
    lines: list[str | Text | Table] = [f"{before.label} -> {after.label}"]
    for change in found.in_force:
        lines += _lines(document, change)
    for weight, heading in _HEADINGS.items():
        others = [change for change in found.changes if change.weight == weight]
        if others:
            lines += ["", f"{heading}:"]
            for change in others:
                lines += _lines(document, change, with_effect=False)
    count = len(found.in_force)
    counted = "1 difference" if count == 1 else f"{count or 'no'} differences"
    same = "" if count or before.version == after.version else ": the version is another, and nothing in force changes"
    notes = [DROPS] if found.drops_answers else []
    lines += ["", counted + same] if found.changes else [counted]
    if moves is not None:
        values["moves"] = [
            {"before": pair[0], "after": pair[1], "requests": number, "examples": moves.examples[pair]}
            for pair, number in moves.counts.most_common()
        ]
        lines += ["", *_moved(moves)]
        notes += moves.notes
    return Report(values, lines, notes, width=_WIDTH)


def _lines(document: Document, change: PolicyChange, *, with_effect: bool = True) -> list[Text]:
    place = f"{document.file.name}:{change.line}" if change.line else document.file.name
    flat = f"{place:<14}  {change.path}: {change.before} -> {change.after}"
    lines = [flat]
    if len(flat) > _WIDTH:
        lines = [f"{place:<14}  {change.path}", f"{'':14}  - {change.before}", f"{'':14}  + {change.after}"]
    return [Text(line) for line in [*lines, *([f"{'':16}{change.effect}"] if with_effect else [])]]


def _moved(moves: _StartMoves) -> Iterator[str | Table]:
    total = moves.counts.total()
    moved = Counter({pair: number for pair, number in moves.counts.items() if pair[0] != pair[1]})
    share = f", {moved.total() / total:.1%}" if total else ""
    yield f"of {total} recorded requests, {moved.total()} start elsewhere{share}"
    if moved:
        shown = table("start before", "after", "requests", "share", "examples", left=2)
        shown.columns[-1].justify = "left"
        shown.columns[-1].overflow = "fold"
        for (one, other), number in moved.most_common():
            shown.add_row(one, other, str(number), f"{number / total:.1%}", " ".join(moves.examples[one, other]))
        yield shown


def _moves(before: Policy, after: Policy, folder: Path, oldest: float, on_progress: OnProgress) -> _StartMoves:
    """Decide the latest recorded requests of the surface again with both policies. Raises CommandError."""
    from gateway.archive.folder import ArchiveError
    from gateway.archive.query import ask, opened

    values = {"surface": before.surface, "oldest": oldest}
    moves = _StartMoves()
    try:
        with opened(folder) as database:
            [[count]] = ask(database, _COUNT, values).fetchall()
            bases = {
                name: _with(DecisionBasis.decode(blob.encode()), before, after, moves.notes)
                for name, blob in ask(database, "SELECT id, basis::VARCHAR FROM bases").fetchall()
            }
            result = ask(database, _LATEST, {**values, "most": _MOST})
            done, total = 0, min(count, _MOST)
            while rows := result.fetchmany(_PAGE):
                for request, name, given in rows:
                    if name not in bases:
                        raise CommandError(f"{folder} lacks the basis {name} of {request}; was bases.jsonl deleted?")
                    basis, one, other = bases[name]
                    recorded = basis.input_of(unnamed(given))
                    pair = _start(one, recorded), _start(other, recorded)
                    moves.counts[pair] += 1
                    if len(moves.examples[pair]) < _EXAMPLES_EACH:
                        moves.examples[pair].append(request)
                done += len(rows)
                on_progress("deciding again", done, total)
    except (ArchiveError, BasisError) as error:
        raise CommandError(str(error)) from None
    if count > _MOST:
        moves.notes.append(f"the latest {_MOST} of {count} requests; `tierline policy replay` takes all")
    return moves


def _with(
    basis: DecisionBasis, before: Policy, after: Policy, notes: list[str]
) -> tuple[DecisionBasis, Policy, Policy]:
    """Return the basis with both policies as the deployment of its records would have had them."""
    (one, _), (other, unknown) = deployed_as(basis, before), deployed_as(basis, after)
    for name in unknown:
        note = f"{name} is left out where the records do not hold its state"
        if note not in notes:
            notes.append(note)
    return basis, one, other


def _start(policy: Policy, given: Any) -> str:
    try:
        return decide(policy, given).tiers[0]
    except NoTierError:
        return _NO_TIER
