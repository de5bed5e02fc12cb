"""The page of a conversation: whether it flipped tiers, why, and what that cost in prompt cache and reasoning."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.archive.folder import add_bases
from gateway.archive.live import LiveArchive
from gateway.config.launch import Launch
from gateway.console.access import ConsoleAccess
from gateway.console.app import ConsoleApp
from gateway.console.flips import conversations_in
from gateway.console.page import PolicyPlaces
from gateway.telemetry import names
from gateway.telemetry.decisions import DecisionRecorder, RecordedDecision
from gateway.telemetry.ledger import TRACES, CallAccount, Ledger, encode
from gateway.telemetry.trace import Trace
from policies.loader import made_policy
from policies.model import Policy
from routing.decide import DecisionInput, TierHealth, decide
from routing.features import Features
from routing.warmth import TierCost
from tests.gateway.telemetry.conftest import server, store

__all__ = ["server", "store"]

NAME = "00c0ffee00c0ffee"
CONFIG = """
policies: {source: files}
tiers:
  - {name: local, backends: [{name: small, kind: scripted,
                              price: {input: 1, output: 5, cached_input: 0.1, cache_write: 1.25},
                              script: [{reply: {text: Hello.}}]}]}
  - {name: hosted, backends: [{name: large, kind: scripted, price: {input: 3, output: 15, cached_input: 0.3},
                               script: [{reply: {text: Hello.}}]}]}
