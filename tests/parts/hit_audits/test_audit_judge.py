"""The judge of the cache's audits, in front of a scripted model: what it asks, what it understands, what it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from cache.store.redis_store import RedisStore
from gateway.backends.base import BackendRequest, Completion, EventStream, Unreachable
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.openai import OpenAIBackend
from gateway.chat.usage import Price
from gateway.config.backends import BackendConfig
from gateway.parts.hit_audits.comparison import AuditJudge
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.tiers import Endpoint
from policies.caching import AuditJudgeRules as Rule
from tests.support.store import UNHURRIED, LocalStore
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import eventually

RULE = Rule(backend="hosted")
QUESTION, STORED, FRESH = "What is the capital of Italy?", "It is Rome.", "Rome, and it has been for long."
Counts = list[tuple[str, str, float]]


@pytest.fixture(scope="module")
def running() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture
def upstream(running: Upstream) -> Upstream:
    running.reset()
    return running


@pytest_asyncio.fixture
async def opened(store: LocalStore) -> AsyncIterator[RedisStore]:
    made = RedisStore.from_url(store.url, slack=UNHURRIED)
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def endpoint(upstream: Upstream) -> AsyncIterator[Endpoint]:
    config = BackendConfig(
        name="hosted", base_url=upstream.url, model="large", max_in_flight=4, price=Price(input=2.5, output=10)
    )
    transport = Http1Transport(
        f"{upstream.url}/chat/completions", max_in_flight=4, connect_timeout_s=5.0, max_reply=1 << 20
    )
    made = Endpoint(config, OpenAIBackend(transport, model="large", key=None))
    yield made
    await made.aclose()


def judge_of(endpoint: Endpoint, opened: RedisStore, limit_s: float = 30.0) -> tuple[AuditJudge, Counts]:
    counts: Counts = []
    return AuditJudge({"hosted": endpoint}, lambda *count: counts.append(count), DailyBudget(opened), limit_s), counts


async def asked(judge: AuditJudge, rule: Rule = RULE, owner: str = "") -> bool | None:
    return await judge("chat", rule, QUESTION, STORED, FRESH, owner)


@pytest.mark.parametrize(
    ("said", "meant", "outcome"),
    [
        ("SAME", True, "same"),
        ("DIFFERENT", False, "different"),
        (" Different.\n", False, "different"),
        ("SAME or DIFFERENT", None, "unclear"),
        ("NOT SAME", None, "unclear"),
        ("Both say SAME", None, "unclear"),
        ("", None, "unclear"),
    ],
)
async def test_one_word_is_an_answer_and_nothing_else_is(
    upstream: Upstream, endpoint: Endpoint, opened: RedisStore, said: str, meant: bool | None, outcome: str
) -> None:
    """What is unclear is no label; the call is counted and paid for all the same."""
    upstream.queue(Reply(text=said))
    judge, counts = judge_of(endpoint, opened)
    assert await asked(judge) is meant
    ((surface, ended, dollars),) = counts
    assert (surface, ended) == ("chat", outcome)
    assert dollars > 0


async def test_it_is_shown_the_question_and_both_answers(
    upstream: Upstream, endpoint: Endpoint, opened: RedisStore
) -> None:
    """At temperature 0, for a few tokens, as data and not as instructions."""
    upstream.queue(Reply(text="SAME"))
    await asked(judge_of(endpoint, opened)[0])
    body = upstream.wait_for(1, 20)[0].body
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("large", 0, 8)
    shown, _, task = body["messages"][-1]["content"].partition("\n\n")
    assert task == "Reply with one word: SAME or DIFFERENT."
    assert json.loads(shown) == {
        "question": QUESTION,
        "answer_1": STORED,
        "answer_2": FRESH,
    }


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (error_reply(500), "upstream_http_error"),
        (Reply(fault=Fault.CLOSE_BEFORE_HEADERS), "upstream_unreachable"),
        (Reply(fault=Fault.HTML), "upstream_invalid_response"),
    ],
)
async def test_a_call_that_fails_says_nothing(
    upstream: Upstream, endpoint: Endpoint, opened: RedisStore, reply: Reply, outcome: str
) -> None:
    """No label, and the reason is counted."""
    upstream.default = reply
    judge, counts = judge_of(endpoint, opened)
    assert await asked(judge) is None
    assert [ended for _, ended, _ in counts] == [outcome]
    assert not endpoint.in_flight


async def test_a_call_that_takes_too_long_is_ended(upstream: Upstream, endpoint: Endpoint, opened: RedisStore) -> None:
    """The upstream sees that nobody waits any more, and the place is free again."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    judge, counts = judge_of(endpoint, opened, limit_s=2.0)
    assert await asked(judge) is None
    assert [ended for _, ended, _ in counts] == ["upstream_timeout"]
    assert not endpoint.in_flight
    await eventually(lambda: any(request.gone_at for request in upstream.requests), 20)


