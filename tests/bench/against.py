"""Compare what this tree costs with what another commit costs: `python -m tests.bench.against [REF] [--only ROW ...]`.

Both are run from trees of their own by one interpreter with its installed packages, over one store (a database each)
and one model server, pinned to one core; load and store have the other. Each round asks both about each row, and they
take turns in going first. A ratio is that of one round, new to base; the table has the median of the rounds and their
quartiles. A difference below the distance of the quartiles, or one that two rounds deny, is no difference, and the
table says so; from fewer than five rounds none is told.

REF is by default the commit that `tests/bench/cost-base` names. What is compared with it is the working tree.

examples:
  python -m tests.bench.against                                   all rows, seven rounds: most of an hour
  python -m tests.bench.against --quick --only full bare          two rows, five rounds of a second: two minutes
  python -m tests.bench.against HEAD~3 --only model --rounds 5    with another commit
  python -m tests.bench.against --peers --json > table.json       other gateways in the same rounds
  python -m tests.bench.against --new HEAD --only texts           a commit; the full path by language and length

rows:
{rows}

Exit codes: 0 when it was measured, 1 where a build does not do what is measured, 2 where a tool or a commit is missing,
3 with --strict where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.builds import Build, NoBuild, base_commit, packed, same_locks
from tests.bench.load import NotAsMeant
from tests.bench.many import FLAT, SIZES
from tests.bench.measure import Figures, Say
from tests.bench.processes import MOST_ROUNDS, ONCE, SLOW, Place
from tests.bench.rig import MissingTools, choose_cores, raw_model, require_tools
from tests.bench.rounds import QUICK, REQUESTS, STREAM, TEXTS, Length, Rounds, Samples, stand

NEW, BASE = "new", "base"
PEER: Final = "TensorZero"
_ROUNDS_TO_TELL: Final = 5
_CONTRARY: Final = 1
"""Rounds that may deny a difference."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. The target is what the ratio to base may be, or, if `absolute`, the new build's figure."""

    group: str
    what: str
    figure: str
    unit: str
    target: float | None = None
    aim: float | None = None
    absolute: bool = False
    beside_peer: tuple[float, float] | None = None
    """Target and aim of the ratio to the peer's CPU in the same round."""


