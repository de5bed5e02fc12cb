"""A limit, the store and several workers in one thread, step by step: what may happen in which order.

A run is a list of steps, each a few small numbers, so any part of it is a run too, and one that fails is shrunk by
leaving steps out. The machine, the authority and the names are the product's own; what is modelled is around them:
messages that are lost, late or without a reply, writers, kills, heirs, clocks, and an operator.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.parts.access.quotas import accounts, authority, machine
from gateway.parts.access.quotas.accounts import Unit

Step = tuple[int, int, int]
STEPS: Final = 40
WORKERS: Final = 3
LIMITS: Final = (100, 40, 40, 250, 0, 10)
"""Budgets in nanodollars; a run begins with one of the first three."""
COSTS: Final = ((15, 15), (2, 12), (13, 14), (5, 64), (8, 30), (20, 40), (1, 250), (3, 3), (0, 1))
"""Expected and most of a request's cost; a run has requests of two kinds."""
PAUSES_S: Final = (0.01, 0.06, 0.12, 0.3, 1.1, 2.0)
LONG_S: Final = (5.0, 16.0)
CLOCK_STEPS_MS: Final = (-90_000, -3000, 5000, 3_600_000)


class Broken(AssertionError):
    """What must always hold does not."""


@dataclass(slots=True)
class Running:
    """A request that was let in."""

    window: int
    expected: int
    worst: int
    cost: int


@dataclass(slots=True)
class Flight:
    """An exchange under way."""

    number: int
    requests: list[tuple[str, machine.LeaseRequest]]
    replies: list[machine.LeaseReply] | None = None


@dataclass(slots=True)
class Charge:
    """A record on its way to the store, and whether the store has it."""

    window: int
    amount: int
    in_store: bool = False


class WorkerModel:
    """One worker, alive or dead."""

    __slots__ = ("charges", "flight", "leases", "limit", "name", "number", "running")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.number = 0
        self.leases: dict[int, machine.AccountLease] = {}
        self.running: list[Running] = []
        self.charges: list[Charge] = []
        self.flight: Flight | None = None


@dataclass(slots=True)
class Parts:
    """The modules under test; a mutant has others."""

    machine: Any = machine
    authority: Any = authority
    accounts: Any = accounts
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        windows = [self.accounts.Window(f"2026-11-{day}@UTC", day * 86400.0, (day + 1) * 86400.0) for day in (26, 27)]
        self.names = tuple(self.accounts.Account("key", "k", "usd", 100, window).name for window in windows)


PRODUCT: Final = Parts()