"""
BACKENDS = {"local": "small", "hosted": "large"}


def turn(number: int, tier: str, prompt: int, cached: int = 0, path: str = "direct", **ledger: Any) -> Ledger:
    """A turn that one call answered, after a draft of the other tier where it escalated."""
    calls = [_call(1, "local", prompt, 0, wasted=True)] if path == "escalated" else []
    calls.append(_call(len(calls) + 1, tier, prompt, cached, wasted=False))
    given: dict[str, Any] = {
        "tenant": "acme", "surface": "chat", "policy": "chat@3f2a91c", "status": 200, "path": path, "tier": tier,
        "backend": BACKENDS[tier], "model": "m", "cost_usd": 0.01, "served": (len(calls),), "calls": calls,
        "answer_tokens_in": prompt, "conversation": NAME,
    }  # fmt: skip
    return Ledger(f"req-{number}", **given | ledger)


def _call(attempt: int, tier: str, prompt: int, cached: int, *, wasted: bool, hour_write: int = 0) -> CallAccount:
    return CallAccount(
        attempt, tier, BACKENDS[tier], "m", "accepted", prompt, 10, False, 0.01, wasted, 0.0, None, 50.0,
        tokens_cached=cached, tokens_cache_write=hour_write, tokens_hour_write=hour_write,
    )  # fmt: skip


async def record(
    store: RedisStore,
    ledgers: Iterable[Ledger],
    stays: str = "",
    decided: RecordedDecision | None = None,
    folder: Path | None = None,
) -> None:
    recorder = DecisionRecorder({})
    for ledger in ledgers:
        trace = Trace(names.REQUEST)
        if ledger.request_id == stays:
            trace.decision = decided or staying()
        trace.root.end()
        await store.apply([Append(TRACES, encode(trace, ledger, recorder), 100_000)])
    if folder is not None:
        add_bases(folder, recorder.due)


@contextlib.asynccontextmanager
async def console(folder: Path, store: RedisStore, ledgers: Sequence[Ledger]) -> AsyncIterator[httpx2.AsyncClient]:
    """A console that has seen these requests."""
    await record(store, ledgers)
    config = folder / "tierline.yaml"
    config.write_text(CONFIG)
    launch = Launch(config=config)
    deployment = launch.deployment()
    places = PolicyPlaces(deployment, launch.policy_source(deployment), folder, config, f"redis://{store}")
    archive = LiveArchive(folder, store)
    try:
        await archive.catch_up()
        app = ConsoleApp(archive, store, places, ConsoleAccess({})).asgi()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8790") as client:
            yield client
    finally:
        await archive.aclose()


async def test_a_flip_costs_what_is_read_again(store: RedisStore, tmp_path: Path) -> None:
    """The turn that flips reads the whole prompt at the full price; the one that comes back has most of it cached."""
    turns = [
        turn(1, "local", 1000),
        turn(2, "local", 2000, 1000),
        turn(3, "hosted", 3000, 0, "escalated", dropped=("reasoning",)),
        turn(4, "local", 4000, 1800, dropped=("reasoning", "verbosity")),
    ]
    async with console(tmp_path, store, turns) as client:
        data = (await client.get(f"/conversations/{NAME}.json")).json()
        sums = data["sums"]
        assert (sums["flips"], sums["forced"], sums["lost_reasoning"]) == (2, 1, 2)
        up, down = (one["flip"] for one in data["turns"][2:])
        assert (up["before"], up["after"], up["cause"], up["tokens_again"]) == ("local", "hosted", "escalation", None)
        assert (down["cause"], down["tokens_again"]) == ("back", 3000 - 1800)
        assert down["usd_again"] == pytest.approx(1200 * (1 - 0.1) / 1e6)
        assert sums["usd_again"] == down["usd_again"] and sums["unknown"] == 1
        assert sums["cached_share"] == 1.0
        assert sums["saved_usd"] == pytest.approx((1000 + 1800) * 0.9 / 1e6)
        page = (await client.get(f"/conversations/{NAME}")).text
        assert "local → hosted" in page and "the answer of local was not good enough" in page
        assert "2 flips" in page and "1,200 tokens read again" in page and "not told" in page
        assert 'href="/requests/req-3?at=' in page and 'href="#turn-3"' in page
        assert "Earlier reasoning was left out" in page and "verbosity" in page


async def test_why_a_turn_went_elsewhere(store: RedisStore, tmp_path: Path) -> None:
    """The same words stand on the page and in its data."""
    turns = [
        turn(1, "local", 100),
        turn(2, "hosted", 200, holdout=True),
        turn(3, "local", 300, policy="chat@77c01aa"),
        turn(4, "hosted", 400, path="fallback", policy="chat@77c01aa"),
        turn(5, "hosted", 500, policy="chat@77c01aa"),
        turn(6, "local", 600, policy="chat@77c01aa"),
    ]
    async with console(tmp_path, store, turns) as client:
        data = (await client.get(f"/conversations/{NAME}.json")).json()
        causes = [one["flip"] and one["flip"]["cause"] for one in data["turns"]]
        assert causes == [None, "holdout", "policy", "health", None, "chosen"]
        assert data["sums"]["flips"] == 4 and data["sums"]["forced"] == 3


def staying() -> RecordedDecision:
    """An easy turn that goes on at the warm tier."""
    rules = {"surface": "chat", "version": "0123456789", "slo": {"deadline": "10s"}, "tiers": ["local", "hosted"]}
    policy = Policy.model_validate({**rules, "route": {"start": {"local": "turns > 0", "hosted": "otherwise"}}})
    health = {name: TierHealth(name, frozenset(), 1) for name in policy.tiers}
    costs = {"local": TierCost(9000, 0.03), "hosted": TierCost(100, 0.02)}
    given = DecisionInput(None, Features("", 2, 9000), health, 10.0, costs=costs)
    return RecordedDecision(policy, given, decide(policy, given))


async def test_a_turn_that_stayed_says_what_going_would_have_cost(store: RedisStore, tmp_path: Path) -> None:
    """An easy turn that went on where the prompt is warm is marked, and counted."""
    turns = [turn(1, "hosted", 9000), turn(2, "hosted", 9100, 9000)]
    await record(store, turns, stays="req-2")
    async with console(tmp_path, store, []) as client:
        data = (await client.get(f"/conversations/{NAME}.json")).json()
        why = (
            "goes on at hosted: local would cost $0.03 until a harder turn, as it reads 9000 tokens cold, hosted $0.02"
        )
        assert [one["stayed"] for one in data["turns"]] == ["", why] and data["sums"]["stayed"] == 1
        page = (await client.get(f"/conversations/{NAME}")).text
        assert why in page and "1 stayed as that cost less" in page


async def test_what_the_strongest_tier_alone_would_have_cost_stands_beside_it(
    store: RedisStore, tmp_path: Path
) -> None:
    """Over the turns for which both are known; a turn whose price nobody knows is not among them."""
    turns = [
        turn(1, "local", 100, counterfactual_usd=0.05),
        turn(2, "local", 200, counterfactual_usd=0.03),
        turn(3, "local", 300, counterfactual_usd=0.03, cost_unknown=True),
        turn(4, "local", 400),
    ]
    async with console(tmp_path, store, turns) as client:
        sums = (await client.get(f"/conversations/{NAME}.json")).json()["sums"]
        assert (sums["compared"], sums["alone_usd"], sums["less_usd"]) == (2, pytest.approx(0.08), pytest.approx(0.06))
        assert "$0.06 saved, over 2 turns" in (await client.get(f"/conversations/{NAME}")).text


async def test_a_session_s_chats_are_added_up_beside_its_caps(store: RedisStore, tmp_path: Path) -> None:
    """Those of sub-agents count too; the caps are those of the policy that the latest turn was decided by."""
    turns = [turn(n, "local", 100 * n, session="s" * 16) for n in range(1, 3)]
    turns += [turn(3, "local", 100, session="s" * 16, conversation="d" * 16)]
    caps = "session: {calls: 40, usd: 2, time: 1h}"
    await record(store, turns[1:], stays="req-2", decided=decided_under(caps), folder=tmp_path)
    alone = turn(9, "local", 100, conversation="e" * 16)
    async with console(tmp_path, store, [turns[0], alone]) as client:
        data = (await client.get(f"/conversations/{NAME}.json")).json()
        session = data["session"]
        assert (session["requests"], session["chats"], session["usd"]) == (3, 2, pytest.approx(0.03))
        assert (session["caps"]["calls"], session["caps"]["time"]) == (40, 3600.0)
        page = (await client.get(f"/conversations/{NAME}")).text
        assert "3 of 40 requests" in page and "$0.03 of $2" in page and "in 2 chats" in page
        assert (await client.get(f"/conversations/{'e' * 16}.json")).json()["session"] is None


def decided_under(caps: str) -> RecordedDecision:
    """A decision by a policy with a session's caps."""
    file = f"""surface: chat
slo: {{deadline: 10s}}
tiers: [local, hosted]
route: {{start: {{local: otherwise}}}}
{caps}
"""
    policy = made_policy(yaml.safe_load(file), Path("chat.yaml"), {})
    health = {name: TierHealth(name, frozenset(), 1) for name in policy.tiers}
    given = DecisionInput(None, Features("", 2, 9000), health, 10.0)
    return RecordedDecision(policy, given, decide(policy, given))


