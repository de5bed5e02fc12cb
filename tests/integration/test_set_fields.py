"""Fields that the config and the policy set in requests: three APIs in, three dialects out, streamed and whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import InProcess, in_process
from tests.support.ask import record_at
from tests.support.connection import Received
from tests.support.gateway import CHAT
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.store import LocalStore
from tests.support.strict_chat import Say, StrictChat
from tests.support.strict_messages import StrictMessages, text
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]
SET = """
tier_fields:
  TIER: {set: {reasoning_effort: low, verbosity: low}, force: {service_tier: auto}}
output:
  instruction: Be concise.
"""
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@dataclass(frozen=True)
class World:
    """The providers, by the dialect that they speak, and the application before them."""

    app: InProcess
    chat: StrictChat
    responses: ResponsesUpstream
    messages: StrictMessages

    def sent(self, dialect: str) -> Received:
        """The one request that a provider got since the last."""
        (request,) = getattr(self, dialect).requests
        getattr(self, dialect).requests.clear()
        assert isinstance(request, Received)
        return request

    async def posted(self, api: str, surface: str, *, stream: bool = False, **more: Any) -> Any:
        """The reply to a question of a client of this API."""
        said = [{"role": "user", "content": "What is the capital of France?"}]
        body: Json = {"model": surface, "stream": stream, **more}
        if api == "responses":
            body |= {"input": said}
        elif api == "messages":
            body |= {"messages": said, "max_tokens": 4000}
        else:
            body |= {"messages": said}
        reply = await self.app.client.post(PATHS[api], json=body)
        assert reply.status_code == 200, reply.text
        assert "Paris" in reply.text
        return reply


def _policy(surface: str, tier: str, more: str) -> str:
    return (
        CHAT.replace("surface: chat\nmatch: {models: [chat, gpt-4o-mini]}", f"surface: {surface}")
        .replace("tiers: [local, hosted]", f"tiers: [{tier}]")
        .replace("{local: otherwise}", f"{{{tier}: otherwise}}")
        .replace("cache:\n  exact: {ttl: 1h}", "cache: {exact: {ttl: 0s}}")
    ) + more.replace("TIER", tier)


@pytest.fixture
def more() -> str:
    """What the policies say beside the rest."""
    return SET


@pytest.fixture
def backends() -> Json:
    """What the backends' config says beside the rest."""
    return {}


@pytest.fixture
async def world(tmp_path: Path, store: LocalStore, more: str, backends: Json) -> AsyncIterator[World]:
    with ExitStack() as stack:
        chat = stack.enter_context(StrictChat("plain"))
        responses = stack.enter_context(ResponsesUpstream())
        messages = stack.enter_context(StrictMessages())
        chat.say = lambda _: Say(text="Paris.")
        responses.default = Reply(text="Paris.")
        messages.say(text("Paris."))
        kinds = {"chat": "openai", "responses": "responses", "messages": "anthropic"}
        models = {"chat": "small", "responses": "gpt-5.4", "messages": "claude-opus-4-8"}
        tiers = [
            {
                "name": f"by-{name}",
                "backends": [
                    {
                        "kind": kinds[name],
                        "base_url": upstream.url,
                        "model": models[name],
                        "key_env": "HOSTED_KEY",
                        "rename": {"max_tokens": "max_completion_tokens"},
                        **deepcopy(backends),
                    }
                ],
            }
            for name, upstream in (("chat", chat), ("responses", responses), ("messages", messages))
        ]
        policies = {_surface(name): _policy(_surface(name), f"by-{name}", more) for name in kinds}
        url, settings = store.url, {"tiers": tiers}
        async with in_process(
            tmp_path, chat.url, messages.url, store_url=url, settings=settings, policies=policies
        ) as app:
            yield World(app, chat, responses, messages)
        assert chat.refusals == [] and responses.refused == []


def _surface(dialect: str) -> str:
    return "chat" if dialect == "chat" else f"to-{dialect}"


