"""A repeat sent as soon as the first reply has ended is a hit, though the store has not got the answer yet."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from cache.read import LONGEST_S
from tests.support.ask import text_of
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import eventually

POLICIES = {
    "chat": CHAT,
    "alone": CHAT.replace("surface: chat", "surface: alone")
    .replace("[chat, gpt-4o-mini]", "[alone]")
    .replace("exact: {ttl: 1h}", "exact: {ttl: 1h}\n  coalesce: false"),
}
FLEETING = (
    "x-request-id", "x-tierline-overhead-ms", "openai-processing-ms", "server-timing", "date", "x-tierline-policy"
)  # fmt: skip
"""Headers that differ between any two hits of one entry."""
OWN = re.compile(rb'"id":"chatcmpl-[0-9a-f]{32}"|"created":\d+')
"""Members of a body that do."""
LOOKUPS, WRITES = "tierline_cache_lookups_total", "tierline_cache_writes_total"
_questions = itertools.count()


@pytest.fixture(scope="module")
def own_store() -> Iterator[LocalStore]:
    """A store that a test may freeze or kill; it runs again, and is empty, at the end of each."""
    with local_store() as store:
        yield store


@pytest.fixture(scope="module")
def _gateway(
    _upstreams: tuple[Upstream, Upstream], own_store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("pending")
    local, hosted = _upstreams
    with serve(folder, local.url, hosted.url, store_url=own_store.url, policies=POLICIES) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def other_worker(
    _gateway: Gateway,
    _upstreams: tuple[Upstream, Upstream],
    own_store: LocalStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """Another process at the same store."""
    folder: Path = tmp_path_factory.mktemp("other")
    local, hosted = _upstreams
    with serve(folder, local.url, hosted.url, store_url=own_store.url, policies=POLICIES) as gateway:
        yield gateway


@pytest.fixture
def gateway(_gateway: Gateway, own_store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    with redis.Redis.from_url(own_store.url) as client:
        client.flushall()
    return _gateway


class Asker:
    """A client with as many connections as it needs."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Gateway, model: str) -> None:
        self.session, self.gateway, self.model = session, gateway, model

    async def ask(
        self, question: str, *, stream: bool = False, headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """The headers and the body. A stream's connection is closed with the bytes of [DONE] just read."""
        body = {"model": self.model, "messages": [{"role": "user", "content": question}], "stream": stream}
        url = f"{self.gateway.url}/chat/completions"
        async with self.session.post(url, json=body, headers=headers) as response:
            read = b""
            async for part in response.content.iter_any():
                read += part
                if read.endswith(b"data: [DONE]\n\n"):
                    response.close()
                    break
            return {name.lower(): value for name, value in response.headers.items()}, read

    async def path(self, question: str, *, stream: bool = False, headers: dict[str, str] | None = None) -> str:
        """How it was answered."""
        return (await self.ask(question, stream=stream, headers=headers))[0].get("x-tierline-path", "none")


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30))


def question() -> str:
    return f"What comes at once? ({next(_questions)})"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("model", ["chat", "alone"])
