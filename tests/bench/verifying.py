"""Measure what judging a draft without log-probabilities costs, and when a stream that waited for its verdict begins.

    python -m tests.bench.verifying [--requests 400]

A scripted backend streams 40 tokens, one in 3 ms, and its judge answers after 20 ms. The path's own CPU is that of the
event loop's thread, of answers judged by the scorer less that of answers whose policy asks nobody.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from gateway.parts.agents.scorer import AnswerScorer
from tests.bench.command import BenchFigure, bench_parser, report
from tests.parts.agents.test_scorer import written
from tests.support.ask import chat_body, record_at
from tests.support.gateway import Gateway, config, serve
from tests.support.store import local_store
from tests.support.upstream import Reply, Upstream

_DRAFT = "The answer follows from what was said before, and nothing speaks against it here. " * 11
_POLICY = """
surface: {name}
slo: {{deadline: 20s}}
holdout: 0
tiers: [quiet, hosted]
route: {{classifier: none, start: {{quiet: otherwise}}}}
escalate:
  when: {{confidence_below: 0.01, uncalibrated_below: {below}}}
  no_signal: accept
  verify: {verify}
  judge: {{backend: judge, within: 500ms}}
  stream: {{hold_tokens: 16, hold_max: 600ms}}
"""


def main(arguments: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = bench_parser("verifying", __doc__)
    parser.add_argument("--requests", type=int, default=400, metavar="N")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, local_store() as store, Upstream() as upstream:
        folder = Path(name)
        scorer = written(folder / "scorer.json")
        upstream.default = Reply(text=_DRAFT[:200], tokens=tuple(f"word{n} " for n in range(40)), between_s=0.003)
        upstream.on(lambda request: request.body["model"] == "judge").reply(text="yes", before_headers_s=0.02)
        tiers = config(upstream.url, upstream.url)["tiers"]
        plain = {"base_url": upstream.url}
        judges = {"name": "judges", "backends": [plain | {"name": "judge", "model": "judge", "price": {"input": 0}}]}
        quiet = {"name": "quiet", "backends": [plain | {"model": "quiet", "logprobs": False}]}
        settings = {"tiers": [quiet, tiers[1], judges], "default_surface": "judged", "scorer": str(scorer)}
        policies = {
            "judged": _POLICY.format(name="judged", below=0.5, verify="[judge]"),
            "scored": _POLICY.format(name="scored", below=0.01, verify="[scorer]"),
            "unasked": _POLICY.format(name="unasked", below=0.01, verify="[logprobs]"),
        }
        with (
            serve(folder, upstream.url, upstream.url, store_url=store.url, policies=policies, settings=settings) as gw,
            httpx2.Client(base_url=gw.url, timeout=30.0) as client,
        ):
            streams = _streams(client, store.url, options.requests)
            added = _own_cpu(gw, client, options.requests)
        return report([*_scorer(AnswerScorer.load(scorer)), added, *streams])


def _scorer(scorer: AnswerScorer) -> list[BenchFigure]:
    question, draft = "What follows from this, and why?", " ".join(_DRAFT.split()[:150])
    took = [_timed(lambda: scorer.p_right(question, draft, complete=True)) for _ in range(2_000)]
    return [BenchFigure("scorer, 200 tokens, one core, p50 (ms)", statistics.median(took) * 1e3, 12)]


def _timed(work: Callable[[], Any]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _own_cpu(gateway: Gateway, client: httpx2.Client, count: int) -> BenchFigure:
    """Rounds of both in turn, so that a machine that slows down does so for both."""
    each: dict[str, list[float]] = {"scored": [], "unasked": []}
    for again in range(12):
        for surface, took in each.items():
            began = _loop_us(gateway.process.pid)
            for number in range(count // 8):
                body = chat_body(f"{surface} {again} {number}", surface, stream=False)
                client.post("/chat/completions", json=body).raise_for_status()
            took.append((_loop_us(gateway.process.pid) - began) / (count // 8))
    added = statistics.median(a - b for a, b in zip(*each.values(), strict=True))
    return BenchFigure("the path's own CPU, by the scorer (us)", added, 20)


def _loop_us(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e3


def _streams(client: httpx2.Client, store: str, count: int) -> list[BenchFigure]:
    late, after = 0, []
    for number in range(count):
        reply = client.post("/chat/completions", json=chat_body(f"stream {number}", "judged", stream=True))
        reply.raise_for_status()
        record = asyncio.run(record_at(store, reply.headers["x-request-id"]))
        attempt = next(hop for hop in record["hops"] if hop["name"] == "attempt")
        attributes, began_ms = attempt["attributes"], attempt["start_us"] / 1000
        if attributes.get("tierline.verify.by") != "judge":
            late += 1
        else:
            after.append(record["ledger"]["ttft_ms"] - began_ms - attributes["tierline.verdict_ms"])
    shares = statistics.quantiles(after, n=100)
    return [
        BenchFigure("streamed drafts not judged before the first byte (%)", 100 * late / count, 0),
        BenchFigure("first byte after the verdict, p50 (ms)", shares[49], 1),
        BenchFigure("first byte after the verdict, p99 (ms)", shares[98]),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
