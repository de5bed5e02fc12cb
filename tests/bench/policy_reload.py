"""Measures how soon an edited policy rules requests, and whether requests suffer while policies are read again.

    python -m tests.bench.policy_reload [--edits 20] [--reloads 200] [--workers 1 4]

An edit is a file that is written in place at a random moment, or, with `policies: {source: store}`, a policy that is
put into the store's registry then, with all that checks it; requests come on fresh connections all the while. Its first
effect is the first reply with the new version, its last effect the last reply with the old one (every worker has it
then). Reloads come as fast as the gateway takes them in (it looks at the files every 10 ms here, every 300 ms
otherwise), one in five of them invalid, under a steady load; blocks with and without them alternate, and p99 is that of
all requests of a kind of block. The gateway is a process of its own. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cache.store.redis_store import RedisStore
from gateway.parts.rollout.registry.apply import apply_file
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.loader import PolicySource
from policies.model import DeployedTier
from tests.bench.command import bench_parser
from tests.support.gateway import CHAT, Gateway, config, environment, running, secrets_of, write_deployment
from tests.support.store import local_store
from tests.support.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

EFFECT_TARGET_S: Final = 1.0
P99_TARGET: Final = 1.1
"""Most that reloads may raise the p99, as a ratio: blocks of one kind differ by about as much."""
_BODY: Final = b'{"model":"chat","messages":[{"role":"user","content":"which chain fits the touring frame"}]}'
_LABEL: Final = re.compile(rb"\r\nx-tierline-policy: chat@(\w+)\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_FAST_S: Final = 0.01
_BLOCK_RELOADS: Final = 50
_CLIENTS: Final = 8
_EACH_S: Final = 0.1
"""A client of the load asks once in this time."""


@dataclass(slots=True)
class Replies:
    """Replies that came so far."""

    seen: list[tuple[float, bytes]] = field(default_factory=list)
    """(time of arrival, policy version) of each good reply."""
    times_s: list[float] = field(default_factory=list)
    lost: int = 0


async def _ask(replies: Replies, port: int, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    reader, writer = streams
    began = time.monotonic()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (port, len(_BODY), _BODY)
    )
    async with asyncio.timeout(30):  # `wait_for` of Python 3.11 can lose the cancellation that ends the load
        head = await reader.readuntil(b"\r\n\r\n")
    length, label = _LENGTH.search(head), _LABEL.search(head)
    if not head.startswith(b"HTTP/1.1 200") or length is None or label is None:
        raise ConnectionError(head.decode("latin-1"))
    async with asyncio.timeout(30):
        await reader.readexactly(int(length[1]))
    now = time.monotonic()
    replies.seen.append((now, label[1]))
    replies.times_s.append(now - began)


async def _on_fresh_connections(replies: Replies, port: int, each_s: float) -> None:
    """Ask again and again, each time on a connection of its own, until cancelled."""
    while True:
        try:
            streams = await asyncio.open_connection("127.0.0.1", port)
            try:
                await _ask(replies, port, streams)
            finally:
                streams[1].close()
        except (OSError, EOFError, TimeoutError):
            replies.lost += 1
        await asyncio.sleep(each_s)


async def _on_one_connection(replies: Replies, port: int, until: asyncio.Event) -> None:
    """Ask once in a tenth of a second on a connection that is kept, until the event is set."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    due = time.monotonic() + random.random() * _EACH_S
    try:
        while not until.is_set():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += _EACH_S
            try:
                await _ask(replies, port, streams)
            except (OSError, EOFError, TimeoutError):
                replies.lost += 1
                streams = await asyncio.open_connection("127.0.0.1", port)
    finally:
        streams[1].close()


def _policy(number: int, *, valid: bool = True) -> str:
    text = CHAT.replace("confidence_below: 0.5", f"confidence_below: {0.1 + number % 8000 / 10_000:.4f}")
    return text if valid else text.replace("classifier: none", "classifer: none")


async def _write(gateway: Gateway, text: str) -> None:
    (gateway.policies / "chat.yaml").write_text(text)


async def _apply(gateway: Gateway, text: str, store_url: str) -> None:
    store = RedisStore.from_url(store_url)
    file = gateway.folder / "chat.yaml"
    file.write_text(text)
    source = PolicySource(gateway.policies, (DeployedTier("local"), DeployedTier("hosted")))
    try:
        await apply_file(PolicyRegistry(store), source, file, how="now", author="bench", message="edit", at=time.time())
    finally:
        await store.aclose()


async def effects(
    gateway: Gateway, edits: int, edit: Callable[[Gateway, str], Awaitable[None]]
) -> tuple[list[float], list[float], int]:
    """Return the seconds from each edit to its first and its last effect, and how many requests failed meanwhile."""
    replies = Replies()
    asking = [asyncio.create_task(_on_fresh_connections(replies, gateway.port, 0.01)) for _ in range(4)]
    first, last = [], []
    try:
        for number in range(1, edits + 1):
            await asyncio.sleep(2.0 + random.random())
            old = replies.seen[-1][1]
            at = time.monotonic()
            await edit(gateway, _policy(number))
            await asyncio.sleep(2.5)
            since = [(when - at, label != old) for when, label in replies.seen if when > at]
            if not any(new for _, new in since):
                raise AssertionError(f"an edit had no effect within 2.5 s:\n{gateway.log()[-2000:]}")
            first.append(min(when for when, new in since if new))
            last.append(max((when for when, new in since if not new), default=0.0))
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return first, last, replies.lost


