"""Hold the result of a command and print it: as text and tables for people, or as one JSON object for --json.

While it works, bars on stderr show its progress; stdout is for the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Columns of a report that is not printed to a terminal."""
WIDE = 120
"""Columns of a report with wide tables."""
NONE = "-"
"""Stands in a table for a figure that there is not."""


@dataclass(frozen=True, slots=True)
class Report:
    """A result. `values` is the JSON object; `lines` are what people read: text and tables, '' for an empty line.

    `notes` are printed below, as a list; with --json on stderr, unless `values` holds them. `done` says what was
    written where, in lines that are never wrapped. `draw_picture`, None without one, is called after the report is
    printed, so that a file that cannot be written costs no figure.
    """

    values: Mapping[str, Any]
    lines: Sequence[str | Text | Table]
    notes: Sequence[str] = ()
    title: str = ""
    done: Sequence[str] = ()
    width: int = WIDTH
    draw_picture: Callable[[], None] | None = None


def show(report: Report, *, as_json: bool) -> None:
    """Print the report on stdout."""
    if as_json:
        if "notes" not in report.values:
            _print_notes(Console(stderr=True, highlight=False, markup=False), report.notes)
        print_json(report.values)
        return
    console = console_of_stdout(report.width)
    if report.title:
        console.print(report.title, style="bold")
    for line in report.lines:
        console.print(line)
    _print_notes(console, report.notes)
    sys.stdout.write("".join(f"{line}\n" for line in report.done))


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"- {note}", style="dim")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one indented JSON object on stdout."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def console_of_stdout(width: int = 120) -> Console:
    """Return a console on stdout: as wide as the terminal, or `width` columns if stdout is not one."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)


def printable(value: object) -> str:
    """Replace line breaks and control characters in untrusted text by spaces, so that it cannot steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))


def table(*headings: str, left: int = 1) -> Table:
    """Return an empty table; its first `left` columns are aligned left, the others right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="left" if number < left else "right")
    return made


class OnProgress(Protocol):
    """Called with a stage's name, the number of items done and their total."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[OnProgress]:
    """Show a bar for each stage during the context; none if `quiet`. A stage that starts again restarts its bar."""
    if quiet:
        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # slow to import

    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(stage: str, done: int, total: int, /) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield on_progress


def silent(_stage: str, _done: int, _total: int, /) -> None:
    """Ignore the progress."""


def part_progress(on_progress: OnProgress, number: int, parts: int) -> OnProgress:
    """Return a callback for part `number` of several equal parts of the work, so that all parts share one bar."""
    return lambda stage, done, total: on_progress(stage, number * total + done, parts * total)
