"""Hold requests to a budget as they come by chance: a simulation that drives the real machine on virtual time.

Each cell has a budget, a price, a kind of answers, a rate of arrivals and workers that share the store. For a request
is reserved what `LearntUsage` says, and `QuotaLeases` lets it in, holds it or refuses it. A request counts as held if
it waited for more than 0.7 s while less than 80% of the budget was spent by answers that had ended.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.chat.usage import Price, Usage
from gateway.parts.access.expected_costs import AskedOfTier, LearntUsage, UsedByRequest
from gateway.parts.access.quotas.accounts import Account, Window
from gateway.parts.access.quotas.leases import Demand, Entered, QuotaLeases
from policies.quantities import NANO
from tests.support.quota_clock import SharedAuthority, run_virtually

BUDGETS: Final = (0.3, 1.0, 5.0, 25.0)
PRICES: Final = (0.5, 15.0, 40.0, 75.0)
"""US dollars per million completion tokens; a prompt token costs a fifth."""
ANSWERS: Final = ("short", "even", "skewed", "long")
RATES: Final = (1.0, 3.5, 20.0)
WORKERS: Final = (1, 4)
_PROMPT: Final = 200
_MOST: Final = 32_000
_HELD_S: Final = 0.7
_WINDOW: Final = Window("2026-11@UTC", 0.0, 1e9)


class Cell(NamedTuple):
    """One combination."""

    budget: float
    price: float
    answers: str
    rate: float
    workers: int


@dataclass(slots=True)
class CellFigures:
    """What the requests of a cell met."""

    cell: Cell
    sent: int = 0
    let_in: int = 0
    held: int = 0
    """Waited for longer than 0.7 s while less than 80% was spent."""
    refused_early: int = 0
    """Refused before 80% was spent."""
    early: int = 0
    """Came before 80% was spent."""
    billed: float = 0.0
    dearest: float = 0.0
    longest_refusal_s: float = 0.0
    """Longest time until a refusal before 80% was spent."""
    overtaken: int = 0
    """Let in after a wait while one waited that had come to the same worker before."""

    @property
    def bound(self) -> float:
        """Return the most that may be billed: a fifth above the budget, or one request where that costs more."""
        return self.cell.budget + max(self.cell.budget / 5, self.dearest)


def cells(*, quick: bool) -> Iterator[Cell]:
    """Yield all combinations, or the hardest."""
    if quick:
        yield from (Cell(0.3, 75.0, "long", 20, 4), Cell(0.5, 40.0, "even", 3.5, 1), Cell(25.0, 75.0, "skewed", 20, 4))
        yield Cell(1.0, 75.0, "skewed", 20, 1)  # the first answers to end are far shorter than the others
        return
    for combination in itertools.product(BUDGETS, PRICES, ANSWERS, RATES, WORKERS):
        yield Cell(*combination)


def run_cell(cell: Cell, requests: int = 300, seed: int = 1) -> CellFigures:
    """Send so many requests, or until the budget is spent."""
    return run_virtually(_run(cell, requests, random.Random(f"{cell}{seed}")))


def _tokens(kind: str, chance: random.Random) -> int:
    if kind == "short":
        return chance.randint(60, 300)
    if kind == "long":
        return 2000
    if kind == "even":
        return chance.randint(60, 2000)
    return min(max(int(chance.lognormvariate(5.5, 0.9)), 60), 2000)


async def _run(cell: Cell, requests: int, chance: random.Random) -> CellFigures:
    shared, figures = SharedAuthority(), CellFigures(cell)
    workers, loop = shared.workers(cell.workers), asyncio.get_running_loop()
    learnt = [LearntUsage(1.0) for _ in workers]
    price = Price(input=cell.price / 5, output=cell.price)
    account = Account("key", "k", "usd", round(cell.budget * NANO), _WINDOW)
    asked = AskedOfTier(_PROMPT, True, _MOST, 1, "")
    worst = round(price.of(_usage(_MOST)) * NANO)
    waiting: dict[int, list[int]] = {number: [] for number in range(cell.workers)}

    async def client(number: int, which: int) -> None:
        worker = workers[which]
        expected, reserved = (price.of(one(asked)) for one in (learnt[which].expected, learnt[which].reserved))
        demand = Demand(0, round(expected * NANO), round(reserved * NANO), worst)
        began = loop.time()
        figures.early += figures.billed < 0.8 * cell.budget
        entered = worker.enter([account], demand)
        if entered is None:
            waiting[which].append(number)

            def look() -> None:
                figures.held += number in waiting[which] and figures.billed < 0.8 * cell.budget

            timer = loop.call_later(_HELD_S, look)
            result = await worker.wait([account], demand)
            waited_s = loop.time() - began
            if isinstance(result, Entered):
                entered = result
                figures.overtaken += waiting[which][0] < number
            elif figures.billed < 0.8 * cell.budget:
                figures.refused_early += 1
                figures.longest_refusal_s = max(figures.longest_refusal_s, waited_s)
            timer.cancel()
            waiting[which].remove(number)
        if entered is None:
            return
        figures.let_in += 1
        tokens = _tokens(cell.answers, chance)
        await asyncio.sleep(0.3 + tokens / 400)
        charged = round(price.of(_usage(tokens)) * NANO)
        figures.billed += charged / NANO
        figures.dearest = max(figures.dearest, charged / NANO)
        learnt[which].learn(UsedByRequest(1, _PROMPT, tokens, 0, 0), _PROMPT, sees_prompt=True)
        worker.settle(entered, charged=charged)
        await asyncio.sleep(chance.uniform(0.01, 0.05))
        shared.authority.charge(account.name, charged)
        worker.written([(account.name, charged)])

    tasks: list[asyncio.Task[None]] = []
    while figures.sent < requests and figures.billed < cell.budget:
        figures.sent += 1
        tasks.append(asyncio.create_task(client(figures.sent, chance.randrange(cell.workers))))
        await asyncio.sleep(chance.expovariate(cell.rate))
    await asyncio.gather(*tasks)
    await _close(workers)
    return figures


async def _close(workers: list[QuotaLeases]) -> None:
    for worker in workers:
        await worker.aclose()


def _usage(tokens: int) -> Usage:
    return Usage(_PROMPT, tokens)
