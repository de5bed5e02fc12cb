"""`python -m tests.bench.flight [--requests 1000] [--workers 4] [--rounds 3] [--json]`: equal requests at once.

So many clients connect, then all of them send the same request in the same moment, to several workers behind one port,
with a store between them: as JSON, as streams, and half of each. Said are the calls upstream (one is the aim), what the
answers were, and the latency of those that shared: the model itself takes a second (`MODEL`). On a machine with few
cores the figure is mostly the time it takes to serve so many clients at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import yaml

from tests.support.gateway import CHAT, Gateway, config, environment, running, write_policies
from tests.support.store import local_store
from tests.support.upstream import Reply, Upstream

MODEL = Reply(tokens=tuple(f"word{number} " for number in range(40)), before_first_s=0.6, between_s=0.01)
_KINDS = ("json", "streams", "mixed")
_WARM = 64


@dataclass(frozen=True)
class Row:
    """One burst. Milliseconds, of the answers that were shared; `statuses` counts all of them."""

    kind: str
    requests: int
    upstream_calls: int
    shared: int
    statuses: dict[int, int]
    answers: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class _Answer:
    status: int
    shared: bool
    text: str
    took_s: float


async def _ask(session: aiohttp.ClientSession, url: str, question: str, *, stream: bool) -> _Answer:
    body = {"model": "chat", "messages": [{"role": "user", "content": question}], "stream": stream}
    began = time.perf_counter()
    async with session.post(f"{url}/chat/completions", json=body) as response:
        read = await response.read()
    took_s = time.perf_counter() - began
    return _Answer(response.status, "x-tierline-coalesced" in response.headers, _text(read), took_s)


def _text(body: bytes) -> str:
    if body.startswith(b"{"):
        choices = json.loads(body).get("choices")
        return choices[0]["message"]["content"] if choices else ""
    chunks = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


async def _burst(gateway: Gateway, upstream: Upstream, kind: str, requests: int, number: int) -> Row:
    connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        await asyncio.gather(*(_ask(session, gateway.url, f"warm {n % 8}", stream=False) for n in range(_WARM)))
        upstream.requests.clear()
        streams = [kind == "streams" or (kind == "mixed" and n % 2 == 0) for n in range(requests)]
        asked = f"What is it? ({kind} {number})"
        answers = await asyncio.gather(*(_ask(session, gateway.url, asked, stream=stream) for stream in streams))
    took = sorted(answer.took_s * 1000 for answer in answers if answer.shared and answer.status == 200) or [0.0]
    return Row(
        kind,
        requests,
        len(upstream.requests),
        sum(answer.shared for answer in answers),
        dict(Counter(answer.status for answer in answers)),
        len({answer.text for answer in answers if answer.status == 200}),
        round(took[len(took) // 2], 1),
        round(took[min(len(took) - 1, len(took) * 99 // 100)], 1),
    )


def measure(requests: int, workers: int, rounds: int) -> list[Row]:
    """Every kind of burst, so many times."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, local_store() as store, Upstream() as upstream:
        upstream.default = MODEL
        folder = Path(name)
        write_policies(folder / "policies", {"chat": CHAT})
        deployment = config(upstream.url, None, store.url)
        (folder / "tierline.yaml").write_text(yaml.safe_dump(deployment))
        with running(folder, environment(), "--workers", str(workers)) as gateway:
            for number in range(rounds):
                rows += [asyncio.run(_burst(gateway, upstream, kind, requests, number)) for kind in _KINDS]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each burst; 1 when one of them took more than one call."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flight", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rows = measure(asked.requests, asked.workers, asked.rounds)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            said = f"{row.kind:<8} {row.requests} requests  {row.upstream_calls} upstream calls  {row.shared} shared"
            print(f"{said}  p50 {row.p50_ms:.0f} ms  p99 {row.p99_ms:.0f} ms  {row.statuses}  {row.answers} answers")
    return 0 if all(row.upstream_calls == 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
