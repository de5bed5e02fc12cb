"""`python -m tests.bench.console [--records N] [--keep DIR | --ledger DIR] [--json]`: the console over many requests.

Sends a minute of the demo's traffic for a few hundred true records, makes a ledger of N requests (10,000,000) over 30
days of them (`tests.bench.console_files`; ten minutes and 1.3 GB), starts the console on it as users do, with a store,
and asks for each page as a browser does, from the opening of a connection to the first byte of the reply. Each figure
is the median of `--rounds` (5), after a first visit that does not count and stands beside it. `--ledger` measures a
folder that `--keep` has kept.

Goals: the first byte of a page within 100 ms, and of a filtered list within 300 ms. Where the machine does
other things besides, read the CPU time of the console's process, which has two threads for queries. The exit code
is 1 where a goal is missed, 2 where a page is not what it should be.
"""

from __future__ import annotations

import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway.parts.ledger.query import connect
from tests.bench.command import bench_parser
from tests.bench.console_files import RARE_ERROR, Say, Spread, multiply
from tests.bench.measure import NotAsMeant
from tests.bench.rig import cpu_s, stopped
from tests.support.gateway import ROOT, environment
from tests.support.store import local_store
from tests.support.wait import until

_DAYS: Final = 30
_READY_S: Final = 600.0
"""Longest time that a console takes to summarise the files that it finds."""
_REST_S: Final = 2.0
_TRAFFIC: Final = ("--minutes", "1", "--rate", "15", "--no-browser", "--port", "0", "--console-port", "0")


@dataclass(frozen=True, slots=True)
class Asked:
    """One URL that is measured, and by when its first byte should come."""

    name: str
    url: str
    goal_ms: float


@dataclass(frozen=True, slots=True)
class Console:
    """A console that runs."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class FirstByte:
    """Milliseconds until the first byte of a page, those of CPU that it took, and its kilobytes.

    `first_ms` is for the first visit, when a page may say that its figures are being made; it does not count.
    """

    name: str
    url: str
    first_ms: float
    median_ms: float
    worst_ms: float
    cpu_ms: float
    kb: float
    goal_ms: float

    @property
    def met(self) -> bool:
        """Whether the median is within the goal."""
        return self.median_ms <= self.goal_ms


def pages(folder: Path) -> list[Asked]:
    """Return what is measured over a ledger: each page, and filters that much, little and nothing fits."""
    with connect(folder) as ledger:
        newest = "SELECT request_id, entry_ms FROM requests_hot ORDER BY entry_ms DESC LIMIT 1"
        request_id, entry_ms = ledger.execute(newest).fetchall()[0]
        [[old_id]] = ledger.execute("SELECT min_by(request_id, entry_ms) FROM requests").fetchall()
    found = [Asked(f"now, {span}", f"/now?since={span}", 100) for span in ("15m", "1h", "6h", "24h")]
    found += [
        *(Asked(f"surface, {span}", f"/surfaces/chat?since={span}", 100) for span in ("1h", "24h")),
        Asked("requests", "/requests", 100),
        Asked("one request", f"/requests/{quote(request_id)}?at={entry_ms}", 100),
        Asked("one request, by its id alone", f"/requests/{quote(old_id)}", 300),
        Asked("filter: common", "/requests?surface=chat&is=escalated&since=all", 300),
        Asked("filter: slow ones", "/requests?slower=3s&since=all", 300),
        Asked("filter: rare error", f"/requests?error={RARE_ERROR}&since=all", 300),
        Asked("filter: rare error, 24h", f"/requests?error={RARE_ERROR}&since=24h", 300),
        Asked("filter: fits nothing", "/requests?tenant=nobody&since=all", 300),
        Asked("find by a part of an id", f"/requests?q={quote(old_id[:-4])}", 300),
        Asked("find by a client's own id", "/requests?q=nobody-has-it", 300),
        Asked("policies", "/policies", 100),
        Asked("changes", "/changes", 100),
        *(Asked(f"cache, {span}", f"/cache?since={span}", 100) for span in ("1h", "24h", "7d")),
        *(Asked(f"usage by {by}", f"/usage?by={by}", 100) for by in ("key", "day")),
        Asked("what if", "/what-if?surface=chat", 100),
    ]
    return found


def measure(served: Console, asked: Sequence[Asked], rounds: int, say: Say) -> list[FirstByte]:
    """Ask for each page once, and then so many times in a row. Raises NotAsMeant where one is no page."""
    rows = []
    for one in asked:
        say(f"{one.name}: {one.url}")
        first_ms, _ = first_byte(served.port, one.url)
        before = cpu_s(served.pid)
        took = [first_byte(served.port, one.url) for _ in range(rounds)]
        cpu_ms = (cpu_s(served.pid) - before) * 1000 / rounds
        times = [ms for ms, _ in took]
        row = FirstByte(
            one.name, one.url, first_ms, statistics.median(times), max(times), cpu_ms, took[-1][1] / 1024, one.goal_ms
        )
        rows.append(row)
    return rows


def first_byte(port: int, url: str) -> tuple[float, int]:
    """Return the milliseconds until the first byte of a page, and its bytes as they are sent. Raises NotAsMeant."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        began = time.perf_counter()
        connection.request("GET", url, headers={"accept-encoding": "gzip"})
        reply = connection.getresponse()
        reply.read(1)
        took = (time.perf_counter() - began) * 1000
        size = 1 + len(reply.read())
    if reply.status != 200:
        raise NotAsMeant(f"{url} answered {reply.status}")
    return took, size


