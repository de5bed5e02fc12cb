"""Make the OpenAPI document of an application: of FastAPI's routes, and of those that are served without it.

The headers of requests and replies are those of the tables that the code itself reads and sets them by,
`gateway.request.options.REQUEST_HEADERS` and `gateway.request.context.REPLY_HEADERS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from gateway.parts.openapi import schemas
from gateway.request.context import REPLY_HEADERS
from gateway.request.options import REQUEST_HEADERS
from gateway.steps import Described
from gateway.version import version

Document = dict[str, Any]

_PARAMETER: Final = re.compile(r"{(\w+)}")
_TEXT: Final = {"type": "string"}
_JSON: Final = "application/json"
_KINDS: Final = {"Answers": {"all", "calls", "answers"}, "Passed on": {"all", "calls", "passed"}}
"""Whose headers the operations of a tag have; others have those of all."""
_DOCUMENTS: Final = (
    Described("GET", "/openapi.json", "This document"),
    Described("GET", "/docs", "This document, as a page", media="text/html"),
    Described("GET", "/docs.css", "The style of that page", media="text/css"),
)
_ALIVE: Final = Described("GET", "/healthz", "Whether the process lives", reply=schemas.Health)
_READY: Final = "Whether requests can be answered, and what is degraded; 503 if not"
_CHAT: Final = Described("POST", "", "Answer a chat", "Answers", schemas.ChatRequest, schemas.ChatCompletion, True)
_OF_CORE: Final = {
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,
    "/": Described("GET", "/", "What is here"),
    "/healthz": _ALIVE,
    "/health": _ALIVE,
    "/readyz": Described("GET", "/readyz", _READY, reply=schemas.Readiness),
    "/metrics": Described("GET", "/metrics", "Prometheus metrics", media="text/plain"),
}
"""What the core's routes are, of which it gives the method and the path alone."""
_OPEN: Final = frozenset({"/", "/healthz", "/health", "/readyz", *(route.path for route in _DOCUMENTS)})
"""Paths that need no key."""


def failure(model: Any) -> dict[int | str, Document]:
    """Return the reply that every operation of an application or a route may give, too: this model."""
    return {"default": {"model": model, "description": "The request failed"}}


def _route(described: Described) -> APIRoute:
    """Return a route that is only described."""
    given = _OF_CORE.get(described.path, described)

    def without_body() -> None: ...

    def taking_body(given: Any) -> None: ...

    extra: Document | None = None
    if isinstance(given.body, str):
        extra = {"requestBody": {"content": {given.body: {"schema": {"type": "object"}}}}}
    elif given.body is not None:
        taking_body.__annotations__["given"] = given.body
    content: Document = {"text/event-stream": {"schema": _TEXT}} if given.stream else {}
    in_json = given.media == _JSON
    if not in_json:
        content[given.media] = {"schema": _TEXT if given.media.startswith("text/") else _TEXT | {"format": "binary"}}
    return APIRoute(
        described.path,
        without_body if given.body is None or extra else taking_body,
        methods=[given.method],
        summary=given.summary,
        tags=[given.tag],
        response_model=given.reply if in_json else None,
        response_class=JSONResponse if in_json else Response,
        responses=failure(given.failure or schemas.Error) | {200: {"description": "The reply", "content": content}},
        openapi_extra=extra,
    )


def document(title: str, beside: Sequence[Described], routes: Sequence[BaseRoute], *, keyed: bool) -> Document:
    """Return the OpenAPI document of FastAPI's routes and those `beside` them. `keyed`: requests need a key."""
    whole = get_openapi(
        title=title,
        version=version(),
        description="Errors are the schema that their operation names; with `anthropic-version`, Anthropic's envelope.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/"}],
        routes=[*map(_route, beside), *routes, *map(_route, _DOCUMENTS)],
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