def _effort(dialect: str, body: Json) -> Any:
    """How much the provider was asked to reason, in the words of its API."""
    if dialect == "chat":
        return body.get("reasoning_effort")
    if dialect == "responses":
        return (body.get("reasoning") or {}).get("effort")
    effort = (body.get("output_config") or {}).get("effort")
    assert effort is None or body["thinking"]["type"] == "adaptive"
    return effort


def _system(dialect: str, body: Json) -> str:
    """The system text that the provider was sent."""
    if dialect == "messages":
        system = body.get("system") or ""
        return system if isinstance(system, str) else "\n\n".join(block["text"] for block in system)
    said = [body.get("instructions") or ""] if dialect == "responses" else []
    for item in body["input" if dialect == "responses" else "messages"]:
        if item.get("role") in ("system", "developer"):
            content = item["content"]
            said += [content] if isinstance(content, str) else [part["text"] for part in content]
    return "\n\n".join(filter(None, said))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", list(PATHS))
@pytest.mark.parametrize("api", list(PATHS))
async def test_open_fields_are_set_in_the_words_of_each_api(world: World, api: str, dialect: str, stream: bool) -> None:
    """The provider takes the request."""
    reply = await world.posted(api, _surface(dialect), stream=stream)
    body = world.sent(dialect).body
    assert _effort(dialect, body) == "low"
    assert body["service_tier"] == "auto"
    if dialect != "messages":
        assert (body["text"]["verbosity"] if dialect == "responses" else body["verbosity"]) == "low"
    assert _system(dialect, body) == "Be concise."
    assert "x-tierline-dropped" not in reply.headers  # the client asked for none of it


_OWN_EFFORT: dict[str, Json] = {
    "chat": {"reasoning_effort": "medium"},
    "responses": {"reasoning": {"effort": "medium", "summary": "auto"}},
    "messages": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}},
}
_OWN_SYSTEM: dict[str, Json] = {
    "chat": {},
    "responses": {"instructions": "You are a guide."},
    "messages": {"system": [{"type": "text", "text": "You are a guide."}]},
}


@pytest.mark.parametrize("dialect", list(PATHS))
@pytest.mark.parametrize("api", list(PATHS))
async def test_a_clients_own_value_wins_unless_it_is_forced(world: World, api: str, dialect: str) -> None:
    """Of what the client gives, what is forced alone is sent otherwise; its system text stays in front."""
    tier = "standard_only" if api == "messages" else "default"
    await world.posted(api, _surface(dialect), **_OWN_EFFORT[api], **_OWN_SYSTEM[api], service_tier=tier)
    body = world.sent(dialect).body
    assert _effort(dialect, body) == "medium"
    assert body["service_tier"] == "auto"
    assert _system(dialect, body) == ("Be concise." if api == "chat" else "You are a guide.\n\nBe concise.")


async def test_the_span_of_the_attempt_names_what_was_set(world: World, store: LocalStore) -> None:
    """Fields that were sent otherwise than asked, and the instruction, but not what the client gave itself."""
    reply = await world.posted("chat", "chat", verbosity="high")
    record = await record_at(store.url, reply.headers["x-request-id"])
    (attempt,) = [hop["attributes"] for hop in record["hops"] if hop["name"] == "attempt"]
    assert set(attempt["tierline.fields"]) == {"reasoning_effort=low", "service_tier=auto"}
    assert attempt["tierline.instruction"] == "Be concise."


@pytest.mark.parametrize("more", ["tier_fields: {TIER: {force: {reasoning_effort: low, temperature: null}}}\n"])
@pytest.mark.parametrize("dialect", list(PATHS))
@pytest.mark.parametrize("api", list(PATHS))
async def test_a_forced_effort_takes_the_place_of_the_clients(world: World, api: str, dialect: str) -> None:
    """Whatever words the client has for it: its thinking budget too."""
    own = {"thinking": {"type": "enabled", "budget_tokens": 3000}} if api == "messages" else _OWN_EFFORT[api]
    await world.posted(api, _surface(dialect), **own)
    assert _effort(dialect, world.sent(dialect).body) == "low"


