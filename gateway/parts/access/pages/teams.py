"""Limits and budgets of teams and tenants, which hold for all of their keys together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.parts.access.pages.budget_desk import ACTION, ADJUSTS, BudgetDesk
from gateway.parts.access.pages.key_desk import KeyDesk
from gateway.parts.access.pages.key_forms import NotChanged, form_of_record
from gateway.parts.access.pages.keys import MOST_FORM, person_of

if TYPE_CHECKING:
    from gateway.seams import ConsoleShell


def add_team_pages(shell: ConsoleShell, desk: KeyDesk, budgets: BudgetDesk) -> None:
    """Add the list, the page of each team or tenant, and what is done by its forms."""

    async def owners(request: Request) -> Mapping[str, Any]:
        person = person_of(request)
        try:
            found, problem = await desk.owners(person), ""
        except StoreUnavailable as down:
            found, problem = [], str(down)
        return {"owners": found, "problem": problem, "may_change": person.may_some("teams.change")}

    async def owner(request: Request, **more: Any) -> Mapping[str, Any]:
        person, path = person_of(request), request.path_params
        page = await desk.owner_page(person, await desk.owner(person, path["kind"], path["name"]))
        return {**page, "surfaces": await shell.surfaces(), "may_adjust": person.may(ACTION), "done": "", "refused": "",
                **more}  # fmt: skip

    async def new_owner(request: Request) -> Mapping[str, Any]:
        query, person = request.query_params, person_of(request)
        owner = await desk.owner(person, query.get("kind", "team"), query.get("name", "").strip())
        address = f"/teams/{owner.kind}/{owner.name}" if owner.name else "/teams"
        raise HTTPException(303, headers={"location": address})

    async def set_owner(request: Request) -> Response:
        form, person, path = await shell.form(request, MOST_FORM), person_of(request), request.path_params
        adjusts = form.get("do") in ADJUSTS
        try:
            of = await desk.owner(person, path["kind"], path["name"])
            if adjusts:
                done = await budgets.adjust(person, (of.kind, of.name), form)
            else:
                done = await desk.set_owner(person, of, form)
        except NotChanged as error:
            more = {} if adjusts else {"form": {**form_of_record(None), **form}}
            data = await owner(request, refused=str(error), **more)
            return shell.reply(request, "team.html", data, status=422)
        return shell.reply(request, "team.html", await owner(request, done=done))

    shell.page("/teams", "teams.html", owners, "teams.see")
    shell.page("/teams/new", "team.html", new_owner, "teams.see")
    shell.page("/teams/{kind}/{name:path}", "team.html", owner, "teams.see")
    shell.action("/teams/{kind}/{name:path}", set_owner, "teams.change")
