"""Requests that choose their policy's version (`x-tierline-try`): who may, what there is, and what they are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.upstream import Upstream
from tests.support.wait import SLACK

TENANTS = {"acme": {"key_env": "ACME_KEY"}, "lab": {"key_env": "LAB_KEY", "may_try": True}}
KEYS = {"ACME_KEY": "acme-key", "LAB_KEY": "lab-key-1"}


async def test_tenants_need_leave_to_choose_a_version(upstream: Upstream, tmp_path: Path) -> None:
    async with in_process(tmp_path, upstream.url, settings={"tenants": TENANTS}, env=KEYS) as app:
        refused = await app.ask(headers={"x-tierline-try": "live", "authorization": "Bearer acme-key"})
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "try_not_allowed"
        assert "may_try" in refused.json()["error"]["message"] and not upstream.requests
        served = await app.ask(headers={"x-tierline-try": "live", "authorization": "Bearer lab-key-1"})
        assert served.status_code == 200
        assert (await app.ask(headers={"authorization": "Bearer acme-key"})).status_code == 200


async def test_without_tenants_anybody_may_choose_what_there_is(upstream: Upstream, tmp_path: Path) -> None:
    """Files keep the version in force alone, and what is not there is said; a tier may be pinned at the same time."""
    async with in_process(tmp_path, upstream.url) as app:
        version = app.steps.policies.current.by_surface["chat"].version
        for wanted in ("live", " LIVE", version[:7], version):
            assert (await app.ask(headers={"x-tierline-try": wanted})).status_code == 200
        pinned = await app.ask(model="tier:local", headers={"x-tierline-try": "live", "x-tierline-surface": "chat"})
        assert pinned.status_code == 200 and pinned.headers["x-tierline-tier"] == "local"
        for wanted, status, code, words in (
            ("candidate", 404, "version_not_found", "no candidate now"),
            ("0123abcd", 404, "version_not_found", "source: store"),
            ("yesterday", 400, "unsupported_value", "hex digits"),
            ("", 400, "unsupported_value", "hex digits"),
        ):
            error = await app.ask(headers={"x-tierline-try": wanted})
            assert error.status_code == status and words in error.json()["error"]["message"], wanted
            assert (error.json()["error"]["code"], error.json()["error"]["param"]) == (code, "x-tierline-try")


async def test_a_try_is_held_against_no_objective_and_held_out_by_no_chance(upstream: Upstream, tmp_path: Path) -> None:
    """Its cost is counted in /metrics; goodput, savings and the holdout know nothing of it."""
    policy = CHAT.replace("holdout: 0%  # chance has no place in a test", "holdout: 100%")
    policies = {"chat": policy}
    async with in_process(tmp_path, upstream.url, upstream.url, policies=policies) as app:
        assert (await app.ask()).headers["x-tierline-tier"] == "hosted"
        before = await _counted(app, 1)
        tried = await app.ask("another", headers={"x-tierline-try": "live"})
        assert tried.headers["x-tierline-tier"] == "local"
        after = await _counted(app, 2)
        for name in ("tierline_goodput_requests_total", "tierline_counterfactual_usd_total"):
            assert 0 < _sum(name, before) == _sum(name, after)


async def _counted(app: InProcess, requests: int) -> str:
    """The metrics, once they count so many requests."""
    async with asyncio.timeout(5 * SLACK):
        while True:
            metrics: str = (await app.get("/metrics")).text
            if _sum("tierline_requests_total", metrics) == requests:
                return metrics
            await asyncio.sleep(0.02)


def _sum(name: str, metrics: str) -> float:
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"{name}{{"))
