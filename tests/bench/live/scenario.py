"""What every scenario is given, and what several of them do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.live.arrivals import open_loop
from tests.bench.live.behaviour import Behaviour
from tests.bench.live.client import Answer, Ask, Clients
from tests.bench.live.stage import Backend
from tests.bench.live.upstream import Record
from tests.bench.rig import Cores

_RECOVERED = 0.99
_STEP_S = 0.1

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
    await open_loop(clients, [(n / 100, Ask(n + 1, model, n + 1)) for n in range(50)])
    await asyncio.sleep(0.1)
    for backend in backends:
        await backend.forget()


def ms(ns: int) -> float:
    """Nanoseconds, in milliseconds."""
    return ns / 1e6


def lag_ms(answers: Iterable[Answer]) -> list[float]:
    """How late each request left: what the client itself could not keep up with."""
    return [ms(answer.sent_ns - answer.due_ns) for answer in answers if answer.due_ns]


def recovery_s(answers: Iterable[Answer], since_ns: int, good: Callable[[Answer], bool]) -> float:
    """From `since_ns` until 99% of what is asked in any second from then on is answered well; nan if that never comes.

    The last second that can be judged is the one before the last request.
    """
    asked = sorted((answer for answer in answers if answer.sent_ns >= since_ns), key=lambda answer: answer.sent_ns)
    recovered = math.nan
    for step in range(int((asked[-1].sent_ns - since_ns) / 1e9 / _STEP_S) if asked else 0):
        begin = since_ns + int(step * _STEP_S * 1e9)
        second = [good(answer) for answer in asked if begin <= answer.sent_ns < begin + 1_000_000_000]
        if share(second) < _RECOVERED:
            recovered = math.nan
        elif second and math.isnan(recovered):
            recovered = step * _STEP_S
    return recovered


def share(found: Iterable[bool]) -> float:
    """The share that is true; nan of nothing."""
    all_found = list(found)
    return sum(all_found) / len(all_found) if all_found else float("nan")
