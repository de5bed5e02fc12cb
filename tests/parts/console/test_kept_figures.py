"""Figures that take long: a page does not wait for them, and one that was there before is shown meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from gateway.parts.console.kept_figures import KeptFigures
from gateway.parts.ledger.query import QueryError


class Slow:
    """Makes figures when it is let, and counts them."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.made: list[str] = []

    async def __call__(self, key: str) -> str:
        await self.let.wait()
        if key == "wrong":
            raise QueryError("no such column")
        self.made.append(key)
        return f"{key} {len(self.made)}"


async def test_a_page_does_not_wait_and_finds_the_figures_later() -> None:
    """Whoever asks meanwhile waits for the same ones; JSON waits as long as it takes."""
    slow = Slow()
    kept = KeptFigures(slow, fresh_s=60)
    assert await kept.get("7d", 0.0) is None and await kept.get("7d", 0.0) is None
    waiting = asyncio.gather(kept.get("7d", None), kept.get("7d", None))
    slow.let.set()
    assert [made.value for made in await waiting if made is not None] == ["7d 1", "7d 1"]
    made = await kept.get("7d", 0.0)
    assert made is not None and made.value == "7d 1" and slow.made == ["7d"]


async def test_old_figures_are_shown_while_new_ones_are_made() -> None:
    slow = Slow()
    slow.let.set()
    kept = KeptFigures(slow, fresh_s=0)
    first = await kept.get("7d", None)
    slow.let.clear()
    shown = await kept.get("7d")
    assert first is not None and shown is first and slow.made == ["7d"]
    slow.let.set()
    latest = await kept.get("7d", None)
    assert latest is not None and latest.value == "7d 2"


async def test_figures_that_are_too_old_are_not_shown() -> None:
    slow = Slow()
    slow.let.set()
    kept = KeptFigures(slow, fresh_s=0, stale_s=0)
    assert (made := await kept.get("7d", None)) is not None and made.value == "7d 1"
    slow.let.clear()
    assert await kept.get("7d", 0.0) is None
    slow.let.set()


async def test_an_error_is_raised_to_who_waits_and_is_made_up_for() -> None:
    slow = Slow()
    slow.let.set()
    kept = KeptFigures(slow, fresh_s=60)
    with pytest.raises(QueryError):
        await kept.get("wrong", None)
    assert (made := await kept.get("7d", None)) is not None and made.value == "7d 1"
