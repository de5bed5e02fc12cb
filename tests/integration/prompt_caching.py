"""Measures what prompt caching by itself reads: `python -m tests.integration.prompt_caching`.

Sessions of an agent, ten turns each, with tools and a system text of some 2,000 tokens, at once, by each provider's
API: with `prompt_cache: auto` and with `off`. The providers are scripted by what their guides say of their caches:
OpenAI's caches unasked, and loses what its busiest machine does not take.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.parts.local.kinds.scripted.script import ToolCall
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.prompt_caches import CachingChat, CachingMessages, CachingResponses
from tests.support.strict_chat import Say
from tests.support.strict_messages import text, tool_use
from tests.support.upstream import Reply

Json = dict[str, Any]
SYSTEM = " ".join(f"Rule {i}: in case {i * 7 % 13} look at the file before you change anything." for i in range(120))
TOOLS = ("read_file", "write_file", "run_tests")
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TURNS = 10
LONG_TURNS = (30, 60)
INPUT = "input: {tool_results: {keep: 6}}"
SESSIONS = 8
PRICE = {"input": 1.0, "output": 5.0, "cached_input": 0.1, "cache_write": 1.25}
SURFACES = ("chat", "responses", "messages")


def policy(surface: str, prompt_cache: str = "auto") -> str:
    """The policy of a surface whose one tier speaks the API of that name."""
    return (
        CHAT.replace("surface: chat\nmatch: {models: [chat, gpt-4o-mini]}", f"surface: {surface}")
        .replace("tiers: [local, hosted]", f"tiers: [by-{surface}]")
        .replace("{local: otherwise}", f"{{by-{surface}: otherwise}}")
        .replace("cache:\n  exact: {ttl: 1h}", f"prompt_cache: {prompt_cache}")
    )


@dataclass(frozen=True)
class CachingWorld:
    """The providers by the API that they speak, and the application before them."""

    app: InProcess
    chat: CachingChat
    responses: CachingResponses
    messages: CachingMessages

    def share_read(self, surface: str) -> float:
        """The share of the prompt tokens that the provider of this surface read from its cache."""
        cache = self.messages if surface == "messages" else getattr(self, surface).cache
        return cache.read / cache.sent

    def tokens_sent(self, surface: str) -> int:
        """The prompt tokens that the provider of this surface was sent."""
        return int(self.messages.sent if surface == "messages" else getattr(self, surface).cache.sent)

    def refusals(self) -> list[Any]:
        """What any provider refused."""
        return [*self.chat.refusals, *self.responses.refused, *self.messages.refusals]


@asynccontextmanager
async def caching_world(
    folder: Path,
    *,
    prompt_cache: str = "auto",
    store_url: str | None = None,
    refuses: tuple[str, ...] = (),
    more: str = "",
) -> AsyncIterator[CachingWorld]:
    """The application before scripted providers of each API, which call a tool whenever there are any.

    `more` is what the policies say beside the rest.
    """
    facts = {"dated": "2026-11-22", "hosts": {"127.0.0.1": "openai"}, "models": {}}
    named = {"chat": "gpt-5.4", "responses": "gpt-6-luna", "messages": "claude-sonnet-5-5"}
    kinds = {"chat": "openai", "responses": "responses", "messages": "anthropic"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").write_bytes(orjson.dumps(facts))
    with ExitStack() as stack:
        chat = stack.enter_context(CachingChat(refuses))
        responses = stack.enter_context(CachingResponses(refuses))
        messages = stack.enter_context(CachingMessages())
        chat.say = lambda body: Say(calls=(ToolCall(TOOLS[0], '{"path":"a"}'),)) if body.get("tools") else Say("Done.")
        call = Reply(tool_calls=(ToolCall(TOOLS[0], '{"path":"a"}'),))
        responses.default = Reply(text="Done.")
        responses.on(lambda request: bool(request.body.get("tools"))).reply(call)
        messages.say_by(lambda body: tool_use(TOOLS[0], {"path": "a"}) if body.get("tools") else text("Done."))
        servers = {"chat": chat, "responses": responses, "messages": messages}
        tiers = [
            {
                "name": f"by-{name}",
                "backends": [
                    {
                        "kind": kinds[name],
                        "base_url": server.url,
                        "model": named[name],
                        "key_env": "HOSTED_KEY",
                        "price": dict(PRICE),
                        "capabilities": ["tools"],
                    }
                ],
            }
            for name, server in servers.items()
        ]
        settings = {"tiers": tiers, "prices": {"file": "facts.json"}}
        policies = {name: f"{policy(name, prompt_cache)}{more}\n" for name in SURFACES}
        async with in_process(
            folder, chat.url, messages.url, store_url=store_url, settings=settings, policies=policies
        ) as app:
            yield CachingWorld(app, chat, responses, messages)


async def agent(app: InProcess, surface: str, name: str, turns: int = TURNS) -> list[Any]:
    """Run an agent that speaks the Messages API; return its replies."""
    spoken = random.Random(name)
    tools = [{"name": tool, "description": f"{tool} of the project", "input_schema": _SCHEMA} for tool in TOOLS]
    messages: list[Json] = [{"role": "user", "content": f"Mend bug {name}."}]
    replies = []
    for _ in range(turns):
        body = {"model": surface, "system": SYSTEM, "tools": tools, "messages": messages, "max_tokens": 1000}
        reply = await app.client.post(
            "/v1/messages", json=body, headers={"x-claude-code-session-id": name, "x-api-key": "any"}
        )
        assert reply.status_code == 200, reply.text
        replies.append(reply)
        content = reply.json()["content"]
        calls = [block for block in content if block["type"] == "tool_use"]
        said = " ".join(f"line {spoken.randrange(10**6)}" for _ in range(120))
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": said} for call in calls]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results or said}]
    return replies


async def measure(
    folder: Path, prompt_cache: str, turns: int = TURNS, more: str = "", sent: Counter[str] | None = None
) -> dict[str, float]:
    """The share of prompt tokens read from the cache, by the provider's API; `sent` counts all of them."""
    shares = {}
    for surface in SURFACES:
        async with caching_world(folder / surface / prompt_cache, prompt_cache=prompt_cache, more=more) as world:
            await asyncio.gather(*(agent(world.app, surface, f"{surface} {i}", turns) for i in range(SESSIONS)))
            if sent is not None:
                sent[surface] += world.tokens_sent(surface)
            assert world.refusals() == [], world.refusals()
            shares[surface] = world.share_read(surface)
    return shares


