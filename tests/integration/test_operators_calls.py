"""What the requests of one of several tenants make the operator pay for is at most its share of the day's caps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.parts.measures.daily_budget import DailyBudget
from tests.parts.agents.test_shorter_input import conversation
from tests.parts.rollout.test_shadow import roll
from tests.support.app import InProcess, in_process
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import eventually

CAP = 2.0
POLICY = """
surface: chat
slo: {deadline: 20s}
holdout: 0%
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
input: {keep: 3, history: {window: 4000, at: 50%}}
escalate: {when: {confidence_below: 0.5}, no_signal: accept, verify: [judge], judge: {backend: judge, within: 5s}}
learn: {judge: judge, share: 100%}
"""
PURPOSES = ("verify:chat", "chat", "summary:chat", "shadow:chat")
TENANTS = ("acme", "gamma")


@pytest.fixture
async def app(tmp_path: Path, store: LocalStore) -> AsyncIterator[InProcess]:
    """A gateway of two tenants, whose requests the operator has judged, compared, shadowed and summarised."""
    tenants: dict[str, Any] = {}
    for name in TENANTS:
        (tmp_path / f"{name}.key").write_text(f"key-of-the-tenant-{name}")
        (tmp_path / f"{name}.key").chmod(0o600)
        tenants[name] = {"key_file": f"{name}.key"}
    with ExitStack() as stack:
        upstreams = {name: stack.enter_context(Upstream()) for name in ("local", "hosted", "judge")}
        upstreams["judge"].default = Reply(text="yes", logprob=-0.1)
        tiers = [
            {
                "name": name,
                "backends": [
                    {
                        "name": name, "base_url": upstream.url, "model": name, "price": {"input": 1.0, "output": 4.0},
                        "capabilities": ["tools", "json"], "logprobs": name == "judge",
                    }
                ],
            }
            for name, upstream in upstreams.items()
        ]  # fmt: skip
        settings = {"tiers": tiers, "tenants": tenants}
        async with in_process(
            tmp_path, upstreams["local"].url, store_url=store.url, settings=settings, policies={"chat": POLICY}
        ) as running:
            yield running


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_a_tenant_whose_share_is_spent_leaves_the_others_theirs(
    app: InProcess, store: LocalStore, purpose: str
) -> None:
    """Half of the cap is spent by one: nothing more is called for it, and the other's requests are served as before."""
    budget = DailyBudget(app.steps.store)
    if purpose == "shadow:chat":
        roll(app, 1.0, cap=CAP)
    with redis.Redis.from_url(store.url) as client:
        for field in (budget._field(purpose), budget._field(purpose, "acme")):
            client.hset("tierline:learn:spent", field, round(CAP / 2 * 1e9))
        more = conversation("chat") if purpose == "summary:chat" else {}
        for tenant in TENANTS:
            headers = {"authorization": f"Bearer key-of-the-tenant-{tenant}", "x-tierline-cache": "no-store, no-cache"}
            assert (await app.ask("hello", headers, **more)).status_code == 200

        def sums() -> list[int]:
            fields = [budget._field(purpose, tenant) for tenant in ("", *TENANTS)]
            return [int(amount or 0) for amount in client.hmget("tierline:learn:spent", fields)]

        def is_settled() -> bool:
            day, acme, gamma = sums()
            return gamma > 0 and day == acme + gamma

        await eventually(is_settled, 20)
        assert sums()[1] == round(CAP / 2 * 1e9)
