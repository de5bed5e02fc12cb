"""A conversation goes on where its prompt is warm while that costs less, over sockets and providers' prompt caches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.parts.reasons import detail_names as detail
from gateway.parts.recorder.decision_record import TierFacts, input_of, outcome_of
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES
from routing.decide import decide
from tests.support.app import InProcess, in_process
from tests.support.prompt_caches import CachingMessages
from tests.support.store import LocalStore
from tests.support.strict_messages import text
from tests.support.timed_caches import ReadPrompt, TimedChat
from tests.support.upstream import Reply
from tests.support.wait import SLOWNESS

Json = dict[str, Any]
POLICY = """surface: chat
match: {models: [chat, claude-*]}
slo: {deadline: 10s}
tiers: [small, large]
route:
  classifier: none
  start: {small: not wants_json, large: otherwise}
  weigh_switching: WEIGHS
escalate: {when: {confidence_below: 0.5}, no_signal: accept}
cache: {never: ["turns > 0"]}
holdout: 0%
prompt_cache: CACHED
"""
SYSTEM = "You look after a large archive of letters. " * 500  # some 5,000 tokens
SMALL = {"input": 1, "cached_input": 0.1, "cache_write": 1.25, "output": 5}
LARGE = {"input": 2, "cached_input": 0.2, "cache_write": 2.5, "output": 10}
ADDED = "Here is one more letter of the archive. " * 20
HARD = {"response_format": {"type": "json_object"}}


@pytest.fixture
def chat() -> Iterator[TimedChat]:
    with TimedChat() as server:
        server.default = Reply(text="A short answer.")
        server.on(lambda request: request.body["model"] == "small" and "unsure" in request.prompt).reply(
            text="Perhaps so.", logprob=-3.0
        )
        yield server


@asynccontextmanager
async def gateway(
    folder: Path,
    url: str,
    *,
    weighs: bool = True,
    cached: str = "off",
    store: LocalStore | None = None,
    more: str = "",
    **backend: Any,
) -> AsyncIterator[InProcess]:
    """A gateway before a small and a large model of one provider."""

    def tier(name: str, price: Mapping[str, float]) -> Json:
        model = name if "kind" not in backend else {"small": "claude-haiku-4-5", "large": "claude-sonnet-4-5"}[name]
        own = {"base_url": url, "model": model, "key_env": "HOSTED_KEY", "price": price}
        said = json.loads(json.dumps(backend))  # YAML would write one list for both tiers
        return {"name": name, "backends": [{**own, "prompt_lifetime": "5m", "capabilities": ["json"], **said}]}

    settings = {"tiers": [tier("small", SMALL), tier("large", LARGE)]}
    policies = {"chat": POLICY.replace("WEIGHS", str(weighs).lower()).replace("CACHED", cached) + more}
    async with in_process(
        folder, url, url, store_url=None if store is None else store.url, policies=policies, settings=settings
    ) as app:
        yield app


class Talk:
    """A conversation of a client that names its session: each turn adds a letter, and the answer."""

    def __init__(self, app: InProcess, session: str = "one", system: str = SYSTEM) -> None:
        self.app, self.headers = app, {"x-tierline-session": session}
        self.messages: list[Json] = [{"role": "system", "content": system}]

    async def turn(self, asked: str = "What does it say?", **more: Any) -> str:
        """The tier that answered one more turn."""
        self.messages.append({"role": "user", "content": f"{ADDED}{asked}"})
        reply = await self.app.ask(messages=self.messages, headers=self.headers, **more)
        assert reply.status_code == 200, reply.text
        self.messages.append(reply.json()["choices"][0]["message"])
        return str(reply.headers["x-tierline-tier"])


def share_cached(calls: list[ReadPrompt]) -> float:
    return sum(call.cached for call in calls) / sum(call.tokens for call in calls)


async def test_an_easy_turn_after_a_hard_one_stays_until_many_easy_ones_follow(chat: TimedChat, tmp_path: Path) -> None:
    """Going down costs the whole prompt cold: it is paid once a long run of easy turns is to be expected."""
    async with gateway(tmp_path, chat.url) as app:
        talk = Talk(app)
        assert await talk.turn(**HARD) == "large"
        seen = [await talk.turn() for _ in range(8)]
        assert seen[:2] == ["large"] * 2 and seen[-1] == "small" and seen == sorted(seen)
        moved = seen.index("small")
        assert [call.cached > 0 for call in chat.calls] == [False, *[True] * moved, False, *[True] * (7 - moved)]
        assert await talk.turn(**HARD) == "large"


async def test_a_prompt_that_is_sent_shorter_costs_what_is_sent(chat: TimedChat, tmp_path: Path) -> None:
    """What is left out of it counts neither now nor before; once the cut has moved on, nobody knows what is warm."""
    results: list[Json] = []
    for i in range(8):
        called = {"id": f"call_{i}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        results.append({"role": "assistant", "content": None, "tool_calls": [called]})
        results.append({"role": "tool", "tool_call_id": f"call_{i}", "content": f"{i} {ADDED * (50 if i < 4 else 1)}"})
    async with gateway(tmp_path, chat.url, more="input: {tool_results: {keep: 2}}\n") as app:
        talk = Talk(app)
        talk.messages += [{"role": "user", "content": "Look."}, *results]
        assert await talk.turn(**HARD) == "large"
        assert [await talk.turn() for _ in range(2)] == ["large", "small"], "with the third the cut moves on"


@pytest.mark.parametrize("weighs", [True, False])
async def test_every_turn_that_asks_for_the_large_model_gets_it(weighs: bool, chat: TimedChat, tmp_path: Path) -> None:
    """By its rule and by a draft that is not sure enough, however warm the small one is."""
    async with gateway(tmp_path, chat.url, weighs=weighs) as app:
        talk = Talk(app)
        for _ in range(4):
            assert await talk.turn() == "small"
        assert await talk.turn("I am unsure. Is it signed?") == "large"
        assert await talk.turn(**HARD) == "large"
        assert await talk.turn(**HARD) == "large"
        for _ in range(3):
            assert await talk.turn() == "small"  # which has read nearly all of it
        assert await talk.turn(**HARD) == "large"


async def test_staying_reads_more_from_the_cache_for_less_money(chat: TimedChat, tmp_path: Path) -> None:
    """Hard and easy turns in turns that lapse at the one while the other answers: with switching weighed, or not."""
    plan = [True, False, True, False, False, True, False, True, False, True]
    told: dict[bool, tuple[float, float]] = {}
    for weighs in (True, False):
        chat.calls.clear()
        (tmp_path / str(weighs)).mkdir()
        async with gateway(tmp_path / str(weighs), chat.url, weighs=weighs) as app:
            talk, usd = Talk(app, system=f"{weighs} {SYSTEM}"), 0.0
            for hard in plan:
                tier = await talk.turn(**(HARD if hard else {}))
                assert not hard or tier == "large"
                price, call = (SMALL, LARGE)[tier == "large"], chat.calls[-1]
                usd += (call.tokens - call.cached) * price["input"] + call.cached * price["cached_input"]
            told[weighs] = share_cached(chat.calls), usd
    assert told[True][0] > told[False][0] and told[True][1] < told[False][1]


async def test_the_trace_and_the_record_say_why_and_decide_again_alike(
    chat: TimedChat, store: LocalStore, tmp_path: Path
) -> None:
    """What each tier would cost, the tokens that it would read cold, and the same decision from the record."""
    async with gateway(tmp_path, chat.url, store=store) as app:
        talk = Talk(app)
        await talk.turn(**HARD)
        assert await talk.turn() == "large"
        async with asyncio.timeout(30):
            while len(records := [orjson.loads(blob) for _, blob in await app.steps.store.latest(TRACES, 9)]) < 2:
                await asyncio.sleep(0.01)
        record = records[0]
        [route] = [hop for hop in record["hops"] if hop["name"] == names.ROUTE]
        assert "goes on at large: small would cost $" in route["attributes"][names.REASON]
        attributes = route["attributes"]
        assert attributes[detail.COST_TIERS] == ["small", "large"]
        cold, usd = attributes[detail.COST_COLD], attributes[detail.COST_USD]
        assert cold[0] == chat.calls[-1].tokens or abs(cold[0] - chat.calls[-1].tokens) < 60
        assert abs(cold[1] - (chat.calls[-1].tokens - chat.calls[-1].cached)) < 60 and usd[0] > usd[1] > 0
        facts = [TierFacts(name, frozenset({"json"}), 1, None) for name in ("small", "large")]
        policy = app.steps.policies.current.by_surface["chat"]
        assert outcome_of(decide(policy, input_of(record["decide"]["in"], facts, ""))) == record["decide"]["out"]


async def test_a_history_that_was_cut_is_warm_nowhere(chat: TimedChat, tmp_path: Path) -> None:
    """The session's name stays, its prompt begins otherwise: an easy turn goes to the small model at once."""
    async with gateway(tmp_path, chat.url) as app:
        talk = Talk(app)
        for _ in range(3):
            await talk.turn(**HARD)
        assert await talk.turn() == "large"
        talk.messages[1:] = [{"role": "user", "content": "The letters were about a house."}, talk.messages[2]]
        assert await talk.turn() == "small"
        talk.messages[1]["content"] = f"{ADDED * 20} The letters were about a ship."  # longer, and another text
        assert await talk.turn(**HARD) == "large"


