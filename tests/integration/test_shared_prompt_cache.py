"""What clients are told does not depend on a backend's prompt cache, which the tenants of a deployment share."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.access.keys.made_keys import make_key
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.keys.roles import ADMIN
from tests.support.account import Account
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.store import LocalStore
from tests.support.strict_messages import StrictMessages, text
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]
KEYS = {"ACME_KEY": "acme-key-0123456789", "UMBRELLA_KEY": "umbrella-key-0123456789"}
TENANTS = {"acme": {"key_env": "ACME_KEY"}, "umbrella": {"key_env": "UMBRELLA_KEY"}}
HELLO = [{"role": "user", "content": "hello"}]
APIS: dict[str, Json] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 100},
}
PROMPT = 9000
PRICE = {"input": 10, "output": 10, "cached_input": 1, "cache_write": 20}
VOLATILE = re.compile(
    r'"(?:created|created_at|completed_at)": ?\d+|(?:chatcmpl|cmpl|msg|resp|rs|fc)[-_][\w-]+|[0-9a-f]{32}'
)
TIMES = {
    "x-request-id", "request-id", "openai-processing-ms", "x-tierline-overhead-ms", "server-timing", "age",
    "x-tierline-cache-entry", "content-length",
}  # fmt: skip


def in_all_words(cached: int) -> tuple[Json, Json]:
    """The usage of a call and the other members of its reply, in the words of many servers of chat completions."""
    usage = {
        "prompt_tokens": PROMPT, "completion_tokens": 5, "total_tokens": PROMPT + 5, "cached_tokens": cached,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 3}, "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": PROMPT - cached, "num_cached_tokens": cached, "prompt_time": 1 / (1 + cached),
        "cost": 1e-6 * (PROMPT - cached), "cost_details": {"upstream": PROMPT - cached},
    }  # fmt: skip
    members = {
        "timings": {"cache_n": cached, "prompt_n": PROMPT - cached}, "tokens_cached": cached,
        "x_groq": {"usage": usage}, "prompt_progress": {"cache": cached},
        "perf_metrics": {"cached-prompt-tokens": cached},
    }  # fmt: skip
    return usage, members


class DiagnosingResponses(ResponsesUpstream):
    """A server of the Responses API that says why its prompt cache was, or was not, of use."""

    diagnostics: Json

    def response(self, reply: Reply, body: Json) -> Json:
        """See `ResponsesUpstream.response`."""
        return super().response(reply, body) | {"prompt_cache_diagnostics": self.diagnostics}


class Backends:
    """A server of each dialect whose prompt cache holds as many tokens of the prompt as a test wants."""

    def __init__(self, chat: Upstream, claude: StrictMessages, gpt: DiagnosingResponses, service: Account) -> None:
        self.chat, self.claude, self.gpt, self.service = chat, claude, gpt, service

    def hold(self, cached: int) -> None:
        """Report the next calls with so many tokens from the prompt cache."""
        usage, members = in_all_words(cached)
        self.chat.default = Reply(text="Hello.", usage=usage, extra=members)
        written = (PROMPT - cached) // 2
        told = {
            "input_tokens": PROMPT - cached - written, "cache_read_input_tokens": cached, "output_tokens": 5,
            "cache_creation_input_tokens": written, "cache_creation": {"ephemeral_5m_input_tokens": written},
        }  # fmt: skip
        self.claude._script.clear()
        self.claude.say(text("Hello."), usage=told, diagnostics={"cache_miss_reason": cached})
        own = {"input_tokens": PROMPT, "output_tokens": 5, "total_tokens": PROMPT + 5}
        own |= {"input_tokens_details": {"cached_tokens": cached}, "output_tokens_details": {"reasoning_tokens": 0}}
        self.gpt.default = Reply(text="Hello.", usage=own)
        self.gpt.diagnostics = {"cached": cached}


@pytest.fixture
def backends(upstream: Upstream) -> Iterator[Backends]:
    with StrictMessages() as claude, DiagnosingResponses() as gpt, Account() as service:
        yield Backends(upstream, claude, gpt, service)


@asynccontextmanager
async def gateway(
    folder: Path, backends: Backends, tenants: Json, store: LocalStore | None = None
) -> AsyncIterator[InProcess]:
    """A gateway in this process before these backends."""

    def tier(name: str, server: Upstream, **more: Any) -> Json:
        backend = {
            "base_url": server.url,
            "model": f"{name}-model",
            "capabilities": ["tools"],
            "price": {**PRICE},
            **more,
        }
        return {"name": name, "backends": [backend]}

    tiers = [
        tier("local", backends.chat),
        tier("claude", backends.claude, kind="anthropic", key_env="HOSTED_KEY"),
        tier("gpt", backends.gpt, kind="responses", key_env="HOSTED_KEY"),
    ]
    services = {"account": {"base_url": backends.service.url, "key_env": "HOSTED_KEY"}}
    policies = {
        name: CHAT.replace("surface: chat", f"surface: {name}")
        .replace("[chat, gpt-4o-mini]", f"[{name}]")
        .replace("[local, hosted]", f"[{name}]")
        .replace("{local: otherwise}", f"{{{name}: otherwise}}")
        for name in ("local", "claude", "gpt")
    }
    policies["remote"] = policies["local"].replace("local]", "remote]", 1).replace(": local", ": remote", 1)
    policies["remote"] += "endpoints: {completions: account, files: account}\n"
    settings = {"tiers": tiers, "services": services, "tenants": tenants, "default_surface": "local"}
    url = None if store is None else store.url
    env = {name: KEYS[name] for name in (one["key_env"] for one in tenants.values())}
    async with in_process(
        folder, backends.chat.url, backends.claude.url, settings=settings, policies=policies, env=env, store_url=url
    ) as app:
        yield app


async def made_key(app: InProcess, tenant: str) -> str:
    """A new key in the store."""
    wanted = KeyRecord("", "", tenant)
    return (await make_key(KeyRegistry(app.steps.store), ADMIN, wanted, Why("ada")))[1]


Told = tuple[str, dict[str, str]]


async def replied(
    app: InProcess, path: str, key: str = "ACME_KEY", control: str = "no-store", **body: Any
) -> Told | None:
    """What a client is told of one request: the reply's body and headers, but for ids and times. None: not stored."""
    headers = {"authorization": f"Bearer {KEYS.get(key, key)}", "x-tierline-cache": control}
    reply = await app.client.post(path, json={**APIS[path], **body}, headers=headers)
    if reply.status_code == 504 and control == "only-if-cached":
        return None
    assert reply.status_code == 200, reply.text
    return VOLATILE.sub("", reply.text), {name: value for name, value in reply.headers.items() if name not in TIMES}


