"""Equal requests at the same moment: one call upstream, whoever leaves, dies or freezes. Real gateways and sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.cache_admin.administration import Administration
from tests.support.ask import record_at, text_of
from tests.support.gateway import CHAT, Gateway, config, environment, running, serve, write_deployment
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import eventually

WORDS = tuple(f"word{number} " for number in range(20))
TEXT = "".join(WORDS)
SLOW = Reply(tokens=WORDS, before_first_s=0.4, between_s=0.02)
POLICIES = {
    "chat": CHAT,
    "other": CHAT.replace("surface: chat", "surface: other").replace("[chat, gpt-4o-mini]", "[other]"),
    "alone": CHAT.replace("surface: chat", "surface: alone")
    .replace("[chat, gpt-4o-mini]", "[alone]")
    .replace("exact: {ttl: 1h}", "exact: {ttl: 1h}\n  coalesce: false"),
}
_questions = itertools.count()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str
    body: bytes
    whole: bool = True

    @property
    def coalesced(self) -> bool:
        return self.headers.get("x-tierline-coalesced") == "1"


async def ask(
    session: aiohttp.ClientSession,
    gateway: Gateway,
    question: str,
    *,
    stream: bool = False,
    model: str = "chat",
    headers: dict[str, str] | None = None,
    begun: asyncio.Event | None = None,
    **more: Any,
) -> Answer:
    """One request and what came of it; a stream that breaks off is not `whole`. `begun` is set by its first bytes."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "stream": stream, **more}
    read, whole = b"", True
    sent = {"authorization": "Bearer key-of-one"} | (headers or {})
    async with session.post(f"{gateway.url}/chat/completions", json=body, headers=sent) as response:
        try:
            async for part in response.content.iter_any():
                read += part
                if begun is not None:
                    begun.set()
        except aiohttp.ClientPayloadError:
            whole = False
        if stream and response.status == 200:
            whole = whole and read.endswith(b"data: [DONE]\n\n")
        return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, text_of(read), read, whole)


async def joined(session: aiohttp.ClientSession, gateway: Gateway, requests: int) -> None:
    """Return once so many requests are being answered there, and have had a moment to find the answer under way."""
    async with asyncio.timeout(30):
        while True:
            async with session.get(f"{gateway.origin}/metrics") as response:
                if f"\ntierline_in_flight {requests}" in await response.text():
                    break
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)


def question() -> str:
    return f"What is it? ({next(_questions)})"


@pytest.fixture(scope="module")
def _flying(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    local, hosted = _upstreams
    settings: dict[str, Any] = {"tenants": {"one": {"key_env": "KEY_ONE"}, "two": {"key_env": "KEY_TWO"}}}
    settings["access"] = {"public_metrics": True}
    env = {"KEY_ONE": "key-of-one", "KEY_TWO": "key-of-two"}
    with serve(
        tmp_path_factory.mktemp("flying"),
        local.url,
        hosted.url,
        store_url=_store.url,
        policies=POLICIES,
        settings=settings,
        env=env,
    ) as gateway:
        yield gateway


@pytest.fixture
def gw(_flying: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    local_upstream.default = SLOW
    return _flying


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))


@pytest.mark.long
async def test_a_thousand_at_once_over_four_workers_are_one_call(
    store: LocalStore, local_upstream: Upstream, tmp_path: Path
) -> None:
    """Behind one port, with the store between the workers: each gets the whole answer, in the form it asked for.

    A worker that the store keeps waiting beyond its patience makes a call of its own: never more than one.
    """
    local_upstream.default = Reply(tokens=WORDS, before_first_s=2.0, between_s=0.01)
    write_deployment(tmp_path, config(local_upstream.url, None, store.url), POLICIES)
    with running(tmp_path, environment(), "--workers", "4") as gateway:
        async with client() as session:
            warm = [ask(session, gateway, f"warm {number % 8}") for number in range(64)]
            await asyncio.gather(*warm)
            for _ in range(3):
                local_upstream.requests.clear()
                asked = question()
                answers = await asyncio.gather(*(ask(session, gateway, asked, stream=n % 2 == 0) for n in range(1000)))
                assert {(answer.status, answer.text, answer.whole) for answer in answers} == {(200, TEXT, True)}
                if (calls := len(local_upstream.requests)) == 1:
                    break
                assert calls <= 4
    assert calls == 1