async def test_what_lapsed_is_not_waited_for(chat: TimedChat, tmp_path: Path) -> None:
    """Once the provider's lifetime has passed, an easy turn starts where its rule says."""
    async with gateway(tmp_path, chat.url, prompt_lifetime=f"{500 * SLOWNESS:.0f}ms") as app:
        talk = Talk(app)
        await talk.turn(**HARD)
        assert await talk.turn() == "large"
        await asyncio.sleep(0.5 * SLOWNESS + 0.05)
        assert await talk.turn() == "small"


@pytest.mark.parametrize("unknown", ["prompt_lifetime", "price"])
async def test_where_nothing_is_known_nothing_is_weighed(unknown: str, chat: TimedChat, tmp_path: Path) -> None:
    """A server of one's own whose cache or price nobody states: turns start where their rules say."""
    async with gateway(tmp_path, chat.url, **{unknown: None}) as app:
        talk = Talk(app)
        await talk.turn(**HARD)
        assert [await talk.turn() for _ in range(3)] == ["small"] * 3


async def test_a_provider_that_keeps_no_prompts_is_found_out(chat: TimedChat, tmp_path: Path) -> None:
    """Whatever its facts say: the first call that should have been read from the cache, and was not, tells."""
    chat.cache.lifetime_s = 0.0
    async with gateway(tmp_path, chat.url) as app:
        talk = Talk(app)
        await talk.turn(**HARD)
        assert await talk.turn() == "large"
        assert [await talk.turn() for _ in range(3)] == ["small"] * 3
        assert (await talk.turn(**HARD), await talk.turn()) == ("large", "small")


