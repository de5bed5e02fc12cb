"""Give parts what they need for pages of their own, and collect what they add (the seam `pages`)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.parts.console.page import Action, Page, Sources, UnreadableRecords, form_of
from gateway.parts.ledger.query import QueryError
from gateway.parts.rollout.stored_policies import StoredPolicies

log = logging.getLogger("tierline.console")


class Shell:
    """The console as parts know it; see `gateway.seams.ConsoleShell`."""

    def __init__(self, sources: Sources) -> None:
        self.store = sources.store
        self.deployment = sources.places.deployment
        self.gateway = "" if sources.gateway is None else sources.gateway.url
        self.entries: list[Page | Action] = []
        """What has been added."""
        self._archive = sources.archive
        self._render = sources.render
        self._policies = StoredPolicies(sources.store)

    def page(
        self,
        path: str,
        template: str,
        data: Callable[[Request], Awaitable[Mapping[str, Any]]],
        does: str,
        *,
        name: str = "",
        key: str = "",
    ) -> None:
        """Add a page."""
        self.entries.append(Page(path, template, data, name, key, does=does))

    def action(self, path: str, handle: Callable[[Request], Awaitable[Response]], does: str) -> None:
        """Add what takes the forms of a path."""
        self.entries.append(Action(path, handle, does))

    def reply(self, request: Request, template: str, data: Mapping[str, Any], *, status: int = 200) -> Response:
        """Return a page in reply to a form."""
        return self._render.page(request, template, data, status=status)

    async def form(self, request: Request, most: int = 4096) -> dict[str, str]:
        """Return the fields of a form. Raises HTTPException for more than `most` bytes."""
        return await form_of(request, most)

    async def ask(self, sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a query of the records. Raises UnreadableRecords."""
        try:
            return await self._archive.ask(sql, values)
        except QueryError as error:
            log.exception("a page's query failed")
            raise UnreadableRecords(str(error)) from None

    async def surfaces(self) -> Sequence[str]:
        """Return the surfaces whose policies are in force from the store; none where they come from files."""
        try:
            return await self._policies.surfaces()
        except StoreUnavailable:
            return []
