"""Describe the API as an OpenAPI 3.1 document: what each served route takes and gives.

`OPERATIONS` describes every route; the document holds those that are served. The bodies of OpenAI's endpoints are
described as far as the gateway itself reads or writes them: what it passes on is the model's to define.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.request.options import REQUEST_HEADERS
from gateway.request.reply import REPLY_HEADERS
from gateway.version import version

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_OPEN: Final[Schema] = {"type": "object"}
_BINARY: Final[Schema] = {"type": "string", "format": "binary"}
_PARAMETER: Final = re.compile(r"{(\w+)}")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. A schema named by a text is one of SCHEMAS.

    `body` is the type of the JSON body, None for none; `reply` that of the reply. `stream`: the reply may be events.
    """

    summary: str
    tag: str
    body: str | None = None
    reply: str | None = None
    stream: bool = False
    media: str = "application/json"
    """Media type of the request's body."""
    reply_media: str = "application/json"
    query: tuple[tuple[str, str], ...] = ()
    """Names and meanings of the parameters in the query."""


def _object(required: Iterable[str] = (), **properties: Schema) -> dict[str, Any]:
    needed = list(required)
    return {"type": "object", "properties": properties} | ({"required": needed} if needed else {})


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _or_null(schema: Schema) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_MODEL: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 256,
    "description": "A surface, one of its aliases, `auto` for the default surface, or `tier:NAME`.",
}
_STREAM: Final[Schema] = {"type": "boolean", "default": False, "description": "Server-sent events in place of JSON."}
_USAGE: Final = _object(
    ("prompt_tokens", "total_tokens"), prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT
)
_TOKENS: Final[Schema] = {"type": "array", "items": _COUNT, "minItems": 1}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": _object(
        ("error",),
        error=_object(
            ("message", "type", "param", "code"),
            message=_TEXT,
            type=_TEXT,
            param=_or_null({"type": "string", "description": "The field or header that is wrong."}),
            code=_or_null(_TEXT),
        ),
    ),
    "ChatRequest": _object(
        ("model", "messages"),
        model=_MODEL,
        messages={"type": "array", "minItems": 1, "items": _object(("role",), role=_TEXT)},
        stream=_STREAM,
        max_tokens=_or_null({"type": "integer", "minimum": 1}),
        max_completion_tokens=_or_null({"type": "integer", "minimum": 1}),
        n=_or_null({"type": "integer", "minimum": 1, "maximum": 128}),
        stop=_or_null({"anyOf": [_TEXT, _list(_TEXT)]}),
        tools=_or_null(_list(_OPEN)),
        response_format=_or_null(_OPEN),
    )
    | {"description": "OpenAI's request for a chat completion. Fields that are not listed are passed on."},
    "ChatCompletion": _object(
        ("id", "object", "created", "model", "choices"),
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=_TEXT,
        choices=_list(
            _object(
                ("index", "message", "finish_reason"),
                index=_COUNT,
                message=_object(("role", "content"), role=_TEXT, content=_or_null(_TEXT)),
                finish_reason=_TEXT,
            )
        ),
        usage=_or_null(_USAGE),
    ),
    "TextCompletionRequest": _object(
        ("model", "prompt"),
        model=_MODEL,
        prompt={
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 128},
                _TOKENS,
                _list(_TOKENS),
            ],
            "description": "Tokens only where a service has this endpoint (`endpoints.completions` in the policy).",
        },
        stream=_STREAM,
        max_tokens=_or_null({"type": "integer", "minimum": 1, "default": 16}),
        n=_or_null({"type": "integer", "minimum": 1, "maximum": 128}),
        best_of=_or_null({"type": "integer", "minimum": 1, "maximum": 128}),
        echo=_or_null({"type": "boolean"}),
        logprobs=_or_null({"type": "integer", "minimum": 0, "maximum": 20}),
        stop=_or_null({"anyOf": [_TEXT, _list(_TEXT)]}),
    ),
    "TextCompletion": _object(
        ("id", "object", "created", "model", "choices"),
        id=_TEXT,
        object={"const": "text_completion"},
        created=_COUNT,
        model=_TEXT,
        choices=_list(
            _object(
                ("text", "index", "logprobs", "finish_reason"),
                text=_TEXT,
                index=_COUNT,
                logprobs=_or_null(_OPEN),
                finish_reason=_or_null(_TEXT),
            )
        ),
        usage=_USAGE,
    ),
    "EmbeddingsRequest": _object(
        ("model", "input"),
        model=_MODEL,
        input={
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 2048},
                _TOKENS,
                {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": 2048},
            ]
        },
        encoding_format=_or_null({"enum": ["float", "base64"]}),
        dimensions=_or_null({"type": "integer", "minimum": 1}),
        user=_or_null(_TEXT),
    ),
    "Embeddings": _object(
        ("object", "data", "model", "usage"),
        object={"const": "list"},
        data=_list(
            _object(
                ("object", "index", "embedding"),
                object={"const": "embedding"},
                index=_COUNT,
                embedding={"anyOf": [_list({"type": "number"}), {"type": "string", "contentEncoding": "base64"}]},
            )
        ),
        model=_TEXT,
        usage=_object(("prompt_tokens", "total_tokens"), prompt_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "ResponsesRequest": _object(
        ("model",), model=_MODEL, input={"anyOf": [_TEXT, _list(_OPEN)]}, stream=_STREAM, store={"type": "boolean"}
    )
    | {"description": "OpenAI's request for a response."},
    "Response": _object(("id", "object"), id=_TEXT, object={"const": "response"}),
    "MessagesRequest": _object(
        ("model", "messages"), model=_MODEL, messages=_list(_OPEN), max_tokens={"type": "integer"}, stream=_STREAM
    )
    | {"description": "Anthropic's request for a message."},
    "Model": _object(
        ("id", "object", "created", "owned_by"),
        id=_TEXT,
        object={"const": "model"},
        created=_COUNT,
        owned_by={"const": "tierline"},
    ),
    "Models": _object(("object", "data"), object={"const": "list"}, data=_list(_ref("Model"))),
    "FeedbackRequest": _object(
        ("request_id",),
        request_id={"type": "string", "description": "A reply's x-request-id.", "minLength": 1, "maxLength": 128},
        correct={"type": "boolean"},
        score={"type": "number", "minimum": 0, "maximum": 1},
        comment=_or_null({"type": "string", "maxLength": 500}),
    )
    | {"additionalProperties": False},
    "Feedback": _object(
        ("object", "request_id", "score"),
        object={"const": "feedback"},
        request_id=_TEXT,
        score={"type": "number"},
        cache_entry_removed=_TEXT,
    ),
    "Health": _object(("status",), status={"const": "ok"}),
    "Readiness": _object(
        ("status",),
        status={"enum": ["ready", "degraded", "unavailable", "draining"]},
        degraded=_list(_TEXT) | {"description": "What is degraded, in words."},
    ),
    "Purge": _object(surface=_TEXT, tag=_TEXT, entry=_TEXT, tenant=_TEXT, team=_TEXT)
    | {"additionalProperties": False, "description": "What to purge: a surface, a tag or an entry."},
    "Explain": _object(surface=_TEXT, tokens_in=_COUNT, body=_OPEN, headers=_OPEN, tenant=_TEXT, text=_TEXT),
    "Apply": _object(
        ("text", "message"), text=_TEXT, message=_TEXT, author=_TEXT, how=_TEXT, share={"type": "number"}, base=_TEXT
    ),
    "Change": _object(("message",), message=_TEXT, author=_TEXT, full={"type": "boolean"}, to=_TEXT),
    "PolicyText": _object(("text",), text=_TEXT),
    "Job": _object(("action", "text"), action={"enum": ["replay", "plan"]}, text=_TEXT, since=_TEXT),
    "Any": {"type": "object"},
    "Text": _TEXT,
    "Binary": _BINARY,
    "Form": {"type": "object", "description": "Passed on to the service as it is."},
}

_FORM: Final = "multipart/form-data"
_ANSWER, _PASSED, _GATEWAY, _CACHE, _POLICIES = "Answers", "Passed on", "The gateway", "Cache", "Policies"
_PAGE: Final = (("limit", "Most items."), ("after", "The last item of the page before."))


def _passed(summary: str, *, form: bool = False, get: bool = False, media: str = "application/json") -> Operation:
    media_in = _FORM if form else "application/json"
    reply = "Any" if media == "application/json" else "Binary"
    return Operation(
        summary, _PASSED, None if get else "Form" if form else "Any", reply, media=media_in, reply_media=media
    )


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/chat/completions"): Operation("Answer a chat", _ANSWER, "ChatRequest", "ChatCompletion", stream=True),
    ("POST", "/chat/completions"): Operation("Answer a chat", _ANSWER, "ChatRequest", "ChatCompletion", stream=True),
    ("POST", "/v1/completions"): Operation(
        "Answer prompts, as legacy text completions", _ANSWER, "TextCompletionRequest", "TextCompletion", stream=True
    ),
    ("POST", "/v1/responses"): Operation("Answer as a response", _ANSWER, "ResponsesRequest", "Response", stream=True),
    ("POST", "/responses"): Operation("Answer as a response", _ANSWER, "ResponsesRequest", "Response", stream=True),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Estimate the tokens of a response's input", _ANSWER, "ResponsesRequest", "Any"
    ),
    ("GET", "/v1/responses/{response_id}"): Operation("Show a kept response", _ANSWER, None, "Response"),
    ("DELETE", "/v1/responses/{response_id}"): Operation("Delete a kept response", _ANSWER, None, "Any"),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(
        "Refused: no response runs in the background", _ANSWER, None, "Response"
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        "List what a kept response was given", _ANSWER, None, "Any", query=(*_PAGE, ("order", "asc or desc."))
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer as Anthropic's API does", _ANSWER, "MessagesRequest", "Any", stream=True
    ),
    ("POST", "/v1/messages/count_tokens"): Operation("Count a message's tokens", _ANSWER, "MessagesRequest", "Any"),
    ("POST", "/v1/embeddings"): Operation("Embed texts", _ANSWER, "EmbeddingsRequest", "Embeddings"),
    ("GET", "/v1/models"): Operation("List the surfaces, as models to ask for", _GATEWAY, None, "Models"),
    ("GET", "/v1/models/{model}"): Operation("Show one surface, by its name or an alias", _GATEWAY, None, "Model"),
    ("POST", "/v1/feedback"): Operation("Say whether an answer was right", _GATEWAY, "FeedbackRequest", "Feedback"),
    ("GET", "/"): Operation("What is here", _GATEWAY, None, "Any"),
    ("GET", "/healthz"): Operation("Whether the process lives", _GATEWAY, None, "Health"),
    ("GET", "/health"): Operation("Whether the process lives", _GATEWAY, None, "Health"),
    ("GET", "/readyz"): Operation(
        "Whether requests can be answered, and what is degraded", _GATEWAY, None, "Readiness"
    ),
    ("GET", "/metrics"): Operation("Prometheus metrics", _GATEWAY, None, "Text", reply_media="text/plain"),
    ("GET", "/openapi.json"): Operation("This document", _GATEWAY, None, "Any"),
    ("GET", "/docs"): Operation("This document, as a page", _GATEWAY, None, "Text", reply_media="text/html"),
    ("GET", "/docs.css"): Operation("The style of that page", _GATEWAY, None, "Text", reply_media="text/css"),
    ("POST", "/v1/moderations"): _passed("Classify a text or an image"),
    ("POST", "/v1/audio/speech"): _passed("Speak a text", media="application/octet-stream"),
    ("POST", "/v1/audio/transcriptions"): _passed("Transcribe speech", form=True),
    ("POST", "/v1/audio/translations"): _passed("Translate speech into English", form=True),
    ("POST", "/v1/images/generations"): _passed("Draw an image"),
    ("POST", "/v1/images/edits"): _passed("Edit an image", form=True),
    ("POST", "/v1/images/variations"): _passed("Vary an image", form=True),
    ("GET", "/v1/files"): _passed("List files", get=True),
    ("POST", "/v1/files"): _passed("Upload a file", form=True),
    ("GET", "/v1/files/{file_id}"): _passed("Show a file", get=True),
    ("DELETE", "/v1/files/{file_id}"): _passed("Delete a file", get=True),
    ("GET", "/v1/files/{file_id}/content"): _passed("Read a file", get=True, media="application/octet-stream"),
    ("POST", "/v1/uploads"): _passed("Begin a large upload"),
    ("POST", "/v1/uploads/{upload_id}/parts"): _passed("Upload a part", form=True),
    ("POST", "/v1/uploads/{upload_id}/complete"): _passed("End an upload"),
    ("POST", "/v1/uploads/{upload_id}/cancel"): _passed("Give an upload up"),
    ("GET", "/v1/batches"): _passed("List batches", get=True),
    ("POST", "/v1/batches"): _passed("Begin a batch"),
    ("GET", "/v1/batches/{batch_id}"): _passed("Show a batch", get=True),
    ("POST", "/v1/batches/{batch_id}/cancel"): _passed("Cancel a batch"),
    ("GET", "/admin/cache/stats"): Operation("What each scope of the cache holds", _CACHE, None, "Any"),
    ("GET", "/admin/cache/entries/{entry_id}"): Operation("Show a stored answer", _CACHE, None, "Any"),
    ("DELETE", "/admin/cache/entries/{entry_id}"): Operation(
        "Delete a stored answer and its copies", _CACHE, None, "Any"
    ),
    ("POST", "/admin/cache/purge"): Operation("Purge a surface, a tag or an entry", _CACHE, "Purge", "Any"),
    ("GET", "/admin/policies"): Operation("List what is in force and being tried", _POLICIES, None, "Any"),
    ("POST", "/admin/policies/lint"): Operation("Find mistakes in a policy", _POLICIES, "PolicyText", "Any"),
    ("POST", "/admin/policies/explain"): Operation("What a request would be decided by", _POLICIES, "Explain", "Any"),
    ("POST", "/admin/policies/jobs"): Operation("Start a replay or a plan", _POLICIES, "Job", "Any"),
    ("GET", "/admin/policies/jobs/{job}"): Operation("Show a job and its result", _POLICIES, None, "Any"),
    ("GET", "/admin/policies/{surface}"): Operation("Show a surface's policies", _POLICIES, None, "Any"),
    ("GET", "/admin/policies/{surface}/history"): Operation("List a surface's changes", _POLICIES, None, "Any"),
    ("GET", "/admin/policies/{surface}/blame"): Operation("Who set each line of a policy", _POLICIES, None, "Any"),
    ("GET", "/admin/policies/{surface}/versions/{version}"): Operation("Show a version's text", _POLICIES, None, "Any"),
    ("POST", "/admin/policies/{surface}/apply"): Operation("Apply a policy", _POLICIES, "Apply", "Any"),
    ("POST", "/admin/policies/{surface}/promote"): Operation("Promote a candidate", _POLICIES, "Change", "Any"),
    ("POST", "/admin/policies/{surface}/pause"): Operation("Pause a candidate", _POLICIES, "Change", "Any"),
    ("POST", "/admin/policies/{surface}/resume"): Operation("Resume a candidate", _POLICIES, "Change", "Any"),
    ("POST", "/admin/policies/{surface}/rollback"): Operation("Go back to a version", _POLICIES, "Change", "Any"),
    ("POST", "/admin/policies/{surface}/remove"): Operation("Remove a surface's policy", _POLICIES, "Change", "Any"),
}

