"""What `gateway.pipeline` keeps for others, and what it does without: driven in this process, over a real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from cache.semantic.cross_encoder import TextPair
from gateway.caching.lookups import ExactLookup
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.hit_audits.audit import Audits
from gateway.parts.hit_audits.groups import Batch, Label
from gateway.parts.measures import reader
from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream, error_reply
from tests.support.wait import eventually

STRONG_FIRST = CHAT.replace("start: {local: otherwise}", "start: {local: turns > 5, hosted: otherwise}")
SEMANTIC = CHAT.replace("exact: {ttl: 1h}", "exact: {ttl: 1h}\n  semantic: {ttl: 1h}")


async def test_a_degraded_answer_is_never_kept(
    upstream: Upstream, hosted_upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """What a weaker tier says while the wanted one is out of reach is served, and is not there for the next request."""
    policies = {"chat": STRONG_FIRST}
    hosted_upstream.default = error_reply(500)
    async with in_process(tmp_path, upstream.url, hosted_upstream.url, store_url=store.url, policies=policies) as app:
        answers = [await app.ask("hello", seed=number) for number in range(8)]
        degraded = [n for n, answer in enumerate(answers) if answer.headers["x-tierline-path"] == "degraded"]
        assert degraded, [answer.headers["x-tierline-path"] for answer in answers]
        hosted_upstream.reset()
        # A later answer that is kept shows that the writes of the earlier ones have been decided.
        await eventually(lambda: not app.steps.tiers["hosted"].health().unavailable, 15, "the hosted tier")
        assert (await app.ask("goodbye")).headers["x-tierline-path"] == "direct"
        await app.kept("goodbye")
        assert not [n for n in degraded if await app.stored("hello", seed=n)]


class _Broken:
    """An encoder that fails."""

    name = "broken"

    def embed(self, texts: Sequence[str]) -> Any:
        raise RuntimeError("the encoder is broken")


class _NotANumber:
    """An encoder whose vectors are no numbers."""

    name = "nan"

    def embed(self, texts: Sequence[str]) -> Any:
        return np.full((len(texts), 256), np.nan, np.float32)


@pytest.mark.parametrize("encoder", [_Broken, _NotANumber])
@pytest.mark.parametrize("question", ["hello", "word " * 1000], ids=["in place", "in the thread"])
async def test_a_failing_encoder_costs_no_request(
    upstream: Upstream, store: LocalStore, tmp_path: Path, encoder: type[Any], question: str
) -> None:
    """Without a usable vector a request is answered all the same, and found again by its very words."""
    policies = {"chat": SEMANTIC}
    async with in_process(tmp_path, upstream.url, store_url=store.url, policies=policies) as app:
        app.steps.embedder.embedder = encoder()
        assert (await app.ask(question)).headers["x-tierline-path"] == "direct"
        await app.kept(question)
        assert (await app.ask(question + " there")).headers["x-tierline-path"] == "direct"


async def test_a_question_spaced_otherwise_is_found_without_a_vector(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """However many the spaces are; where its answer is gone, a model is asked, and the next one is found again."""
    policies = {"chat": SEMANTIC.replace("semantic: {ttl: 1h}", "semantic: {ttl: 1h, audit: 0%}")}
    asked, spaced = "Which chain fits my old frame?", "  Which      chain fits   my        old frame?"
    async with in_process(tmp_path, upstream.url, store_url=store.url, policies=policies) as app:

        async def found() -> Any:
            """The first hit, each time spaced otherwise: a busy store may have no time for one."""
            nonlocal spaced
            async with asyncio.timeout(30):
                while True:
                    spaced += " "
                    reply = await app.ask(spaced, {"x-tierline-cache": "only-if-cached"})
                    if reply.status_code == 200:
                        assert reply.headers["x-tierline-path"] == "cache-semantic"
                        return reply

        await app.ask(asked)
        await app.kept(asked)
        index = app.steps.cache.index
        await eventually(lambda: len(index) == 1, 20, "the question in the index")
        encoder, app.steps.embedder.embedder = app.steps.embedder.embedder, _Broken()
        hit = await found()
        async with asyncio.timeout(30):
            while (record := await reader.find(app.steps.store, hit.headers["x-request-id"])) is None:
                await asyncio.sleep(0.002)
        (hop,) = [hop for hop in orjson.loads(record)["hops"] if hop["name"] == "cache.semantic"]
        assert (hop["attributes"]["tierline.cache.stage"], hop["attributes"]["tierline.similarity"]) == ("rule", 1.0)
        assert (await app.ask(spaced.replace("fits", "fits not"))).headers["x-tierline-path"] == "direct"
        app.steps.embedder.embedder = encoder
        (share,) = index.current._shares.values()
        (near,) = [near for partition in share.partitions if (near := index.current.respaced(partition, asked))]
        await app.steps.store.delete(near.key)
        assert (await app.ask(f" {spaced}")).headers["x-tierline-path"] == "direct"
        await app.kept(f" {spaced}")
        await eventually(lambda: len(index) == 1, 20, "the question in the index again")
        await found()


async def test_the_secret_of_the_cache_hides_its_keys(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another TIERLINE_CACHE_SECRET the cache starts anew; with the same one, what was kept is there."""

    async def kept(secret: str, *, ask: bool = False) -> bool:
        monkeypatch.setenv("TIERLINE_CACHE_SECRET", secret)
        async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
            if ask:
                await app.ask()
                await app.kept()
            return await app.stored()

    assert await kept("one", ask=True)
    assert not await kept("another")
    assert not await kept("")
    assert await kept("one")