def _cost(read: float, surface: str) -> float:
    """What a prompt token costs, of one at full price: Claude's are read or, nearly all others, written."""
    return read * 0.1 + (1 - read) * (1.25 if surface == "messages" else 1.0)


def main() -> int:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        off, auto = (asyncio.run(measure(Path(folder), prompt_cache)) for prompt_cache in ("off", "auto"))
    sys.stdout.write(f"{SESSIONS} agents of {TURNS} turns; prompt tokens read from the cache\n")
    for surface in SURFACES:
        sys.stdout.write(f"{surface:10} off {off[surface]:6.1%}   auto {auto[surface]:6.1%}\n")
    for turns in LONG_TURNS:
        _print_shorter(turns)
    return 0


def _print_shorter(turns: int) -> None:
    """Print what `input` changes for agents of so many turns."""
    whole: Counter[str] = Counter()
    shorter: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        before = asyncio.run(measure(Path(folder), "auto", turns, sent=whole))
        after = asyncio.run(measure(Path(folder), "auto", turns, INPUT, sent=shorter))
    sys.stdout.write(f"{SESSIONS} agents of {turns} turns, with {INPUT}\n")
    for surface in SURFACES:
        less = 1 - shorter[surface] / whole[surface]
        cost = (1 - less) * _cost(after[surface], surface) / _cost(before[surface], surface) - 1
        read = f"read {before[surface]:6.1%} -> {after[surface]:6.1%}"
        sys.stdout.write(f"{surface:10} prompt tokens -{less:.1%}   {read}   their cost {cost:+.1%}\n")


if __name__ == "__main__":
    sys.exit(main())
