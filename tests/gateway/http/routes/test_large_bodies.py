"""Large bodies of every endpoint: the work on all of one runs in the thread for it, not on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway import off_loop
from tests.support.account import Account
from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.upstream import Reply, Upstream

TURNS = [{"role": "assistant" if i % 2 else "user", "content": f"turn {i}"} for i in range(4_201)]
LONG = "a question " * 26_000
"""A text that makes any body large: more than 256 KiB."""


class Noted(ThreadPoolExecutor):
    """The thread, and the names of the functions that ran in it."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.names: list[str] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        called = fn.func if isinstance(fn, partial) else fn
        self.names.append(called.__name__)
        return super().submit(fn, *args, **kwargs)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """What runs off the loop."""
    thread = Noted()
    monkeypatch.setattr(off_loop, "_THREAD", thread)
    return thread


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("messages", {"max_tokens": 5, "messages": TURNS}, {"_object_of", "chat_body", "check"}),
        ("messages/count_tokens", {"messages": TURNS}, {"_object_of", "chat_body", "check", "body_tokens"}),
        ("responses", {"input": TURNS}, {"_object_of", "entries_of", "chat_request", "check"}),
        (
            "responses/input_tokens",
            {"input": TURNS},
            {"_object_of", "entries_of", "chat_request", "check", "_tokens_of"},
        ),
        ("completions", {"prompt": LONG}, {"_object_of", "chat_of", "check"}),
        ("completions", {"prompt": [LONG, "b"]}, {"_object_of", "dumps", "chat_of", "check"}),
    ],
)
async def test_the_loop_is_free_meanwhile(
    thread: Noted, local_upstream: Upstream, tmp_path: Path, path: str, body: dict[str, Any], expected: set[str]
) -> None:
    local_upstream.default = Reply(text="yes")
    async with in_process(tmp_path, local_upstream.url) as app:
        reply = await app.client.post(f"/v1/{path}", json={"model": "chat", **body})
        assert reply.status_code == 200, reply.text
        assert expected <= set(thread.names), thread.names
        thread.names.clear()
        small = {"messages": TURNS[:1], "input": "x", "prompt": "x"}
        small = {name: value for name, value in small.items() if name in body}
        reply = await app.client.post(f"/v1/{path}", json={"model": "chat", **body, **small})
        assert reply.status_code == 200 and not thread.names


async def test_embeddings(thread: Noted, tmp_path: Path) -> None:
    policy = CHAT + "endpoints: {embeddings: {service: account, model: m}}\n"
    with Account() as account:
        services = {"account": {"base_url": account.url}}
        async with in_process(
            tmp_path, "http://127.0.0.1:9/v1", policies={"chat": policy}, settings={"services": services}
        ) as app:
            reply = await app.client.post("/v1/embeddings", json={"model": "chat", "input": [LONG, "b"]})
            assert reply.status_code == 200, reply.text
            assert {"_object_of", "embedding_request", "keys", "dumps", "_shares"} <= set(thread.names), thread.names


async def test_what_would_decide_a_large_request(thread: Noted, tmp_path: Path) -> None:
    """The admin API reads the body of a chat."""
    settings = {"admin": {"key_env": "ADMIN_KEY", "port": 9}}
    async with in_process(tmp_path, "http://127.0.0.1:9/v1", settings=settings, env={"ADMIN_KEY": "admin-key"}) as app:
        asked = {"body": {"model": "chat", "messages": TURNS}}
        url, headers = "http://localhost:9/admin/policies/explain", {"authorization": "Bearer admin-key"}
        reply = await app.client.post(url, json=asked, headers=headers)
        assert reply.status_code == 200, reply.text
        assert {"_object_of", "dumps", "_checked"} <= set(thread.names), thread.names
