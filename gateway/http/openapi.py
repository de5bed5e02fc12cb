"""Make the OpenAPI document of an application: of FastAPI's routes, and of those that are served without it.

The headers of requests and replies are those of the tables that the code itself reads and sets them by,
`gateway.request.options.REQUEST_HEADERS` and `gateway.request.reply.REPLY_HEADERS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from gateway.http import schemas
from gateway.request.options import REQUEST_HEADERS
from gateway.request.reply import REPLY_HEADERS
from gateway.version import version

Document = dict[str, Any]

Replies = dict[int | str, Document]
ERROR: Final[Replies] = {"default": {"model": schemas.Error, "description": "The request failed"}}
"""The reply that every operation may give, too."""
_PARAMETER: Final = re.compile(r"{(\w+)}")
_TEXT: Final = {"type": "string"}
ANSWERS, PASSED, _GATEWAY = "Answers", "Passed on", "The gateway"
JSON: Final = "application/json"
_KINDS: Final = {ANSWERS: {"all", "calls", "answers"}, PASSED: {"all", "calls", "passed"}}
"""Whose headers the operations of a tag have; others have those of all."""
_OPEN: Final = frozenset({"/", "/healthz", "/health", "/readyz", "/openapi.json", "/docs", "/docs.css"})
"""Paths that need no key."""


def described(
    method: str,
    path: str,
    summary: str,
    tag: str,
    body: Any = None,
    reply: Any = Document,
    *,
    stream: bool = False,
    media: str = JSON,
    failure: Replies = ERROR,
) -> APIRoute:
    """Return a route that is only described. `body`: a model, or the media type of what is passed on as it is."""

    def without_body() -> None: ...

    def taking_body(given: Any) -> None: ...

    extra: Document | None = None
    if isinstance(body, str):
        extra = {"requestBody": {"content": {body: {"schema": {"type": "object"}}}}}
    elif body is not None:
        taking_body.__annotations__["given"] = body
    content: Document = {"text/event-stream": {"schema": _TEXT}} if stream else {}
    if media != JSON:
        content[media] = {"schema": _TEXT if media.startswith("text/") else _TEXT | {"format": "binary"}}
    return APIRoute(
        path,
        without_body if body is None or extra else taking_body,
        methods=[method],
        summary=summary,
        tags=[tag],
        response_model=reply if media == JSON else None,
        response_class=JSONResponse if media == JSON else Response,
        responses=failure | {200: {"description": "The reply", "content": content}},
        openapi_extra=extra,
    )


def hot_routes() -> list[APIRoute]:
    """Return the routes of chat completions."""
    chat = (ANSWERS, schemas.ChatRequest, schemas.ChatCompletion)
    paths = ("/v1/chat/completions", "/chat/completions")
    return [described("POST", path, "Answer a chat", *chat, stream=True) for path in paths]


def probes() -> list[APIRoute]:
    """Return the routes for whoever watches the gateway."""
    alive = "Whether the process lives"
    ready = "Whether requests can be answered, and what is degraded; 503 if not"
    return [
        described("GET", "/", "What is here", _GATEWAY),
        described("GET", "/healthz", alive, _GATEWAY, reply=schemas.Health),
        described("GET", "/health", alive, _GATEWAY, reply=schemas.Health),
        described("GET", "/readyz", ready, _GATEWAY, reply=schemas.Readiness),
        described("GET", "/metrics", "Prometheus metrics", _GATEWAY, media="text/plain"),
    ]


def documents() -> list[APIRoute]:
    """Return the routes of the document itself."""
    return [
        described("GET", "/openapi.json", "This document", _GATEWAY),
        described("GET", "/docs", "This document, as a page", _GATEWAY, media="text/html"),
        described("GET", "/docs.css", "The style of that page", _GATEWAY, media="text/css"),
    ]


def document(title: str, routes: Sequence[BaseRoute], *, keyed: bool) -> Document:
    """Return the OpenAPI document of these routes. `keyed`: requests need a key."""
    whole = get_openapi(
        title=title,
        version=version(),
        description="Errors are the schema that their operation names; with `anthropic-version`, Anthropic's envelope.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/"}],
        routes=routes,
    )
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            _complete(method, path, operation, keyed=keyed)
    components = whole["components"]
    components["parameters"] = {
        name.decode(): {"name": name.decode(), "in": "header", "description": header.text, "schema": _TEXT}
        for name, header in REQUEST_HEADERS.items()
        if header.text
    }
    components["headers"] = {
        name.decode(): {"description": header.text, "schema": _TEXT}
        for name, header in REPLY_HEADERS.items()
        if header.text
    }
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return whole


def _complete(method: str, path: str, operation: Document, *, keyed: bool) -> None:
    """Add to an operation its id, its summary, its headers, and the parameters in its path that nothing describes."""
    operation["operationId"] = re.sub(r"\W+", "_", f"{method}{path}").strip("_")
    operation["summary"] = operation.pop("description", operation["summary"]).rstrip(".")
    kinds = _KINDS.get(operation["tags"][0], {"all"})
    parameters = operation.setdefault("parameters", [])
    named = {parameter["name"] for parameter in parameters}
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in _PARAMETER.findall(path)
        if name not in named
    ]
    parameters += [
        {"$ref": f"#/components/parameters/{name.decode()}"}
        for name, header in REQUEST_HEADERS.items()
        if header.text and header.at in kinds
    ]
    for status, reply in operation["responses"].items():
        shown = kinds | ({"errors"} if status == "default" else set())
        reply["headers"] = {
            name.decode(): {"$ref": f"#/components/headers/{name.decode()}"}
            for name, header in REPLY_HEADERS.items()
            if header.text and header.at in shown
        }
    if keyed and path not in _OPEN:
        operation["security"] = [{"key": []}, *([] if path.startswith("/admin") else [{"x-api-key": []}])]