async def told(app: InProcess, path: str, key: str = "ACME_KEY", **body: Any) -> Told:
    """`replied` with an answer."""
    reply = await replied(app, path, key, **body)
    assert reply is not None
    return reply


async def kept(app: InProcess, path: str, key: str, **body: Any) -> Told:
    """`replied` by the cache. A lookup that a busy machine makes too slow asks no model: its answer would be stored."""
    async with asyncio.timeout(20):
        while (reply := await replied(app, path, key, "only-if-cached", **body)) is None:
            await asyncio.sleep(0.005)
    return reply


@pytest.mark.parametrize("tier", ["local", "claude", "gpt"])
@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_reply_depends_on_the_prompt_cache(
    tmp_path: Path, backends: Backends, path: str, tier: str, stream: bool
) -> None:
    """In no API, to no kind of backend, whole or as a stream: neither the counts, nor the cost, nor other members."""
    more: Json = {"model": tier, "stream": stream}
    if stream and path in ("/v1/chat/completions", "/v1/completions"):
        more["stream_options"] = {"include_usage": True}
    async with gateway(tmp_path, backends, TENANTS) as app:
        backends.hold(0)
        cold = await told(app, path, **more)
        backends.hold(8192)
        warm = await told(app, path, **more)
    assert warm == cold
    assert str(PROMPT) in cold[0], "the prompt's length is the client's own"
    assert "0.09005" in cold[0] + cold[1].get("x-tierline-cost-usd", "")
    for word in ("cached-prompt", "timings", "prompt_progress", "diagnostics", "prompt_cache_hit"):
        assert word not in cold[0]


