"""Usage, counters and alerts over two real gateways on one store: one is killed, and everything still adds up."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from gateway.cli.main import main
from tests.parts.access.quotas.test_alerts import SECRET, Receiver, receiver
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import local_store
from tests.support.upstream import Upstream
from tests.support.wait import SLACK, until

__all__ = ["receiver"]

BUDGET = {"usd": 0.4, "per": "month", "zone": "Europe/Berlin"}
USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
"""A call costs two cents, a twentieth of the budget."""


def call(gateway: Gateway) -> int:
    headers = {"authorization": "Bearer key-of-acme", "x-tierline-cache": "no-cache, no-store"}
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    return httpx2.post(gateway.url + "/chat/completions", json=body, headers=headers, timeout=30).status_code


@contextlib.contextmanager
def world(folder: Path, budget: dict[str, Any], **alerts: Any) -> Iterator[str]:
    """A store, whose URL is yielded, and in the folder the config of gateways whose one tenant has this budget."""
    with Upstream() as upstream, local_store() as store:
        upstream.default = upstream.default.__class__(usage=USAGE)
        (folder / "acme.key").write_text("key-of-acme")
        (folder / "acme.key").chmod(0o600)
        tenants = {"acme": {"key_file": "acme.key", "limits": {"budgets": [budget]}}}
        made = config(upstream.url, None, store.url, tenants=tenants, access={"public_metrics": True})
        backend = {"base_url": upstream.url, "model": "m", "price": {"input": 100, "output": 100}}
        made |= {"alerts": alerts, "tiers": [{"name": "local", "backends": [backend]}]}
        write_deployment(folder, made, {"chat": CHAT.replace("[local, hosted]", "[local]")})
        yield store.url


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """The exit code and the JSON of a command."""
    code = main([*words, "--json"])
    return code, orjson.loads(capsys.readouterr().out)


@pytest.mark.long
def test_counters_records_and_alerts_agree_though_a_gateway_dies(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each share is told of once, by whichever gateway lives; what the store has of the killed one's records is in the
    counter, and nothing else."""
    alerts = {"webhook": receiver.url, "secret_env": "HOOK_SECRET", "shares": ["25%", "45%"]}
    with world(tmp_path, BUDGET, **alerts) as url:
        env = environment(HOOK_SECRET=SECRET)
        with running(tmp_path, env, forked=True) as first, running(tmp_path, env, forked=True) as second:
            assert [call(one) for one in (first, second, first, second, first)] == [200] * 5
            until(lambda: receiver.shares() == [0.25], 15, "the first alert")
            first.process.send_signal(signal.SIGKILL)
            assert [call(second) for _ in range(5)] == [200] * 5
            until(lambda: receiver.shares() == [0.25, 0.45], 15, "the other alert")
            assert (
                'tierline_budget_share{owner="tenant"} 0.5' in httpx2.get(f"{second.origin}/metrics", timeout=30).text
            )
            until(
                lambda: said(capsys, "usage", "--by", "tenant", "--store", url)[1]["total"]["requests"] == 10,
                10,
                "all records",
            )
            code, found = said(capsys, "usage", "--by", "tenant", "--zone", "Europe/Berlin", "--store", url)
            assert code == 0 and [(line["tenant"], line["charged_usd"]) for line in found["lines"]] == [("acme", 0.2)]
            assert said(capsys, "usage", "--check", "--store", url) == (
                0,
                {"accounts": 1, "differing": [], "notes": []},
            )


@pytest.mark.long
def test_a_top_up_opens_a_spent_budget_within_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a gateway that has refused for it; and counter and records agree before and after."""
    with world(tmp_path, {"usd": 0.03, "per": "day"}) as url, running(tmp_path, environment(), forked=True) as gateway:
        statuses = [call(gateway) for _ in range(2)]
        until(lambda: said(capsys, "budgets", "show", "--store", url)[1]["budgets"][0]["spent_usd"] == 0.04, 10, "both")
        until(lambda: call(gateway) == 429, 10, "the refusal")
        config_file = str(tmp_path / "tierline.yaml")
        words = ("budgets", "topup", "tenant:acme", "1", "-m", "so", "--config", config_file, "--store", url)
        code, found = said(capsys, *words)
        topped = time.monotonic()
        assert (code, found["budgets"][0]["spent_usd"], statuses) == (0, -0.96, [200, 200])
        until(lambda: call(gateway) == 200, 5, "a request that is let in")
        assert time.monotonic() - topped < SLACK
        until(lambda: said(capsys, "usage", "--check", "--store", url)[0] == 0, 10, "the record of it")
