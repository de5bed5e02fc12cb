"""What each path of a request costs in counts, held against limits: `make budgets`.

Counts do not swing as times do, so a feature that adds to a path is seen at once. Every path is driven one request at a
time over real sockets, against a real store; the gateway counts itself (`tests.bench.counted`), and tells what it does
for requests from what it does as time goes by, which has a row of its own. The raw proxy, counted the same way, is the
yardstick. The limits stand in `budgets.json`; `--write` puts today's counts there.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.bench import ratchets
from tests.bench.rig import BARE, FULL, HERE, JUDGED, NEAR, raw_model, raw_proxy
from tests.support.gateway import ROOT, config, environment, running, write_policies
from tests.support.store import local_store
from tests.support.wait import until

LIMITS = HERE / "budgets.json"
WHAT = ("calls", "tasks", "timers", "callbacks", "round_trips", "store_bytes", "peak_bytes")
HELD = {"calls": 0.15, "tasks": 0.5, "timers": 0.6, "callbacks": 0.6, "round_trips": 0.6}
"""What is held against its limit, and how far above it may be. The rest is printed only."""
_HELD_AMONG = 1.5
"""The clock's work among requests depends a little on how many they are; this finds what is done for each of them."""
KEY = "key-of-the-bench"
REQUESTS = 64
"""Of each count: they fill the batches in which requests are finished."""
_TRIES = 3
_fresh = itertools.count(10_000, 10_000)
"""Numbers of prompts that were not sent before."""
_REPHRASED = iter(("what's the capital of", "what is the capital of", "What's the capital of"))
_STREAMS = 8
_SHORT, _LONG = 16, 80
"""Chunks of two streams; what one chunk costs is their difference."""
_ESCALATED = """
surface: escalated
slo: {deadline: 20s}
holdout: 0
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate:
  when: {uncalibrated_below: 0.99}
  stream: {hold_tokens: 8, hold_max: 20s}
"""
"""The first tier's stream is judged after 8 tokens and turned down; the second's goes out."""

MODULES = "modules per miss"
IDLE, AMONG = "idle, a second", "clock's work among requests, a second"
"""What the gateway does without requests, and what it does as time goes by while there are some."""
_IDLE_S = 5.0

Counts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that counts: its port, its process, where it writes its counts, and those of its clock so far."""

    port: int
    pid: int
    file: Path
    clock: Counter[str] = field(default_factory=Counter)


class NotAsMeant(Exception):
    """A request went another way than the one that is counted."""


def measure(folder: Path) -> dict[str, Counts]:
    """The counts of every path, per request or per chunk."""
    with servers(folder) as (raw, ours), keyed_server(folder) as keyed:
        ways: dict[str, Callable[[], Counts]] = {
            "raw proxy": lambda: count_requests(raw, "bare"),
            "raw proxy, chunk": lambda: _chunk(raw, "bare"),
            "bare": lambda: count_requests(ours, "bare", way="direct"),
            "keyed": lambda: count_requests(keyed, "bare", way="direct"),
            "exact hit": lambda: count_requests(ours, "full", way="cache-exact"),
            "semantic hit": lambda: _semantic(ours),
            "miss": lambda: _miss(ours),
            "stream, committed chunk": lambda: _chunk(ours, "bare", way="direct"),
            "stream, judged chunk": lambda: _chunk(ours, "judged", way="direct"),
            "stream, escalated chunk": lambda: _chunk(ours, "escalated", way="escalated"),
            "stream of a shared answer, chunk": lambda: _chunk(ours, "full", unique=True, way="direct"),
        }
        counts = {path: _repeated(count) for path, count in ways.items()}
        among = _a_second(ours)
        return counts | {AMONG: among, IDLE: min((_idle(ours) for _ in range(_TRIES)), key=lambda row: row["calls"])}


def _idle(ours: Server) -> Counts:
    ours.clock.clear()
    with _counted(ours):
        time.sleep(_IDLE_S)
    return _a_second(ours)


def _miss(ours: Server) -> Counts:
    counts = count_requests(ours, "full", unique=True, way="direct")
    return counts | {MODULES: len(_passed(ours))}


def _a_second(server: Server) -> Counts:
    """The counts of the server's clock, for each second."""
    return {what: server.clock[what] / server.clock["seconds"] for what in WHAT if what != "peak_bytes"}


def _repeated(count: Callable[[], Counts]) -> Counts:
    """Count again when a request went another way: on a busy machine a lookup may be given up."""
    for _ in range(_TRIES - 1):
        try:
            return count()
        except NotAsMeant as error:
            print(f"counted again: {error}", file=sys.stderr)
    return count()