@pytest.mark.parametrize("kind", ["json", "stream", "mixed"])
async def test_two_hundred_at_once_are_one_call(gw: Gateway, local_upstream: Upstream, kind: str) -> None:
    """All get the same answer under the same id, each in the form it asked for; one of them has paid."""
    asked = question()
    async with client() as session:
        streams = [kind == "stream" or (kind == "mixed" and number % 2 == 0) for number in range(200)]
        answers = await asyncio.gather(*(ask(session, gw, asked, stream=stream) for stream in streams))
    assert len(local_upstream.requests) == 1
    assert {answer.status for answer in answers} == {200}
    assert {answer.text for answer in answers} == {TEXT}
    assert sum(not answer.coalesced for answer in answers) == 1
    jsons = [json.loads(a.body) for a, stream in zip(answers, streams, strict=True) if not stream]
    chunks = [json.loads(a.body.split(b"data: ")[1]) for a, s in zip(answers, streams, strict=True) if s]
    assert len({value["id"] for value in [*jsons, *chunks]}) == 1
    assert all(value["usage"]["completion_tokens"] == len(WORDS) for value in jsons)
    for answer, stream in zip(answers, streams, strict=True):
        if stream:
            assert answer.body.endswith(b"data: [DONE]\n\n")
            assert b'"choices":[]' not in answer.body
        if answer.coalesced:
            assert answer.headers["x-tierline-attempts"] == "0"
            assert answer.headers["x-tierline-tier"] == "local"
            assert answer.headers["x-tierline-path"] == "direct"


async def test_totals_are_for_those_who_ask(gw: Gateway, local_upstream: Upstream) -> None:
    """Whether the first one wanted them or not."""
    for first in (True, False):
        asked = question()
        async with client() as session:
            options = [first] + [not first, first] * 3
            answers = await asyncio.gather(
                *(ask(session, gw, asked, stream=True, stream_options={"include_usage": wish}) for wish in options)
            )
        assert [b'"choices":[]' in answer.body for answer in answers] == options
    assert len(local_upstream.requests) == 2


async def test_a_late_follower_gets_what_came_so_far_and_then_the_rest(gw: Gateway, local_upstream: Upstream) -> None:
    """It begins at the beginning, and ends with the others; then the answer is in the cache."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS, between_s=0.05)
    async with client() as session:
        begun = asyncio.Event()
        leader = asyncio.create_task(ask(session, gw, asked, stream=True, begun=begun))
        await begun.wait()
        follower = await ask(session, gw, asked, stream=True)
        assert (follower.coalesced, follower.text) == (True, TEXT)
        assert (await leader).text == TEXT
        again = await ask(session, gw, asked)
        await eventually(lambda: len(local_upstream.requests) == 1)
        assert again.headers["x-tierline-path"] == "cache-exact" or again.coalesced


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_the_first_one_may_leave(gw: Gateway, store: LocalStore, local_upstream: Upstream, stream: bool) -> None:
    """The others get all of it, from the same call; its record has the cost all the same."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS, before_first_s=0.9, between_s=0.05)
    async with client() as session:
        leader = asyncio.create_task(ask(session, gw, asked, stream=stream, headers={"x-request-id": f"left-{stream}"}))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        followers = [asyncio.create_task(ask(session, gw, asked, stream=s)) for s in (True, False, True)]
        await joined(session, gw, 4)
        leader.cancel()
        answers = await asyncio.gather(*followers)
    assert [answer.text for answer in answers] == [TEXT] * 3
    assert len(local_upstream.requests) == 1
    record = await record_at(store.url, f"left-{stream}")
    assert record["ledger"]["status"] == 499
    assert record["ledger"]["tokens_out"] == len(WORDS)
    assert record["ledger"]["wasted_tokens"] == 0


