"""The console's ASGI app: routes, the headers of every reply, errors, and signing in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from cache.store.base import StoreUnavailable
from gateway.archive.live import LiveArchive
from gateway.archive.query import QueryError
from gateway.console.access import COOKIE, SESSION_S, ConsoleAccess, Role
from gateway.console.assets import Assets
from gateway.console.filters import BadFilter, filter_of
from gateway.console.live import LiveUpdates
from gateway.console.render import Renderer
from gateway.console.svg import bands, ribbon, small, waterfall
from gateway.console.views.now import SPANS, NowView
from gateway.console.views.policy import HOWS, NoSuchPolicy, NotApplied, PolicyDesk
from gateway.console.views.request import NoSuchRequest, RequestView
from gateway.console.views.requests import requests_page
from gateway.console.views.rollout import RolloutView
from gateway.registry.registry import RegistryError

log = logging.getLogger("tierline.console")

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_MOST_FORM: Final = 4096
_MOST_POLICY: Final = 1 << 20

_VIEWS: Final = (
    ("/now", "Now", "n"),
    ("/requests", "Requests", "r"),
    ("/policies", "Policies", "p"),
    ("/rollout", "Rollouts", "o"),
)
"""The pages of the navigation: path, name, and the key that leads there after `g`."""

View = Callable[[Request], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its path, the template that shows it, and the coroutine that makes its data."""

    path: str
    template: str
    view: View