async def test_it_takes_no_place_from_an_answer(upstream: Upstream, endpoint: Endpoint, opened: RedisStore) -> None:
    """A backend that is full or rests is not asked, nor is one that is not there."""
    judge, counts = judge_of(endpoint, opened)
    slots = [endpoint.take() for _ in range(4)]
    assert await asked(judge) is None
    for slot in slots:
        slot.free()
    for _ in range(20):
        endpoint.take().failed(Unreachable("refused"))
    assert await asked(judge) is None
    assert (
        await AuditJudge({}, lambda *count: counts.append(count), DailyBudget(opened))("chat", RULE, "", "", "") is None
    )
    assert [ended for _, ended, _ in counts] == ["busy"] * 3
    assert not upstream.requests


class Counting:
    """A backend that says SAME, and notes how many calls it had at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def complete(self, request: BackendRequest) -> Completion:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(10):
            await asyncio.sleep(0)
        self.now -= 1
        return Completion(b"", {"choices": [{"message": {"content": "SAME"}}]})

    async def stream(self, request: BackendRequest) -> EventStream:
        raise AssertionError

    async def aclose(self) -> None: ...


async def test_two_calls_run_at_a_time(opened: RedisStore) -> None:
    """The others wait for their turn, and get it; usage that nobody reports is estimated."""
    backend = Counting()
    config = BackendConfig(name="hosted", base_url="http://127.0.0.1:9/v1", model="large", price=Price(input=1))
    judge, counts = judge_of(Endpoint(config, backend), opened)
    assert await asyncio.gather(*[asked(judge) for _ in range(6)]) == [True] * 6
    assert backend.most == 2
    assert all(dollars > 0 for _, _, dollars in counts)


async def test_the_audits_of_a_day_stay_under_their_cap(
    upstream: Upstream, endpoint: Endpoint, opened: RedisStore
) -> None:
    """Over two workers; what a call did not need is there for the next, and the next day's audits go on."""
    upstream.default = Reply(text="SAME", usage={"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201})
    one, counts = judge_of(endpoint, opened)
    other, more = judge_of(endpoint, opened)
    rule = Rule(backend="hosted", max_usd_per_day=0.005)
    said = [await asked(judge, rule) for _ in range(8) for judge in (one, other)]
    spent = sum(dollars for _, _, dollars in counts + more)
    assert 0.6 * 0.005 < spent <= 0.005 and said.count(True) == len(upstream.requests)
    assert {ended for _, ended, _ in counts[-2:] + more[-2:]} == {"spent"}
    assert await DailyBudget(opened).spent("audit:chat") == pytest.approx(spent, abs=1e-7)


async def test_one_of_several_tenants_has_a_share_of_the_audits(
    upstream: Upstream, endpoint: Endpoint, opened: RedisStore
) -> None:
    """Half of what the others leave, by the tenant of whoever keeps the answer."""
    upstream.default = Reply(text="SAME", usage={"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201})
    judge, _ = judge_of(endpoint, opened)
    rule = Rule(backend="hosted", max_usd_per_day=0.005)
    acme = [await asked(judge, rule, owner) for owner in ("acme/web", "acme/hr") * 4]
    assert 0 < acme.count(True) <= 5 and acme[-2:] == [None, None]
    assert await asked(judge, rule, "gamma") is True


async def test_what_nobody_prices_is_not_asked(upstream: Upstream, opened: RedisStore) -> None:
    config = BackendConfig(name="hosted", base_url="http://example.com/v1", model="large")
    judge, counts = judge_of(Endpoint(config, Counting()), opened)
    assert await asked(judge) is None and counts == [("chat", "unpriced", 0.0)]
