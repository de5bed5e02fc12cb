"""Changes: what is being tried, with the forms that take it on or back; and the audit trail, whole or not.

The trail says who changed which key, team, budget, policy or config, when and why.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.parts.access.audit.entries import KINDS
from gateway.parts.access.audit.trail import CURSOR, AuditTrail, TrailFilter
from gateway.parts.access.keys.self_service import may_read
from gateway.parts.console.page import Action, BadQuery, Page, Sources, allowed, form_of, person_in
from gateway.parts.console.policy_desk import NotApplied, PolicyDesk
from gateway.parts.console.views.rollout import RolloutView
from policies.quantities import read_duration

_TEMPLATE: Final = "changes.html"
_PAGE: Final = 100
_FILTERS: Final = ("kind", "by", "subject", "since")
SPANS: Final = ("1h", "24h", "7d", "30d", "90d")


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the page, which says with `?verify=1` whether the trail is whole, and the forms of rollouts on it."""
    rollouts, trail = RolloutView(sources.archive, sources.store), AuditTrail(sources.store)
    desk = PolicyDesk(sources.archive, sources.store, sources.places)

    async def shown(request: Request, **more: Any) -> Mapping[str, Any]:
        trail_shown = person_in(request).may_some("audit.see")
        query = {name: request.query_params.get(name, "") for name in _FILTERS}
        before = request.query_params.get("before", "")
        if not re.fullmatch(CURSOR, before):
            raise BadQuery("`before` is an entry's place, as the link Older has it.")
        wanted = _filter(query)
        data: dict[str, Any] = {"trying": [], "entries": [], "older": "", "streams": None, "problem": ""}
        try:
            data |= await rollouts.data()
            if trail_shown:
                data |= await trail.page(wanted, before, _PAGE, partial(may_read, person_in(request)))
                data["streams"] = await trail.checked() if request.query_params.get("verify") else None
        except StoreUnavailable as down:
            data["problem"] = str(down)
        surfaces = [trial["surface"] for trial in data["trying"]]
        return {
            "done": None,
            "refused": "",
            "may_change": [surface for surface in surfaces if allowed(request, "policies.change", surface)],
            **data,
            "trail_shown": trail_shown,
            **query,
            "query": urlencode({name: value for name, value in query.items() if value}),
            "kinds": KINDS,
            "spans": SPANS,
            **more,
        }

    async def show(request: Request) -> Mapping[str, Any]:
        return await shown(request)

    async def change(request: Request) -> Response:
        """Take a candidate on, stop it or take it back, and show the page with what came of it."""
        form, surface = await form_of(request), request.path_params["surface"]
        if not allowed(request, "policies.change", surface):
            data = await shown(request, refused=f"You may look, and may not change policies of {surface}.")
            return sources.render.page(request, _TEMPLATE, data, status=403)
        try:
            done = await desk.change(
                surface, form.get("do", ""), author=person_in(request).author(form.get("author", "").strip()),
                message=form.get("message", ""), revision=form.get("revision", ""),
            )  # fmt: skip
        except NotApplied as error:
            return sources.render.page(request, _TEMPLATE, await shown(request, refused=str(error)), status=422)
        return sources.render.page(request, _TEMPLATE, await shown(request, done=done))

    yield Action("/changes/{surface}", change, "policies.change")
    yield Page("/changes", _TEMPLATE, show, name="Changes", key="h")


def _filter(query: Mapping[str, str]) -> TrailFilter:
    try:
        since = time.time() - read_duration(query["since"]) if query["since"] else 0.0
    except ValueError as error:
        raise BadQuery(str(error)) from None
    return TrailFilter(query["kind"], query["by"], query["subject"], since)