async def test_conversations_keep_their_own_warmth(chat: TimedChat, tmp_path: Path) -> None:
    """A sub-agent of the same session by its system text, and without a name each prompt by its words."""
    async with gateway(tmp_path, chat.url) as app:
        main, agent = Talk(app), Talk(app, system=f"You search. {SYSTEM}")
        await main.turn(**HARD)
        assert await agent.turn() == "small" and await main.turn() == "large"
        one, again, other = Talk(app), Talk(app), Talk(app)
        one.headers = again.headers = other.headers = {}
        assert (await one.turn("First?", **HARD), await other.turn("Another?")) == ("large", "small")
        assert await again.turn("First?") == "large"  # the same words: the same prompt, which is warm
        assert (await one.turn("Third?"), await other.turn("Next?")) == ("large", "small")


@pytest.mark.parametrize("who", ["client", "gateway", "nobody"])
async def test_it_is_the_same_with_anthropic_and_markers(who: str, tmp_path: Path) -> None:
    """Of Claude Code, at the system text and the last message, or of the gateway; without any, nothing is warm."""
    marker = {"cache_control": {"type": "ephemeral"}} if who == "client" else {}
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    hard = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    tiers: list[str] = []
    messages: list[Json] = []
    with CachingMessages() as claude:
        claude.say(text("Done."))
        more: Json = {"kind": "anthropic", "capabilities": ["json", "tools"]}
        more["cached"] = "auto" if who == "gateway" else "off"
        async with gateway(tmp_path, claude.url, **more) as app:
            for turn in range(9):
                for message in messages[::2]:
                    message["content"][0].pop("cache_control", None)
                messages.append({"role": "user", "content": [text(f"{ADDED} {turn}", **marker)]})
                body = {"max_tokens": 100, "messages": messages, "system": [text(SYSTEM, **marker)]}
                body |= {"model": "claude-x", **(hard if turn in (0, 5) else {})}
                session = {"x-claude-code-session-id": "one"}
                reply = await app.client.post("/v1/messages", json=body, headers=session)
                assert reply.status_code == 200, reply.text
                tiers.append(str(reply.headers["x-tierline-tier"]))
                messages.append({"role": "assistant", "content": "Done."})
    assert tiers[0] == tiers[5] == "large"
    assert tiers[1:3] == (["small"] * 2 if who == "nobody" else ["large"] * 2)
    assert (claude.read > 0) == (who != "nobody")
