"""Let chats in: count them with their session, and shorten what they send, where their policy says so.

The last request of a session is told to conclude: no more tools, and an instruction to finish behind the system text,
in the client's own form as well, which a backend of its dialect is sent. Such an answer is neither read from the cache
nor stored in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.agents.policy import AgentSections
from gateway.parts.agents.shortening import with_shorter_input
from gateway.request.options import CacheControl

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gateway.dialects.native import Native
    from gateway.parts.agents.history import HistorySummaries
    from gateway.parts.agents.policy import InputRules, SessionCaps
    from gateway.parts.agents.session_caps import SessionCounts
    from gateway.request.context import RequestContext


class AgentAdmission:
    """The `Admission` (`gateway.steps`) of one worker's agents: one layer, for policies with one of its keys."""

    name: Final = "sessions and shorter input"
    keys: Final = ("session", "input")

    def __init__(self, sessions: SessionCounts, histories: HistorySummaries) -> None:
        self.sessions = sessions
        self.histories = histories

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """Return the request, told to conclude if it is its session's last. Raises SessionLimitReached."""
        policy = request.policy
        if not isinstance(policy, AgentSections):
            return None
        caps = None if request.options.cache.only_if_cached else policy.session
        return self._enter(request, caps, policy.input)

    async def _enter(
        self, request: RequestContext, caps: SessionCaps | None, rules: InputRules | None
    ) -> RequestContext:
        if caps is not None:
            request = await self.sessions.enter(request, caps)
        if rules is not None:
            request = await with_shorter_input(await self.histories.shortened(request, rules), rules)
        return request

    async def aclose(self) -> None:
        """Give up summaries that are being made, and wait for the costs that are on their way to the store."""
        await self.histories.aclose()
        await self.sessions.aclose()


CONCLUDE: Final = (
    "This is the last answer of this session: its limit is reached. Call no more tools. From what you have found so "
    "far, give your final answer now: what is done, what was found, and what is left to do."
)
_SYSTEM: Final = ("system", "developer")


def concluded(request: RequestContext) -> RequestContext:
    """Return a request that asks for its session's last answer."""
    body = {**request.body, **_without_calls(request.body)}
    messages = list(body["messages"])
    last = next((at for at, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages)) - 1
    if last < 0:
        messages.insert(0, {"role": "system", "content": CONCLUDE})
    else:
        messages[last] = {**messages[last], "content": _with_more(messages[last].get("content"))}
    body["messages"] = messages
    native = None if request.native is None else _native(request.native, added=last < 0)
    options = replace(request.options, cache=CacheControl(read=False, write=False))
    return replace(request, body=body, native=native, options=options)


def _without_calls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that forbid calls; none where there are no tools, as backends refuse them then."""
    members: dict[str, Any] = {"tool_choice": "none"} if body.get("tools") else {}
    return members | {"function_call": "none"} if body.get("functions") else members


def _with_more(content: Any) -> Any:
    """Return a content with the instruction behind it."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": CONCLUDE}]
    return f"{content}\n\n{CONCLUDE}" if content else CONCLUDE


def _native(native: Native, *, added: bool) -> Native:
    """Return the client's own form; `added`: its translation has got a message at the beginning."""
    body = dict(native.body)
    if native.dialect == "messages":
        body["system"] = _with_more(body.get("system"))
        if body.get("tools"):
            body["tool_choice"] = {"type": "none"}
    elif native.dialect == "responses":
        body["instructions"] = _with_more(body.get("instructions"))
        if body.get("tools"):
            body["tool_choice"] = "none"
    if not added:
        return replace(native, body=body)
    return replace(native, body=body, paths=[native.front, *native.paths], messages=native.messages + 1)
