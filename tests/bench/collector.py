"""What a bad OTLP collector costs requests: `python -m tests.bench.collector [--requests N] [--rounds N]`.

    well      takes every span                          frozen    accepts connections and never answers
    full      answers 429, with Retry-After: 1          refusing  refuses connections

A gateway for each, over scripted models, and one without any collector. They take turns, eight requests at a time; in
every round each gateway has its own place in the order, so a busy moment of the machine falls on all of them alike. A
request is lost where its reply is not a whole answer. The quantiles are of the times that clients saw in all rounds, as
ratios to those of the gateway without a collector, with the 95% interval of drawing whole rounds again. At the end each
gateway is told to stop while it has spans to send. The exit code is 1 where a request was lost, a gateway took longer
than 5 s to stop, or a bad collector's 99th percentile is certainly more than a tenth above that without one. The well
one runs in the load's process and takes CPU from it, so its ratio also says what it costs the load.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from tests.bench.command import bench_parser
from tests.bench.compared import ratio_of
from tests.parts.otlp.collector import Collector
from tests.support.gateway import Gateway, free_port, serve
from tests.support.store import local_store
from tests.support.upstream import Reply, Upstream

STOP_S = 5.0
MOST_P99 = 1.1
_BEHAVIOURS = {"well": "take", "frozen": "hang", "full": "full"}


@contextmanager
def _endpoint(kind: str) -> Iterator[dict[str, str]]:
    """The environment of a gateway with such a collector."""
    if kind == "none":
        yield {}
    elif kind == "refusing":
        yield {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    else:
        with Collector() as collector:
            collector.behaviour = _BEHAVIOURS[kind]  # type: ignore[assignment]
            yield {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}


def _ask(gateway: Gateway, client: httpx2.Client, number: int) -> tuple[float, bool]:
    """The seconds that one request took, and whether its answer was whole."""
    stream, began = number % 2 == 1, time.perf_counter()
    body = {"model": "chat", "stream": stream, "messages": [{"role": "user", "content": f"question {number}"}]}
    try:
        reply = client.post(f"{gateway.url}/chat/completions", json=body)
    except httpx2.HTTPError:
        return time.perf_counter() - began, False
    whole = "[DONE]" in reply.text if stream else '"finish_reason"' in reply.text
    return time.perf_counter() - began, reply.status_code == 200 and whole


def run(kinds: Sequence[str], requests: int, rounds: int, folder: Path) -> tuple[set[str], set[str]]:
    """Print how each compares and how long it took to stop; return those that lost a request or stopped late, and the
    slower ones, which says something only after many rounds."""
    late: set[str] = set()
    slow: set[str] = set()
    times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    lost = dict.fromkeys(kinds, 0)
    with ExitStack() as stack:
        upstream, client = stack.enter_context(Upstream()), stack.enter_context(httpx2.Client(timeout=30))
        upstream.default = Reply(text="An answer of some words.", before_first_s=0.01)
        gateways = {
            kind: stack.enter_context(
                serve(
                    folder / kind, upstream.url, upstream.url,
                    store_url=stack.enter_context(local_store()).url, env=stack.enter_context(_endpoint(kind)),
                )
            )
            for kind in kinds
        }  # fmt: skip
        threads = stack.enter_context(ThreadPoolExecutor(8))
        for turn in range(rounds):
            order = [*kinds][turn % len(kinds) :] + [*kinds][: turn % len(kinds)]
            for kind in order:
                numbers = range(turn * requests, (turn + 1) * requests)
                results = list(threads.map(lambda number, kind=kind: _ask(gateways[kind], client, number), numbers))
                times[kind].append([seconds for seconds, _ in results])
                lost[kind] += sum(not whole for _, whole in results)
        for kind, gateway in gateways.items():
            began = time.monotonic()
            code = gateway.stop()
            stopped_s = time.monotonic() - began
            p50, p99 = (ratio_of(times[kinds[0]], times[kind], share) for share in (0.5, 0.99))
            if stopped_s > STOP_S:
                late.add(kind)
            if kind != "well" and p99.low > MOST_P99:
                slow.add(kind)
            print(
                f"{kind:<10}{requests * rounds:>7} requests, {lost[kind]} lost   p50 {p50}   p99 {p99}"
                f"{' SLOWER' if kind in slow else ''}   stopped in {stopped_s:.1f} s, code {code}"
                f"{' TOO LONG' if kind in late else ''}"
            )
    return late | {kind for kind, count in lost.items() if count}, slow


def main(arguments: Sequence[str] | None = None) -> int:
    parser = bench_parser("collector", __doc__)
    parser.add_argument("--requests", type=int, default=150, metavar="N", help="requests in a round (default: 150)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="rounds (default: 20)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        kinds = ("none", "well", "frozen", "full", "refusing")
        failed, slow = run(kinds, options.requests, options.rounds, Path(folder))
    return int(bool(failed or slow))


if __name__ == "__main__":
    sys.exit(main())