async def test_when_all_have_left_the_call_ends(gw: Gateway, local_upstream: Upstream) -> None:
    """Nobody works for nobody."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS * 50, between_s=0.05)
    async with client() as session:
        asking = [asyncio.create_task(ask(session, gw, asked, stream=s)) for s in (True, False, True)]
        await asyncio.to_thread(local_upstream.wait_for, 1)
        await joined(session, gw, 3)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.to_thread(local_upstream.requests[0].wait_gone, 1)


async def test_what_is_the_callers_fault_is_told_to_all(gw: Gateway, local_upstream: Upstream) -> None:
    """An equal request would be refused as well, so nobody tries."""
    local_upstream.default = dataclasses.replace(
        error_reply(400, "messages: at least one message is required"), before_headers_s=0.3
    )
    async with client() as session:
        asked = question()
        answers = await asyncio.gather(*(ask(session, gw, asked, stream=n % 2 == 0) for n in range(10)))
    assert {answer.status for answer in answers} == {400}
    assert len(local_upstream.requests) == 1


async def test_a_flight_that_fails_is_tried_once_more_by_the_others(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """The first one gets its error; the others share one further flight."""
    asked = question()
    clamp = {"x-tierline-max-tier": "local"}
    local_upstream.queue(Reply(before_headers_s=0.3, fault=Fault.HTML), SLOW)
    async with client() as session:
        answers = await asyncio.gather(*(ask(session, gw, asked, headers=clamp) for _ in range(10)))
    assert sorted(answer.status for answer in answers) == [200] * 9 + [502]
    assert {answer.text for answer in answers if answer.status == 200} == {TEXT}
    assert len(local_upstream.requests) == 2


async def test_a_second_flight_that_fails_is_the_last(gw: Gateway, local_upstream: Upstream) -> None:
    """Everybody is told then: a failing backend is not asked once by each of them."""
    asked = question()
    clamp = {"x-tierline-max-tier": "local"}
    local_upstream.default = Reply(before_headers_s=0.3, fault=Fault.HTML)
    async with client() as session:
        answers = await asyncio.gather(*(ask(session, gw, asked, headers=clamp) for _ in range(10)))
    assert {answer.status for answer in answers} == {502}
    assert len(local_upstream.requests) <= 2


async def test_a_followers_deadline_is_its_own(gw: Gateway, local_upstream: Upstream) -> None:
    """A hurried one goes without, and one that is not hurried does not join the flight of one that is."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS, before_first_s=1.0)
    async with client() as session:
        leader = asyncio.create_task(ask(session, gw, asked))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        hurried = await ask(session, gw, asked, headers={"x-tierline-deadline-ms": "200"})
        assert (hurried.status, json.loads(hurried.body)["error"]["code"]) == (504, "deadline_exceeded")
        assert (await leader).text == TEXT
        other = question()
        clamp = {"x-tierline-max-tier": "local"}
        hurry = {"x-tierline-deadline-ms": "300"}
        first = asyncio.create_task(ask(session, gw, other, headers=clamp | hurry))
        await asyncio.to_thread(local_upstream.wait_for, 2)
        second = await ask(session, gw, other, headers=clamp)
        assert (second.status, second.text, second.coalesced) == (200, TEXT, False)
        assert (await first).status == 504


@pytest.mark.parametrize("shown", [False, True], ids=["before", "after"])
async def test_a_followers_stream_ends_by_its_own_deadline(gw: Gateway, local_upstream: Upstream, shown: bool) -> None:
    """With a 504 while nothing is shown, with an error event after that; the others get all of it."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS, before_first_s=0 if shown else 1, between_s=0.1)
    async with client() as session:
        leader = asyncio.create_task(ask(session, gw, asked, stream=True))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        hurried = await ask(session, gw, asked, stream=True, headers={"x-tierline-deadline-ms": "700"})
        assert (await leader).text == TEXT
    assert len(local_upstream.requests) == 1
    if shown:
        assert (hurried.status, hurried.coalesced, hurried.whole) == (200, True, False)
        assert hurried.text and TEXT.startswith(hurried.text)
        assert b"deadline" in hurried.body.rpartition(b"data: ")[2]
    else:
        assert (hurried.status, json.loads(hurried.body)["error"]["code"]) == (504, "deadline_exceeded")


async def test_a_wish_for_an_early_first_token_is_its_own(gw: Gateway, local_upstream: Upstream) -> None:
    """It waits for no flight that is in less of a hurry, and joins one that has begun."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS, before_first_s=1, between_s=0.1)
    wish = {"x-tierline-ttft-ms": "5000"}
    async with client() as session:
        leader = asyncio.create_task(ask(session, gw, asked, stream=True))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        own = asyncio.create_task(ask(session, gw, asked, stream=True, headers=wish))
        await asyncio.to_thread(local_upstream.wait_for, 2)
        await asyncio.sleep(2)
        late = await ask(session, gw, asked, stream=True, headers=wish)
        assert [(await one).coalesced for one in (leader, own)] == [False, False]
    assert (late.coalesced, late.text) == (True, TEXT)
    assert len(local_upstream.requests) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"model": "other"},
        {"headers": {"authorization": "Bearer key-of-two"}},
        {"headers": {"x-tierline-min-tier": "local"}},
        {"headers": {"x-tierline-cache": "no-store"}},
        {"headers": {"x-tierline-cache": "no-cache"}},
        {"temperature": 0.5},
        {"model": "alone"},
    ],
    ids=str,
)
async def test_only_equal_requests_share(gw: Gateway, local_upstream: Upstream, other: dict[str, Any]) -> None:
    """Another tenant or surface, other tiers by choice, another body, a wish for a fresh answer: its own call."""
    asked = question()
    async with client() as session:
        answers = await asyncio.gather(ask(session, gw, asked), *(ask(session, gw, asked, **other) for _ in range(2)))
    assert not answers[0].coalesced
    assert len(local_upstream.requests) == (2 if any(answer.coalesced for answer in answers) else 3)


