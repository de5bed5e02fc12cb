"""Let chats in: count them with their session, and shorten what they send, where their policy says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.parts.agents.policy import AgentSections
from gateway.parts.agents.shortened import with_shorter_input

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gateway.parts.agents.history import HistorySummaries
    from gateway.parts.agents.policy import InputRules, SessionCaps
    from gateway.parts.agents.session_caps import SessionCounts
    from gateway.request.context import RequestContext


class AgentAdmission:
    """The `Admission` (`gateway.seams`) of one worker's agents: one layer, as each costs a call of every request."""

    name: Final = "sessions and shorter input"

    def __init__(self, sessions: SessionCounts, histories: HistorySummaries) -> None:
        self.sessions = sessions
        self.histories = histories

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """Return the request, told to conclude if it is its session's last. Raises SessionLimitReached."""
        policy = request.policy
        if not isinstance(policy, AgentSections) or (policy.session is None and policy.input is None):
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
