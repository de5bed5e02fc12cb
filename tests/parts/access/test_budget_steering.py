"""A request whose budget is nearly spent is held back: as long as its policy says, and no longer than need be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.store.base import NoStore
from gateway.parts.access.admission import Holding, QuotaAdmission
from gateway.parts.access.quotas.accounts import Account, OwnerAccounts
from gateway.parts.access.quotas.leases import QuotaLeases
from gateway.parts.access.quotas.terms import Terms
from gateway.request.context import Client
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from tests.parts.access.test_steering import policy

CENT = 10_000_000


@pytest.fixture
async def leases() -> AsyncIterator[QuotaLeases]:
    made = QuotaLeases(NoStore())
    yield made
    await made.aclose()


def budget() -> Account:
    terms = Terms.model_validate({"budgets": [{"usd": 1, "per": "total"}]})
    [account] = OwnerAccounts("team", "web", terms).money(time.time())
    return account


async def held_back(leases: QuotaLeases, account: Account, waiting: int = 0, **more: Any) -> tuple[float, Trace]:
    """Return how many seconds a request of a surface of batch waits, and its trace."""
    trace, began = Trace(names.REQUEST), time.monotonic()
    rules = policy({"wait": "3s"}, load={"priority": "batch", "max_waiting": 1}, **more)
    request = SimpleNamespace(policy=rules, budget_s=lambda: 10.0, client=Client(None, 1.0), trace=trace)
    hold = Holding(
        cast(QuotaAdmission, SimpleNamespace(leases=leases, waiting={"chat": waiting})),
        trace,
        Ledger("r"),
        (),
        (account,),
    )
    await hold.before_routing(cast(Any, request))
    return time.monotonic() - began, trace


async def test_it_goes_on_as_soon_as_there_is_more_money(leases: QuotaLeases) -> None:
    """A top-up ends the wait within a second; the hop says that it waited."""
    account = budget()
    leases.adjusted(account.name, 95 * CENT)
    asyncio.get_running_loop().call_later(0.3, leases.adjusted, account.name, -50 * CENT)
    waited_s, trace = await held_back(leases, account)
    assert 0.3 <= waited_s < 2.0
    assert [hop.name for hop in trace.hops[1:]] == [names.BUDGET_WAIT]


async def test_a_budget_that_is_not_known_is_looked_up_and_not_waited_for(leases: QuotaLeases) -> None:
    """Below the share a request goes on at once, and the share is known then."""
    account = budget()
    leases.adjusted(account.name, 50 * CENT)
    waited_s, trace = await held_back(leases, account)
    assert waited_s < 0.3 and len(trace.hops) == 1
    assert leases.tightest([account]) == (0.5, account)


async def test_no_more_wait_than_the_policy_lets(leases: QuotaLeases) -> None:
    """Beyond `load.max_waiting` requests are steered, and not held back."""
    account = budget()
    leases.adjusted(account.name, 95 * CENT)
    waited_s, _ = await held_back(leases, account, waiting=1)
    assert waited_s < 0.3
