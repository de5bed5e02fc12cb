"""Find what is wrong by the console alone.

Twenty incidents (`incident_list`) are seeded: each is a gateway of its own over scripted models, with another surface
that is well beside the one that is not. Then a reader that knows no incident goes from the start page to an answer, by
rules that the README gives: from a complaint about a surface to the requests of that kind, to the newest of them (or to
the one that was complained about), to the hop that stands out, and to the line of the policy that this hop names:

    slow      the hop that most of the total time passed in         dear       the first call whose text was not used,
    failed    the last hop that failed                                         else the decision where it started
    broken    the call that went on with another's text             wrong      what was served, else what was tried last
    uncached  the first lookup in the cache

A hop that names no key was sent there by the route, whose line it then is. An answer is right if hop and line are those
of the incident.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import redis

from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.console.views.request import line_of_key, nearest_line
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES
from tests.parts.console.incident_list import POLICY, Incident
from tests.support.ask import ask
from tests.support.gateway import Gateway, config, serve
from tests.support.store import local_store
from tests.support.upstream import Upstream
from tests.support.wait import until

_REQUESTS: Final = 12
_LONG: Final = "Please consider all that was said before about the matter at hand, and more besides, at some length. "
_LISTS: Final[Mapping[str, Sequence[str]]] = {
    "slow": ("is=slow",),
    "failed": ("is=failed",),
    "broken": ("path=fallback", ""),
    "dear": ("is=wasted", "path=fallback", "tier=hosted"),
    "wrong": ("",),
    "uncached": ("path=direct",),
}
"""Filters of the list by the kind of complaint: the first that finds something is looked at."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """An incident that has happened: where its console finds it, and the request that was complained about."""

    folder: Path
    store_url: str
    request_id: str
    policy: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reader found: the hop, the line, and what it took."""

    hop: str
    line: int | None
    pages: int
    seconds: float
    flagged: bool
    """Whether the first sentence of the start page says that the surface needs somebody."""


def policy_of(incident: Incident) -> str:
    """Return the text of the policy that the incident has."""
    text = POLICY
    for old, new in incident.edits.items():
        assert old in text, (incident.name, old)
        text = text.replace(old, new)
    return text


@contextmanager
def seeded(incident: Incident, folder: Path) -> Iterator[Seeded]:
    """Let an incident happen, among requests of a surface that is well; yield where it is to be found."""
    policy = policy_of(incident)
    policies = {"help": policy, "calm": POLICY.replace("surface: help", "surface: calm")}
    with ExitStack() as stack:
        store = stack.enter_context(local_store())
        local, hosted = stack.enter_context(Upstream()), stack.enter_context(Upstream())
        local.on(lambda request: "calm" not in request.prompt).reply(incident.local)
        hosted.on(lambda request: "calm" not in request.prompt).reply(incident.hosted)
        tiers = config(local.url, hosted.url)["tiers"]
        tiers[0]["backends"][0] |= incident.backend
        settings = {"tiers": tiers, "default_surface": "help"}
        gateway = stack.enter_context(
            serve(folder, local.url, hosted.url, store_url=store.url, policies=policies, settings=settings)
        )
        with redis.Redis.from_url(store.url) as client:

            def recorded(count: int) -> None:  # a record is written after its answer is stored
                until(lambda: client.xlen(TRACES) >= count, 20, "the records")

            ids = _traffic(gateway, incident, recorded)
        gateway.stop()
        yield Seeded(folder, store.url, ids[-1], policy)


def _traffic(gateway: Gateway, incident: Incident, recorded: Callable[[int], None]) -> list[str]:
    """Send the requests of both surfaces; return the ids of those that the incident is about, in order.

    Those that are sent one at a time follow one another once the one before is recorded.
    """

    def request_id_of(surface: str, question: str, **body: Any) -> str:
        try:
            reply = ask(gateway, question, model=surface, timeout_s=30, **{"stream": True, **body})
        except httpx2.HTTPError:  # a stream that broke off
            return ""
        return str(reply.headers.get("x-request-id", ""))

    def complain(number: int) -> str:
        if incident.at_once == 1:
            recorded(number)
        return request_id_of("help", questions[number], **incident.body)

    prefix = _LONG if incident.body.get("user") == "long" else ""
    questions = incident.questions or [f"{prefix}Question {n} about the shelf of books" for n in range(_REQUESTS)]
    with ThreadPoolExecutor(incident.at_once) as threads:
        ids = list(threads.map(complain, range(len(questions))))
    for number in range(_REQUESTS):
        request_id_of("calm", f"calm question {number}")
    recorded(len(ids) + _REQUESTS)
    return ids