@contextmanager
def servers(folder: Path) -> Iterator[tuple[Server, Server]]:
    """The raw proxy and our gateway, both counting, over the same raw upstream."""
    with ExitStack() as stack:
        upstream = stack.enter_context(raw_model()).port
        store = stack.enter_context(local_store())
        raw_file, our_file = folder / "raw.json", folder / "ours.json"
        raw = stack.enter_context(raw_proxy(upstream, ("-m", "tests.bench.counted", str(raw_file), "uvicorn")))
        home = folder / "gateway"
        write_policies(
            home / "policies", {"bare": BARE, "full": FULL, "judged": JUDGED, "escalated": _ESCALATED, "near": NEAR}
        )
        url = f"http://127.0.0.1:{upstream}/v1"
        state = {"kind": "static", "state": str(ROOT / ".state")}
        deployment = config(url, url, store.url, embedding=state, default_surface="bare")
        (home / "tierline.yaml").write_text(yaml.safe_dump(deployment, sort_keys=False))
        launcher = ("-m", "tests.bench.counted", str(our_file), "gateway")
        gateway = stack.enter_context(running(home, environment(HOSTED_KEY="sk-bench"), launcher=launcher))
        yield Server(raw.port, raw.pid, raw_file), Server(gateway.port, gateway.process.pid, our_file)


@contextmanager
def keyed_server(folder: Path) -> Iterator[Server]:
    """A gateway that counts and demands keys; theirs has every limit and a budget, with a store and a price."""
    with ExitStack() as stack:
        upstream, store = stack.enter_context(raw_model()).port, stack.enter_context(local_store())
        home, file = folder / "keyed", folder / "keyed.json"
        write_policies(home / "policies", {"bare": BARE})
        (home / "key").write_text(KEY)
        (home / "key").chmod(0o600)
        most = 10**9
        limits = {"requests_per_minute": most, "tokens_per_minute": most, "concurrent": most}
        terms = {"limits": {**limits, "budgets": [{"usd": 1e6}]}, "per_user": limits}
        url, state = f"http://127.0.0.1:{upstream}/v1", {"kind": "static", "state": str(folder / "state")}
        tenants = {"acme": {"key_file": "key", **terms}}
        deployment = config(url, url, store.url, embedding=state, default_surface="bare", tenants=tenants)
        for tier in deployment["tiers"]:
            tier["backends"][0]["price"] = {"input": 1, "output": 1}
        (home / "tierline.yaml").write_text(yaml.safe_dump(deployment, sort_keys=False))
        launcher = ("-m", "tests.bench.counted", str(file), "gateway")
        gateway = stack.enter_context(running(home, environment(HOSTED_KEY="sk-bench"), launcher=launcher))
        yield Server(gateway.port, gateway.process.pid, file)


@contextmanager
def _counted(server: Server) -> Iterator[Counts]:
    """Count what the block has the server do for requests; the counts are there when it has ended."""
    counts: Counts = {}
    _signal(server, signal.SIGUSR1)
    yield counts
    result = _signal(server, signal.SIGUSR2)
    counts.update(result["requests"])
    for what, number in result["clock"].items():
        server.clock[what] += number
    server.clock["seconds"] += result["seconds"]


def _signal(server: Server, number: signal.Signals) -> Any:
    """Begin or end a count, and return what the server writes when it has done so."""
    server.file.unlink(missing_ok=True)
    os.kill(server.pid, number)
    until(server.file.exists, 60, "the counts")
    return json.loads(server.file.read_bytes())


def modules_of_a_miss(server: Server) -> list[str]:
    """The modules of ours that every JSON miss passes."""
    count_requests(server, "full", unique=True, way="direct")
    return _passed(server)


def _passed(server: Server) -> list[str]:
    """The modules of ours in which a function was called for each request of the last count."""
    calls: dict[str, int] = json.loads(server.file.with_suffix(".modules").read_bytes())
    return sorted(
        module for module, count in calls.items() if count >= REQUESTS and module.partition(".")[0] in ratchets.PACKAGES
    )


def count_requests(
    server: Server,
    model: str,
    *,
    unique: bool = False,
    way: str = "",
    warm: int = 20,
    prompts: Callable[[int], str] | None = None,
) -> Counts:
    """What one JSON request costs."""
    base = next(_fresh)
    prompt = prompts or (lambda number: _prompt(base + number if unique else 0))
    with _client(server) as ask:
        for number in range(1000, 1000 + warm):
            ask(_body(model, prompt(number) if unique else prompt(0)))
        with _counted(server) as counts:
            ways = [ask(_body(model, prompt(number))) for number in range(REQUESTS)]
    _check(ways, way)
    return {what: counts.get(what, 0) / (1 if what == "peak_bytes" else REQUESTS) for what in WHAT}


def _semantic(server: Server) -> Counts:
    """What a hit by meaning costs: each question was stored in other words before."""
    with _client(server) as ask:
        for number in range(REQUESTS):
            ask(_body("near", f"What is the capital of {_COUNTRIES[number]}?"))
    time.sleep(0.5)
    words = next(_REPHRASED)
    return count_requests(server, "near", way="cache-semantic", warm=0, prompts=lambda n: f"{words} {_COUNTRIES[n]}")


