"""Show progress bars on stderr during long work; stdout is for the command's output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class OnProgress(Protocol):
    """Called with a stage's name, the number of items done and their total."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[OnProgress]:
    """Show a bar for each stage during the context; none if `quiet`. A stage that starts again restarts its bar."""
    if quiet:
        yield silent
        return
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
