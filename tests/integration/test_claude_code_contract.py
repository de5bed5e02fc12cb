"""The contract that Claude Code publishes for gateways, item by item, before servers that refuse what the real ones do.

Source: code.claude.com/docs/en/llm-gateway-protocol of November 2026, and what Claude Code 2.1.332 was seen to send.
Behind the gateway is Anthropic's API (`anthropic`: requests go on as they are) or OpenAI's (`openai`: translated).
Pings in silent streams are proven in tests/faults/test_signs_of_life.py, sessions in test_sessions.py, and the program
itself in tests/clients.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_recipes import refused
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.strict_messages import StrictMessages, error, text, tool_use
from tests.support.upstream import Reply, ToolCall, Upstream, error_reply
from tests.support.wait import SLOWNESS

BETAS = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24,new-2027"
SESSION = "e592e47e-a180-4756-9c50-43824e5696c7"
HEADERS = {
    "authorization": "Bearer any",
    "user-agent": "claude-cli/2.1.332 (external, cli)",
    "x-app": "cli",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETAS,
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-new-header": "of a later release",
    "x-claude-code-session-id": SESSION,
    "x-claude-code-agent-id": "agent-1",
    "x-claude-code-parent-agent-id": "agent-0",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.124; cc_entrypoint=cli;"
BODY: dict[str, Any] = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": BILLING},
        {"type": "text", "text": "You are Claude Code.", **CACHED},
        {"type": "text", "text": "Your environment."},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "read the note", **CACHED}]},
        {"role": "system", "content": [{"type": "text", "text": "The user opened note.txt.", **CACHED}]},
    ],
    "tools": [{"name": "Bash", "description": "Run a command.", "input_schema": {"type": "object", "properties": {}}}],
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": json.dumps({"device_id": "8b82", "account_uuid": "", "session_id": SESSION})},
    "stream": True,
}
NEW = "new_capability"
"""A field of a later release, which the strict server takes with the header that it came with."""


class Anthropic(StrictMessages):
    """Takes NEW with its beta, and refuses it alone."""

    def _check(self, body: Any, headers: dict[str, str]) -> None:
        known = {name: value for name, value in body.items() if name != NEW or "new-2027" not in headers[_BETA]}
        super()._check(known, headers)


_BETA = "anthropic-beta"


@dataclass(frozen=True)
class Behind:
    """A gateway in this process with one tier, and the server behind it."""

    app: InProcess
    server: Any

    async def send(self, body: dict[str, Any] | None = None, **headers: str) -> Any:
        """Post a request as Claude Code does."""
        asked = {**BODY, **(body or {})}
        return await self.app.client.post("/v1/messages?beta=true", json=asked, headers={**HEADERS, **headers})

    @property
    def got(self) -> Any:
        """The last request that the server got."""
        return self.server.requests[-1]


@asynccontextmanager
async def behind(folder: Path, server: Any, backend: dict[str, Any]) -> AsyncIterator[Behind]:
    policy = CHAT.replace("[local, hosted]", "[hosted]").replace("local: otherwise", "hosted: otherwise")
    policy = policy.replace("models: [chat, gpt-4o-mini]", 'models: ["claude-*"]')
    facts = {"dated": "2026-11-25", "hosts": {"127.0.0.1": "openai"}, "models": {}}
    (folder / "facts.json").write_text(json.dumps(facts))
    shared = {"key_env": "HOSTED_KEY", "price": {"input": 1, "output": 5}}
    tiers = [{"name": "hosted", "backends": [{**shared, **backend}]}]
    more = {"tiers": tiers, "prices": {"file": str(folder / "facts.json")}}
    env = {"HOSTED_KEY": StrictMessages.KEY}
    async with in_process(folder, server.url, policies={"chat": policy}, settings=more, env=env) as app:
        yield Behind(app, server)


@pytest.fixture(scope="module")
def claude() -> Iterator[Anthropic]:
    with Anthropic() as server:
        yield server


@pytest.fixture
async def anthropic(tmp_path: Path, claude: Anthropic) -> AsyncIterator[Behind]:
    claude.reset()
    able = ["tools", "json", "vision", "files", "web_search", "hosted_tools"]
    backend = {"kind": "anthropic", "base_url": claude.url, "model": "claude-opus-4-8", "capabilities": able}
    async with behind(tmp_path, claude, backend) as made:
        yield made


@pytest.fixture
async def openai(tmp_path: Path, upstream: Upstream) -> AsyncIterator[Behind]:
    upstream.on(refused).reply(error_reply(400, "Unrecognized request argument supplied."))
    backend = {"base_url": upstream.url, "model": "gpt-4o-mini", "capabilities": ["tools", "json", "vision"]}
    async with behind(tmp_path, upstream, backend) as made:
        yield made


def events(reply: Any) -> list[Any]:
    """The events of a streamed reply."""
    assert reply.status_code == 200, reply.text
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: ")]


def written(found: list[Any], member: str) -> str:
    """The text or JSON that a stream's deltas make."""
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    return "".join(delta.get(member, "") for delta in deltas)


