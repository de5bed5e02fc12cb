"""Turn what a route outside the pipeline raises into the envelope that the path's clients know."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from cache.store.base import StoreUnavailable
from gateway.errors import (
    CLIENT_GONE,
    ApiError,
    Headers,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    UpgradeRequired,
    retry_after,
)
from gateway.http.messages import REQUEST_ID
from gateway.parts.standard import absent, part_missing_for_path
from gateway.request.context import ClientGone
from gateway.seams import error_body

log = logging.getLogger("tierline.http")

Served = Iterable[tuple[str, str]]
"""Methods and paths, whose parameters are in braces."""


class ErrorReplies:
    """Make the error replies of one application. Its 404 lists the paths that are `served`, its 405 their methods."""

    def __init__(self, served: Served) -> None:
        self._paths: dict[str, set[str]] = {}
        for method, path in served:
            self._paths.setdefault(path, set()).update({method, "HEAD"} if method == "GET" else {method})
        self._patterns = [(compile_path(path)[0], methods) for path, methods in self._paths.items()]

    async def reply(self, request: Request, error: Exception) -> Response:
        """Return the reply of a request that failed: FastAPI wraps what reading a body raises in an HTTPException."""
        if isinstance(error, HTTPException) and isinstance(error.__cause__, Exception):
            error = error.__cause__
            if not isinstance(error, ApiError | ClientGone | StoreUnavailable):
                log.error("reading the body of a request met a bug", exc_info=error)
        if isinstance(error, ClientGone):
            return Response(status_code=CLIENT_GONE)
        shown = error if isinstance(error, ApiError) else self._api_error(request, error)
        headers = {name.decode(): value.decode() for name, value in shown.headers}
        return Response(body_of(shown, request.scope), shown.status, headers, media_type="application/json")

    def _api_error(self, request: Request, error: Exception) -> ApiError:
        if isinstance(error, StoreUnavailable):
            return Overloaded(f"The store does not answer ({error.reason}).", headers=retry_after(5))
        if not isinstance(error, HTTPException):
            return InternalError()
        path = request.url.path
        if error.status_code == 404 or (error.status_code == 405 and _is_no_response(path)):
            return self._nothing_at(path)
        if error.status_code == 405:
            allowed = {method for pattern, methods in self._patterns if pattern.match(path) for method in methods}
            return method_not_allowed(request.method, ", ".join(sorted(allowed)))
        return InvalidRequest(str(error.detail))

    def _nothing_at(self, path: str) -> NotFound:
        """Return the error of a path that is not served, with all that are, the nearest first."""
        if (part := part_missing_for_path(path)) is not None:
            return NotFound(f"{absent(path, part)}.")
        near = get_close_matches(path.rstrip("/") or "/", self._paths, n=1, cutoff=0.75)
        hint = f" Do you mean {near[0]}?" if near else ""
        if path.rstrip("/") == "/v1":
            hint = " This is the base URL."
        elif path.startswith("/admin") and "/admin/policies" not in self._paths:
            hint = " The admin API has a port of its own: `admin` in the config."
        described = ", described at /docs" if "/docs" in self._paths else ""
        return NotFound(f"There is no {path} here.{hint} What there is{described}: {', '.join(self._paths)}.")


def body_of(error: ApiError, scope: Any) -> bytes:
    """Return the envelope of an error; RequestIdMiddleware puts the id that it names into the scope."""
    return error_envelope(error, scope, scope.get(REQUEST_ID, ""))


def error_envelope(error: ApiError, scope: Any, request_id: str) -> bytes:
    """Return the body of an error to a request with this id, in the envelope that clients of the path know."""
    return next((body for body in error_body(error, scope, request_id) if body is not None), error.body())


def no_upgrade(scope: Any) -> ApiError | None:
    """Return the refusal of a request to speak WebSocket, as agents send it first; None for any other request."""
    if dict(scope["headers"]).get(b"upgrade", b"").lower() != b"websocket":
        return None
    headers: Headers = ((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade"))
    return UpgradeRequired("There are no WebSockets at this path; send the request by POST.", headers=headers)


def method_not_allowed(method: str, allow: str) -> ApiError:
    """Return the error of a method that a path does not have; `allow` are those that it has."""
    headers: Headers = ((b"allow", allow.encode()),)
    return MethodNotAllowed(f"{method} is not a method of this URL; use {allow}.", headers=headers)


def _is_no_response(path: str) -> bool:
    """Return whether a path has the place of a response's id, but is none: one of OpenAI's that are not served."""
    beginning, _, name = path.rpartition("/")
    return beginning == "/v1/responses" and not name.startswith("resp_") and name != "input_tokens"
