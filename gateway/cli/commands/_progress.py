"""Bars for long work, on stderr, so that stdout stays what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class OnProgress(Protocol):
    """Called with a stage's name, how much of it is done and how much there is."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


@contextmanager
def progress() -> Iterator[OnProgress]:
    """A bar for each stage. A stage that starts again starts its bar again."""
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(stage: str, done: int, total: int, /) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield on_progress