ROWS: Final = (
    Row("full", "full path: CPU", "full_cpu_us", "us", 0.55, 0.45, beside_peer=(4.1, 3.4)),
    Row("full", "full path: p50 added, c = 1", "full_p50_c1_ms", "ms"),
    Row("full", "full path: p99 added, c = 1", "full_p99_c1_ms", "ms", 0.6, 0.4),
    Row("full", "full path: p50 added, c = 64", "full_p50_c64_ms", "ms"),
    Row("full", "full path: p99 added, c = 64", "full_p99_c64_ms", "ms", 0.25, 0.1),
    Row("words", "full path, ten random words: CPU", "words_cpu_us", "us"),
    Row("bare", "bare: CPU", "bare_cpu_us", "us", 0.7, 0.5),
    Row("bare", "bare: p50 added, c = 1", "bare_p50_c1_ms", "ms"),
    Row("exact", "exact hit: CPU", "exact_cpu_us", "us", 0.8, 0.65),
    Row("exact", "exact hit: p50, c = 1", "exact_p50_c1_ms", "ms"),
    Row("rule", "semantic hit by rule: CPU", "rule_cpu_us", "us", 0.6, 0.45),
    Row("model", "semantic hit by the cross-encoder: CPU", "model_cpu_us", "us", 0.6, 0.4),
    Row(STREAM, "stream: added TTFT, c = 16", "ttft_ms", "ms", 0.6, 0.4),
    Row(STREAM, "stream: CPU of a chunk", "chunk_us", "us"),
    Row(STREAM, "stream held to its end: CPU of a chunk", "judged_us", "us"),
    Row("memory", "worker after 10,000 requests: RSS", "rss_mb", "MB", 0.7, 0.5),
    Row("lookup", "look-up among 20,000: CPU", "lookup_cpu_ms", "ms", 0.5, 0.3),
    Row("start", "serve to its first 200: CPU", "start_cpu_s", "s", 0.6),
    Row("start", "serve to its first 200", "start_s", "s", 0.6),
    Row("start", "from tierline import Tierline: CPU", "import_cpu_ms", "ms", 0.3),
    Row("start", "from tierline import Tierline", "import_ms", "ms", 0.3),
    Row("body", "body of 30 MB: longest hold of the loop", "body_held_ms", "ms", 10, absolute=True),
    Row("body", "body of 30 MB: peak memory over its size", "body_peak", "x", 2.2, absolute=True),
    Row("counts", "calls: bare", "calls_bare", "", 300, 250, absolute=True),
    Row("counts", "calls: exact hit", "calls_exact", "", 180, 150, absolute=True),
    Row("counts", "calls: semantic hit", "calls_semantic", "", 350, 300, absolute=True),
    Row("counts", "calls: miss", "calls_miss", "", 550, 450, absolute=True),
    Row("counts", "calls: chunk", "calls_chunk", "", 13, absolute=True),
    Row("counts", "calls of no request a second, busy", "calls_busy", "", 500, absolute=True),
    Row("counts", "calls of no request a second, idle", "calls_idle", "", 150, absolute=True),
    Row("counts", "peak of a miss", "peak_mb", "MB", 0.5, 0.3, absolute=True),
    *(
        Row("many", f"a request among {count:,} {kind}, over one", f"growth_{kind}_{count}", "x", FLAT, absolute=True)
        for kind, counts in SIZES.items()
        for count in counts
    ),
    *(Row(name, f"full path, {name[5:]}: CPU", f"{name}_cpu_us", "us") for name in TEXTS),
)
GROUPS: Final = {
    "full": "full path of natural questions, paragraphs and pages in three languages: CPU at c = 16; p50, p99",
    "words": "full path of ten random words, which no language takes for its own",
    "bare": "no cache, no classifier: CPU; p50 at c = 1",
    "exact": "a stored answer to the same request: CPU; p50 at c = 1, whole",
    "rule": "a stored answer to the same words, spaced otherwise",
    "model": "a stored answer to the same question in words that the cross-encoder has to read (c = 4)",
    STREAM: "time to the first token at c = 16, and CPU of a chunk",
    "start": "`serve` to its first 200, with what ships, and imports of the package",
    "memory": "a worker's memory after 10,000 distinct natural requests",
    "lookup": "a look-up among 20,000 in one scope: CPU of the loop's thread",
    "body": "bodies of 30 MB: longest hold of the loop, peak of memory over the size",
    "many": "a request among 100 and 1,000 surfaces and tenants, and 1,000 keys, over one of each",
    "counts": "Python calls by path, and the peak of a miss; a few minutes",
    "texts": "the full path by language, and by length (only when named)",
}
_NOT_UNASKED: Final = ("texts",)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of a ratio over the rounds."""

    median: float
    low: float
    high: float
    rounds: int
    contrary: int
    """Rounds on the other side of 1 than the median."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Make it of the values of the rounds."""
        low, median, high = statistics.quantiles([*values] * (1 if len(values) > 1 else 2), n=4, method="inclusive")
        return cls(median, low, high, len(values), sum((value - 1) * (median - 1) <= 0 for value in values))

    @property
    def differs(self) -> bool:
        """Whether the ratio is not 1 by more than the rounds differ."""
        decided = self.rounds >= _ROUNDS_TO_TELL and self.contrary <= _CONTRARY
        return decided and abs(1 - self.median) > self.high - self.low


@dataclass(frozen=True, slots=True)
class Line:
    """A row with its figures: medians of both builds, their ratio, and what is known of it."""

    row: Row
    base: float
    new: float
    ratio: Spread
    to_peer: float | None

    def state(self) -> str:
        """Return `aim met`, `met` or `OVER`; '' without a target, and where a gain is not larger than the spread."""
        value = self.new if self.row.absolute else self.ratio.median
        states = [_state(value, self.row.target, self.row.aim)]
        if not self.row.absolute and not self.ratio.differs and states != ["OVER"]:
            return ""
        if self.row.beside_peer is not None and self.to_peer is not None:
            states.append(_state(self.to_peer, *self.row.beside_peer))
        return next((state for state in ("OVER", "met", "aim met") if state in states), "")

    def remark(self) -> str:
        """Return what has to be known of the ratio, '' where it is a difference."""
        if self.row.absolute:
            return ""
        if self.ratio.rounds < _ROUNDS_TO_TELL:
            return "too few rounds to tell"
        return "" if self.ratio.differs else "no difference measured"


