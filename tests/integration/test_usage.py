"""Usage, counters and alerts over two real gateways on one store: one is killed, and everything still adds up."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from gateway.cli.main import main
from tests.gateway.quotas.test_alerts import SECRET, Receiver, receiver
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import local_store
from tests.support.upstream import Upstream
from tests.support.wait import until

__all__ = ["receiver"]

BUDGET = {"usd": 0.4, "per": "month", "zone": "Europe/Berlin"}
USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
"""A call costs two cents, a twentieth of the budget."""


def call(gateway: Gateway) -> int:
    headers = {"authorization": "Bearer key-of-acme", "x-tierline-cache": "no-cache, no-store"}
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    return httpx2.post(gateway.url + "/chat/completions", json=body, headers=headers, timeout=30).status_code


@pytest.mark.long
def test_counters_records_and_alerts_agree_though_a_gateway_dies(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each share is told of once, by whichever gateway lives; what the store has of the killed one's records is in the
    counter, and nothing else."""

    def usage(*words: str) -> tuple[int, Any]:
        code = main(["usage", "--store", store.url, "--json", *words])
        return code, orjson.loads(capsys.readouterr().out)

    with Upstream() as upstream, local_store() as store:
        upstream.default = upstream.default.__class__(usage=USAGE)
        (tmp_path / "acme.key").write_text("key-of-acme")
        (tmp_path / "acme.key").chmod(0o600)
        tenants = {"acme": {"key_file": "acme.key", "limits": {"budgets": [BUDGET]}}}
        made = config(upstream.url, None, store.url, tenants=tenants, access={"public_metrics": True})
        made["alerts"] = {"webhook": receiver.url, "secret_env": "HOOK_SECRET", "shares": ["25%", "45%"]}
        backend = {"base_url": upstream.url, "model": "m", "price": {"input": 100, "output": 100}}
        made["tiers"] = [{"name": "local", "backends": [backend]}]
        write_deployment(tmp_path, made, {"chat": CHAT.replace("[local, hosted]", "[local]")})
        env = environment(HOOK_SECRET=SECRET)
        with running(tmp_path, env, forked=True) as first, running(tmp_path, env, forked=True) as second:
            assert [call(one) for one in (first, second, first, second, first)] == [200] * 5
            until(lambda: receiver.shares() == [0.25], 15, "the first alert")
            first.process.send_signal(signal.SIGKILL)
            assert [call(second) for _ in range(5)] == [200] * 5
            until(lambda: receiver.shares() == [0.25, 0.45], 15, "the other alert")
            assert 'tierline_budget_share{owner="tenant"} 0.5' in httpx2.get(f"{second.origin}/metrics", timeout=9).text
            until(lambda: usage("--by", "tenant")[1]["total"]["requests"] == 10, 10, "all records")
            code, found = usage("--by", "tenant", "--zone", "Europe/Berlin")
            assert code == 0 and [(line["tenant"], line["charged_usd"]) for line in found["lines"]] == [("acme", 0.2)]
            assert usage("--check") == (0, {"accounts": 1, "differing": [], "notes": []})
