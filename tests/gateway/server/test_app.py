"""The application as a whole: what every reply holds to, driven in this process over scripted upstreams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.http import exchange
from gateway.parts.routes import part
from tests.support.app import in_process
from tests.support.upstream import Reply, Upstream

ENVELOPE = ["message", "type", "param", "code"]


def _breaks(*_: Any, **__: Any) -> Any:
    raise RuntimeError("canary-of-a-bug")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_is_a_500_in_the_envelope(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A request that meets a bug is answered in the envelope, without a trace of the code; the next one is served."""
    async with in_process(tmp_path, upstream.url) as app:
        with monkeypatch.context() as patch:
            patch.setattr(exchange, "build_context", _breaks)
            failed = await app.ask(stream=stream, headers={"x-request-id": "bug-1"})
        assert failed.status_code == 500
        assert list(failed.json()["error"]) == ENVELOPE
        assert (failed.json()["error"]["type"], failed.json()["error"]["code"]) == ("server_error", "internal_error")
        assert failed.headers["x-request-id"] == "bug-1"
        assert "canary" not in failed.text
        assert "Traceback" not in failed.text
        assert (await app.ask()).status_code == 200


async def test_a_bug_elsewhere_is_the_same_500(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the client of every other route."""
    monkeypatch.setattr(part, "_model", _breaks)
    async with in_process(tmp_path, upstream.url) as app:
        failed = await app.get("/v1/models", {"x-request-id": "bug-2"})
    assert failed.status_code == 500
    assert list(failed.json()["error"]) == ENVELOPE
    assert failed.json()["error"]["code"] == "internal_error"
    assert failed.headers["content-type"] == "application/json"
    assert failed.headers["x-request-id"] == "bug-2"
    assert "canary" not in failed.text


async def test_a_request_can_ask_why(upstream: Upstream, store: Any, tmp_path: Path) -> None:
    """x-tierline-debug: 1 brings the reason of every step: of the cache's miss, the route and the attempt."""
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        asked = await app.ask(headers={"x-tierline-debug": "1"})
        reasons = asked.headers["x-tierline-reason"]
        for reason in ("cache.exact: absent", "route: local alone is open to it", "attempt: "):
            assert reason in reasons
        assert "x-tierline-reason" not in (await app.ask()).headers


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/chat"])
async def test_models_are_shown_to_tenants_alone(upstream: Upstream, tmp_path: Path, path: str) -> None:
    """Where there are tenants, the list of surfaces wants a key that is known, as answers do."""
    tenants = {"tenants": {"acme": {"key_env": "ACME_KEY"}}}
    async with in_process(tmp_path, upstream.url, settings=tenants, env={"ACME_KEY": "sk-of-acme"}) as app:
        for sent in (None, {"authorization": "Bearer sk-other"}, {"authorization": "Bearer "}):
            refused = await app.get(path, sent)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert (await app.ask(headers=sent)).status_code == 401
        assert (await app.get(path, {"authorization": "Bearer sk-of-acme"})).status_code == 200
    assert not upstream.requests


@pytest.mark.parametrize("header", ["x-stainless-read-timeout", "x-stainless-timeout"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_sdks_own_timeout_is_the_requests_budget(
    upstream: Upstream, tmp_path: Path, header: str, stream: bool
) -> None:
    """The timeout that OpenAI's SDKs name in a header bounds the backend's call: nobody would read a later answer."""
    upstream.default = Reply(before_headers_s=30)
    async with in_process(tmp_path, upstream.url) as app, asyncio.timeout(10):  # the policy alone would allow 20 s
        late = await app.ask(headers={header: "0.2"}, stream=stream)
    assert (late.status_code, late.json()["error"]["type"]) == (504, "upstream_error")
    assert upstream.requests[0].wait_gone(3) > 0


async def test_every_reply_names_the_model_that_answered(
    upstream: Upstream, hosted_upstream: Upstream, store: Any, tmp_path: Path
) -> None:
    """x-tierline-model is the backend's own name for it: of a direct answer, an escalated one, a stream and a hit."""
    upstream.on("doubtful").reply(text="um, er, ah", logprob=-3.0)
    async with in_process(tmp_path, upstream.url, hosted_upstream.url, store_url=store.url) as app:
        named = {
            "direct": await app.ask("plain"),
            "escalated": await app.ask("doubtful"),
            "stream": await app.ask("doubtful", stream=True, seed=1),
        }
        await app.kept("plain")
        named["hit"] = await app.ask("plain", {"x-tierline-cache": "only-if-cached"})
    models_named = {how: reply.headers.get("x-tierline-model") for how, reply in named.items()}
    assert models_named == {"direct": "small", "escalated": "large", "stream": "large", "hit": "small"}