async def test_a_breach_of_the_caches_bound_is_in_the_traces_of_whom_it_is_about(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """Requests in a language whose hits are too often wrong say so, with the threshold that holds for them."""
    policies = {"chat": SEMANTIC}
    async with in_process(tmp_path, upstream.url, store_url=store.url, policies=policies) as app:

        async def lookup(question: str) -> dict[str, Any]:
            reply = await app.ask(question)
            async with asyncio.timeout(30):
                while (record := await reader.find(app.steps.store, reply.headers["x-request-id"])) is None:
                    await asyncio.sleep(0.002)
            (hop,) = [hop for hop in orjson.loads(record)["hops"] if hop["name"] == "cache.semantic"]
            found: dict[str, Any] = hop["attributes"]
            return found

        before = await lookup("怎么关闭手机通知？")
        assert not before["tierline.cache.breached"]
        audits = app.steps.cache.bound
        assert isinstance(audits, Audits)
        surface, now = audits._surfaces["chat"], time.time()
        wrong = (Label(0.95, True, 10.0, language="zh"),) * 3
        surface.fold(Batch(20_000, labels=wrong, languages={"en": 19_000, "zh": 1_000}), now, now)
        chinese, english = await lookup("怎么打开手机通知？"), await lookup("How do I mute the bell?")
        assert chinese["tierline.cache.breached"] and chinese["tierline.cache.threshold"] >= 0.95
        assert not english["tierline.cache.breached"]
        assert english["tierline.cache.threshold"] == before["tierline.cache.threshold"] < 0.95
        shown = (await app.get("/metrics")).text
        assert 'tierline_cache_breached{language="zh",surface="chat"} 1.0' in shown


async def test_a_hit_found_after_the_lookup_is_in_the_trace(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer stored between a request's lookup and its flight is replayed, and the trace names the entry."""

    async def nothing_yet(*_: object) -> None:
        return None

    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        await app.ask("hello")
        await app.kept("hello")
        monkeypatch.setattr(ExactLookup, "find", nothing_yet)
        hit = await app.ask("hello")
        assert hit.headers["x-tierline-path"] == "cache-exact"
        async with asyncio.timeout(30):
            while (record := await reader.find(app.steps.store, hit.headers["x-request-id"])) is None:
                await asyncio.sleep(0.002)
    (lookup,) = [hop for hop in orjson.loads(record)["hops"] if hop["name"] == "cache.exact"]
    assert lookup["attributes"]["tierline.cache.outcome"] == "hit"
    assert lookup["attributes"]["tierline.cache.entry"] == hit.headers["x-tierline-cache-entry"]


@pytest.mark.parametrize(
    ("when", "start", "begins"),
    [("free", "local", True), ("free", "hosted", False), ("always", "hosted", True), ("never", "local", False)],
)
async def test_an_attempt_may_begin_while_the_cross_encoder_reads(
    upstream: Upstream,
    hosted_upstream: Upstream,
    store: LocalStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    start: str,
    begins: bool,
) -> None:
    """By policy, where it costs nothing or always; a hit ends its call."""
    pytest.importorskip("onnx", reason="the minilm extra is not installed")
    from tests.support.cross_encoder import write_cross_encoder

    called = upstream if start == "local" else hosted_upstream

    def reads(_: CrossEncoder, pairs: Sequence[TextPair]) -> list[float]:
        if begins:
            called.wait_for(2)
        return [1.0] * len(pairs)

    monkeypatch.setattr(CrossEncoder, "scores", reads)
    rules = "semantic: {ttl: 1h, audit: 0%, cross_encoder: {ask_from: 0, within: 30s}}"
    policy = (
        (STRONG_FIRST if start == "hosted" else CHAT)
        .replace("  no_signal: accept\n", f"  no_signal: accept\n  speculate: {{during_check: {when}}}\n")
        .replace("cache:\n", f"cache:\n  {rules}\n")
    )
    settings = {"cross_encoder": str(write_cross_encoder(tmp_path / "model", strict=0.5))}
    urls = (upstream.url, hosted_upstream.url)
    async with in_process(tmp_path, *urls, store_url=store.url, policies={"chat": policy}, settings=settings) as app:
        await app.ask("What is the capital of Italy?", temperature=0)
        await app.kept("What is the capital of Italy?", temperature=0)
        await eventually(lambda: len(app.steps.cache.index) > 0, 20, "the question in the index")
        called.default = Reply(before_headers_s=30)
        answer = await app.ask("Which city is the capital of Italy?", temperature=0)
        assert answer.headers["x-tierline-path"] == "cache-semantic"
        assert len(called.requests) == (2 if begins else 1)
        if begins:
            await asyncio.to_thread(called.requests[1].wait_gone, 5)
        assert not any(endpoint.in_flight for tier in app.steps.tiers.values() for endpoint in tier.endpoints)
