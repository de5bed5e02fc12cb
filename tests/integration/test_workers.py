"""Several workers behind one port: metrics add up, a dead one is replaced, a clean stop leaves nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.support.ask import ask
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_policies
from tests.support.processes import children_of, command_line, is_alive
from tests.support.upstream import Upstream
from tests.support.wait import until


def workers_of(gateway: Gateway) -> list[int]:
    """The worker processes' ids: the children that uvicorn spawned to serve."""
    return [pid for pid in children_of(gateway.process.pid) if "spawn_main" in command_line(pid)]


def counted(gateway: Gateway) -> float:
    text = httpx2.get(f"{gateway.origin}/metrics").text
    return sum(float(value) for value in re.findall(r"^tierline_requests_total\{.*\} (\S+)$", text, re.MULTILINE))


def test_two_workers(local_upstream: Upstream, tmp_path: Path) -> None:
    """Both serve, either one's /metrics tells of both, a killed one is replaced, SIGTERM ends all with exit code 0."""
    write_policies(tmp_path / "policies", {"chat": CHAT})
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(config(local_upstream.url, None)))
    with running(tmp_path, environment(), "--workers", "2") as gateway:
        until(lambda: len(workers_of(gateway)) == 2, 20, "two workers")
        assert [ask(gateway).status_code for _ in range(20)] == [200] * 20
        until(lambda: counted(gateway) == 20, 5, "the count of both")
        killed = workers_of(gateway)[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(now := workers_of(gateway)) == 2 and killed not in now, 20, "a replacement")
        until(lambda: ask(gateway).status_code == 200, 20, "an answer")
        left = workers_of(gateway)
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
        until(lambda: not any(map(is_alive, left)), 5, "the workers' end")


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_start_forgets_the_metrics_of_processes_that_are_gone(
    local_upstream: Upstream, tmp_path: Path, workers: str
) -> None:
    """In a folder that was named, what an earlier run left is emptied; nothing but metrics files is touched."""
    write_policies(tmp_path / "policies", {"chat": CHAT})
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(config(local_upstream.url, None)))
    folder = tmp_path / "metrics"
    env = environment(PROMETHEUS_MULTIPROC_DIR=str(folder))
    with running(tmp_path, env, "--workers", workers) as gateway:
        assert ask(gateway).status_code == 200
        until(lambda: counted(gateway) == 1, 5, "the count")
        until(lambda: any(folder.glob("gauge_*.db")), 5, "a gauge")
        orphans = workers_of(gateway)
        gateway.process.kill()
        gateway.process.wait()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
    left = {file.name for file in folder.glob("gauge_*.db")}
    (folder / "mine.txt").write_text("kept")
    with running(tmp_path, env, "--workers", workers) as gateway:
        assert counted(gateway) == 0
        assert not left & {file.name for file in folder.iterdir()}
    assert (folder / "mine.txt").read_text() == "kept"