async def test_who_comes_after_its_source_has_changed_shares_no_earlier_answer(
    gw: Gateway, store: LocalStore, local_upstream: Upstream
) -> None:
    """Equal requests with equal tags share an answer under way until one of the tags is purged."""
    # A scope that no other test has: the gateway takes it for listed for minutes, and each test empties the store.
    tagged = {"x-tierline-cache-tags": "doc:42", "authorization": "Bearer key-of-two"}
    local_upstream.default = Reply(tokens=WORDS, before_first_s=1)
    asked = question()
    async with client() as session:
        leader = asyncio.create_task(ask(session, gw, asked, model="other", headers=tagged))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        before = [asyncio.create_task(ask(session, gw, asked, model="other", headers=tagged)) for _ in range(5)]
        await asyncio.sleep(0.2)
        redis = RedisStore.from_url(store.url, slack=UNHURRIED)
        assert (await Administration(redis).purge_tag("doc:42")).scopes
        await redis.aclose()
        after = await ask(session, gw, asked, model="other", headers=tagged)
        assert (after.text, after.coalesced) == (TEXT, False)
        assert (await leader).coalesced is False
        # A busy machine's store may not tell one of them of its tags in time.
        assert any([(await one).coalesced for one in before])


async def test_a_policy_that_allows_more_time_joins_no_flight_that_has_less(
    gw: Gateway, local_upstream: Upstream
) -> None:
    """A deadline edited meanwhile: whoever comes after that would be cut off by the deadline of before."""
    asked, file = question(), gw.policies / "chat.yaml"
    local_upstream.on(asked).reply(tokens=WORDS, before_first_s=15)
    async with client() as session:
        before = (await ask(session, gw, "Which version?")).headers["x-tierline-policy"]
        requests = [asyncio.create_task(ask(session, gw, asked))]
        await asyncio.to_thread(local_upstream.wait_for, 2)
        try:
            file.write_text(CHAT.replace("deadline: 20s", "deadline: 40s"))
            while (await ask(session, gw, "Which version?")).headers["x-tierline-policy"] == before:
                await asyncio.sleep(0.05)
            requests.append(asyncio.create_task(ask(session, gw, asked)))
            await asyncio.to_thread(local_upstream.wait_for, 3)
        finally:
            file.write_text(CHAT)
            for one in requests:
                one.cancel()
            await asyncio.gather(*requests, return_exceptions=True)