@pytest.mark.parametrize("more", ["tier_fields: {TIER: {set: {reasoning_effort: low}}}\n"])
@pytest.mark.parametrize("backends", [{"set": {"reasoning_effort": "high", "service_tier": "auto"}}])
@pytest.mark.parametrize("dialect", list(PATHS))
async def test_what_a_backend_sets_counts_after_the_policy(world: World, dialect: str) -> None:
    """The least specific: it fills what nobody else says."""
    await world.posted("chat", _surface(dialect))
    body = world.sent(dialect).body
    assert (_effort(dialect, body), body["service_tier"]) == ("low", "auto")


async def test_answers_of_two_efforts_are_kept_apart(tmp_path: Path, store: LocalStore, upstream: Upstream) -> None:
    """A stored answer is served for the effort that it was made with, at whatever level that is set."""

    async def is_stored(folder: str, policy: str, backend: Json, *, ask: bool = False) -> bool:
        tiers = [{"name": "local", "backends": [{"base_url": upstream.url, "model": "small", **backend}]}]
        policies = {"chat": CHAT.replace("[local, hosted]", "[local]") + policy}
        more: Json = {"store_url": store.url, "settings": {"tiers": tiers}, "policies": policies}
        async with in_process(tmp_path / folder, upstream.url, **more) as app:
            if ask:
                assert (await app.ask()).status_code == 200
                await app.kept()
            return await app.stored()

    (low, high) = ({"set": {"reasoning_effort": effort}} for effort in ("low", "high"))
    for folder in "abcdef":
        (tmp_path / folder).mkdir()
    assert await is_stored("a", "", low, ask=True)
    assert await is_stored("b", "", low)
    assert not await is_stored("c", "", high)
    assert not await is_stored("d", "", {})
    assert not await is_stored("e", "tier_fields: {local: {set: {reasoning_effort: high}}}\n", low)
    assert not await is_stored("f", "output: {instruction: Be concise.}\n", low)


@pytest.mark.parametrize("more", ["tier_fields: {TIER: {set: {thinking: {type: disabled}}}}\n"])
async def test_thinking_that_a_client_asks_for_is_not_open(world: World) -> None:
    """Adaptive thinking leaves its effort open alone."""
    own = {"thinking": {"type": "adaptive", "display": "summarized"}}
    await world.posted("messages", "to-messages", **own)
    assert world.sent("messages").body["thinking"] == own["thinking"]
    await world.posted("messages", "to-messages")
    assert world.sent("messages").body["thinking"] == {"type": "disabled"}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_adaptive_client_gets_the_effort_that_is_set(world: World, stream: bool) -> None:
    """As Claude Code asks: its thinking stays as it is."""
    own = {"thinking": {"type": "adaptive", "display": "summarized"}}
    await world.posted("messages", "to-messages", stream=stream, **own)
    body = world.sent("messages").body
    assert (body["thinking"], body["output_config"]) == (own["thinking"], {"effort": "low"})


async def test_text_completions_are_sent_what_is_set(world: World) -> None:
    """The oldest API is answered by the same models."""
    asked = {"model": "chat", "prompt": "What is the capital of France?", "max_tokens": 20}
    reply = await world.app.client.post("/v1/completions", json=asked)
    assert reply.status_code == 200, reply.text
    body = world.sent("chat").body
    assert body["reasoning_effort"] == "low" and _system("chat", body) == "Be concise."


@pytest.mark.parametrize("backends", [{"omit": ["verbosity"]}])
@pytest.mark.parametrize("dialect", list(PATHS))
async def test_what_a_model_refuses_is_not_set(world: World, dialect: str) -> None:
    """Nor named as dropped: the client did not ask for it."""
    reply = await world.posted("chat", _surface(dialect))
    body = world.sent(dialect).body
    assert "verbosity" not in body and "verbosity" not in (body.get("text") or {})
    assert "x-tierline-dropped" not in reply.headers