# --- what must reach Anthropic's API ---------------------------------------------------------------------------------


async def test_headers_and_fields_are_open_lists(anthropic: Behind) -> None:
    """Each `anthropic-*` header arrives as it was sent, and each field, those of later releases too."""
    assert events(await anthropic.send({NEW: {"on": True}}))[-1] == {"type": "message_stop"}
    sent = anthropic.got
    own = {name: value for name, value in HEADERS.items() if name.startswith("anthropic-")}
    assert {name: sent.headers.get(name) for name in own} == own
    assert sent.body == {**BODY, NEW: {"on": True}, "system": BODY["system"][1:], "model": "claude-opus-4-8"}
    assert anthropic.server.refusals == []


async def test_what_gateways_consume_goes_no_further(anthropic: Behind, openai: Behind) -> None:
    """Names of sessions and agents, and the credential of the gateway."""
    for one in (anthropic, openai):
        await one.send()
        assert not [name for name in one.got.headers if name.startswith("x-claude-code-")]
        assert one.got.headers.get("authorization") != HEADERS["authorization"]


async def test_a_field_and_its_header_need_each_other(anthropic: Behind) -> None:
    """A header alone is no mistake; a field alone, which the provider refuses, is left out and named."""
    assert (await anthropic.send({"context_management": None})).status_code == 200
    alone = await anthropic.send({NEW: {}}, **{_BETA: "claude-code-20250219"})
    assert (alone.status_code, alone.headers["x-tierline-dropped"]) == (200, NEW)
    assert anthropic.server.refusals == [f"{NEW}: Extra inputs are not permitted"]


@pytest.mark.parametrize(
    "words",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "thinking.type: Input tag 'adaptive' found using 'type' does not match any of the expected tags",
        "role 'system' is not supported on this model",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ],
)
async def test_errors_keep_the_providers_words(anthropic: Behind, words: str) -> None:
    """By them Claude Code finds out what to leave out when it tries again."""
    anthropic.server.queue(error(400, "invalid_request_error", words))
    reply = await anthropic.send()
    assert (reply.status_code, reply.json()["type"]) == (400, "error")
    assert reply.json()["error"]["message"] == words


async def test_a_mark_that_is_refused_in_a_systems_turn_costs_no_other(anthropic: Behind) -> None:
    """The gateway asks again without it, as Claude Code would: the other marks stay, and so does the prompt cache."""
    words = "messages.1.content.0.cache_control: Extra inputs are not permitted"
    anthropic.server.queue(error(400, "invalid_request_error", words))
    assert (await anthropic.send()).status_code == 200
    user, system = anthropic.got.body["messages"]
    assert "cache_control" in user["content"][0] and "cache_control" not in system["content"][0]
    assert "cache_control" in anthropic.got.body["system"][0]


async def test_marks_of_the_prompt_cache_stay_where_they_are(anthropic: Behind) -> None:
    """On blocks of the system, of the user, and of the system's turns, none of which becomes a string."""
    await anthropic.send()
    sent = anthropic.got.body
    assert [block.get("cache_control") for block in sent["system"]] == [CACHED["cache_control"], None]
    assert [message["content"][0]["cache_control"] for message in sent["messages"]] == [CACHED["cache_control"]] * 2