async def test_answers_without_a_call_are_turns_too(store: RedisStore, tmp_path: Path) -> None:
    """A cache hit and a failure change nothing: the next turn is compared with the last that a model answered."""
    hit = turn(2, "local", 200, path="cache-exact", served=(), calls=())
    failed = turn(3, "local", 300, status=502, error="upstream_unreachable", served=(), answer_tokens_in=None)
    async with console(tmp_path, store, [turn(1, "local", 100), hit, failed, turn(4, "local", 400)]) as client:
        data = (await client.get(f"/conversations/{NAME}.json")).json()
        assert [one["tokens_in"] for one in data["turns"]] == [100, None, None, 400]
        assert data["sums"]["flips"] == 0 and not data["others"]
        page = (await client.get(f"/conversations/{NAME}")).text
        assert "one tier" in page and "answer cache" in page and "upstream_unreachable" in page


async def test_conversations_that_begin_alike_are_told_apart(store: RedisStore, tmp_path: Path) -> None:
    """By the length of their prompts; a link with a time leads to the one of that request."""
    turns = [turn(n, "local", 100 * n) for n in (1, 2, 3)] + [turn(4, "local", 100), turn(5, "hosted", 220)]
    async with console(tmp_path, store, turns) as client:
        latest = (await client.get(f"/conversations/{NAME}.json")).json()
        assert [one["request_id"] for one in latest["turns"]] == ["req-4", "req-5"]
        [other] = latest["others"]
        earlier = (await client.get(f"/conversations/{NAME}.json?at={other['at']}")).json()
        assert [one["request_id"] for one in earlier["turns"]] == ["req-1", "req-2", "req-3"]
        assert "Others that begin with the same words" in (await client.get(f"/conversations/{NAME}")).text