@pytest.fixture
def replicas(local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> Iterator[Replicas]:
    local_upstream.default = SLOW
    folders = [tmp_path / "one", tmp_path / "other"]
    # As in the middle of a rolling edit: a threshold is another, which makes no other answer.
    edited = {"chat": CHAT.replace("confidence_below: 0.5", "confidence_below: 0.4")}
    for folder in folders:
        folder.mkdir()
    with (
        local_store() as store,
        serve(folders[0], local_upstream.url, hosted_upstream.url, store_url=store.url) as one,
        serve(folders[1], local_upstream.url, hosted_upstream.url, store_url=store.url, policies=edited) as other,
    ):
        yield Replicas(one, other, store)


@dataclass
class Replicas:
    one: Gateway
    other: Gateway
    store: LocalStore


async def test_replicas_share_one_call(replicas: Replicas, local_upstream: Upstream) -> None:
    """Streams and JSON, at either gateway, whose policies differ: what one makes the other passes on as it comes.

    A gateway that the store keeps waiting for longer than it is patient makes a call of its own, but no more than one.
    """
    for _ in range(4):
        asked, before = question(), len(local_upstream.requests)
        async with client() as session:
            gateways = [replicas.one, replicas.other] * 30
            answers = await asyncio.gather(
                *(ask(session, gateway, asked, stream=n % 4 < 2) for n, gateway in enumerate(gateways))
            )
        calls = len(local_upstream.requests) - before
        assert {(answer.status, answer.text, answer.whole) for answer in answers} == {(200, TEXT, True)}
        assert sum(not answer.coalesced for answer in answers) == calls <= 2
        if calls == 1:
            return
    raise AssertionError("no call was shared by both gateways")


async def test_all_the_others_clients_may_be_elsewhere(replicas: Replicas, local_upstream: Upstream) -> None:
    """The first one leaves, and a client of the other gateway gets the whole; when that leaves too, the call ends."""
    local_upstream.default = Reply(tokens=WORDS * 2, between_s=0.05)
    for stays in (True, False):
        asked, calls = question(), len(local_upstream.requests)
        async with client() as session:
            leader = asyncio.create_task(ask(session, replicas.one, asked, stream=True))
            await asyncio.to_thread(local_upstream.wait_for, calls + 1)
            follower = asyncio.create_task(ask(session, replicas.other, asked, stream=True))
            await joined(session, replicas.other, 1)
            leader.cancel()
            if stays:
                assert (await follower).text == TEXT * 2
            else:
                await asyncio.sleep(0.2)
                follower.cancel()
                await asyncio.to_thread(local_upstream.requests[-1].wait_gone, 1)
        assert len(local_upstream.requests) == calls + 1


@pytest.mark.parametrize("shown", [False, True], ids=["before", "after"])
async def test_the_makers_process_may_be_killed(replicas: Replicas, local_upstream: Upstream, shown: bool) -> None:
    """Whoever has seen nothing yet gets an answer from a new call; a stream that has begun breaks off with an error."""
    asked = question()
    local_upstream.default = Reply(tokens=WORDS * 5, before_first_s=0 if shown else 5, between_s=0.05)
    async with client() as session:
        leader = asyncio.create_task(ask(session, replicas.one, asked, stream=True))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        begun = asyncio.Event()
        followers = [
            asyncio.create_task(ask(session, replicas.other, asked, stream=True, begun=begun)),
            asyncio.create_task(ask(session, replicas.other, asked)),
        ]
        await joined(session, replicas.other, 2)
        if shown:
            await begun.wait()
        local_upstream.default = Reply(text=TEXT)
        replicas.one.process.kill()
        stream, whole = await asyncio.gather(*followers)
        with pytest.raises(aiohttp.ClientError):
            if (await leader).whole is False:
                raise aiohttp.ClientPayloadError
    assert whole.text == TEXT
    if shown:
        assert not stream.whole
        assert b'"error"' in stream.body
        assert b"[DONE]" not in stream.body
    else:
        assert stream.text == TEXT
    assert len(local_upstream.requests) == 2


async def test_without_a_working_store_each_process_shares_among_its_own(
    replicas: Replicas, local_upstream: Upstream
) -> None:
    """A store that falls silent costs a moment, and no request."""
    async with client() as session:
        replicas.store.freeze()
        asked = question()
        answers = await asyncio.gather(
            *(ask(session, gateway, asked) for gateway in [replicas.one, replicas.other] * 10)
        )
        assert {(answer.status, answer.text) for answer in answers} == {(200, TEXT)}
        assert len(local_upstream.requests) == 2
        replicas.store.thaw()


async def test_a_store_that_falls_silent_under_way_breaks_nothing_that_has_not_begun(
    replicas: Replicas, local_upstream: Upstream
) -> None:
    """Who waits for the other gateway's answer makes its own when it hears no more."""
    local_upstream.default = Reply(tokens=WORDS, before_first_s=1.5)
    async with client() as session:
        asked = question()
        leader = asyncio.create_task(ask(session, replicas.one, asked))
        await asyncio.to_thread(local_upstream.wait_for, 1)
        followers = [asyncio.create_task(ask(session, replicas.other, asked)) for _ in range(5)]
        await joined(session, replicas.other, 5)
        replicas.store.freeze()
        answers = await asyncio.gather(leader, *followers)
        replicas.store.thaw()
    assert {(answer.status, answer.text) for answer in answers} == {(200, TEXT)}
    assert len(local_upstream.requests) == 2
