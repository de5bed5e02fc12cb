"""The bench measures real traffic, says what it lacks, and judges figures against the goals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.bench import rig
from tests.bench.live import __main__ as live
from tests.bench.live import table
from tests.bench.live.behaviour import Behaviour, Spread, script
from tests.bench.live.client import Answer, Ask
from tests.bench.live.scenario import recovery_s
from tests.bench.load import PROMPT, NotAsMeant, Subject, fresh_prompt, send
from tests.bench.prompts import natural
from tests.bench.rig import Service
from tests.bench.streams import Shape, watch


@pytest.fixture(scope="module")
def upstream() -> Iterator[Service]:
    with rig.raw_model() as service:
        yield service


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


def test_requests_are_sent_once_each(upstream: Service) -> None:
    """Over a few connections that stay open; a reply that is no 200 ends it with what it said."""
    subject = Subject("direct", upstream)
    requests = (subject.request(f"prompt {number}") for number in range(20))
    send(upstream.port, requests, connections=3)
    assert next(requests, None) is None
    with rig.raw_proxy(1) as proxy, pytest.raises(NotAsMeant, match="a reply was 500"):
        send(proxy.port, [subject.request("hi")])


@pytest.mark.parametrize("kind", ["unique", "reworded", "natural"])
def test_prompts_of_a_kind_differ(kind: str, tmp_path: Path, upstream: Service) -> None:
    """A new prompt is new, and a reworded one is the fixed one but for its spaces."""
    texts = natural if kind == "natural" else None
    subject = Subject("near", upstream, unique=kind == "unique", reworded=kind == "reworded", texts=texts)
    prompts = [fresh_prompt(subject, tmp_path, number) for number in range(50)]
    assert len(set(prompts)) == 50
    if kind == "reworded":
        assert {" ".join(prompt.split()) for prompt in prompts} == {PROMPT}


@pytest.mark.timeout(240)
@pytest.mark.long
def test_the_live_part_measures_real_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """Streams that are committed and streams that escalate are measured on both sides; neither takes ages."""
    assert live.main(["commit", "escalated", "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["live"]
    assert {row["scenario"] for row in rows} == {"commit", "escalated"}
    assert all(row["figures"]["n"] >= 5 for row in rows)
    judged = [row for row in rows if row["target"]]
    assert len(judged) == 4
    assert all(-100 < row["figures"]["p50"] < 5_000 for row in judged)


def test_a_row_keeps_every_limit_or_is_not_met() -> None:
    """A row meets its target when all its limits are kept; what was not measured meets none, and says so."""
    both = (table.most("p50", 1), table.most("p99", 5))
    kept = table.Row("a", "kept", table.spread([0.5] * 99 + [4.0]), "ms", both)
    broken = table.Row("a", "broken", {"p50": 0.5, "p99": 6.0}, "ms", both)
    nothing = table.Row("a", "nothing", table.spread([]), "ms", both)
    assert [row.met for row in (kept, broken, nothing)] == [True, False, False]
    text = table.as_text([kept, broken, nothing, table.Row("a", "a remark", {})])
    assert "p50 none, p99 none, n 0" in text
    assert text.endswith("a: a remark\n1 of 3 targets met")
    assert table.as_json([nothing])[0]["figures"] == {"p50": None, "p99": None, "n": 0}


def test_scripted_servers_draw_what_they_are_told() -> None:
    """Times, shares and the AUROC of the log-probabilities come out as given, the same for a prompt every time."""
    told = Behaviour(ttft=Spread(100, 200), right=0.6, auroc=0.75, hangs=0.1)
    assert Behaviour.of(told.told()) == told
    scripts = [script(told, prompt, 20) for prompt in range(3000)]
    assert scripts[7] == script(told, 7, 20)
    assert abs(table.quantile([one.ttft_s for one in scripts], 0.5) - 0.1) < 0.01
    assert abs(table.quantile([one.ttft_s for one in scripts], 0.95) - 0.2) < 0.02
    assert abs(sum(one.right for one in scripts) / 3000 - 0.6) < 0.04
    assert abs(sum(one.fate == "hangs" for one in scripts) / 3000 - 0.1) < 0.03
    right, wrong = ([one.logprob for one in scripts if one.right is kind] for kind in (True, False))
    above = sum(sum(a > b for b in wrong[:500]) for a in right[:500]) / 500**2
    assert abs(above - 0.75) < 0.05


def test_recovery_is_when_it_lasts() -> None:
    """A good second before another bad one is no recovery."""
    bad = {0.2, 1.5}
    answers = []
    for n in range(40):
        at = n / 10
        answer = Answer(Ask(n, "m", n), sent_ns=int(at * 1e9), status=200)
        answer.broken = "broke" if at in bad else ""
        answer.body = b"[DONE]"
        answers.append(answer)
    assert recovery_s(answers, 0, lambda answer: answer.ok) == pytest.approx(1.6)
