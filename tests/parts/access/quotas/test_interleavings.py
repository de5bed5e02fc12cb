"""Whatever happens in whatever order, limits and budgets hold: what `tests.support.quota_world` explores."""

from __future__ import annotations

import pytest

from tests.support.quota_world import World, broken_by, explore, mutant, steps_of

MUTANTS = {
    "check, then add": ("machine", "needed <= self.lease - self.under - self.unwritten and", ""),
    "a lease that nobody remembers": ("authority", "others + lease.amount", "0"),
    "a lease without a deadline": ("authority", "if lease.until <= now:", "if False:"),
    "a request settled twice": ("machine", "self.under -= needed\n", "self.under -= 2 * needed\n"),
    "a window that is not in the name": ("accounts", "/{self.unit}{rest}", "/{self.unit}"),
    "what is settled and not written is free": ("machine", "self.unwritten += used", "pass"),
    "a late exchange that counts": ("authority", "number <= mine.number", "False"),
    "what others hold is called spent": ("machine", "return HELD if", "return EXHAUSTED if"),
    "a budget's rest is shut to a dear request": ("authority", "max(one_lease, request.least)", "one_lease"),
    "a lease that its deadline does not end": ("machine", " and now < self._until:", ":"),
    "a limit that is learnt late": ("machine", "if self.spent >= self.limit:", "if self.spent >= 100:"),
    "requests that are told to nobody": ("authority", "now, max(added, 0))", "now)"),
    "a minute of a second": ("authority", "60_000 // SLOT_MS", "1_000 // SLOT_MS"),
    "slots that are free while they are used": (
        "machine",
        "self.under += needed",
        "self.under += needed if self.money else 0",
    ),
}


@pytest.mark.parametrize("part", range(4))
def test_no_order_of_events_breaks_a_budget(part: int) -> None:
    """Limits hold, money within one lease; counters equal their records; nothing outlasts its deadline or locks out."""
    assert explore(range(part * 1250, (part + 1) * 1250)) == ""


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, 5))
def test_no_order_of_many_events_breaks_a_budget(part: int) -> None:
    """So it is in 20,000 more; a million take `python -m tests.bench.quotas --interleavings 1000000`."""
    assert explore(range(part * 5_000, (part + 1) * 5_000)) == ""


@pytest.mark.parametrize("mutation", MUTANTS)
def test_a_machine_that_is_wrong_is_found_out(mutation: str) -> None:
    """The runs that find nothing would find this, and the counterexample is short."""
    module, old, new = MUTANTS[mutation]
    found = explore(range(2000), mutant(module, old, new))
    assert found.startswith("seed "), f"not found: {mutation}"
    assert found.count("\n") <= 14, found


def test_runs_let_in_and_refuse() -> None:
    """The runs explore something: most let requests in, and some refuse them."""
    let_in = refused = 0
    for seed in range(100):
        world = World(seed)
        world.run(steps_of(seed))
        let_in, refused = let_in + world.let_in, refused + world.refused
    assert let_in > 200
    assert refused > 10


def test_a_run_of_nothing_breaks_nothing() -> None:
    """A counterexample is the doing of its steps."""
    assert broken_by([], 0) == broken_by([], 1) == ""
