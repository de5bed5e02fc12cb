"""Measures what many tenants and many surfaces cost: a key's lookup, an idle gateway's CPU, an edit's way into force.

    python -m tests.bench.many [--count 1000]

Each figure is shown for one (tenant, surface) and for `--count` of them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import timeit
from pathlib import Path

import httpx2

from gateway.config.schema import TenantConfig, key_digest
from gateway.request.access import Tenants
from policies.loader import SHIPPED
from tests.support.gateway import serve
from tests.support.wait import until

_IDLE_S = 10.0


def lookup_us(count: int) -> float:
    """Microseconds until it is known whom one of `count` tenants' keys stands for."""
    tenants = Tenants({f"tenant-{n}": TenantConfig(key_digests=(key_digest(b"key-%d" % n),)) for n in range(count)})
    headers = {b"authorization": b"Bearer key-0"}
    return min(timeit.repeat(lambda: tenants.of(headers), number=200, repeat=20)) / 200 * 1e6


def surfaces(count: int) -> tuple[float, float]:
    """Of a gateway with `count` surfaces: the share of a core that it takes while idle, and the seconds until an edit
    of one policy, written in place, is in force.
    """
    text = re.sub(r"(?ms)^match:.*?^(?=\S)", "", (SHIPPED / "chat.yaml").read_text())
    policies = {name: text.replace("surface: chat", f"surface: {name}") for name in _names(count)}
    with (
        tempfile.TemporaryDirectory(prefix="tierline-bench-") as folder,
        serve(Path(folder), "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", policies=policies) as gateway,
    ):
        time.sleep(3)  # what follows a start
        before = _cpu_s(gateway.process.pid)
        time.sleep(_IDLE_S)
        idle = (_cpu_s(gateway.process.pid) - before) / _IDLE_S

        def version() -> str:
            found: str = httpx2.get(f"{gateway.origin}/readyz").json()["surfaces"]["chat"]
            return found

        old, began = version(), time.monotonic()
        (gateway.policies / "chat.yaml").write_text(policies["chat"].replace("deadline: 60s", "deadline: 59s"))
        until(lambda: version() != old, 30, "the edit in force")
        return idle, time.monotonic() - began


def _names(count: int) -> list[str]:
    return ["chat", *(f"surface-{n}" for n in range(count - 1))]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="how many are many (1000)")
    count = parser.parse_args().count
    sys.stdout.write(f"{'':>10}{'key lookup, us':>16}{'idle, % of a core':>20}{'edit in force, s':>18}\n")
    for number in (1, count):
        idle, edit_s = surfaces(number)
        sys.stdout.write(f"{number:>10}{lookup_us(number):>16.1f}{idle * 100:>20.1f}{edit_s:>18.2f}\n")


if __name__ == "__main__":
    main()