def _state(value: float, target: float | None, aim: float | None) -> str:
    if target is None:
        return ""
    return "OVER" if value > target else "aim met" if aim is not None and value <= aim else "met"


def lines_of(samples: Samples) -> list[Line]:
    """Put the figures of all rounds together, a line for each row that was measured."""
    lines = []
    for row in ROWS:
        base, new = (samples.get(row.figure, {}).get(name, []) for name in (BASE, NEW))
        if not base:
            continue
        # What is added to a time may be nothing, on a busy machine less: such a round has no ratio.
        ratios = [mine / theirs for mine, theirs in zip(new, base, strict=True) if theirs > 0 and mine >= 0]
        beside = samples.get("peer_cpu_us", {}).get(PEER) if row.unit == "us" and row.group != STREAM else None
        to_peer = statistics.median(mine / peer for mine, peer in zip(new, beside, strict=False)) if beside else None
        lines.append(
            Line(row, statistics.median(base), statistics.median(new), Spread.of(ratios or [math.nan]), to_peer)
        )
    return lines


def as_text(lines: Sequence[Line], samples: Samples, notes: Sequence[str]) -> str:
    """Return the table, peers below it, and what has to be known of them."""
    title = f"{'':42}{'base':>10}{'new':>10}{'new/base':>10}{'quartiles':>14}{'target':>8}{'aim':>6}{'x ' + PEER:>14}"
    text = [title]
    for line in lines:
        row = line.row
        figures = f"{_short(line.base):>10}{_short(line.new):>10}{line.ratio.median:>10.2f}"
        quartiles = f"{line.ratio.low:.2f}-{line.ratio.high:.2f}" if line.ratio.rounds > 1 else ""
        goals = f"{_short(row.target):>8}{_short(row.aim):>6}{_short(line.to_peer):>14}"
        remarks = "  ".join(part for part in (line.state(), line.remark()) if part)
        text.append(
            f"{', '.join(filter(None, (row.what, row.unit))):42}{figures}{quartiles:>14}{goals}  {remarks}".rstrip()
        )
    if theirs := samples.get("peer_cpu_us"):
        text += ["", "CPU of a request at c = 16, us: " + ", ".join(
            f"{name} {statistics.median(values):.1f}" for name, values in theirs.items()
        )]  # fmt: skip
    return "\n".join([*text, *(f"note: {note}" for note in notes)])


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(lines: Sequence[Line], samples: Samples, notes: Sequence[str], builds: Mapping[str, Build]) -> str:
    """Return the same as JSON, with the figures of each round."""
    rows = [
        {
            "row": line.row.group, "what": line.row.what, "unit": line.row.unit, "base": line.base, "new": line.new,
            "ratio": line.ratio.median, "quartiles": [line.ratio.low, line.ratio.high], "rounds": line.ratio.rounds,
            "differs": line.ratio.differs, "target": line.row.target, "aim": line.row.aim, "state": line.state(),
            "to_peer": line.to_peer,
        }
        for line in lines
    ]  # fmt: skip
    commits = {name: build.commit for name, build in builds.items()}
    return json.dumps({"builds": commits, "rows": rows, "samples": samples, "notes": list(notes)}, indent=1)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:10}{what}" for name, what in GROUPS.items())
    summary, _, rest = (__doc__ or "").format(rows=listed).partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.against", description=summary, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("ref", nargs="?", metavar="REF", help="the base (default: the commit in tests/bench/cost-base)")
    parser.add_argument("--new", metavar="COMMIT", help="what is compared with it (default: the working tree)")
    parser.add_argument("--rounds", type=int, metavar="N", help="how many times round (default 7; 5 with --quick)")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=GROUPS, help="these rows only")
    parser.add_argument("--quick", action="store_true", help="measurements of one second")
    parser.add_argument("--peers", action="store_true", help="other gateways too, installed under build/peers")
    parser.add_argument("--strict", action="store_true", help="exit with 3 where a target is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the module's docstring for the exit codes."""
    options = _parse(arguments)
    say = partial(print, file=sys.stderr, flush=True)
    groups = options.only or [name for name in GROUPS if name not in _NOT_UNASKED]
    try:
        require_tools()
        with tempfile.TemporaryDirectory(prefix="tierline-against-") as temporary:
            folder = Path(temporary)
            builds = {
                BASE: packed(folder / "trees", BASE, options.ref or base_commit()),
                NEW: packed(folder / "trees", NEW, options.new),
            }
            say(f"base is {builds[BASE].commit}, new is {builds[NEW].commit}; both on {sys.version.split()[0]}")
            samples, notes, dropped = _measured(folder, builds, groups, options, say)
            samples |= _of_processes(folder, builds, groups, options, dropped, say)
            if not same_locks(builds):
                notes.append("the builds' locks differ; both ran with the packages that are installed here")
    except (MissingTools, NoBuild) as missing:
        say(missing)
        return 2
    except (NotAsMeant, AssertionError) as wrong:
        say(f"not measured: {wrong}")
        return 1
    notes += [f"{name} is not measured further: {why}" for name, why in dropped.items()]
    if options.quick and {"memory", "lookup"} & set(groups):
        notes.append("--quick: memory is after 1,000 requests, and a look-up among 2,000")
    lines = lines_of(samples)
    print(as_json(lines, samples, notes, builds) if options.json else as_text(lines, samples, notes))
    if dropped:
        return 1
    return 3 if options.strict and any(line.state() == "OVER" for line in lines) else 0


def _measured(
    folder: Path, builds: Mapping[str, Build], groups: Sequence[str], options: argparse.Namespace, say: Say
) -> tuple[Samples, list[str], dict[str, str]]:
    rounds = _rounds(options)
    ways = [way for way in (*REQUESTS, STREAM) if way in groups or (way in TEXTS and "texts" in groups)]
    if not ways:
        return {}, [], {}
    with stand(folder, list(builds.values()), choose_cores(), options.peers, say) as there:
        run = Rounds(there, folder, QUICK if options.quick else Length(), say)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            run.run(number, ways)
    notes = [*dict.fromkeys(run.notes), *(f"{name} is not measured: {why}" for name, why in there.missing.items())]
    return dict(run.samples), notes, run.dropped


def _of_processes(
    folder: Path,
    builds: Mapping[str, Build],
    groups: Sequence[str],
    options: argparse.Namespace,
    dropped: dict[str, str],
    say: Say,
) -> Samples:
    samples: Samples = defaultdict(lambda: defaultdict(list))
    with raw_model() as model:
        for number in range(min(_rounds(options), MOST_ROUNDS)):
            for name in (name for name in SLOW if name in groups and not (number and name in ONCE)):
                figures: dict[str, Figures] = {}
                place = Place(folder / f"{name}-{number}", choose_cores(), model.port, options.quick)
                place.folder.mkdir()
                for build in sorted(builds.values(), key=lambda build: build.name, reverse=bool(number % 2)):
                    say(f"round {number + 1}: {name}: {build.name}")
                    try:
                        figures[build.name] = {} if name in dropped else SLOW[name](build, place)
                    except (NotAsMeant, NoBuild, AssertionError, subprocess.SubprocessError, OSError) as wrong:
                        dropped[name] = f"in round {number + 1}, {build.name}: {wrong}"
                for build_name, found in figures.items() if name not in dropped else ():
                    for figure, value in found.items():
                        samples[figure][build_name].append(value)
    return samples


def _rounds(options: argparse.Namespace) -> int:
    rounds: int = options.rounds or (5 if options.quick else 7)
    return rounds


if __name__ == "__main__":
    sys.exit(main())