PASSED: Final = tuple(key for key, operation in OPERATIONS.items() if operation.tag == _PASSED)
"""The known (method, path) pairs among those that are passed on; a service may have more below the same paths."""
_NOT_SECURED: Final = frozenset({"/", "/healthz", "/health", "/readyz", "/openapi.json", "/docs", "/docs.css"})


def document(title: str, served: Iterable[tuple[str, str]], *, keyed: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the served (method, path) pairs that OPERATIONS describes.

    `keyed`: requests need a key.
    """
    paths: dict[str, dict[str, Any]] = {}
    for method, path in served:
        if (operation := OPERATIONS.get((method, path))) is not None:
            paths.setdefault(path, {})[method.lower()] = _described(method, path, operation, keyed=keyed)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Every error is the schema `Error`.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "responses": {
                "Error": _reply("The request failed", "Error", "application/json")
                | {"headers": _headers({"all", "calls", "answers", "errors"})}
            },
            "parameters": {
                name.decode(): {"name": name.decode(), "in": "header", "description": header.text, "schema": _TEXT}
                for name, header in REQUEST_HEADERS.items()
                if header.text
            },
            "headers": {
                name.decode(): {"description": header.text, "schema": _TEXT}
                for name, header in REPLY_HEADERS.items()
                if header.text
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _described(method: str, path: str, operation: Operation, *, keyed: bool) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in _PARAMETER.findall(path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": _TEXT} for name, text in operation.query
    ]
    groups = {_ANSWER: {"all", "calls", "answers"}, _PASSED: {"all", "calls", "passed"}}.get(operation.tag, {"all"})
    parameters += [
        {"$ref": f"#/components/parameters/{name.decode()}"}
        for name, header in REQUEST_HEADERS.items()
        if header.text and header.at in groups
    ]
    reply = _reply("The reply", operation.reply or "Any", operation.reply_media)
    if operation.stream:
        reply["content"]["text/event-stream"] = {"schema": _TEXT}
    reply["headers"] = _headers(groups)
    name = re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_")
    described: dict[str, Any] = {
        "operationId": name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": parameters,
        "responses": {"200": reply, "default": {"$ref": "#/components/responses/Error"}},
    }
    if path == "/readyz":
        described["responses"]["503"] = _reply("Not ready", "Readiness", "application/json")
    if operation.body is not None:
        content = {operation.media: {"schema": _ref(operation.body)}}
        described["requestBody"] = {"required": operation.tag != _PASSED, "content": content}
    if keyed and path not in _NOT_SECURED:
        described["security"] = [{"key": []}, *([] if path.startswith("/admin") else [{"x-api-key": []}])]
    return described


def _headers(groups: set[str]) -> dict[str, Any]:
    """Return the headers of replies that any of the groups of operations has."""
    return {
        name.decode(): {"$ref": f"#/components/headers/{name.decode()}"}
        for name, header in REPLY_HEADERS.items()
        if header.text and header.at in groups
    }


def _reply(description: str, schema: str, media: str) -> dict[str, Any]:
    return {"description": description, "content": {media: {"schema": _ref(schema)}}}
