"""Try the ways to spend more than a budget, over real gateways, and compare what is billed with what is booked.

    python -m tests.bench.overspend            # all ways, and the grid of waits: under five minutes
    python -m tests.bench.overspend --quick    # fewer requests, and the hardest cells of the grid: seconds

`billed` is what the scripted provider would bill, counted there by the marker in each request; `booked` is what the
tenant's counter in the store says afterwards. The grid is a simulation of the real machine (`overspend_grid`).
"""

from __future__ import annotations

import http.client
import itertools
import json
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from gateway.quotas.accounts import ACCOUNT_PREFIX
from gateway.quotas.terms import NANO
from tests.bench.command import bench_parser
from tests.bench.overspend_grid import cells, run_cell
from tests.bench.overspend_provider import (
    EMBED_PRICE,
    IMAGE_USD,
    LEFT_ANSWER_S,
    LONG_OVER,
    LONG_PRICE,
    PRICE,
    CountingProvider,
)
from tests.support.gateway import CHAT, config, environment, running, write_deployment
from tests.support.store import LocalStore, local_store

BUDGET_USD: Final = 0.05


@dataclass(frozen=True, slots=True)
class Way:
    """One way: its name, its path and body, how many requests at once, and how the client leaves."""

    name: str
    path: str = "/v1/chat/completions"
    more: Mapping[str, Any] | None = None
    at_once: int = 20
    headers: Mapping[str, str] | None = None
    budget: float = BUDGET_USD
    answered: int = 0
    """How many answers are waited for, one after another, before the clients begin to leave."""
    leaves: bool = False
    """Whether the client leaves 50 ms before the answer, once the provider has its request."""
    trouble: str = ""
    """What the store meets after each of the first two rounds; such a way runs alone."""
    refused: bool = False
    """Whether every request must be refused, as nobody knows what it costs."""
    must_be: str = ""
    """Where the bound is another by design: the document that says so."""


def _said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


_FILE: Final = {"type": "file", "file": {"file_id": "file-1"}}
_PICTURE: Final = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
_MARK: Final = {"type": "text", "text": "MARK"}
_IMAGES: Final = "/v1/images/generations"
_IMAGE: Final = {"prompt": "MARK", "messages": None}
_WORDS: Final = {"input": "MARK " + "word " * 200, "messages": None}
_INPUT: Final = {"input": "MARK", "messages": None, "store": False}
_FILES: Final = {"messages": [{"role": "user", "content": [_MARK, _FILE]}]}
_LEFT: Final[dict[str, Any]] = {"leaves": True, "answered": 22, "budget": 0.2}
"""Cold, one call that is given up is charged 2,000 tokens: what answers have is learnt first."""
_CAP: Final = "policies/README.md, session.usd"
WAYS: Final = (
    Way("in turn", at_once=1),
    Way("200 at once, no max_tokens", at_once=200),
    Way("max_tokens", more={"max_tokens": 60}),
    Way("n: 8", more={"n": 8}),
    Way("dense text", more={"messages": _said("MARK " + "%$#@!{}[]" * 60)}),
    Way("pictures by URL", more={"messages": [{"role": "user", "content": [_MARK, _PICTURE]}]}),
    Way("messages", "/v1/messages", {"max_tokens": 4000}),
    Way("responses", "/v1/responses", _INPUT),
    Way("background", "/v1/responses", {"input": "MARK", "messages": None, "background": True}),
    Way("compact", "/v1/responses/compact", {"input": "MARK", "messages": None}),
    Way("embeddings", "/v1/embeddings", _WORDS),
    Way("a new end user each time", more={"user": "NUMBER"}),
    Way("file ids, 150 at once", more=_FILES, at_once=150),
    Way("file ids, 8 at once", more=_FILES, at_once=8),
    Way("file ids, in turn", more=_FILES, at_once=1),
    Way("images, n: 10", _IMAGES, {**_IMAGE, "n": 10}),
    Way("audio of 3 MiB", "/v1/audio/transcriptions", at_once=5),
    Way("batches", "/v1/batches", _IMAGE, at_once=5, refused=True),
    Way("images, deadline 300 ms", _IMAGES, _IMAGE, headers={"x-tierline-deadline-ms": "300"}),
    Way("images, left early", _IMAGES, _IMAGE, leaves=True),
    Way("embeddings, left early", "/v1/embeddings", _WORDS, leaves=True),
    Way("max_tokens, left early", more={"max_tokens": 60}, leaves=True),
    Way("chat, left early", **_LEFT),
    Way("messages, left early", "/v1/messages", {"max_tokens": 4000}, **_LEFT),
    Way("responses, left early", "/v1/responses", _INPUT, **_LEFT),
    Way("stream, left before its first token", more={"stream": True}, **_LEFT),
    Way("long context at its own price", more={"model": "long", "messages": _said("MARK " + "word " * 5000)}),
    Way("Claude stream, cut, one-hour writes", more={"model": "claude", "stream": True}, at_once=1),
    Way(
        "session cap, 100 at once",
        more={"model": "capped"},
        at_once=100,
        budget=5.0,
        must_be=_CAP,
    ),
    Way("the store is frozen, twice", at_once=5, trouble="freeze"),
    Way("the store is full, twice", at_once=5, trouble="fill"),
    Way("the store is killed, twice", at_once=5, trouble="kill"),
    Way("the store loses its data, twice", at_once=5, trouble="flush"),
)
QUICK: Final = ("max_tokens", "n: 8", "images, left early", "max_tokens, left early")


