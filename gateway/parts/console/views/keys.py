"""Keys: listed, made, rotated, disabled, revoked, and held to limits and budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.parts.console.budget_desk import ACTION, ADJUSTS, BudgetDesk
from gateway.parts.console.key_desk import KeyDesk
from gateway.parts.console.key_forms import NotChanged, form_of_record
from gateway.parts.console.page import Action, Page, SeeOther, Sources, form_of, person_in

MOST_FORM: Final = 16384
_STATES: Final = ("active", "disabled", "revoked", "expired")


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the list, the page of each key, and what is done by their forms."""
    desk, render = KeyDesk(sources.archive, sources.store, sources.places.deployment), sources.render
    budgets = BudgetDesk(sources.store, sources.places.deployment)

    async def listed(request: Request, **more: Any) -> Mapping[str, Any]:
        person, query = person_in(request), request.query_params
        q, state, after = (query.get(name, "") for name in ("q", "state", "after"))
        try:
            page, problem = await desk.listed(person, q.strip(), state if state in _STATES else "", after), ""
        except StoreUnavailable as down:
            page, problem = {"keys": [], "older": "", "cut": 0}, str(down)
        filters = urlencode({name: value for name, value in (("q", q), ("state", state)) if value})
        return {
            **page, "problem": problem, "q": q, "state": state, "after": after, "query": filters, "states": _STATES,
            "surfaces": [] if problem else await desk.surfaces(), "may_create": person.may_some("keys.create"),
            "teams": person.may_some("teams.see"), "form": form_of_record(None), "refused": "", **more,
        }  # fmt: skip

    async def make(request: Request) -> Response:
        """Make the key of a form, and show it once; or the form again with why not."""
        form = await form_of(request, MOST_FORM)
        try:
            key, secret = await desk.make(person_in(request), form)
        except NotChanged as error:
            data = await listed(request, refused=str(error), form={**form_of_record(None), **form})
            return render.page(request, "keys.html", data, status=422)
        return render.page(
            request, "key_made.html", {"key": key, "secret": secret, "base": _base_url(sources, request), "grace": None}
        )

    async def show(request: Request, **more: Any) -> Mapping[str, Any]:
        person = person_in(request)
        key = await desk.key(person, request.path_params["name"])
        if key.id != request.path_params["name"]:
            raise SeeOther(f"/keys/{key.id}")
        page = await desk.key_page(person, key)
        return {
            **page,
            "surfaces": await desk.surfaces(),
            "base": _base_url(sources, request),
            "may_adjust": person.may(ACTION),
            "done": "",
            "refused": "",
            **more,
        }

    async def change(request: Request) -> Response:
        """Rotate a key and show the new one, or change it and show its page; with why not where it was refused."""
        form, person = await form_of(request, MOST_FORM), person_in(request)
        key = await desk.key(person, request.path_params["name"])
        try:
            if form.get("do") == "rotate":
                made, secret, until = await desk.rotate(person, key, form)
                data = {"key": made, "secret": secret, "base": _base_url(sources, request), "grace": until}
                return render.page(request, "key_made.html", data)
            if form.get("do") in ADJUSTS:
                done = await budgets.adjust(person, ("key", key.id), form)
            else:
                done = await desk.change(person, key, form)
        except NotChanged as error:
            more = {"form": {**form_of_record(key), **form}} if form.get("do") == "change" else {}
            return render.page(request, "key.html", await show(request, refused=str(error), **more), status=422)
        return render.page(request, "key.html", await show(request, done=done))

    yield Page("/keys", "keys.html", listed, name="Keys", key="k", does="keys.see")
    yield Action("/keys", make, "keys.create")
    yield Page("/keys/{name}", "key.html", show, does="keys.see")
    yield Action("/keys/{name}", change, "keys.see")


def _base_url(sources: Sources, request: Request) -> str:
    """Return the gateway's address as clients have it."""
    if sources.gateway is not None:
        return sources.gateway.url
    deployment = sources.places.deployment
    here = deployment.host in ("", "0.0.0.0", "::")  # noqa: S104  (compared with, and not bound to)
    return f"http://{request.url.hostname if here else deployment.host}:{deployment.port}"
