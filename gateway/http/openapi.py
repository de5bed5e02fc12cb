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
MESSAGES_ERROR: Final[Replies] = {"default": {"model": schemas.MessagesError, "description": "The request failed"}}
"""What it is below /v1/messages."""
_PARAMETER: Final = re.compile(r"{(\w+)}")
_TEXT: Final = {"type": "string"}
_ANSWERS, _PASSED, _GATEWAY = "Answers", "Passed on", "The gateway"
_JSON, _FORM, _BYTES = "application/json", "multipart/form-data", "application/octet-stream"
_KINDS: Final = {_ANSWERS: {"all", "calls", "answers"}, _PASSED: {"all", "calls", "passed"}}
"""Whose headers the operations of a tag have; others have those of all."""
_OPEN: Final = frozenset({"/", "/healthz", "/health", "/readyz", "/openapi.json", "/docs", "/docs.css"})
"""Paths that need no key."""


def _described(
    method: str,
    path: str,
    summary: str,
    tag: str,
    body: Any = None,
    reply: Any = Document,
    *,
    stream: bool = False,
    media: str = _JSON,
) -> APIRoute:
    """Return a route that is only described. `body`: a model, or the media type of what is passed on as it is."""

    def described() -> None: ...

    def taking_body(given: Any) -> None: ...

    extra: Document | None = None
    if isinstance(body, str):
        extra = {"requestBody": {"content": {body: {"schema": {"type": "object"}}}}}
    elif body is not None:
        taking_body.__annotations__["given"] = body
    content: Document = {"text/event-stream": {"schema": _TEXT}} if stream else {}
    failed = MESSAGES_ERROR if path == "/v1/messages" else ERROR
    if media != _JSON:
        content[media] = {"schema": _TEXT if media.startswith("text/") else _TEXT | {"format": "binary"}}
    return APIRoute(
        path,
        described if body is None or extra else taking_body,
        methods=[method],
        summary=summary,
        tags=[tag],
        response_model=reply if media == _JSON else None,
        response_class=JSONResponse if media == _JSON else Response,
        responses=failed | {200: {"description": "The reply", "content": content}},
        openapi_extra=extra,
    )


def _answers() -> list[APIRoute]:
    """Return the routes of the pipeline and of embeddings."""
    chat = (_ANSWERS, schemas.ChatRequest, schemas.ChatCompletion)
    response = (_ANSWERS, schemas.CreateResponse, schemas.ResponseObject)
    texts = (_ANSWERS, schemas.TextCompletionRequest, schemas.TextCompletion)
    summary = "Answer prompts, as legacy text completions"
    return [
        *(
            _described("POST", path, "Answer a chat", *chat, stream=True)
            for path in ("/v1/chat/completions", "/chat/completions")
        ),
        _described("POST", "/v1/completions", summary, *texts, stream=True),
        _described("POST", "/v1/embeddings", "Embed texts", _ANSWERS, schemas.CreateEmbeddings, schemas.EmbeddingList),
        _described("POST", "/v1/responses", "Answer as a response", *response, stream=True),
        _described("POST", "/responses", "Answer as a response", *response, stream=True),
        _described("POST", "/v1/responses/compact", "Compact a conversation", _ANSWERS, schemas.CreateResponse),
        _described(
            "POST", "/v1/messages", "Answer as Anthropic's API does", _ANSWERS, schemas.CreateMessage, stream=True
        ),
    ]


_PASSED_ON: Final = (
    ("POST", "/v1/moderations", "Classify a text or an image", _JSON, _JSON),
    ("POST", "/v1/audio/speech", "Speak a text", _JSON, _BYTES),
    ("POST", "/v1/audio/transcriptions", "Transcribe speech", _FORM, _JSON),
    ("POST", "/v1/audio/translations", "Translate speech into English", _FORM, _JSON),
    ("POST", "/v1/images/generations", "Draw an image", _JSON, _JSON),
    ("POST", "/v1/images/edits", "Edit an image", _FORM, _JSON),
    ("POST", "/v1/images/variations", "Vary an image", _FORM, _JSON),
    ("GET", "/v1/files", "List files", None, _JSON),
    ("POST", "/v1/files", "Upload a file", _FORM, _JSON),
    ("GET", "/v1/files/{file_id}", "Show a file", None, _JSON),
    ("DELETE", "/v1/files/{file_id}", "Delete a file", None, _JSON),
    ("GET", "/v1/files/{file_id}/content", "Read a file", None, _BYTES),
    ("POST", "/v1/uploads", "Begin a large upload", _JSON, _JSON),
    ("POST", "/v1/uploads/{upload_id}/parts", "Upload a part", _FORM, _JSON),
    ("POST", "/v1/uploads/{upload_id}/complete", "End an upload", _JSON, _JSON),
    ("POST", "/v1/uploads/{upload_id}/cancel", "Give an upload up", _JSON, _JSON),
    ("GET", "/v1/batches", "List batches", None, _JSON),
    ("POST", "/v1/batches", "Begin a batch", _JSON, _JSON),
    ("GET", "/v1/batches/{batch_id}", "Show a batch", None, _JSON),
    ("POST", "/v1/batches/{batch_id}/cancel", "Cancel a batch", _JSON, _JSON),
)
"""What is known of services: they may have more below the same paths."""


def _probes() -> list[APIRoute]:
    """Return the routes for whoever watches the gateway."""
    alive = "Whether the process lives"
    ready = "Whether requests can be answered, and what is degraded; 503 if not"
    return [
        _described("GET", "/", "What is here", _GATEWAY),
        _described("GET", "/healthz", alive, _GATEWAY, reply=schemas.Health),
        _described("GET", "/health", alive, _GATEWAY, reply=schemas.Health),
        _described("GET", "/readyz", ready, _GATEWAY, reply=schemas.Readiness),
        _described("GET", "/metrics", "Prometheus metrics", _GATEWAY, media="text/plain"),
    ]


def documents() -> list[APIRoute]:
    """Return the routes of the document itself."""
    return [
        _described("GET", "/openapi.json", "This document", _GATEWAY),
        _described("GET", "/docs", "This document, as a page", _GATEWAY, media="text/html"),
        _described("GET", "/docs.css", "The style of that page", _GATEWAY, media="text/css"),
    ]


def beside_fastapi() -> list[APIRoute]:
    """Return the routes of the public port that are served without FastAPI."""
    passed = [
        _described(method, path, summary, _PASSED, body, media=media)
        for method, path, summary, body, media in _PASSED_ON
    ]
    return [*_answers(), *passed, *_probes()]


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