async def test_a_repeat_sent_at_once_is_a_hit(gateway: Gateway, model: str, stream: bool) -> None:
    """20 of 20 one after the other, then 16 clients at once; also where equal requests share no answer under way.

    A busy machine's store may miss the time that a lookup or a write has, or an answer may wait for its write longer
    than it is served meanwhile: each miss has to be one of those.
    """
    async with session() as connections:
        asker = Asker(connections, gateway, model)

        async def twice() -> tuple[str, str, bool]:
            asked, began = question(), time.monotonic()
            first, second = await asker.path(asked, stream=stream), await asker.path(asked, stream=stream)
            return first, second, time.monotonic() - began >= LONGEST_S

        for clients, times in ((1, 20), (16, 1)):
            before = await outcomes(connections, gateway)
            rounds = [await asyncio.gather(*(twice() for _ in range(clients))) for _ in range(times)]
            results = [result for one in rounds for result in one]
            paths = Counter((first, second) for first, second, _ in results)
            late = sum(is_late for _, _, is_late in results)
            answered = sum((first, second).count("direct") for first, second, _ in results)
            async with asyncio.timeout(30):
                while True:
                    new = await outcomes(connections, gateway) - before
                    if _count(new, LOOKUPS) >= 2 * clients * times and _count(new, WRITES) >= answered:
                        break
                    await asyncio.sleep(0.02)
            unanswered = _count(new, LOOKUPS) - new[LOOKUPS, "hit"] - new[LOOKUPS, "miss"]
            unwritten = _count(new, WRITES) - new[WRITES, "stored"]
            assert paths["direct", "direct"] <= unanswered + unwritten + late
            assert paths["direct", "cache-exact"] == clients * times - paths["direct", "direct"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_what_waits_for_the_store_is_the_hit_that_the_store_would_give(
    gateway: Gateway, own_store: LocalStore, local_upstream: Upstream, stream: bool
) -> None:
    """With the store frozen a repeat, JSON or stream, is answered as it is when the store has the answer."""
    asked = question()
    local_upstream.default = Reply(tokens=("Rome", "."), before_first_s=0.1, logprob=-0.01)
    async with session() as connections:
        asker = Asker(connections, gateway, "alone")
        first = asyncio.create_task(asker.ask(asked, stream=stream))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        own_store.freeze()
        try:
            await first
            waiting = [await asker.ask(asked, stream=again) for again in (False, True)]
        finally:
            own_store.thaw()
        await eventually(lambda: _entries(own_store) == 1, what="the write")
        stored = [await asker.ask(asked, stream=again) for again in (False, True)]
    for (headers, body), (stored_headers, stored_body) in zip(waiting, stored, strict=True):
        assert headers["x-tierline-path"] == "cache-exact"
        assert {k: v for k, v in headers.items() if k not in FLEETING} == {
            k: v for k, v in stored_headers.items() if k not in FLEETING
        }
        assert OWN.sub(b"", body) == OWN.sub(b"", stored_body)
    assert len(local_upstream.requests) == 1


async def test_what_the_store_never_got_is_not_served_for_long(
    gateway: Gateway, own_store: LocalStore, local_upstream: Upstream
) -> None:
    """Where the write has failed, the next equal request asks a model again."""
    asked = question()
    local_upstream.default = Reply(tokens=("Rome", "."), before_first_s=0.1)
    async with session() as connections:
        asker = Asker(connections, gateway, "chat")
        first = asyncio.create_task(asker.path(asked))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        own_store.stop()
        try:
            assert await first == "direct"
            async with asyncio.timeout(30):
                while await asker.path(asked) != "direct":
                    await asyncio.sleep(0.02)
        finally:
            own_store.start()
        await store_is(connections, gateway, "ok")


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_an_answer_that_is_not_to_be_kept_answers_nobody_else(
    gateway: Gateway, local_upstream: Upstream, stream: bool
) -> None:
    """A client's no-store, and an answer that was cut off, leave nothing, not even for a moment."""
    async with session() as connections:
        asker = Asker(connections, gateway, "chat")
        asked = question()
        await asker.ask(asked, stream=stream, headers={"x-tierline-cache": "no-store"})
        assert await asker.path(asked, stream=stream) == "direct"
        asked = question()
        local_upstream.default = Reply(finish_reason="length")
        await asker.ask(asked, stream=stream)
        await asker.ask(asked, stream=stream)
        assert len(local_upstream.requests) == 4


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_another_worker_answers_a_repeat_without_a_model(
    gateway: Gateway, other_worker: Gateway, local_upstream: Upstream, stream: bool
) -> None:
    """At the same store: from what is stored, or from the first worker as long as it is not."""
    async with session() as connections:
        one, other = Asker(connections, gateway, "chat"), Asker(connections, other_worker, "chat")
        for _ in range(10):
            asked, calls = question(), len(local_upstream.requests)
            _, first = await one.ask(asked, stream=stream)
            _, second = await other.ask(asked, stream=stream)
            assert text_of(first) == text_of(second)
            assert len(local_upstream.requests) == calls + 1


async def outcomes(connections: aiohttp.ClientSession, gateway: Gateway) -> Counter[tuple[str, str]]:
    """How the cache's lookups and writes have ended so far."""
    async with connections.get(f"{gateway.origin}/metrics") as response:
        found: Counter[tuple[str, str]] = Counter()
        for family in text_string_to_metric_families(await response.text()):
            for sample in family.samples:
                if sample.name in (LOOKUPS, WRITES):
                    found[sample.name, sample.labels["outcome"]] += int(sample.value)
        return found


def _count(found: Counter[tuple[str, str]], name: str) -> int:
    return sum(count for (of, _), count in found.items() if of == name)


async def store_status(connections: aiohttp.ClientSession, gateway: Gateway) -> str:
    async with connections.get(f"{gateway.origin}/readyz") as response:
        return str(json.loads(await response.read())["store"]["status"])


async def store_is(connections: aiohttp.ClientSession, gateway: Gateway, status: str) -> None:
    async with asyncio.timeout(30):
        while await store_status(connections, gateway) != status:
            await asyncio.sleep(0.05)


def _entries(store: LocalStore) -> int:
    with redis.Redis.from_url(store.url) as client:
        return len(list(client.scan_iter("*:x:*")))