@dataclass(frozen=True, slots=True)
class WayFigures:
    """What a way came to, in US dollars."""

    way: Way
    billed: float
    booked: float
    dearest: float
    requests: int

    @property
    def bound(self) -> float:
        """The most that may be billed, as a share of the budget."""
        return 1.0 + max(0.2, self.dearest / self.way.budget)

    @property
    def holds(self) -> bool:
        """Whether the budget held, and what was billed was booked."""
        if self.way.refused:
            return not self.billed
        if self.way.must_be:
            return self.billed > 0
        return 0 < self.billed <= self.bound * self.way.budget + 1e-9 and self.booked >= 0.95 * self.billed


def _tenant(way: Way) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in way.name.lower())


@contextmanager
def _gateway(ways: tuple[Way, ...], provider: CountingProvider, store: str, workers: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tenants = {}
        for way in ways:
            path = folder / f"{_tenant(way)}.key"
            path.write_text(f"key-of-{_tenant(way)}")
            path.chmod(0o600)
            tenants[_tenant(way)] = {
                "key_file": path.name, "limits": {"budgets": [{"usd": way.budget, "per": "total"}]},
            }  # fmt: skip
        made = config(provider.url, None, store, tenants=tenants)
        can = ["tools", "json", "vision", "files", "n"]
        backend = {
            "base_url": provider.url, "model": "m", "price": PRICE, "capabilities": can, "context": 128_000,
            "logprobs": False,
        }  # fmt: skip
        made["embedding"] = {"state": str(folder / "state")}
        (folder / "claude.key").write_text("key-of-the-provider")
        (folder / "claude.key").chmod(0o600)
        claude = {
            "kind": "anthropic", "base_url": provider.url, "model": "m", "price": {**PRICE, "cache_write": 1.25},
            "key_file": "claude.key",
        }  # fmt: skip
        made["tiers"] = [{"name": "local", "backends": [backend]}, {"name": "claude", "backends": [claude]}]
        long = {**backend, "capabilities": list(can), "price": {**PRICE, "long": {"over": LONG_OVER, **LONG_PRICE}}}
        made["tiers"].append({"name": "long", "backends": [long]})
        made["services"] = {
            "other": {"base_url": provider.url, "request_price": IMAGE_USD, "prices": {"e": EMBED_PRICE}}
        }
        policy = CHAT.replace("[local, hosted]", "[local]") + (
            "endpoints: {embeddings: {service: other, model: e, ttl: 0s}, "
            "images: other, audio: other, batches: other}\n"
        )
        capped = policy.replace("surface: chat", "surface: capped").replace("[chat, gpt-4o-mini]", "[capped]")

        def of_tier(name: str) -> str:
            text = policy.replace("surface: chat", f"surface: {name}").replace("[chat, gpt-4o-mini]", f"[{name}]")
            return text.replace("[local]", f"[{name}]").replace("{local:", f"{{{name}:")

        policies = {"chat": policy, "capped": capped + f"session: {{usd: {BUDGET_USD}}}\n"}
        write_deployment(folder, made, policies | {name: of_tier(name) for name in ("long", "claude")})
        several = ("--workers", str(workers)) if workers > 1 else ()
        with running(folder, environment(), *several, forked=workers == 1) as gateway:
            yield gateway.origin


_numbers = itertools.count(1)


def _request(way: Way, number: int) -> tuple[bytes, dict[str, str]]:
    headers = {"authorization": f"Bearer key-of-{_tenant(way)}", "x-tierline-cache": "no-cache, no-store"}
    headers |= {"x-tierline-session": "s1", **(way.headers or {})}
    mark = f"way:{way.name};number:{number};"
    if way.path.startswith("/v1/audio"):
        part = '--b\r\ncontent-disposition: form-data; name="{}"{}\r\n\r\n'
        sound = part.format("file", '; filename="a.wav"') + "x" * 3 * (1 << 20)
        body = part.format("model", "") + "w\r\n" + part.format("prompt", "") + mark + "\r\n" + sound + "\r\n--b--\r\n"
        return body.encode(), headers | {
            "content-type": "multipart/form-data; boundary=b",
            "x-tierline-surface": "chat",
        }
    asked: dict[str, Any] = {"model": "chat", "messages": _said("MARK"), **(way.more or {})}
    raw = json.dumps({name: value for name, value in asked.items() if value is not None})
    raw = raw.replace("MARK", mark).replace("NUMBER", f"user-{number}")
    if way.path == "/v1/batches":
        headers["x-tierline-surface"] = "chat"
    return raw.encode(), headers | {"content-type": "application/json"}


def _ask(origin: str, provider: CountingProvider, way: Way, *, leaves: bool) -> str:
    """Send a request, and return the error's code, the status, or `left`."""
    number = next(_numbers)
    raw, headers = _request(way, number)
    connection = http.client.HTTPConnection(origin.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", way.path, raw, headers)
        while leaves and not select.select([connection.sock], [], [], 0.01)[0]:
            here = provider.arrived.get(str(number))
            if here is not None and time.monotonic() > here + LEFT_ANSWER_S - 0.05:
                return "left"
        reply = connection.getresponse()
        text, status = reply.read(), reply.status
    except (OSError, http.client.HTTPException):
        return "no answer"
    finally:
        connection.close()
    with suppress(ValueError):
        error = json.loads(text).get("error") or {}
        return str(error.get("code") or error.get("type") or status)
    return str(status)


@contextmanager
def _troubled(store: LocalStore, trouble: str) -> Iterator[None]:
    """Do to the store what a way says; at the end of the block it is over."""
    with redis.Redis.from_url(store.url) as client:
        if trouble == "freeze":
            store.freeze()
        elif trouble == "kill":
            store.stop()
        elif trouble == "fill":
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)
        yield
        if trouble == "freeze":
            store.thaw()
        elif trouble == "kill":
            store.start()
        elif trouble == "fill":
            client.config_set("maxmemory", 0)
        elif trouble == "flush":
            time.sleep(0.5)
            client.flushall()


_OVER: Final = ("insufficient_quota", "billing_error", "session_limit_reached")


def try_way(origin: str, store: LocalStore, provider: CountingProvider, way: Way, most_s: float) -> WayFigures:
    """Send requests until the budget is spent, or for so long; ten times as long while a busy gateway lets none in."""
    for _ in range(way.answered):
        _ask(origin, provider, way, leaves=False)
    began, requests, troubles = time.monotonic(), way.answered, 2 * bool(way.trouble)

    def round_of() -> list[str]:
        return list(pool.map(lambda _: _ask(origin, provider, way, leaves=way.leaves), range(way.at_once)))

    with ThreadPoolExecutor(way.at_once) as pool:
        while time.monotonic() < began + most_s * (1 if way.refused or provider.billed[way.name] else 10):
            codes = round_of()
            requests += len(codes)
            if troubles:
                troubles -= 1
                with _troubled(store, way.trouble):
                    requests += len(round_of()) if way.trouble != "flush" else 0
                continue
            if way.refused or any(code in _OVER for code in codes):
                break
            if way.path == "/v1/responses" and way.more and "background" in way.more:
                time.sleep(0.5)
    booked, before, counter = 0, -1, f"{ACCOUNT_PREFIX}tenant:{_tenant(way)}/usd/total"
    with redis.Redis.from_url(store.url) as client:
        for _ in range(150 if way.trouble else 20):  # a store that was full is tried again after up to 30 s
            booked = int(client.hget(counter, "spent") or 0)
            if booked == before and booked >= 0.95 * provider.billed[way.name]:
                break
            before = booked
            time.sleep(0.3)
    billed, dearest = provider.billed[way.name] / NANO, provider.dearest[way.name] / NANO
    return WayFigures(way, billed, booked / NANO, dearest, requests)


def try_ways(*, quick: bool, on_row: Callable[[WayFigures], None] = lambda _: None) -> list[WayFigures]:
    """Try all ways, each with a tenant of its own, at one gateway of two workers; of one worker if `quick`.

    Three ways run at a time, and those with trouble at the store alone, after them.
    """
    ways = tuple(way for way in WAYS if not quick or way.name in QUICK)
    rows: list[WayFigures] = []
    with (
        local_store("--appendonly yes --appendfsync always") as store,
        CountingProvider() as provider,
        _gateway(ways, provider, store.url, 1 if quick else 2) as origin,
        ThreadPoolExecutor(3) as pool,
    ):

        def tried(way: Way) -> WayFigures:
            return try_way(origin, store, provider, way, 1.5 if quick else 8.0)

        for of_them in (
            pool.map(tried, [way for way in ways if not way.trouble]),
            map(tried, [w for w in ways if w.trouble]),
        ):
            for row in of_them:
                rows.append(row)
                on_row(row)
    return rows


def _print_row(row: WayFigures) -> None:
    share = row.booked / row.billed if row.billed else 1.0
    said = f"see {row.way.must_be}" if row.way.must_be else "refused" if row.way.refused else "holds"
    of_budget = row.billed / (BUDGET_USD if row.way.must_be else row.way.budget)
    print(
        f"{row.way.name:38}{row.requests:>6}{of_budget:>9.2f}{row.bound:>9.2f}{share:>9.2f}{0.95:>9.2f}"
        f"  {said if row.holds else 'OVER'}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 where a row is above what it must be."""
    parser = bench_parser("overspend", __doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ways, and the hardest cells of the grid")
    parser.add_argument("--grid", action="store_true", help="the grid alone")
    options = parser.parse_args(arguments)
    held = True
    if not options.grid:
        print(f"{'way':38}{'sent':>6}{'billed/':>9}{'must':>9}{'booked/':>9}{'must':>9}")
        print(f"{'':44}{'budget':>9}{'be <=':>9}{'billed':>9}{'be >=':>9}")
        held = all(row.holds for row in try_ways(quick=options.quick, on_row=_print_row))
    cells_run = [run_cell(cell, 150 if options.quick else 300) for cell in cells(quick=options.quick)]
    early, waited = sum(one.early for one in cells_run), sum(one.held for one in cells_run)
    over = [one for one in cells_run if one.billed > one.bound + 1e-9]
    print(f"\n{len(cells_run)} cells, {sum(one.sent for one in cells_run):,} requests on virtual time")
    print(f"held while less than 80% was spent    {waited:>6} of {early:,}, must be 0")
    print(f"refused while less than 80% was spent {sum(one.refused_early for one in cells_run):>6}, at once")
    print(f"overtaken                             {sum(one.overtaken for one in cells_run):>6}, must be 0")
    print(f"cells above their bound               {len(over):>6}, must be 0")
    print(f"dearest cell, billed / budget         {max(one.billed / one.cell.budget for one in cells_run):>6.2f}")
    good = held and not waited and not over and not any(one.overtaken for one in cells_run)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
