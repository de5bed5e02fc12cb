"""Limits and budgets of teams and tenants, which hold for all of their keys together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.parts.console.budget_desk import ACTION, ADJUSTS, BudgetDesk
from gateway.parts.console.key_desk import KeyDesk
from gateway.parts.console.key_forms import NotChanged, form_of_record
from gateway.parts.console.page import Action, Page, SeeOther, Sources, form_of, person_in
from gateway.parts.console.views.keys import MOST_FORM


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the list, the page of each team or tenant, and what is done by its forms."""
    desk, render = KeyDesk(sources.archive, sources.store, sources.places.deployment), sources.render
    budgets = BudgetDesk(sources.store, sources.places.deployment)

    async def owners(request: Request) -> Mapping[str, Any]:
        person = person_in(request)
        try:
            found, problem = await desk.owners(person), ""
        except StoreUnavailable as down:
            found, problem = [], str(down)
        return {"owners": found, "problem": problem, "may_change": person.may_some("teams.change")}

    async def owner(request: Request, **more: Any) -> Mapping[str, Any]:
        person, path = person_in(request), request.path_params
        page = await desk.owner_page(person, await desk.owner(person, path["kind"], path["name"]))
        return {**page, "surfaces": await desk.surfaces(), "may_adjust": person.may(ACTION), "done": "", "refused": "",
                **more}  # fmt: skip

    async def new_owner(request: Request) -> Mapping[str, Any]:
        query, person = request.query_params, person_in(request)
        owner = await desk.owner(person, query.get("kind", "team"), query.get("name", "").strip())
        raise SeeOther(f"/teams/{owner.kind}/{owner.name}" if owner.name else "/teams")

    async def set_owner(request: Request) -> Response:
        form, person, path = await form_of(request, MOST_FORM), person_in(request), request.path_params
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
            return render.page(request, "team.html", data, status=422)
        return render.page(request, "team.html", await owner(request, done=done))

    yield Page("/teams", "teams.html", owners, does="teams.see")
    yield Page("/teams/new", "team.html", new_owner, does="teams.see")
    yield Page("/teams/{kind}/{name:path}", "team.html", owner, does="teams.see")
    yield Action("/teams/{kind}/{name:path}", set_owner, "teams.change")
