"""Serve the tools to one agent over standard input and output, until it closes them."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from cache.store.base import StoreUnavailable
from gateway.cli.commands import CommandError
from gateway.config.addresses import open_store
from gateway.errors import ApiError
from gateway.exit_codes import Exit
from gateway.parts.console.mcp.tools import AgentTools
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.console.policy_desk import NotApplied
from gateway.parts.ledger.live import LiveArchive
from gateway.version import version

_INSTRUCTIONS: Final = (
    "Tierline routes requests to models in tiers, by a policy per product surface. These tools look at what requests "
    "met, and never change anything. To find out why something is slow, dear or wrong: `surfaces` and `show_surface` "
    "say where, `find_requests` finds examples, `show_request` names the hop and the line of the policy that decided "
    "it, and `explain_decision` shows each rule with its values. To propose a change: `show_policy`, edit its text, "
    "`plan_change`."
)
_READ_ONLY: Final = ToolAnnotations(readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=False)
_SLACK: Final = 10.0
"""The time limits of the gateway's own operations are for its event loop; tools may wait longer."""
_EXPECTED: Final = (ApiError, CommandError, StoreUnavailable, NotApplied)


async def serve_tools(places: PolicyPlaces, console_url: str = "") -> None:
    """Serve until standard input ends; a signal ends the process, with the exit code of an interrupted command.

    Pages of the console at `console_url` are named in replies; '' for none.
    """
    store = open_store(places.store_url, slack=_SLACK)
    archive = LiveArchive(places.ledger, store)
    archive.start()
    serving = asyncio.ensure_future(mcp_server(AgentTools(archive, store, places, console_url)).run_stdio_async())
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    try:
        await asyncio.wait((serving, asyncio.ensure_future(signalled.wait())), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await archive.aclose()
        await store.aclose()
    if not serving.done():
        os._exit(Exit.INTERRUPTED)  # nothing wakes the thread that reads standard input, so Python would wait for it
    serving.result()


def mcp_server(tools: AgentTools) -> MCPServer:
    """Return the server of these tools."""
    server = MCPServer("tierline", instructions=_INSTRUCTIONS, version=version(), log_level="WARNING")
    for tool in (
        tools.surfaces, tools.show_surface, tools.find_requests, tools.show_request, tools.explain_decision,
        tools.policies, tools.show_policy, tools.plan_change,
    ):  # fmt: skip
        server.add_tool(_with_clear_errors(tool), annotations=_READ_ONLY)
    return server


def _with_clear_errors(tool: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return the tool; what an agent can correct or wait for is an error of the tool, by its own words."""

    @functools.wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await tool(*args, **kwargs)
        except _EXPECTED as error:
            raise ToolError(str(error)) from None

    return call