class World:
    """One run. Of an even seed it is calm: no pause outlasts a lease, heirs come in time, and nothing is too late."""

    def __init__(self, seed: int, parts: Parts = PRODUCT) -> None:
        self.parts = parts
        self.calm = seed % 2 == 0
        self.unit: Unit = {3: "concurrent", 7: "requests"}.get(seed // 2 % 8, "usd")  # type: ignore[assignment]
        self.is_money = self.unit == "usd"
        kinds = (COSTS[seed // 2 % len(COSTS)], COSTS[seed // 18 % len(COSTS)])
        self.costs = kinds if self.is_money else ((1, 1), (1, 1))
        self.limits = LIMITS if self.is_money else (3, 2, 5, 8, 1, 2)
        self.store = parts.authority.Authority()
        self.now = 1000.0
        self.skew_ms = 0
        self.window = 0
        self.limit = self.most_limit = self.limits[seed // 7 % 3]
        self.born = 0
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.dead: list[WorkerModel] = []
        self.strays: list[tuple[str, Flight]] = []
        self.ledger = [0, 0]
        self.times: tuple[list[float], list[float]] = ([], [])
        """When requests were let in, of a limit of requests."""
        self.adjusted_at = float("-inf")
        self.late = [0, 0]
        self.most_worst = [0, 0]
        self.is_lenient = False
        """Whether a worker may have believed in a lease for longer than the store did."""
        self.is_down = False
        self.refusals = (parts.machine.EXHAUSTED, parts.machine.FULL)
        self.let_in = 0
        self.refused = 0

    def _worker(self) -> WorkerModel:
        self.born += 1
        return WorkerModel(f"w{self.born}", self.limit)

    def run(self, steps: Iterable[Step]) -> None:
        """Takes the steps, and then all that is still owed. Raises Broken."""
        for what, which, how in steps:
            _EVENTS[what % len(_EVENTS)](self, self.workers[which % WORKERS], how)
        self.drain()

    # What a worker does.

    def arrive(self, worker: WorkerModel, how: int) -> None:
        expected, worst = self.costs[how % 2]
        lease = self._lease(worker, self.window)
        self.most_worst[self.window] = max(worst, self.most_worst[self.window])
        if self._let_in(worker, self.window, expected, worst, how) or len(lease.waiting) == 3:
            return
        if self._verdict(worker, self.window, expected, worst) not in self.refusals:
            lease.waiting.append(self.parts.machine.WaitingRequest(expected, worst))

    def retry(self, worker: WorkerModel, how: int) -> None:
        for window, lease in worker.leases.items():
            for one in list(lease.waiting):
                expected, worst = one.expected, one.needed
                verdict = self._verdict(worker, window, expected, worst)
                if verdict in self.refusals or self._let_in(worker, window, expected, worst, how):
                    lease.waiting.remove(one)

    def finish(self, worker: WorkerModel, how: int) -> None:
        if worker.running:
            done = worker.running.pop(how % len(worker.running))
            worker.leases[done.window].settle(done.expected, done.worst, done.cost)
            if self.is_money:
                worker.charges.append(Charge(done.window, done.cost))

    def send(self, worker: WorkerModel, how: int) -> None:
        if worker.flight is None and worker.leases:
            worker.number += 1
            requests = [(self.parts.names[window], lease.send(self.now)) for window, lease in worker.leases.items()]
            worker.flight = Flight(worker.number, requests)

    def execute(self, worker: WorkerModel, how: int) -> None:
        flight = worker.flight
        if flight is not None and flight.replies is None and not self.is_down:
            flight.replies = self._executed(worker.name, flight)

    def hear(self, worker: WorkerModel, how: int) -> None:
        flight = worker.flight
        if flight is not None and flight.replies is not None:
            for lease, reply in zip(list(worker.leases.values()), flight.replies, strict=False):
                lease.heard(reply, self.now)
            worker.flight = None

    def exchange(self, worker: WorkerModel, how: int) -> None:
        self.send(worker, how)
        self.execute(worker, how)
        self.hear(worker, how)

    def lose(self, worker: WorkerModel, how: int) -> None:
        """No reply comes in time: the exchange may be executed later all the same."""
        flight = worker.flight
        if flight is not None:
            for lease in list(worker.leases.values())[: len(flight.requests)]:
                lease.failed(lasting=not self.calm and how % 4 == 1)
            self.is_lenient |= not self.calm and how % 4 == 1
            if flight.replies is None:
                self.strays.append((worker.name, flight))
            worker.flight = None

    def stray(self, worker: WorkerModel, how: int) -> None:
        if self.strays and not self.is_down:
            self._executed(*self.strays.pop(how % len(self.strays)))

    def write(self, worker: WorkerModel, how: int) -> None:
        """The script that appends the worker's next record adds its charge; its reply comes later."""
        charge = next((one for one in worker.charges if not one.in_store), None)
        if charge is not None and not self.is_down:
            self._charge(charge)

    def confirm(self, worker: WorkerModel, how: int) -> None:
        if worker.charges and worker.charges[0].in_store:
            charge = worker.charges.pop(0)
            worker.leases[charge.window].written(charge.amount)

    def learn(self, worker: WorkerModel, how: int) -> None:
        worker.limit = self.limit
        for lease in worker.leases.values():
            lease.change_limit(self.limit)

    # What happens to it.

    def kill(self, worker: WorkerModel, how: int) -> None:
        """It dies; its journal says what ran and what was not written, and another takes its place."""
        if worker.flight is not None and worker.flight.replies is None:
            self.strays.append((worker.name, worker.flight))
        if self.is_money:
            worker.charges += [Charge(one.window, one.cost) for one in worker.running]
        for window, lease in worker.leases.items():
            self.late[window] += 0 if self.is_money else lease.unwritten  # it has told nobody of these
        worker.running = []
        self.dead.append(worker)
        self.workers[self.workers.index(worker)] = self._worker()

    def inherit(self, worker: WorkerModel, how: int) -> None:
        if self.dead and not self.is_down:
            self._settle_dead(self.dead.pop(how % len(self.dead)))

    def pause(self, worker: WorkerModel, how: int) -> None:
        self._pass(PAUSES_S[how % len(PAUSES_S)])

    def stall(self, worker: WorkerModel, how: int) -> None:
        """A worker stands still for longer than its leases last, while others go on; or all of them do."""
        if not self.calm:
            for _ in range(8 if how % 2 else 0):
                self.now += 2.0
                for other in self.workers:
                    if other is not worker:
                        self.exchange(other, how)
            self._pass(LONG_S[how % len(LONG_S)] if not how % 2 else 0.0)

    def step_clock(self, worker: WorkerModel, how: int) -> None:
        step_ms = CLOCK_STEPS_MS[how % len(CLOCK_STEPS_MS)]
        self.skew_ms += step_ms
        self.is_lenient |= step_ms > 0 and not (self.calm and self.is_money)

    def toggle_store(self, worker: WorkerModel, how: int) -> None:
        self.is_down = not self.is_down
        if self.calm and not self.is_down:
            self._pass(0.25)  # it is asked again at once

    def adjust(self, worker: WorkerModel, how: int) -> None:
        """An operator sets the budget back or adds to it, by a record."""
        if not self.is_down and self.is_money:
            amount = min(-self._spent(self.window), 0) if how % 2 else -10
            self._charge(Charge(self.window, amount))
            self.times: tuple[list[float], list[float]] = ([], [])
        """When requests were let in, of a limit of requests."""
        self.adjusted_at = self.now

    def change_limit(self, worker: WorkerModel, how: int) -> None:
        self.limit = self.limits[how % len(self.limits)]
        self.most_limit = max(self.limit, self.most_limit)

    def next_window(self, worker: WorkerModel, how: int) -> None:
        self.window = 1 - self.window if how % 4 == 0 else 1  # a clock may go back, too

    # What must hold.

    def _let_in(self, worker: WorkerModel, window: int, expected: int, worst: int, how: int) -> bool:
        if self._verdict(worker, window, expected, worst) != self.parts.machine.GRANTED:
            return False
        worker.leases[window].take(expected, worst, self.now)
        self.let_in += 1
        if self.unit == "requests":
            worker.leases[window].settle(1, 1, 1)
            self.times[window].append(self.now)
            could_be = sum(self.now - 60 < at for at in self.times[window])
        else:
            worker.running.append(Running(window, expected, worst, (0, worst, expected, worst // 2)[how // 8 % 4]))
            could_be = self.real(window) + sum(
                one.worst for other in self.workers for one in other.running if one.window == window
            )
        one_lease = max(self.most_limit // 10, self.most_worst[window]) if self.is_money else 0
        allowed = self.most_limit + one_lease + self.late[window]
        if could_be > allowed and (self.is_money or not self.is_lenient):
            raise Broken(f"{could_be} may come to be used of {self.most_limit} and one lease, {allowed}")
        return True

    def _verdict(self, worker: WorkerModel, window: int, expected: int, worst: int) -> int:
        verdict: int = self._lease(worker, window).check(expected, worst, self.now)
        if verdict == self.parts.machine.EXHAUSTED:
            self.refused += 1
            if self.real(window) < worker.limit and self.now - self.adjusted_at > 3.0:
                raise Broken(f"called exhausted at {self.real(window)} of {worker.limit}")
        return verdict

    def real(self, window: int) -> int:
        """Returns what is spent, with what is settled and not written, of the living and the dead."""
        return self.ledger[window] + sum(
            charge.amount
            for worker in (*self.workers, *self.dead)
            for charge in worker.charges
            if charge.window == window and not charge.in_store
        )

    def drain(self) -> None:
        """Lets everything come to its end, and checks what is left."""
        self.is_down = False
        while self.dead:
            self._settle_dead(self.dead.pop())
        for _ in range(80):
            for worker in self.workers:
                self.lose(worker, 0)
                while worker.running:
                    self.finish(worker, 0)
                while worker.charges:
                    self.write(worker, 0)
                    self.confirm(worker, 0)
                self.exchange(worker, 0)
                self.retry(worker, 0)
            while self.strays:
                self.stray(self.workers[0], 0)
            self._pass(0.3)
            if all(lease.is_done for worker in self.workers for lease in worker.leases.values()):
                break
        else:
            raise Broken("something is held, or waits, without an end")
        self._check_end()

    def _check_end(self) -> None:
        for window in range(len(self.parts.names)):
            if self._spent(window) != self.ledger[window]:
                raise Broken(f"the counter is at {self._spent(window)}, its records come to {self.ledger[window]}")
        fresh = self.workers[0] = self._worker()
        for window in range(len(self.parts.names)):
            self._lease(fresh, window)
        for _ in range(9):  # leases end in time in which something is exchanged
            self._pass(2.0)
            self.exchange(fresh, 0)
        worst = 1000 if self.is_money else 1
        if self.unit == "requests":
            self.now += 61.0
        for window, name in enumerate(self.parts.names):
            lease = self._lease(fresh, window)
            lease.waiting.append(self.parts.machine.WaitingRequest(1, worst))
            self.exchange(fresh, 0)
            lease.waiting.clear()
            alive = [worker.name for worker in self.workers]
            leases = self.store.accounts[name].leases.items()
            left = [one for one, lease in leases if one != fresh.name and (lease.amount or one not in alive)]
            if left:
                raise Broken(f"leases of {left} outlast their deadline")
            verdict, spent = lease.check(1, worst, self.now), self._spent(window)
            if (verdict == self.parts.machine.GRANTED) != (spent < self.limit):
                raise Broken(f"with {spent} of {self.limit} spent and nothing held, the verdict is {verdict}")

    # The store.

    def _lease(self, worker: WorkerModel, window: int) -> machine.AccountLease:
        lease: machine.AccountLease | None = worker.leases.get(window)
        if lease is None:
            lease = worker.leases[window] = self.parts.machine.AccountLease(self.unit, worker.limit)
        return lease

    def _spent(self, window: int) -> int:
        account = self.store.accounts.get(self.parts.names[window])
        return 0 if account is None else int(account.spent)

    def _charge(self, charge: Charge) -> None:
        charge.in_store = True
        self.ledger[charge.window] += charge.amount
        self.store.charge(self.parts.names[charge.window], charge.amount)

    def _executed(self, worker: str, flight: Flight) -> list[machine.LeaseReply]:
        now = int(self.now * 1000) + self.skew_ms
        if not self.calm:
            for window, name in enumerate(self.parts.names):
                if name in dict(flight.requests) and (account := self.store.accounts.get(name)):
                    lapsed = {worker: lease.amount for worker, lease in account.leases.items() if lease.until <= now}
                    self.late[window] += sum(self._too_late(window, *item) for item in lapsed.items())
        replies: list[machine.LeaseReply] = self.store.exchange(worker, flight.number, flight.requests, now)
        return replies

    def _too_late(self, window: int, name: str, amount: int) -> int:
        """Returns what a worker may yet spend of a lease that has just ended in the store."""
        owner = next((one for one in (*self.workers, *self.dead) if one.name == name), None)
        if owner is None or self.is_lenient:
            return amount if owner is not None else 0
        running = sum(one.worst for one in owner.running if one.window == window)
        if not self.is_money and window in owner.leases:
            running += owner.leases[window].unwritten
        return running + sum(one.amount for one in owner.charges if one.window == window and not one.in_store)

    def _settle_dead(self, dead: WorkerModel) -> None:
        for charge in dead.charges:
            if not charge.in_store:
                self._charge(charge)
        if not self.calm:  # its host is gone for good, and its leases end by their deadline
            return
        nothing = [
            (self.parts.names[window], self.parts.machine.AccountLease(self.unit, lease.limit).send(0.0))
            for window, lease in dead.leases.items()
        ]
        self._executed(dead.name, Flight(2**53 - 1, nothing))

    def _pass(self, seconds: float) -> None:
        """Lets time pass; in a calm run no worker and no heir misses a deadline."""
        self.now += seconds
        if self.calm and seconds > 0.2:
            for worker in self.workers:
                if worker.flight is not None and not self.is_down:
                    self.execute(worker, 0)
                    self.hear(worker, 0)
                self.exchange(worker, 0)


Event = Callable[[World, WorkerModel, int], None]
_ALWAYS: Final[tuple[Event, ...]] = (World.arrive, World.arrive, World.exchange, World.retry)
_GROUPS: Final[tuple[tuple[Event, ...], ...]] = (
    (World.finish, World.write, World.confirm), (World.finish,), (World.send, World.execute, World.hear),
    (World.send, World.lose, World.stray), (World.kill, World.inherit), (World.kill,), (World.pause,), (World.stall,),
    (World.pause, World.step_clock), (World.toggle_store, World.lose), (World.adjust,),
    (World.change_limit, World.learn), (World.next_window,),
)  # fmt: skip
_EVENTS: Final = tuple(dict.fromkeys((*_ALWAYS, *(event for group in _GROUPS for event in group))))


def steps_of(seed: int) -> list[Step]:
    """Returns the steps of a run: of few kinds, which differ by seed, so that rare kinds come often in some runs."""
    chance = random.Random(seed)
    groups = chance.sample(_GROUPS, chance.randint(2, 5))
    kinds = [_EVENTS.index(event) for event in (*_ALWAYS, *(event for group in groups for event in group))]
    figures = chance.randbytes(3 * STEPS)
    return [(kinds[what % len(kinds)], which, how) for what, which, how in zip(*[iter(figures)] * 3, strict=True)]


def broken_by(steps: list[Step], seed: int, parts: Parts = PRODUCT) -> str:
    """Returns what a run breaks; empty if nothing. Runs of even seeds are calm."""
    try:
        World(seed, parts).run(steps)
    except Broken as error:
        return str(error)
    return ""


def explore(seeds: Iterable[int], parts: Parts = PRODUCT) -> str:
    """Runs the seeds; returns the first counterexample, shrunk, with its seed, or an empty string."""
    for seed in seeds:
        steps = steps_of(seed)
        if broken_by(steps, seed, parts):
            steps = _shrunk(steps, seed, parts)
            told = "\n".join(
                f"  {_EVENTS[what % len(_EVENTS)].__name__}(worker {which % WORKERS}, {how})"
                for what, which, how in steps
            )
            return f"seed {seed}: {broken_by(steps, seed, parts)}\n{told}"
    return ""


def _shrunk(steps: list[Step], seed: int, parts: Parts) -> list[Step]:
    """Returns a part of the steps that breaks something, of which no step can be left out."""
    size = len(steps) // 2
    while size:
        first = 0
        while first < len(steps):
            fewer = steps[:first] + steps[first + size :]
            if broken_by(fewer, seed, parts):
                steps = fewer
            else:
                first += size
        size //= 2
    return steps


def mutant(module: str, old: str, new: str) -> Parts:
    """Returns the parts with one place of one module's source changed."""
    source = Path(getattr(PRODUCT, module).__file__).read_text("utf-8")
    if source.count(old) != 1:
        raise ValueError(f"{module} has {source.count(old)} times: {old}")
    changed = sys.modules[f"mutant_{module}"] = types.ModuleType(f"mutant_{module}")  # dataclasses look it up there
    exec(compile(source.replace(old, new), f"mutant of {module}", "exec"), changed.__dict__)
    return Parts(**{module: changed})
