"""What every scenario is given, and what several of them do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.live.behaviour import Behaviour
from tests.bench.live.client import Answer, Ask, Clients, open_loop
from tests.bench.live.stage import Backend
from tests.bench.live.upstream import Record
from tests.bench.rig import Cores

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """How a scenario is to be played; `say` shows a line of progress."""

    cores: Cores
    quick: bool
    say: Say

    def seconds(self, full: float, quick: float) -> float:
        """A length of time, by the kind of run."""
        return quick if self.quick else full


def streams(model: str, times: Iterable[float], first: int = 1) -> list[tuple[float, Ask]]:
    """One stream at each time, each with a prompt of its own."""
    return [(at, Ask(first + n, model, first + n)) for n, at in enumerate(times)]


def paired(answers: Iterable[Answer], calls: Mapping[int, Record]) -> list[tuple[Answer, Record]]:
    """Each whole answer with the call that has its number, where there is one that was marked."""
    return [
        (answer, call)
        for answer in answers
        if answer.ok and (call := calls.get(answer.ask.number)) is not None and call.marked_ns
    ]


async def warm_up(clients: Clients, model: str, behaviour: Behaviour, backends: Sequence[Backend]) -> None:
    """Has every path been gone once, connections opened and latencies known, and forgets it all."""
    for backend in backends:
        await backend.behave(behaviour)
    await open_loop(clients, [(n / 100, Ask(n + 1, model, n + 1)) for n in range(100)])
    await asyncio.sleep(0.1)
    for backend in backends:
        await backend.forget()


def ms(ns: int) -> float:
    """Nanoseconds, in milliseconds."""
    return ns / 1e6


def lag_ms(answers: Iterable[Answer]) -> list[float]:
    """How late each request left: what the client itself could not keep up with."""
    return [ms(answer.sent_ns - answer.due_ns) for answer in answers if answer.due_ns]


def share(found: Iterable[bool]) -> float:
    """The share that is true; nan of nothing."""
    all_found = list(found)
    return sum(all_found) / len(all_found) if all_found else float("nan")
