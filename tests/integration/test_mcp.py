"""`tierline mcp` as agents meet it: the SDK's own client, a process, its standard input and output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from mcp import ClientSession, StdioServerParameters, stdio_client

from gateway.exit_codes import Exit
from policies.loader import SHIPPED
from tests.parts.ledger.recorded_requests import recorded_ledger
from tests.parts.ledger.test_live import becomes
from tests.support.gateway import ROOT, Gateway
from tests.support.store import LocalStore

CHAT = (SHIPPED / "chat.yaml").read_text("utf-8")


class Agent:
    """What an agent sees of the server."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.told: list[str | None] = []

    async def call(self, tool: str, **given: Any) -> Any:
        """Return a tool's reply; the text of its error where it is one."""
        reply = await self.session.call_tool(tool, given, progress_callback=self._hear)
        return reply.content[0].text if reply.is_error else reply.structured_content  # type: ignore[union-attr]

    async def _hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append(message)


@asynccontextmanager
async def agent(*flags: str) -> AsyncIterator[Agent]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "gateway", "mcp", *flags], env=dict(os.environ), cwd=ROOT
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield Agent(session)


def kept_in(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def keys_of(store: LocalStore) -> dict[bytes, bytes | None]:
    """The store's content but for what a gateway keeps saying of itself."""
    with redis.Redis.from_url(store.url) as client:
        return {key: client.dump(key) for key in client.scan_iter() if b"trace" in key or b"polic" in key}


async def test_an_agent_finds_a_request_and_what_decided_it(
    cached_gateway: Gateway, store: LocalStore, tmp_path: Path
) -> None:
    """One that a gateway has just served, and which policy line its hops came from; its prompt is nowhere."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "Is this zebra seen?"}]}
    async with agent("--store", store.url, "--dir", str(tmp_path), "--console", "http://localhost:1/") as asked:
        tools = (await asked.session.list_tools()).tools
        assert {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint} == {
            "surfaces", "show_surface", "find_requests", "show_request", "explain_decision", "policies",
            "show_policy", "plan_change",
        } == {tool.name for tool in tools}  # fmt: skip
        assert (await asked.call("find_requests"))["requests"] == []
        replies = [httpx2.post(f"{cached_gateway.url}/chat/completions", json=body, timeout=20) for _ in range(2)]
        ids = [reply.headers["x-request-id"] for reply in replies]

        async def count() -> int:
            return len((await asked.call("find_requests", surface="chat"))["requests"])

        await becomes(count, 2)
        newest = await asked.call("find_requests", limit=1)
        older = await asked.call("find_requests", limit=1, before=newest["more"])
        assert {one["requests"][0]["request_id"] for one in (newest, older)} == {*ids} and older["more"] == ""
        assert (await asked.call("find_requests", surface="!chat"))["requests"] == []

        shown = await asked.call("show_request", request_id=ids[0])
        assert [hop["name"] for hop in shown["hops"]][:2] == ["request", "cache.exact"]
        assert shown["page"] == f"http://localhost:1/requests/{ids[0]}" and "attributes" not in shown["hops"][0]
        more = await asked.call("show_request", request_id=ids[0], attributes=True)
        assert all(hop["attributes"] for hop in more["hops"])
        of_route = next(hop["policy"][0] for hop in shown["hops"] if hop["name"] == "route")
        assert of_route["key"].startswith("route.start.") and of_route["line"] > 1
        assert "zebra" not in str(more)
        [surface] = (await asked.call("surfaces", since="15m"))["surfaces"]
        assert (surface["surface"], surface["requests"]) == ("chat", 2)
        looked_at = await asked.call("show_surface", surface="chat", limit="deadline")
        assert looked_at["looked_at"]["held"] == 2 and looked_at["times"]["missed"] is None
        assert "limit=moon is not a limit here" in await asked.call("show_surface", surface="chat", limit="moon")
        assert "is not a time span" in await asked.call("find_requests", since="3y")
        assert "'nope' is recorded here" in await asked.call("show_request", request_id="nope")
        assert "less than or equal to 50" in await asked.call("find_requests", limit=51)


async def test_an_agent_plans_a_change_and_changes_nothing(store: LocalStore, tmp_path: Path) -> None:
    """It learns why a request started where it did, and what an edited policy would do; nothing is written."""
    policies = tmp_path / "policies"
    policies.mkdir()
    shutil.copy(SHIPPED / "chat.yaml", policies)
    async with recorded_ledger(tmp_path / "ledger", policies / "chat.yaml", tokens=[20] * 30) as folder:
        files, keys = kept_in(tmp_path), keys_of(store)
        async with agent("--store", store.url, "--dir", str(folder), "--policies", str(policies)) as asked:
            explained = await asked.call("explain_decision", request_id="req-0")
            assert any(step["step"] == "decision" for step in explained["steps"])

            assert [one["surface"] for one in (await asked.call("policies"))["surfaces"]] == ["chat"]
            assert (await asked.call("show_policy", surface="chat"))["text"] == CHAT
            assert "no policy of 'moon'" in await asked.call("show_policy", surface="moon")

            wrong = await asked.call("plan_change", surface="chat", text=CHAT.replace("deadline: 2m", "deadlin: 6s"))
            assert (wrong["valid"], wrong["plan"]) == (False, None)
            [mistake] = [one for one in wrong["findings"] if one["error"]]
            line = CHAT[: CHAT.index("deadline: 2m")].count("\n") + 1
            assert (mistake["key"], mistake["line"]) == ("slo.deadlin", line)
            edited = CHAT.replace("deadline: 2m", "deadline: 6s")
            quick = await asked.call("plan_change", surface="chat", text=edited, replay=False)
            assert [one["path"] for one in quick["changes"]["meant"]["changes"]] == ["slo.deadline"]
            assert quick["valid"] and quick["plan"] is None and asked.told == []
            planned = await asked.call("plan_change", surface="chat", text=edited)
            assert planned["plan"]["surface"] == "chat" and "text" not in planned["plan"]
            assert set(asked.told) <= {"replaying the last day"}
        assert (kept_in(tmp_path), keys_of(store)) == (files, keys)


@pytest.mark.parametrize("ended_by", ["its input", "a signal"])
def test_it_ends_with_its_client(store: LocalStore, tmp_path: Path, ended_by: str) -> None:
    """By the end of its input, as clients do it, or by a signal while it waits for input."""
    argv = [sys.executable, "-m", "gateway", "mcp", "--store", store.url, "--dir", str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        if ended_by == "a signal":
            process.terminate()
        else:
            process.stdin.close()
        assert process.wait(10) == (Exit.INTERRUPTED if ended_by == "a signal" else Exit.OK)