@asynccontextmanager
async def console_over(one: Seeded) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client of a console over what happened."""
    store = RedisStore.from_url(one.store_url, slack=10.0)
    archive = LiveArchive(one.folder / "ledger", store)
    try:
        await archive.catch_up()
        app = ConsoleApp(archive, store, places_of(one), ConsoleAccess({})).asgi()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8790") as client:
            yield client
    finally:
        await archive.aclose()
        await store.aclose()


def places_of(one: Seeded) -> PolicyPlaces:
    """Return what the console of an incident is about."""
    launch = Launch(config=one.folder / "tierline.yaml", policies=one.folder / "policies")
    deployment = launch.deployment()
    ledger = one.folder / "ledger"
    return PolicyPlaces(deployment, launch.policy_source(deployment), ledger, launch.config, one.store_url)


async def read(one: Seeded, kind: str) -> Answer:
    """Go from the start page to an answer, by the rules above, over pages and links that are there."""
    began, asked = time.monotonic(), 0
    async with console_over(one) as client:

        async def page(address: str) -> Any:
            nonlocal asked
            asked += 1
            shown = await client.get(address)
            assert shown.status_code == 200, (address, shown.text)
            path, _, query = address.partition("?")
            return shown.text, (await client.get(f"{path}.json?{query}")).json()

        start, now = await page("/now")
        assert "/surfaces/help" in start
        request_id = one.request_id
        if kind != "wrong":
            for query in _LISTS[kind]:
                _, listed = await page(f"/requests?surface=help&{query}")
                if listed["rows"]:
                    request_id = listed["rows"][0]["request_id"]
                    break
        text, found = await page(f"/requests/{request_id}")
    bar = _standing_out(found, kind)
    keys = bar["keys"] or next(one for one in found["timeline"]["bars"] if one["name"] == names.ROUTE)["keys"]
    key = keys[-1]["key"]
    line = found["lines"].get(key)
    assert line is None or f"{key}, line {line}" in text, f"the page does not say {key}, line {line}"
    flagged = now["verdict"]["level"] == "bad" and now["needs"][0]["what"].startswith("help:")
    return Answer(bar["label"], line, asked, time.monotonic() - began, flagged)


def _standing_out(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the hop that a reader looks at, by the kind of complaint."""
    bars: list[dict[str, Any]] = [bar for bar in found["timeline"]["bars"] if bar["name"] != names.REQUEST]
    calls = [bar for bar in bars if bar["name"] == names.ATTEMPT]
    match kind:
        case "slow":
            spent = {bar["number"]: 0.0 for bar in bars}
            for part in found["timeline"]["path"]:
                if part["number"] in spent:
                    spent[part["number"]] += part["end_ms"] - part["start_ms"]
            return max(bars, key=lambda bar: spent[bar["number"]])
        case "failed":
            return next((bar for bar in reversed(bars) if bar["error"]), bars[-1])
        case "broken":
            return next((bar for bar in calls if names.CONTINUES in bar["attributes"]), calls[-1])
        case "dear":
            return next((bar for bar in calls if not bar["served"]), next(b for b in bars if b["name"] == names.ROUTE))
        case "uncached":
            return next(bar for bar in bars if bar["kind"] == "cache")
    hits = [bar for bar in bars if bar["attributes"].get(names.CACHE_OUTCOME) == "hit"]
    served = [bar for bar in calls if bar["served"]]
    failed = [bar for bar in calls if bar["error"]]
    return (hits or failed or served or calls)[-1]


def is_right(incident: Incident, one: Seeded, answer: Answer) -> bool:
    """Return whether the answer is that of the incident."""
    lines = line_of_key(one.policy)
    wanted = {nearest_line(lines, key) for key in incident.keys}
    return answer.hop.startswith(incident.hop) and answer.line is not None and answer.line in wanted
