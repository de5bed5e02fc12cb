"""Compute what several callers wait for in one call of a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")


async def fulfil(
    batch: Sequence[tuple[Given, asyncio.Future[Result]]],
    thread: Executor,
    work: Callable[[list[Given]], Iterable[Result]],
) -> None:
    """Set each future to its result of `work`, or to the error that it raised; cancel them if this is cancelled."""
    given = [one for one, _ in batch]
    try:
        results = await asyncio.get_running_loop().run_in_executor(thread, work, given)
        # All or none: results in the wrong number cannot be assigned to what they are of.
        for (_, future), result in list(zip(batch, results, strict=True)):
            if not future.done():
                future.set_result(result)
    except Exception as error:  # noqa: BLE001  (whatever went wrong is the callers' to hear)
        for _, future in batch:
            if not future.done():
                future.set_exception(error)
    finally:
        for _, future in batch:  # only when this was cancelled is one still open
            future.cancel()