async def reloads(gateway: Gateway, count: int) -> tuple[list[float], list[float], int, int]:
    """Return the seconds of requests without and with reloads, how many failed, and how many reloads took place."""
    quiet, busy = Replies(), Replies()
    done, number = 0, 0
    log = gateway.folder / "gateway.log"
    while done < count:
        for replies in (quiet, busy):
            over = asyncio.Event()
            clients = [asyncio.create_task(_on_one_connection(replies, gateway.port, over)) for _ in range(_CLIENTS)]
            began = time.monotonic()
            if replies is quiet:
                await asyncio.sleep(_BLOCK_RELOADS * 0.06)
            else:
                for _ in range(_BLOCK_RELOADS):
                    number += 1
                    at = log.stat().st_size
                    (gateway.policies / "chat.yaml").write_text(_policy(number, valid=number % 5 != 0))
                    while log.stat().st_size == at:  # the gateway logs each reload and each refusal
                        if time.monotonic() - began > 60:
                            raise AssertionError(f"reload {number} did not take place:\n{gateway.log()[-2000:]}")
                        await asyncio.sleep(0.005)
                    done += 1
            over.set()
            await asyncio.gather(*clients)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done:,} of {count:,} reloads ")
    return quiet.times_s, busy.times_s, quiet.lost + busy.lost, done


@contextmanager
def _gateway(workers: int, *, fast: bool = False, source: str = "files") -> Iterator[tuple[Gateway, str]]:
    with ExitStack() as stack:
        upstream = stack.enter_context(Upstream())
        store = stack.enter_context(local_store())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierline-bench-")))
        deployment = config(upstream.url, None, store.url, policies={"source": source})
        write_deployment(folder, deployment, {"chat": _policy(0)})
        launcher = ("-m", "tests.bench.policy_reload", "--gateway") if fast else ("-m", "gateway")
        extra = ("--workers", str(workers)) if workers > 1 else ()
        gateway = stack.enter_context(running(folder, environment(**secrets_of(None)), *extra, launcher=launcher))
        yield gateway, store.url


def _serve_fast(arguments: list[str]) -> int:
    """Run the gateway, looking at the files every 10 ms."""
    import gateway.assembly
    from gateway.cli.main import main as tierline
    from gateway.parts.reload.part import PolicyReloader

    gateway.assembly.watched = partial(PolicyReloader, interval_s=_FAST_S)  # type: ignore[misc,assignment]
    return tierline(arguments)


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def main() -> int:
    """Print the figures and the goals; 1 where one is missed."""
    if sys.argv[1:2] == ["--gateway"]:
        return _serve_fast(sys.argv[2:])
    parser = bench_parser("policy_reload", __doc__)
    parser.add_argument("--edits", type=int, default=20, metavar="N", help="edits per number of workers (20)")
    parser.add_argument("--reloads", type=int, default=200, metavar="N", help="reloads under load (200)")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4], metavar="N", help="numbers of workers (1 4)")
    asked = parser.parse_args()
    met = True
    sys.stdout.write(f"{'source':<8}{'workers':>8}{'edits':>7}{'first effect, s: median':>25}{'max':>7}")
    sys.stdout.write(f"{'last effect: max':>19}{'requests lost':>15}\n")
    for source in ("files", "store"):
        for workers in asked.workers:
            with _gateway(workers, source=source) as (gateway, store_url):
                edit = _write if source == "files" else partial(_apply, store_url=store_url)
                first, last, lost = asyncio.run(effects(gateway, asked.edits, edit))
            met = met and max(*first, *last) <= EFFECT_TARGET_S and not lost
            sys.stdout.write(
                f"{source:<8}{workers:>8}{len(first):>7}{statistics.median(first):>25.2f}{max(first):>7.2f}"
            )
            sys.stdout.write(f"{max(last):>19.2f}{lost:>15}\n")
            sys.stdout.flush()
    if asked.reloads:
        with _gateway(1, fast=True) as (gateway, _):
            quiet, busy, lost, done = asyncio.run(reloads(gateway, asked.reloads))
        ratio = _p99(busy) / _p99(quiet)
        met = met and ratio <= P99_TARGET and not lost
        sys.stdout.write(
            f"{done:,} reloads, every fifth invalid: {len(busy):,} requests meanwhile, {lost} lost; p99 "
            f"{_p99(busy) * 1000:.1f} ms with them, {_p99(quiet) * 1000:.1f} without, x {ratio:.2f}; p50 "
            f"{statistics.median(busy) * 1000:.1f} and {statistics.median(quiet) * 1000:.1f} ms "
            f"({os.cpu_count()} cores for the gateway, the load and the rest)\n"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