async def test_the_attribution_block_is_no_part_of_a_prompt(anthropic: Behind, openai: Behind) -> None:
    """Only Anthropic's own host is sent it, where it is first; see tests/gateway/backends/test_anthropic.py."""
    for one in (anthropic, openai):
        await one.send()
        assert "x-anthropic-billing-header" not in json.dumps(one.got.body)
        assert "You are Claude Code." in json.dumps(one.got.body)


async def test_tokens_are_counted_without_an_answer(anthropic: Behind, openai: Behind) -> None:
    asked = {name: BODY[name] for name in ("model", "system", "messages", "tools", "thinking")}
    for one in (anthropic, openai):
        reply = await one.app.client.post("/v1/messages/count_tokens?beta=true", json=asked, headers=HEADERS)
        assert reply.status_code == 200 and reply.json()["input_tokens"] > 10
    assert [request.path.partition("?")[0] for request in anthropic.server.requests] == ["/v1/messages/count_tokens"]
    assert openai.server.requests == []


# --- what Claude Code reads ------------------------------------------------------------------------------------------


async def test_a_command_is_called_and_its_output_read(anthropic: Behind, openai: Behind) -> None:
    """A turn with a call, and the next with its result, of a stream that ends as it should."""
    given = {"command": "cat note.txt"}
    anthropic.server.say(tool_use("Bash", given))
    anthropic.server.say(text("It is sunny."))
    call = ToolCall("Bash", json.dumps(given), id="call_1")
    openai.server.queue(Reply(tool_calls=(call,), finish_reason="tool_calls"), Reply(text="It is sunny."))
    for one in (anthropic, openai):
        found = events(await one.send())
        assert [event["type"] for event in (found[0], *found[-2:])] == [
            "message_start",
            "message_delta",
            "message_stop",
        ]
        assert found[-2]["delta"]["stop_reason"] == "tool_use"
        (block,) = [event["content_block"] for event in found if event["type"] == "content_block_start"]
        assert (block["type"], block["name"], json.loads(written(found, "partial_json"))) == ("tool_use", "Bash", given)
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny", **CACHED}
        turns = [
            *BODY["messages"],
            {"role": "assistant", "content": [{**block, "input": given}]},
            {"role": "user", "content": [result]},
        ]
        said = events(await one.send({"messages": turns}))
        assert written(said, "text") == "It is sunny."
    assert anthropic.server.refusals == [] and not any(map(refused, openai.server.requests))


@pytest.mark.parametrize("credential", [{"authorization": "Bearer any"}, {"x-api-key": "any"}])
async def test_models_are_found(openai: Behind, credential: dict[str, str]) -> None:
    """At once and without a redirect, by ids that Claude Code keeps, each of which can be asked for."""
    headers = {**credential, "anthropic-version": "2023-06-01", "user-agent": "claude-code/2.1.332"}
    began = time.monotonic()
    reply = await openai.app.client.get("/v1/models?limit=1000", headers=headers)
    assert (reply.status_code, time.monotonic() - began < 3 * SLOWNESS) == (200, True)
    kept = [one for one in reply.json()["data"] if "claude" in one["id"].lower() or "anthropic" in one["id"].lower()]
    assert [(one["id"], one["display_name"]) for one in kept] == [("claude-chat", "chat")]
    answered = await openai.send({"model": kept[0]["id"], "stream": False})
    assert (answered.status_code, answered.json()["model"]) == (200, "claude-chat")
    assert answered.headers["x-tierline-surface"] == "chat"


async def test_probes_at_the_start_are_answered_at_once(anthropic: Behind) -> None:
    """None reaches a model; one of a path that is not here is refused, as the contract allows."""
    for path, status in (("/", 200), ("/api/hello", 404)):
        assert (await anthropic.app.client.head(path)).status_code == status
    assert anthropic.server.requests == []