@pytest.mark.parametrize("tier", ["local", "claude", "gpt"])
@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_stored_answer_depends_on_the_prompt_cache(
    tmp_path: Path, backends: Backends, store: LocalStore, path: str, tier: str, stream: bool
) -> None:
    """Replayed whole and as a stream, from an answer that came whole or as a stream."""
    replays: list[Any] = []
    more: Json = {"model": tier}
    async with gateway(tmp_path, backends, TENANTS, store) as app:
        for key, cached in (("ACME_KEY", 0), ("UMBRELLA_KEY", 8192)):  # tenants share no stored answers
            backends.hold(cached)
            await told(app, path, key, **more, stream=stream, control="max-age=1000")
            replays += [await kept(app, path, key, **more, stream=replayed) for replayed in (False, True)]
    assert replays[:2] == replays[2:]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_reply_that_is_passed_on_depends_on_the_prompt_cache(
    tmp_path: Path, backends: Backends, stream: bool
) -> None:
    """A service's own text completions."""
    replies: list[Any] = []
    async with gateway(tmp_path, backends, TENANTS) as app:
        for cached in (0, 8192):
            usage, members = in_all_words(cached)
            value = {"id": "c", "choices": [{"text": "Hi", "index": 0, "usage": usage}], "usage": usage, **members}
            raw = json.dumps(value).encode()
            body = b": ping\n\ndata: %b\n\ndata: [DONE]\n\n" % raw if stream else raw
            kind = "text/event-stream" if stream else "application/json"
            backends.service.refusal = (200, body, {"content-type": kind})
            replies.append(await told(app, "/v1/completions", model="remote", stream=stream))
    assert replies[0] == replies[1]
    assert '"Hi"' in replies[0][0] and ("[DONE]" in replies[0][0]) == stream


@pytest.mark.parametrize("stream", [False, True])
async def test_one_tenant_is_told_all(tmp_path: Path, backends: Backends, stream: bool) -> None:
    """What is in the cache is its own then."""
    backends.hold(8192)
    async with gateway(tmp_path, backends, {"acme": TENANTS["acme"]}) as app:
        for path, body in APIS.items():
            more: Json = {"stream": stream, "model": "local"}
            if stream and "max_tokens" not in body:
                more["stream_options"] = {"include_usage": True}
            if path == "/v1/responses":
                more.pop("stream_options", None)
            assert "8192" in (await told(app, path, **more))[0], path


@pytest.mark.parametrize("configured", [{}, {"acme": TENANTS["acme"]}])
async def test_a_tenant_of_the_store_is_told_nothing(
    tmp_path: Path, backends: Backends, store: LocalStore, configured: Json
) -> None:
    """Also where the config has one tenant, or none: neither of the prompt cache nor of files of that one."""
    backends.hold(8192)
    async with gateway(tmp_path, backends, configured, store) as app:
        key, own = await made_key(app, "umbrella"), await made_key(app, *(configured or ("default",)))
        files = {"x-tierline-surface": "remote"}
        for path in APIS:
            for model in ("local", "claude", "gpt"):
                reply = await told(app, path, key, model=model)
                assert "8192" not in reply[0] and "0.09005" in reply[0] + reply[1]["x-tierline-cost-usd"], (path, model)
        refused = await app.get("/v1/files", {"authorization": f"Bearer {key}", **files})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "files_not_shared")
        assert "8192" in (await told(app, "/v1/chat/completions", own, model="local"))[0]
        assert (await app.get("/v1/files", {"authorization": f"Bearer {own}", **files})).status_code == 200


@pytest.mark.parametrize("tier", ["local", "gpt"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_a_prompt_cache_key_is_its_tenants_own(tmp_path: Path, backends: Backends, path: str, tier: str) -> None:
    """Two tenants that choose the same key share no prompt cache; one that repeats its key does."""
    backends.hold(0)
    async with gateway(tmp_path, backends, TENANTS) as app:
        for key in ("ACME_KEY", "ACME_KEY", "UMBRELLA_KEY"):
            await told(app, path, key, model=tier, prompt_cache_key="agent-1")
    server = backends.chat if tier == "local" else backends.gpt
    one, again, other = (request.body["prompt_cache_key"] for request in server.requests)
    assert one == again != other
    assert "agent-1" not in (one, other)


async def test_embeddings_are_stored_for_their_tenant_alone(
    tmp_path: Path, backends: Backends, store: LocalStore
) -> None:
    """Nobody learns, by the time or the headers of a reply, which texts another tenant has had embedded."""
    async with gateway(tmp_path, backends, TENANTS, store) as app:
        url, body = "/v1/embeddings", {"model": "local", "input": "a secret text"}

        async def ask(key: str, control: str) -> Any:
            headers = {"authorization": f"Bearer {KEYS[key]}", "x-tierline-cache": control}
            return await app.client.post(url, json=body, headers=headers)

        async with asyncio.timeout(10):
            await ask("ACME_KEY", "max-age=1000")
            while (await ask("ACME_KEY", "only-if-cached")).status_code != 200:
                await asyncio.sleep(0.005)
        assert (await ask("UMBRELLA_KEY", "only-if-cached")).status_code == 504
