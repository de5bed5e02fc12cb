"""Run a `tierline` command as a process of its own, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Final

_PIPE_MOST: Final = 32 << 20


async def start(words: list[str]) -> Process:
    """Start `tierline` with these words; its output and its errors are pipes. Call `end` in every case."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tierline", *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, limit=_PIPE_MOST
    )


async def end(process: Process) -> None:
    """Kill the process if it still runs, and wait until its pipes are closed.

    A pipe that nobody reads to its end stays open, and asyncio complains about it when the loop has closed.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.communicate()
