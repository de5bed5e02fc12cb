"""Measure what if: how long one drag of a slider takes the console, over 100,000 recorded requests.

    python -m tests.bench.whatif [--records 100000] [--ledger DIR] [--limit 200]

Writes the ledger of a scripted world into a temporary folder (a minute for each 300,000 records), or reads one given.
The console's app is asked for the page, which reads the requests once; then each number of the policy is dragged from
what is in force to either end, and every step asks for the page again, as a browser does. Printed are milliseconds of
this process's CPU time. The figures at the end of each drag are compared with those of a replay of the same policy.
Exit code 1 where the median step takes more than --limit milliseconds, or a figure differs.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson

from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.console.policy_numbers import numbers_of
from gateway.parts.lab.replay.run import replay
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.ledger.query import connect
from policies.loader import made_policy
from policies.yaml_source import parse_yaml
from tests.bench.command import bench_parser
from tests.support.ledger_files import write_ledger
from tests.support.scripted_world import TIERS, World, policy

_BACKENDS: Final = "[{kind: scripted, script: [{reply: {text: Hello.}}]}]"
_STORE: Final = "redis://127.0.0.1:1"
"""Nothing listens there: the policy comes from a file, and the requests from the ledger's."""
_STEPS: Final = 6
"""Steps of each number's drag, between its value in force and both ends."""
TEXT: Final = """surface: chat
slo: {ttft: {p99: 1500ms}, total: {p99: 20s}, deadline: 60s}
tiers: [local, hosted]
route:
  start:
    local: easiest 40% of its kind and tokens_in < 3000
    hosted: otherwise
escalate:
  when: {confidence_below: 0.62}
  max_attempts: 3
cache:
  exact: {ttl: 24h}
  semantic: {ttl: 6h}
holdout: 2%
"""


def app_over(ledger: Path, archive: LiveArchive, store: RedisStore, folder: Path) -> ConsoleApp:
    """Return a console over the ledger, with TEXT in force from a file in `folder`."""
    (folder / "policies").mkdir()
    (folder / "policies" / "chat.yaml").write_text(TEXT)
    config = folder / "tierline.yaml"
    config.write_text(f"tiers: [{', '.join(f'{{name: {name}, backends: {_BACKENDS}}}' for name in TIERS)}]\n")
    launch = Launch(config=config, policies=folder / "policies")
    deployment = launch.deployment()
    places = PolicyPlaces(deployment, launch.policy_source(deployment), ledger, config, _STORE)
    return ConsoleApp(archive, store, places, ConsoleAccess({}))


def dragged() -> dict[str, list[dict[str, str]]]:
    """Return by each number's label the queries of its drag, from what is in force to either end."""
    drags: dict[str, list[dict[str, str]]] = {}
    for number in numbers_of(TEXT):
        ends = [end for end in (number.low, number.high) if end != number.value]
        values = [
            number.value + (end - number.value) * step / (_STEPS // len(ends))
            for end in ends
            for step in range(1, _STEPS // len(ends) + 1)
        ]
        whole = number.path[-1] == "max_attempts"
        drags[number.label] = [{number.name: str(round(one) if whole else one)} for one in values]
    return drags


def differs(ledger: Path, data: dict[str, Any]) -> bool:
    """Return whether a try's figures differ from those of a replay of the edited policy."""
    content = parse_yaml(data["edited"], Path("chat.yaml")).value
    candidate = made_policy(content, Path("chat.yaml"), {"ladder": TIERS})
    with connect(ledger, threads=1) as database:
        told = orjson.loads(orjson.dumps(replay(database, candidate, verify=0).as_json()))
    figures = {
        name: {part: data["tried"]["figures"][name][part] for part in one} for name, one in told["figures"].items()
    }
    return bool(figures != told["figures"] or data["tried"]["quality"] != told["quality"])


async def measured(ledger: Path, folder: Path) -> tuple[list[float], int]:
    """Drag every number; return the CPU milliseconds of each step, and how many drags differ from a replay."""
    store = RedisStore.from_url(_STORE)
    archive = LiveArchive(ledger, store)
    every: list[float] = []
    differing = 0
    transport = httpx2.ASGITransport(app=app_over(ledger, archive, store, folder).asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

        async def ask(path: str, query: dict[str, str]) -> tuple[httpx2.Response, float]:
            began = time.process_time()
            reply = await client.get(path, params={"surface": "chat", **query}, headers={"hx-request": "true"})
            reply.raise_for_status()
            return reply, (time.process_time() - began) * 1000

        first, cpu = await ask("/what-if.json", {})
        requests, to = first.json()["tried"]["requests"], {"to": first.json()["to"]}
        print(f"{requests:,} requests are read once, in {cpu:,.0f} ms")
        for label, queries in dragged().items():
            steps = [(await ask("/what-if", {**to, **query}))[1] for query in queries]
            end = (await ask("/what-if.json", {**to, **queries[-1]}))[0].json()
            every += steps
            differing += differs(ledger, end)
            print(f"  {label:42} {'  '.join(f'{one:4.0f}' for one in steps)} ms; {end['tried']['changed']:,} change")
    await archive.aclose()
    await store.aclose()
    return every, differing


def main() -> int:
    """Write, read, drag, compare and print."""
    parser = bench_parser("whatif", __doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--ledger", type=Path, help="read this ledger of the bench's world")
    parser.add_argument("--limit", type=float, default=200.0, help="most milliseconds of the median step")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = args.ledger or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.ledger is None:
            world = World(args.records)
            write_ledger(folder, world.live(policy()), [world.basis(policy())])
        every, differing = asyncio.run(measured(folder, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
    middle, late = statistics.median(every), sorted(every)[int(len(every) * 0.95)]
    print(f"a step: {middle:.0f} ms in the middle, p95 {late:.0f}; {differing} drags differ from a replay")
    return 0 if middle <= args.limit and not differing else 1


if __name__ == "__main__":
    sys.exit(main())