class ConsoleApp:
    """Make the app for one archive."""

    def __init__(
        self,
        archive: LiveArchive,
        access: ConsoleAccess,
        desk: PolicyDesk,
        rollouts: RolloutView,
        *,
        scripted: Sequence[str] = (),
    ) -> None:
        """Prepare the pages; all of them say that the models in `scripted` are no models."""
        self._archive = archive
        self._access = access
        self._desk = desk
        self._rollout_view = rollouts
        self._assets = Assets()
        self._render = Renderer(
            self._assets,
            {
                "svg": waterfall,
                "bands": bands,
                "ribbon": ribbon,
                "small": small,
                "failing": lambda: archive.failing,
                "signed_in": access.needs_key,
                "scripted": scripted,
                "views": _VIEWS,
            },
        )
        self._requests = RequestView(archive)
        self._now_view = NowView(archive)
        self._live = LiveUpdates(archive, self._now_part)

    def asgi(self) -> Starlette:
        """Return the app."""
        routes = [
            Route("/static/{name}", self._asset),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/healthz", self._alive),
            Route("/now/live", self._now_live),
            Route("/policies/{surface}", self._change_policy, methods=["POST"]),
            Route("/", self._home),
        ]
        for page in self._pages():
            routes += [Route(path, self._served(page)) for path in (f"{page.path}.json", page.path)]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)],
            exception_handlers={HTTPException: self._failed, Exception: self._failed},
        )
        app.add_middleware(_Headers)
        return app

    def _pages(self) -> list[Page]:
        return [
            Page("/now", "now.html", self._now),
            Page("/requests", "requests.html", self._list),
            Page("/requests/{request_id}", "request.html", self._request),
            Page("/policies", "policies.html", self._policies),
            Page("/rollout", "rollout.html", self._rollouts),
            Page("/policies/{surface}", "policy.html", self._policy),
        ]

    async def _now(self, request: Request) -> Mapping[str, Any]:
        return await self._now_view.data(_span_of(request))

    async def _now_live(self, request: Request) -> Response:
        if (refusal := self._refused(request)) is not None:
            return refusal
        span = _span_of(request)
        return StreamingResponse(self._live.updates(span), media_type="text/event-stream")

    async def _policies(self, request: Request) -> Mapping[str, Any]:
        return await self._desk.listed()

    async def _rollouts(self, request: Request) -> Mapping[str, Any]:
        return await self._rollout_view.data()

    async def _policy(self, request: Request) -> Mapping[str, Any]:
        surface = request.path_params["surface"]
        return self._edited(request, await self._desk.policy(surface, request.query_params.get("version", "")), {})

    def _edited(
        self, request: Request, shown: Mapping[str, Any], form: Mapping[str, str], **more: Any
    ) -> Mapping[str, Any]:
        """Return a policy's page with what a form holds: the text that is being edited, and what was found of it."""
        return {
            "done": None, "refused": "", "plan": None, "hows": HOWS, **shown,
            "edited": form.get("text", shown["text"]), "base": form.get("base", shown["version"]),
            "given_message": form.get("message", ""), "given_author": form.get("author", ""),
            "given_how": form.get("how", ""), "may_change": request.state.role is Role.EDITOR, **more,
        }  # fmt: skip

    async def _change_policy(self, request: Request) -> Response:
        """Check, plan or apply the text of a form, and show the page with what came of it."""
        if (refusal := self._refused(request)) is not None:
            return refusal
        form = await _form_of(request, _MOST_POLICY)
        text, surface = form.get("text", ""), request.path_params["surface"]
        try:
            shown = await self._desk.policy(surface)
            found: dict[str, Any] = {"findings": await self._desk.findings(text)}
            if form.get("do") == "apply" and request.state.role is not Role.EDITOR:
                found["refused"] = "This key may look, and may not change policies."
            elif form.get("do") == "apply":
                found["done"] = await self._desk.apply(
                    surface, text, how=form.get("how", ""), author=form.get("author", ""),
                    message=form.get("message", ""), base=form.get("base", ""),
                )  # fmt: skip
                shown, form = await self._desk.policy(surface), {}
            elif form.get("do") == "plan":
                found["plan"] = await self._desk.plan(text)
        except NoSuchPolicy as error:
            return self._error(request, 404, "No such policy", str(error))
        except NotApplied as error:
            found["refused"] = str(error)
        status = 422 if found.get("refused") else 200
        return self._render.page(request, "policy.html", self._edited(request, shown, form, **found), status=status)

    async def _list(self, request: Request) -> Mapping[str, Any]:
        query = request.query_params
        wanted = filter_of(query.multi_items(), since="" if query.get("q") else "24h")
        peek = query.get("peek")
        return {
            **await requests_page(self._archive, wanted, query.get("before", "")),
            "peek": await self._requests.data(peek) if peek else None,
            "texts": wanted.texts,
            "is": wanted.flags,
            "since": wanted.since,
            "slower": query.get("slower", ""),
        }

    async def _request(self, request: Request) -> Mapping[str, Any]:
        at = request.query_params.get("at", "")
        at_ms = int(at) if at.isdecimal() and len(at) < 16 else None
        request_id = request.path_params["request_id"]
        data = await self._requests.data(request_id, at_ms)
        why = request.query_params.get("why")
        asked = None if why is None else await self._requests.alternatives(request_id, why, data["entry_ms"])
        opened = request.query_params.get("hop", "")
        return {**data, "why": why, "alternative": asked, "open": int(opened) if opened.isdecimal() else None}

    def _served(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            if (refusal := self._refused(request)) is not None:
                return refusal
            try:
                return self._render.page(request, page.template, await page.view(request))
            except NoSuchPolicy as error:
                return self._error(request, 404, "No such policy", str(error))
            except (StoreUnavailable, RegistryError) as error:
                return self._error(request, 503, "The store does not answer", str(error))
            except NoSuchRequest as error:
                return self._error(request, 404, "Not recorded", str(error))
            except BadFilter as error:
                return self._error(request, 400, "This filter is not one", str(error))
            except QueryError as error:
                log.exception("a page's query failed: %s", request.url.path)
                return self._error(request, 500, "The ledger could not be read", str(error))

        return serve

    def _refused(self, request: Request) -> Response | None:
        """Return the reply to who may not see the console; None for who may."""
        if not self._access.host_allowed(request.headers.get("host", "").lower()):
            text = "This console requires no key, so it answers to names of this machine only.\n"
            return PlainTextResponse(text, 403)
        if request.method == "POST" and _is_foreign(request):
            return PlainTextResponse("Forms of other sites may not change anything here.\n", 403)
        role = self._access.role_of(request.headers.get("authorization", ""), request.cookies.get(COOKIE, ""))
        if role is not Role.NOBODY:
            request.state.role = role
            return None
        if request.url.path.endswith(".json"):
            return self._error(request, 401, "A key is needed", "Send it as 'Authorization: Bearer KEY'.")
        return RedirectResponse(f"/sign-in?to={request.url.path}", 303)

    async def _home(self, request: Request) -> Response:
        return RedirectResponse("/now", 307)

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _asset(self, request: Request) -> Response:
        asset = self._assets.find(request.path_params["name"])
        if asset is None:
            return self._error(request, 404, "No such file", "Reload the page: the console was updated meanwhile.")
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"cache-control": _FOR_EVER, "vary": "accept-encoding"}
        if zipped:
            headers["content-encoding"] = "gzip"
        return Response(asset.gzipped if zipped else asset.body, media_type=asset.media_type, headers=headers)

    async def _sign_in(self, request: Request) -> Response:
        to = request.query_params.get("to", "/")
        to = to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
        if request.method == "GET":
            return self._render.page(request, "sign_in.html", {"to": to, "wrong": False})
        if _is_foreign(request):
            return PlainTextResponse("Sign in on the console's own page.\n", 403)
        role = self._access.role_of_key((await _form_of(request, _MOST_FORM)).get("key", ""))
        if role is Role.NOBODY:
            return self._render.page(request, "sign_in.html", {"to": to, "wrong": True}, status=401)
        reply = RedirectResponse(to, 303)
        secure = request.url.scheme == "https"
        reply.set_cookie(
            COOKIE, self._access.session(role), max_age=SESSION_S, httponly=True, samesite="strict", secure=secure
        )
        return reply

    async def _sign_out(self, request: Request) -> Response:
        reply = RedirectResponse("/sign-in", 303)
        reply.delete_cookie(COOKIE)
        return reply

    async def _now_part(self, span: str) -> str:
        return self._render.part("now_live.html", await self._now_view.data(span))

    async def _failed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            text = "There is no such page." if error.status_code == 404 else error.detail
            return self._error(request, error.status_code, str(error.detail), text)
        return self._error(request, 500, "This page met a bug", "The console's log has the details.")

    def _error(self, request: Request, status: int, title: str, text: str) -> Response:
        return self._render.page(request, "error.html", {"status": status, "title": title, "text": text}, status=status)


def _is_foreign(request: Request) -> bool:
    """Return whether a page of another site sends this form; scripts send no `Origin`."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")


async def _form_of(request: Request, most: int) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPException for one that is larger than `most` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, "This form is too large.")
    return {
        name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True).items()
    }


def _span_of(request: Request) -> str:
    span = request.query_params.get("since", "1h")
    if span not in SPANS:
        raise BadFilter(f"since={span} is not a time span of this page; there are {', '.join(SPANS)}")
    return span


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
