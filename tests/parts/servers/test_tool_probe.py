"""A server whose chat template has no tools drops them in silence: it is asked, and then passed over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.openai import OpenAIBackend
from gateway.config.backends import BackendConfig
from gateway.parts.servers.tool_probe import ToolProbe, drops_tools
from gateway.tiers import Endpoint
from tests.support.app import in_process
from tests.support.llama import KEY, llama
from tests.support.upstream import Received, Reply, Upstream
from tests.support.wait import eventually

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
POLICY = """
surface: chat
slo: {deadline: 30s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate: {no_signal: accept}
"""
ALONE = POLICY.replace("[local, hosted]", "[local]")

Render = Callable[[dict[str, Any]], Any]


class _Server(Upstream):
    """Renders prompts at one path, as this says; `render` may be changed while it runs."""

    def __init__(self, path: str = "", render: Render = lambda body: None) -> None:
        super().__init__()
        self.path, self.render = path, render

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if self.path and request.path == self.path:
            self.probes.append(request)
            return Reply(body=json.dumps(self.render(request.body)).encode())
        return super().reply_to(request)


def template(*, tools: bool) -> Render:
    """llama.cpp's reply by a template with tools, or without."""
    return lambda body: {"prompt": f"{body['messages']}{body.get('tools') if tools else ''}"}


def counting(*, tools: bool) -> Render:
    """vLLM's reply by such a template."""
    return lambda body: {"count": 12 + (40 if tools and "tools" in body else 0), "max_model_len": 4096}


def endpoint_at(url: str, **config: Any) -> Endpoint:
    """An endpoint that may be sent tools."""
    made = BackendConfig.model_validate(
        {"name": "b", "base_url": url, "model": "m", "capabilities": ["tools"]} | config
    )
    return Endpoint(made, OpenAIBackend(None, model="m", key=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "render", "drops"),
    [
        ("/apply-template", template(tools=False), True),
        ("/apply-template", template(tools=True), False),
        ("/apply-template", lambda body: {"prompt": ""}, None),  # not the prompt of this message
        ("/apply-template", lambda body: "prompt", None),
        ("/tokenize", counting(tools=False), True),
        ("/tokenize", counting(tools=True), False),
        ("/tokenize", lambda body: {"tokens": []}, None),  # llama.cpp's, which reads no messages
        ("/tokenize", lambda body: {"count": 0}, None),  # a server that counts nothing
        ("", lambda body: None, None),
    ],
)
async def test_tools_are_dropped_only_where_the_server_says_what_it_renders(
    path: str, render: Render, drops: bool | None
) -> None:
    """An empty count and a missing path say nothing, and no model is called for it."""
    with _Server(path, render) as server:
        assert await drops_tools(endpoint_at(server.url)) is drops
        assert not server.requests


@pytest.mark.long
async def test_llama_cpp_drops_the_tools_of_the_shipped_models_template(tmp_path: Path) -> None:
    """The real server: `tool_choice: required` is answered in prose there, with the same count of prompt tokens."""
    with llama(tmp_path) as url:
        assert await drops_tools(endpoint_at(url, key=KEY)) is True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tier_that_drops_tools_is_passed_over_for_requests_with_tools(tmp_path: Path, stream: bool) -> None:
    """And for no other. `/readyz` says so."""
    with _Server("/apply-template", template(tools=False)) as local, Upstream() as hosted:
        local.default, hosted.default = Reply(text="local"), Reply(text="hosted")
        async with in_process(tmp_path, local.url, hosted.url, policies={"chat": POLICY}) as app:
            await _probed(app)
            asked = await app.ask("What is the weather?", tools=TOOLS, tool_choice="required", stream=stream)
            assert asked.status_code == 200 and not local.requests and len(hosted.requests) == 1
            assert (await app.ask("Hello", stream=stream)).status_code == 200 and len(local.requests) == 1
            ready = (await app.get("/readyz")).json()
    backends = {name: tier["backends"][name]["drops_tools"] for name, tier in ready["tiers"].items()}
    assert backends == {"local": True, "hosted": None}
    assert [probe for probe in hosted.probes if probe.path != "/v1/models"] == []  # it has a price


async def test_a_request_with_tools_that_no_tier_reads_is_refused_by_the_name_of_the_field(tmp_path: Path) -> None:
    """As where the config says that it cannot, in all three APIs."""
    with _Server("/apply-template", template(tools=False)) as local:
        async with in_process(tmp_path, local.url, policies={"chat": ALONE}) as app:
            await _probed(app)
            user = [{"role": "user", "content": "hi"}]
            asked = await app.ask(tools=TOOLS)
            claude = [{"name": "weather", "input_schema": {"type": "object", "properties": {}}}]
            messages = {"model": "chat", "max_tokens": 9, "messages": user, "tools": claude}
            response = {"model": "chat", "input": "hi", "tools": [{"type": "function", **TOOLS[0]["function"]}]}  # type: ignore[dict-item]
            others = [
                await app.client.post("/v1/messages", json=messages),
                await app.client.post("/v1/responses", json=response),
            ]
            assert [one.status_code for one in (asked, *others)] == [400, 400, 400], [one.text for one in others]
            assert "tools" in asked.json()["error"]["message"] and not local.requests


async def test_what_was_learnt_is_asked_again_and_forgotten() -> None:
    """A server that is started anew with another template gets tools again, and not before it has said so."""
    with _Server("/apply-template", template(tools=False)) as server:
        endpoint = endpoint_at(server.url)
        probe = ToolProbe([endpoint], first_s=0.0, again_s=0.05)
        probe.start()
        try:
            await eventually(lambda: endpoint.drops_tools)
            server.render = template(tools=True)
            await eventually(lambda: endpoint.drops_tools is False)
            server.render = template(tools=False)
            await eventually(lambda: endpoint.drops_tools)
            server.refuse()
            await asyncio.sleep(0.2)
            assert endpoint.drops_tools
        finally:
            await probe.aclose()


@pytest.mark.parametrize(
    "config", [{"price": {"input": 1, "output": 2}}, {"capabilities": ["json"]}], ids=["has a price", "takes no tools"]
)
async def test_who_need_not_be_asked_is_not(config: dict[str, Any]) -> None:
    with _Server("/apply-template", template(tools=False)) as server:
        probe = ToolProbe([endpoint_at(server.url, **config)], first_s=0.0)
        probe.start()
        await asyncio.sleep(0.1)
        await probe.aclose()
        assert not server.probes


async def _probed(app: Any) -> None:
    endpoint = app.steps.endpoints["local"]
    await eventually(lambda: endpoint.drops_tools, 20)
    await asyncio.sleep(0.3)  # a tier's health is kept for a quarter of a second
