"""The console's ASGI app: routes, the headers of every reply, errors, and signing in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from cache.store.base import Store, StoreUnavailable
from gateway.errors import ApiError, Conflict, Headers
from gateway.parts.access.pages.login import Login
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.access.pages.sign_in import SignIn
from gateway.parts.console.assets import Assets
from gateway.parts.console.attempt_races import loss_of
from gateway.parts.console.gateway_client import GatewayClient
from gateway.parts.console.page import Action, Page, PageError, PolicyPlaces, Sources, View, person_in
from gateway.parts.console.records import Records
from gateway.parts.console.render import Renderer
from gateway.parts.console.shell import Shell
from gateway.parts.console.svg import (
    bands,
    bars,
    flows,
    histogram,
    lines,
    ribbon,
    shares,
    small,
    waterfall,
)
from gateway.parts.console.views import (
    caching,
    now,
    policy,
    requests,
    surface,
    usage,
    whatif,
)
from gateway.parts.ledger.query import QueryError
from gateway.parts.standard import providers
from gateway.seams import add_pages

log = logging.getLogger("tierline.console")

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
Handler = Callable[[Request], Awaitable[Response]]

_FOR_EVER: Final = "public, max-age=31536000, immutable"
_MOVED: Final[Mapping[str, str]] = {
    "/differ": "/requests",
    "/money": "/usage",
    "/rollout": "/changes?",
    "/audit": "/changes?",
    "/quality": "/now",
    "/conversations/": "/requests?since=all&conversation=",
    "/conversations": "/requests",
    "/playground": "/policies",
}
"""Addresses of pages that are gone, and the page that has most of what each had. They go with the next release."""

_VIEWS: Final[tuple[View, ...]] = (
    now.pages,
    surface.pages,
    requests.pages,
    policy.pages,
    whatif.pages,
    caching.pages,
    usage.pages,
)
_NAVIGATION: Final = ("Now", "Requests", "Policies", "What if", "Changes", "Cache", "Usage", "Keys")
"""The order of pages; after them come those that parts of other makers bring."""


class ConsoleApp:
    """Make the app for one archive."""

    def __init__(
        self,
        archive: Records,
        store: Store,
        places: PolicyPlaces,
        access: ConsoleAccess,
        *,
        scripted: Sequence[str] = (),
        gateway: GatewayClient | None = None,
        login: Login | None = None,
    ) -> None:
        """Prepare the pages; all of them say that the models in `scripted` are no models.

        `gateway` asks how a gateway stands; who made it closes it. `login` sends people to their identity provider.
        """
        self._archive = archive
        self._assets = Assets()
        named: list[Page] = []
        self._render = Renderer(
            self._assets,
            [Path(str(part.__file__)).parent / "templates" for part in providers("pages")],
            {
                "svg": waterfall,
                "bands": bands,
                "flows": flows,
                "ribbon": ribbon,
                "loss_of": loss_of,
                "shares": shares,
                "small": small,
                "drawn": lines,
                "bars_of": bars,
                "histograms": histogram,
                "failing": lambda: archive.failing,
                "damaged": lambda: archive.damaged,
                "signed_in": access.needs_key,
                "scripted": scripted,
                "views": named,
            },
        )
        sources = Sources(archive, store, places, self._render, gateway)
        shell = Shell(sources)
        self._signing_in = SignIn(shell, access, login)
        add_pages(shell)
        self._entries = [*(entry for view in _VIEWS for entry in view(sources)), *shell.entries]
        self._entries.sort(key=_place)
        named += [entry for entry in self._entries if isinstance(entry, Page) and entry.name]

    def asgi(self) -> Starlette:
        """Return the app."""
        routes = [
            Route("/static/{name}", self._asset),
            *self._signing_in.routes(),
            Route("/healthz", self._alive),
            Route("/", self._guarded(self._home, "")),
            Route("/metrics", self._guarded(self._metrics, "look")),
            *(Route(f"{old}{{rest:path}}", self._guarded(_redirect_to(new), "look")) for old, new in _MOVED.items()),
        ]
        for entry in self._entries:
            if isinstance(entry, Action):
                routes.append(Route(entry.path, self._guarded(entry.handle, entry.does), methods=list(entry.methods)))
            else:
                routes += [
                    Route(path, self._guarded(self._shown(entry), entry.does))
                    for path in (f"{entry.path}.json", entry.path)
                ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)],
            exception_handlers={HTTPException: self._failed, Exception: self._failed},
        )
        app.add_middleware(_Headers)
        return app

    def _shown(self, page: Page) -> Handler:
        async def show(request: Request) -> Response:
            return self._render.page(request, page.template, await page.data(request), script=page.script)

        return show

    def _guarded(self, handle: Handler, does: str) -> Handler:
        """Return a handler that first looks who asks, and whether they may do this; it makes pages of errors.

        With an empty `does` it is for whoever is known at all.
        """

        async def serve(request: Request) -> Response:
            if (refusal := await self._signing_in.refused(request, self._error)) is not None:
                return refusal
            if does and (text := self._signing_in.may_not(request, does)):
                return self._error(request, 403, "You may not do this", text)
            try:
                return await handle(request)
            except HTTPException as other:
                if other.status_code != 303 or other.headers is None:
                    raise
                return RedirectResponse(other.headers["location"], 303)
            except (StoreUnavailable, Conflict) as error:
                return self._error(request, 503, "The store does not answer", str(error))
            except ApiError as error:
                return self._error(request, error.status, getattr(error, "title", PageError.title), error.message)
            except QueryError as error:
                log.exception("a page's query failed: %s", request.url.path)
                return self._error(request, 500, "The ledger could not be read", str(error))

        return serve

    async def _home(self, request: Request) -> Response:
        pages = [entry for entry in self._entries if isinstance(entry, Page) and entry.name]
        first = next((page.path for page in pages if person_in(request).may_some(page.does)), None)
        if first is None:
            return self._error(request, 403, "You have no role here", "An admin can give you one.")
        return RedirectResponse(first, 307)

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _metrics(self, request: Request) -> Response:
        name = "tierline_ledger_damaged_files"
        text = f"# HELP {name} Files of the ledger that cannot be read and are left out.\n# TYPE {name} gauge\n"
        return PlainTextResponse(f"{text}{name} {len(self._archive.damaged)}\n")

    async def _asset(self, request: Request) -> Response:
        asset = self._assets.find(request.path_params["name"])
        if asset is None:
            return self._error(request, 404, "No such file", "Reload the page: the console was updated meanwhile.")
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"cache-control": _FOR_EVER, "vary": "accept-encoding"}
        if zipped:
            headers["content-encoding"] = "gzip"
        return Response(asset.gzipped if zipped else asset.body, media_type=asset.media_type, headers=headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            text = "There is no such page." if error.status_code == 404 else error.detail
            return self._error(request, error.status_code, str(error.detail), text)
        return self._error(request, 500, "This page met a bug", "The console's log has the details.")

    def _error(self, request: Request, status: int, title: str, text: str, headers: Headers = ()) -> Response:
        data = {"status": status, "title": title, "text": text}
        page = self._render.page(request, "error.html", data, status=status)
        page.headers.update({name.decode(): value.decode() for name, value in headers})
        return page


def _place(entry: Page | Action) -> int:
    name = entry.name if isinstance(entry, Page) else ""
    return _NAVIGATION.index(name) if name in _NAVIGATION else len(_NAVIGATION)


def _redirect_to(address: str) -> Handler:
    """Return a handler that redirects to an address, to the page's JSON where the old one's was asked for.

    An address that ends in `?` gets the old one's query, one that ends in `=` the rest of its path.
    """

    async def redirect(request: Request) -> Response:
        rest = request.path_params["rest"]
        path, _, query = address.partition("?")
        if address.endswith("?"):
            query = request.url.query
        elif query.endswith("="):
            query += quote(rest.removesuffix(".json"), safe="")
        kind = ".json" if rest.endswith(".json") else ""
        return RedirectResponse(f"{path}{kind}{'?' if query else ''}{query}", 307)

    return redirect


class _Headers:
    """Add the security headers to every reply."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                have = {name for name, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in have]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, with_headers)