def _chunk(server: Server, model: str, *, unique: bool = False, way: str = "") -> Counts:
    """What one chunk of a stream costs: the difference of long and short streams."""
    sums: list[Counts] = []

    base = next(_fresh)

    def body(number: int, chunks: int) -> bytes:
        prompt = _prompt(base + number if unique else 0, chunks)
        return _body(model, prompt, stream=True, bench_chunks=chunks, bench_pace_ms=2, bench_apart=1)

    for chunks in (_SHORT, _LONG):
        with _client(server) as ask:
            for number in range(1000, 1003):
                ask(body(number, chunks))
            with _counted(server) as counts:
                ways = [ask(body(number, chunks)) for number in range(_STREAMS)]
        _check(ways, way)
        sums.append({what: counts.get(what, 0) / (_STREAMS) for what in WHAT})
    short, long = sums
    return {what: (long[what] - short[what]) / (_LONG - _SHORT) for what in WHAT if what != "peak_bytes"}


def _check(ways: list[str], wanted: str) -> None:
    if any(one != wanted for one in ways):
        raise NotAsMeant(
            f"of {len(ways)} requests {sum(one == wanted for one in ways)} went {wanted!r}; also {set(ways)}"
        )


@contextmanager
def _client(server: Server) -> Iterator[Callable[[bytes], str]]:
    """One connection; a function that asks over it, and returns the path that the reply's header names."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)

    def ask(body: bytes) -> str:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise NotAsMeant(f"status {reply.status}")
        return reply.headers.get("x-tierline-path", "")

    try:
        yield ask
    finally:
        connection.close()


def _prompt(number: int, chunks: int = 0) -> str:
    return f"which chain fits frame {number} of series {chunks} with nine gears"


def _body(model: str, prompt: str, **more: object) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}], **more}).encode()


def exceeded(counts: Mapping[str, Counts], limits: Mapping[str, Counts]) -> list[str]:
    """One line for every count above its limit, and for every path without one."""
    lines = [f"{path}: there are no limits for it; write them with --write" for path in counts if path not in limits]
    for path, limit in limits.items():
        for what, most in limit.items():
            if what not in HELD or "raw" in path:
                continue
            here = counts.get(path, {}).get(what, 0.0)
            if here > most * (1 + (_HELD_AMONG if path == AMONG else HELD[what])) + 0.2:
                lines.append(f"{path}: {here:.2f} {what}, {most:g} allowed")
    return lines


def as_text(counts: Mapping[str, Counts]) -> str:
    """A table: a row for each path, and its calls against the raw proxy's."""
    rows = [f"{'path':38}" + "".join(f"{what.replace('_', ' '):>13}" for what in WHAT) + f"{'x raw':>8}"]
    for path, row in counts.items():
        base = counts["raw proxy, chunk" if "chunk" in path else "raw proxy"]["calls"]
        compared = "" if path in (IDLE, AMONG) else f"{row['calls'] / base:8.2f}"
        cells = "".join(
            f"{row[what]:13.0f}" if row.get(what, 0) >= 100 else f"{row.get(what, 0):13.2f}" for what in WHAT
        )
        rows.append(f"{path:38}{cells}{compared}")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Count, print, compare."""
    parser = argparse.ArgumentParser(prog="make budgets", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write today's counts as the limits")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        counts = measure(Path(folder))
    passed = int(counts["miss"].pop(MODULES))
    print(json.dumps(counts | {MODULES: passed}, indent=1) if args.json else f"{as_text(counts)}\n{MODULES}: {passed}")
    if args.write:
        rounded = {path: {what: round(value, 2) for what, value in row.items()} for path, row in counts.items()}
        LIMITS.write_text(json.dumps(rounded, indent=1) + "\n")
        return 0
    lines = exceeded(counts, json.loads(LIMITS.read_text()))
    lines += ratchets.grown({MODULES: passed}, ratchets.kept())
    for line in lines:
        print(f"over budget: {line}", file=sys.stderr)
    return 1 if lines else 0


# fmt: off
_COUNTRIES = [
    "Italy", "Spain", "France", "Germany", "Poland", "Norway", "Sweden", "Finland", "Denmark", "Greece", "Turkey",
    "Egypt", "Kenya", "Ghana", "Nigeria", "Morocco", "Tunisia", "Algeria", "Libya", "Sudan", "Ethiopia", "Uganda",
    "Rwanda", "Angola", "Zambia", "Zimbabwe", "Botswana", "Namibia", "Mozambique", "Madagascar", "India",
    "Pakistan", "Nepal", "Bangladesh", "China", "Japan", "Mongolia", "Vietnam", "Thailand", "Laos", "Cambodia",
    "Malaysia", "Indonesia", "Australia", "Canada", "Mexico", "Guatemala", "Cuba", "Jamaica", "Colombia", "Peru",
    "Chile", "Argentina", "Brazil", "Uruguay", "Paraguay", "Bolivia", "Ecuador", "Portugal", "Ireland", "Iceland",
    "Austria", "Belgium", "Hungary",
]
# fmt: on

if __name__ == "__main__":
    sys.exit(main())
