"""Keys: listed, made, rotated, disabled, revoked, and held to limits and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.pages.budget_desk import ACTION, ADJUSTS, BudgetDesk
from gateway.parts.access.pages.key_desk import KeyDesk
from gateway.parts.access.pages.key_forms import NotChanged, form_of_record

if TYPE_CHECKING:
    from gateway.seams import ConsoleShell

MOST_FORM: Final = 16384
_STATES: Final = ("active", "disabled", "revoked", "expired")


def add_key_pages(shell: ConsoleShell, desk: KeyDesk, budgets: BudgetDesk) -> None:
    """Add the list, the page of each key, and what is done by their forms."""

    async def listed(request: Request, **more: Any) -> Mapping[str, Any]:
        person, query = person_of(request), request.query_params
        q, state, after = (query.get(name, "") for name in ("q", "state", "after"))
        try:
            page, problem = await desk.listed(person, q.strip(), state if state in _STATES else "", after), ""
        except StoreUnavailable as down:
            page, problem = {"keys": [], "older": "", "cut": 0}, str(down)
        filters = urlencode({name: value for name, value in (("q", q), ("state", state)) if value})
        return {
            **page, "problem": problem, "q": q, "state": state, "after": after, "query": filters, "states": _STATES,
            "surfaces": [] if problem else await shell.surfaces(), "may_create": person.may_some("keys.create"),
            "teams": person.may_some("teams.see"), "form": form_of_record(None), "refused": "", **more,
        }  # fmt: skip

    async def make(request: Request) -> Response:
        """Make the key of a form, and show it once; or the form again with why not."""
        form = await shell.form(request, MOST_FORM)
        try:
            key, secret = await desk.make(person_of(request), form)
        except NotChanged as error:
            data = await listed(request, refused=str(error), form={**form_of_record(None), **form})
            return shell.reply(request, "keys.html", data, status=422)
        return shell.reply(
            request, "key_made.html", {"key": key, "secret": secret, "base": _base_url(shell, request), "grace": None}
        )

    async def show(request: Request, **more: Any) -> Mapping[str, Any]:
        person = person_of(request)
        key = await desk.key(person, request.path_params["name"])
        if key.id != request.path_params["name"]:
            raise HTTPException(303, headers={"location": f"/keys/{key.id}"})
        page = await desk.key_page(person, key)
        return {
            **page,
            "surfaces": await shell.surfaces(),
            "base": _base_url(shell, request),
            "may_adjust": person.may(ACTION),
            "done": "",
            "refused": "",
            **more,
        }

    async def change(request: Request) -> Response:
        """Rotate a key and show the new one, or change it and show its page; with why not where it was refused."""
        form, person = await shell.form(request, MOST_FORM), person_of(request)
        key = await desk.key(person, request.path_params["name"])
        try:
            if form.get("do") == "rotate":
                made, secret, until = await desk.rotate(person, key, form)
                data = {"key": made, "secret": secret, "base": _base_url(shell, request), "grace": until}
                return shell.reply(request, "key_made.html", data)
            if form.get("do") in ADJUSTS:
                done = await budgets.adjust(person, ("key", key.id), form)
            else:
                done = await desk.change(person, key, form)
        except NotChanged as error:
            more = {"form": {**form_of_record(key), **form}} if form.get("do") == "change" else {}
            return shell.reply(request, "key.html", await show(request, refused=str(error), **more), status=422)
        return shell.reply(request, "key.html", await show(request, done=done))

    shell.page("/keys", "keys.html", listed, "keys.see", name="Keys", key="k")
    shell.action("/keys", make, "keys.create")
    shell.page("/keys/{name}", "key.html", show, "keys.see")
    shell.action("/keys/{name}", change, "keys.see")


def person_of(request: Request) -> Person:
    """Return the person who asks."""
    person: Person = request.state.person
    return person


def _base_url(shell: ConsoleShell, request: Request) -> str:
    """Return the gateway's address as clients have it."""
    if shell.gateway:
        return shell.gateway
    deployment = shell.deployment
    here = deployment.host in ("", "0.0.0.0", "::")  # noqa: S104  (compared with, and not bound to)
    return f"http://{request.url.hostname if here else deployment.host}:{deployment.port}"
