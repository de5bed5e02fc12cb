"""The bench measures real traffic, says what it lacks, and judges figures against the goals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest

from tests.bench import __main__ as bench
from tests.bench import rig
from tests.bench.load import Subject
from tests.bench.report import Found, as_json, as_text
from tests.bench.rig import Service
from tests.bench.streams import Shape, watch
from tests.support.gateway import ROOT, free_port
from tests.support.wait import until


@pytest.fixture(scope="module")
def upstream() -> Iterator[Service]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.raw_upstream", str(port)], cwd=ROOT)
    try:
        until(lambda: rig.listens(port), 10)
        yield Service("direct", port, process.pid)
    finally:
        process.kill()
        process.wait()


def test_the_raw_upstream_is_a_model_server(upstream: Service) -> None:
    """The SDK takes its completions, with log-probabilities, and its streams."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{upstream.port}/v1", api_key="k", max_retries=0)
    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].logprobs.content[0].logprob < 0
    chunks = list(
        client.chat.completions.create(**ask, stream=True, extra_body={"bench_chunks": 5, "bench_pace_ms": 1})
    )
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 6 + ["stop"]


def test_streams_are_watched_whole(upstream: Service) -> None:
    """Every chunk is counted, and gaps are as long as the pace."""
    found = watch(Subject("direct", upstream), Shape(concurrent=2, chunks=5, pace_ms=5), 0.05)
    assert found.failed == 0
    assert found.chunks == 7 * len(found.ttft_ms)
    assert 3 < sorted(found.gaps_ms)[len(found.gaps_ms) // 2] < 20


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without wrk or nginx there is one line that says what to install."""
    monkeypatch.setattr(rig, "tool", lambda command: None)
    assert bench.main(["--quick"]) == 2
    assert "apt-get install wrk nginx-light" in capsys.readouterr().err


def test_figures_stand_beside_their_goals() -> None:
    """A figure over its target says so, and ratios are to the bare proxy of the same run."""
    requests = {
        name: {
            "per_second": 1e6 / cpu,
            "cpu_us": cpu,
            "added_p50_c1_ms": 0.2,
            "added_p99_c1_ms": 0.9,
            "failed": 0.0,
            "core": 1.0,
        }
        for name, cpu in {"direct": 10.0, "raw": 80.0, "bare": 100.0, "full": 480.0}.items()
    }
    found = Found(requests, {}, {"static": {"start_s": 1.5, "rss_mb": 120.0}})
    text = as_text(found)
    assert any("full path: CPU" in line and line.endswith("OVER") for line in text.splitlines())
    assert any("bare: CPU" in line and line.endswith("  met") for line in text.splitlines())
    assert as_json(found)["cpu_to_raw"] == {"raw": 1.0, "bare": 1.25, "full": 6.0}