async def test_what_is_written_again_for_an_hour_costs_its_own_price(store: RedisStore, tmp_path: Path) -> None:
    """The turn that comes back writes for an hour what it would have read."""
    back = _call(1, "local", 4000, 1800, wasted=False, hour_write=2200)
    turns = [turn(1, "local", 3000), turn(2, "hosted", 3000), turn(3, "local", 4000, 1800, calls=[back])]
    async with console(tmp_path, store, turns) as client:
        flip = (await client.get(f"/conversations/{NAME}.json")).json()["turns"][2]["flip"]
        assert flip["tokens_again"] == 1200
        assert flip["usd_again"] == pytest.approx(1200 * (2 - 0.1) / 1e6)


async def test_those_that_flip_most_are_listed(store: RedisStore, tmp_path: Path) -> None:
    steady = [turn(n, "local", 100 * n, conversation="a" * 16) for n in range(1, 4)]
    once = [turn(n, "local" if n < 6 else "hosted", 100 * n, conversation="b" * 16) for n in range(4, 8)]
    often = [turn(n, "local" if n % 2 else "hosted", 100 * n, conversation="c" * 16) for n in range(8, 14)]
    async with console(tmp_path, store, [*steady, *once, *often]) as client:
        data = (await client.get("/conversations.json")).json()
        assert [(one["name"][0], one["sums"]["flips"]) for one in data["listed"]] == [("c", 5), ("b", 1)]
        page = (await client.get("/conversations")).text
        assert f"/conversations/{'c' * 16}?at=" in page and "local → hosted" in page
        assert (await client.get("/conversations?since=2h")).status_code == 400


async def test_errors_and_empty_pages_say_what_to_do(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, [turn(1, "local", 100)]) as client:
        missing = await client.get("/conversations/ffffffffffffffff")
        assert missing.status_code == 404 and "ledger.keep" in missing.text
        assert (await client.get(f"/conversations/{NAME}?at=soon")).status_code == 400
        assert "No conversation changed tiers" in (await client.get("/conversations")).text
        request = await client.get("/requests/req-1")
        assert f'href="/conversations/{NAME}?at=' in request.text
        assert f'href="/conversations/{NAME}?at=' in (await client.get("/requests?peek=req-1")).text


def test_a_tokenizer_that_counts_less_begins_no_conversation() -> None:
    """Two tiers count the same prompt differently; only a much shorter one is another beginning."""

    def rows(*lengths: int | None) -> list[dict[str, Any]]:
        return [{"answer_tokens_in": length, "started_s": at, "conversation": "c"} for at, length in enumerate(lengths)]

    def split(*lengths: int | None) -> list[list[int | None]]:
        return [[row["answer_tokens_in"] for row in one] for one in conversations_in(rows(*lengths))]

    assert split(1000, 1200, 1000, 1500, None) == [[1000, 1200, 1000, 1500, None]]
    assert split(1000, 2000, 100, 200, 2400) == [[1000, 2000], [100, 200, 2400]]
    assert split(None, 100) == [[None, 100]]
    named = [row | {"session": "s"} for row in rows(1000, 2000, 100)]
    assert conversations_in(named) == [named]  # its client has cut its history