@contextmanager
def console(folder: Path, log: Path) -> Iterator[Console]:
    """Start `tierline console` on a ledger and a store of its own; yield it once files are summarised."""
    with local_store() as store, log.open("wb") as output:
        places = ("--store", store.url, "--dir", str(folder), "--port", "0")
        command = [sys.executable, "-m", "gateway", "console", *places]
        running = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=output, stderr=output)
        with stopped(running):

            def port() -> int:
                if running.poll() is not None:
                    raise NotAsMeant(f"the console ended with {running.returncode}: {log.read_text()[-500:]}")
                _, _, rest = log.read_text().partition("http://127.0.0.1:")
                return int(rest.split()[0]) if rest.endswith("\n") else 0

            found = until(port, 60, "the console's address")
            until(lambda: _rests(running.pid), _READY_S, "the summaries of the ledger's files")
            yield Console(found, running.pid)


def _rests(pid: int) -> bool:
    """Return whether a process uses next to no CPU, for a while."""
    before = cpu_s(pid)
    time.sleep(_REST_S)
    return cpu_s(pid) - before < _REST_S / 20


def record(folder: Path) -> Path:
    """Have the demo send its traffic, and return its ledger. Raises NotAsMeant."""
    log = folder / "demo.log"
    command = [sys.executable, "-m", "gateway", "demo", *_TRAFFIC, "--state", str(folder / "demo")]
    with log.open("wb") as output:
        demo = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=output, stderr=output)
    try:
        until(lambda: demo.poll() is not None or "The traffic has ended" in log.read_text(), 180, "the demo's end")
        time.sleep(2)  # its keeper reads the stream each second
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)
    if "The traffic has ended" not in log.read_text():
        raise NotAsMeant(f"the demo did not send its traffic: {log.read_text()[-500:]}")
    return folder / "demo" / "ledger"


def as_text(rows: Sequence[FirstByte]) -> str:
    """Return the table."""
    lines = [f"{'first byte':34}{'first':>10}{'median':>10}{'worst':>10}{'CPU':>10}{'gzip':>9}{'goal':>9}"]
    for row in rows:
        times = "".join(f"{ms:7.0f} ms" for ms in (row.first_ms, row.median_ms, row.worst_ms, row.cpu_ms))
        lines.append(f"{row.name:34}{times}{row.kb:6.1f} KB{row.goal_ms:6.0f} ms  {'met' if row.met else 'OVER'}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the ledger or take the one given, measure, and print."""
    parser = bench_parser("console", __doc__)
    parser.add_argument("--records", type=int, default=10_000_000, metavar="N", help="requests in the ledger")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often to ask for each page (default 5)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the ledger there, and keep it")
    parser.add_argument("--ledger", type=Path, metavar="DIR", help="measure a ledger that was kept; its last hour ages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierline-console-")))
        try:
            folder = asked.ledger or _made(asked.keep or scratch / "ledger", scratch, asked.records)
            served = stack.enter_context(console(folder, scratch / "console.log"))
            rows = measure(served, pages(folder), asked.rounds, _say)
        except NotAsMeant as wrong:
            print(f"not measured: {wrong}", file=sys.stderr)
            return 2
    print(json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=2) if asked.json else as_text(rows))
    return 0 if all(row.met for row in rows) else 1


def _made(folder: Path, scratch: Path, records: int) -> Path:
    _say("sending the demo's traffic")
    seeds = record(scratch)
    span_ms = _DAYS * 86_400_000
    multiply(seeds, folder, Spread(records, int(time.time() * 1000) - span_ms, span_ms / records), _say)
    return folder


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
