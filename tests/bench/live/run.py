"""All scenarios, by name, in the order of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tests.bench.live.cancel import cancel
from tests.bench.live.commit import commit, escalated
from tests.bench.live.deadlines import deadlines
from tests.bench.live.hedge import hedge
from tests.bench.live.outage import outage
from tests.bench.live.overload import overload
from tests.bench.live.scenario import Run, Say
from tests.bench.live.strategies import strategies
from tests.bench.live.table import Row
from tests.bench.rig import Cores

SCENARIOS: Mapping[str, Callable[[Run], list[Row]]] = {
    "commit": commit,
    "escalated": escalated,
    "deadlines": deadlines,
    "cancel": cancel,
    "overload": overload,
    "outage": outage,
    "hedge": hedge,
    "strategies": strategies,
}


def play(names: Sequence[str], cores: Cores, quick: bool, say: Say) -> list[Row]:
    """The rows of these scenarios, one after another, each with processes of its own."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        rows += SCENARIOS[name](Run(cores, quick, say))
        say(f"{name}: {time.monotonic() - began:.0f} s")
    return rows
