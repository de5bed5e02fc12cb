"""A real Prometheus scrapes a gateway of two workers, evaluates the rules, and answers every query of the dashboard."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.deploy.monitoring import PROMETHEUS, queries, rules
from tests.support.ask import ask
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_policies
from tests.support.ports import free_port
from tests.support.processes import children_of, command_line
from tests.support.upstream import Upstream
from tests.support.wait import until

BINARY = shutil.which("prometheus")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BINARY is None, reason="no prometheus: apt-get install prometheus; .ci/run does"),
    pytest.mark.timeout(480),
]
_POLICY = CHAT.replace("slo: {deadline: 20s}", "slo: {ttft: {p95: 400ms}, deadline: 20s}")
_VARIABLES = {"$__rate_interval": "1m", "$job": "tierline", "$surface": ".*", "$tier": ".*"}
_REQUESTS = 12
_SEEN = (
    "Surfaces", "Requests", "Goodput", "Worst burn, 1 h", "Cost an hour", "TTFT p95 against its limit",
    "Goodput by backend", "Goodput by prompt length", "How answers come about", "Calls by outcome", "Our overhead",
    "Workers", "Store", "Saved in an hour, with its interval", "Lookups",
)  # fmt: skip
"""Panels that show something after a few requests to one tier; others wait for hedges, shedding, audits and so on."""


class Server:
    """A Prometheus that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **params: str) -> Any:
        """The data of an answer of its API; the error's text fails the test."""
        answer = httpx2.get(f"{self._url}/api/v1/{path}", params=params, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float:
        """The value of its first series, 0 without any."""
        return next((float(series["value"][1]) for series in self.query(expression)), 0.0)


@contextmanager
def prometheus(folder: Path, gateway: Gateway) -> Iterator[Server]:
    """Run it with our own files, but for the gateway's port and how often it looks."""
    for name in ("rules.yaml", "alerts.yaml"):
        text = (PROMETHEUS / name).read_text()
        (folder / name).write_text(re.sub(r"(?m)^    interval: .*$", "    interval: 1s", text))
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{gateway.port}"]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    assert BINARY is not None
    command = [BINARY, "--config.file", "prometheus.yaml", "--storage.tsdb.path", "data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--web.listen-address", address], cwd=folder, stderr=log)
    try:
        server = Server(f"http://{address}")
        until(lambda: _ready(f"http://{address}/-/ready"), 60, "Prometheus")
        yield server
    finally:
        process.terminate()
        process.wait(30)


def _ready(url: str) -> bool:
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.HTTPError:
        return False


def test_prometheus_reads_rules_and_panels(local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> None:
    """The target is up, every rule evaluates, every panel's query is answered, and a lost worker raises its alert."""
    folder, settings = tmp_path / "gateway", config(local_upstream.url, hosted_upstream.url)
    write_policies(folder / "policies", {"chat": _POLICY})
    (folder / "tierline.yaml").write_text(yaml.safe_dump(settings))
    with (
        running(folder, environment(HOSTED_KEY="sk-any"), "--workers", "2") as gateway,
        prometheus(tmp_path, gateway) as server,
    ):
        # A counter has a rate from its second scrape on: one request of each kind first, and then the others.
        for number in range(_REQUESTS):
            assert ask(gateway, f"hello {number % 7}", stream=number % 2 == 0).status_code == 200
            until(lambda at=number + 1: server.value("sum(tierline_requests_total)") == at, 30, "the scrape")
        until(lambda: server.value("sum(job_surface:tierline_requests:rate5m)") > 0, 30, "the recording rules")
        assert server.value('up{job="tierline"}') == 1

        groups = server.get("rules")["groups"]
        evaluated = [rule for group in groups for rule in group["rules"]]
        assert len(evaluated) == len(rules())
        until(lambda: all(_health(server)), 30, "every rule's evaluation")

        for title, expression in queries():
            query = re.sub(r"\$\w+", lambda name: _VARIABLES[name[0]], expression)
            found = server.query(query)
            if title in _SEEN:
                assert found, f"{title} shows nothing: {query}"

        until(lambda: server.value("tierline_workers") == 2, 60, "the second worker")
        (killed, _) = [pid for pid in children_of(gateway.process.pid) if "spawn_main" in command_line(pid)]
        os.kill(killed, signal.SIGKILL)
        alert = 'ALERTS{alertname="TierlineWorkerLost", alertstate="firing"}'
        until(lambda: server.query(alert), 60, "the alert")
        assert server.value("sum(tierline_requests_total)") == _REQUESTS, "what a worker counted stays"
        assert server.query("resets(tierline_requests_total[5m]) > 0") == []


def _health(server: Server) -> list[bool]:
    faults = [rule.get("lastError") for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert not any(faults), faults
    return [rule["health"] == "ok" for group in server.get("rules")["groups"] for rule in group["rules"]]
