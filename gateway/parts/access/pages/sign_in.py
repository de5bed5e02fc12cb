"""Sign in and out: by a key, or by an identity provider; each sign-in is in the audit trail."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from cache.store.base import StoreUnavailable
from gateway.errors import Headers, Overloaded, RateLimited
from gateway.parts.access.audit.entries import TrailEntry
from gateway.parts.access.audit.trail import AuditTrail
from gateway.parts.access.key_tries import KeyTries
from gateway.parts.access.keys.roles import ACTIONS, NOBODY, Person
from gateway.parts.access.pages.login import TRY_S, Login, LoginFailed
from gateway.parts.access.pages.sessions import COOKIE, LOGIN_S, SESSION_S, ConsoleAccess

if TYPE_CHECKING:
    from gateway.seams import ConsoleShell

log = logging.getLogger("tierline.console")

ErrorPage = Callable[[Request, int, str, str, Headers], Response]
"""Return a page that says what is wrong: by its status, title, text and headers."""

_NOT_LOOKED_AT: Final = "This key was not looked at"
_NEEDS_ROLE: Final = "Your role does not allow it: {}. An admin can give you one."
_TRY_COOKIE: Final = "tierline-sign-in"


class SignIn:
    """The pages to sign in and out, and the check, for every other page, of who asks."""

    def __init__(self, shell: ConsoleShell, access: ConsoleAccess, login: Login | None) -> None:
        """With `login`, people may sign in by their identity provider."""
        self._access = access
        self._shell = shell
        self._trail = AuditTrail(shell.store)
        self._login = login
        self._failed = KeyTries()
        """Sign-ins by the provider that failed, by address: wrong keys keep nobody from these."""

    def routes(self) -> list[Route]:
        """Return the routes, which everybody may ask."""
        routes = [
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]
        if self._login is not None:
            routes += [Route("/sign-in/begin", self._begin), Route("/sign-in/callback", self._come_back)]
        return routes

    async def refused(self, request: Request, error: ErrorPage) -> Response | None:
        """Return the reply to who may not see the console; None for who may, whom the request then names."""
        if not self._access.host_allowed(request.headers.get("host", "").lower()):
            text = "This console requires no key, so it answers to names of this machine only.\n"
            return PlainTextResponse(text, 403)
        if request.method == "POST" and is_foreign(request):
            return PlainTextResponse("Forms of other sites may not change anything here.\n", 403)
        authorization, cookie = request.headers.get("authorization", ""), request.cookies.get(COOKIE, "")
        try:
            person = await self._access.person_of(authorization, cookie, address_of(request))
        except (RateLimited, Overloaded) as refused:
            return error(request, refused.status, _NOT_LOOKED_AT, refused.message, refused.headers)
        if person is not NOBODY:
            request.state.person = person
            return None
        if request.url.path.endswith(".json"):
            return error(request, 401, "A key is needed", "Send it as 'Authorization: Bearer KEY'.", ())
        address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/sign-in?to={quote(address, safe='/')}", 303)

    def may_not(self, request: Request, does: str) -> str:
        """Return why the person who asks may not do this action with any subject; '' if they may."""
        person: Person = request.state.person
        return "" if person.may_some(does) else _NEEDS_ROLE.format(ACTIONS[does].what.lower())

    async def _sign_in(self, request: Request) -> Response:
        to = _within(request.query_params.get("to", "/"))
        if request.method == "GET":
            return self._page(request, to)
        if is_foreign(request):
            return PlainTextResponse("Sign in on the console's own page.\n", 403)
        key = (await self._shell.form(request, 20_000)).get("key", "")
        try:
            person = await self._access.person_of_key(key, address_of(request))
        except (RateLimited, Overloaded) as refused:
            return self._page(request, to, refused.message, refused.status, refused.headers)
        if person is NOBODY:
            return self._page(request, to, "That is not a key of this console.", 401)
        return await self._entered(request, person, RedirectResponse(to, 303))

    async def _begin(self, request: Request) -> Response:
        """Send the browser to the identity provider."""
        assert self._login is not None  # noqa: S101  (else there is no route)
        to = _within(request.query_params.get("to", "/"))
        try:
            self._failed.check(address_of(request))
            address, cookie = await self._login.begin(to)
        except RateLimited as refused:
            return self._page(request, to, refused.message, refused.status, refused.headers)
        except LoginFailed as error:
            return self._page(request, to, str(error), 503)
        reply = RedirectResponse(address, 303)
        # Lax: the provider sends the browser back from another site, and strict cookies do not come along.
        secure = self._secure(request)
        reply.set_cookie(_TRY_COOKIE, cookie, TRY_S, path="/sign-in", httponly=True, samesite="lax", secure=secure)
        return reply

    async def _come_back(self, request: Request) -> Response:
        """Take the browser that comes from the identity provider."""
        assert self._login is not None  # noqa: S101
        try:
            person, to = await self._login.finish(request.cookies.get(_TRY_COOKIE, ""), request.query_params)
        except LoginFailed as error:
            with contextlib.suppress(RateLimited):
                self._failed.refused(address_of(request))
            log.warning("a sign-in of %s failed: %s", address_of(request), error)
            return self._page(request, "/", str(error), 401)
        # A page, and no redirect: the session's strict cookie comes along only from a page of this site.
        reply = await self._entered(request, person, self._shell.reply(request, "signed_in.html", {"to": to}))
        reply.delete_cookie(_TRY_COOKIE, path="/sign-in")
        return reply

    async def _entered(self, request: Request, person: Person, reply: Response) -> Response:
        """Begin a person's session with a reply."""
        came = f"from {address_of(request)}"
        entry = TrailEntry(time.time(), person.name, "login", "console", "sign-in", came, how="console")
        try:
            await self._trail.append(entry)
        except StoreUnavailable as down:
            log.warning("audit: %s: sign-in %s could not be entered (%s)", person.name, came, down)
        life, secure = LOGIN_S if person.id else SESSION_S, self._secure(request)
        reply.set_cookie(COOKIE, self._access.session(person), life, httponly=True, samesite="strict", secure=secure)
        return reply

    async def _sign_out(self, request: Request) -> Response:
        if is_foreign(request):
            return PlainTextResponse("Sign out on the console's own page.\n", 403)
        self._access.end_session(request.cookies.get(COOKIE, ""))
        reply = RedirectResponse("/sign-in", 303)
        reply.delete_cookie(COOKIE)
        return reply

    def _page(self, request: Request, to: str, wrong: str = "", status: int = 200, headers: Headers = ()) -> Response:
        login = None if self._login is None else self._login.name
        data = {"to": to, "wrong": wrong, "login": login, "keys": self._access.has_keys}
        page = self._shell.reply(request, "sign_in.html", data, status=status)
        page.headers.update({name.decode(): value.decode() for name, value in headers})
        return page

    def _secure(self, request: Request) -> bool:
        return request.url.scheme == "https" or (self._login is not None and self._login.secure)


def address_of(request: Request) -> str:
    """Return the address that a request comes from; empty if that is not known."""
    return request.client.host if request.client is not None else ""


def is_foreign(request: Request) -> bool:
    """Return whether a page of another site sends this form; scripts send no `Origin`."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")


def _within(to: str) -> str:
    """Return a path of this console, `/` for anything else."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable() else "/"
