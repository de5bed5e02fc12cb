"""Describe the routes of these APIs that are served without FastAPI."""

from __future__ import annotations

from typing import Any, Final

from gateway.parts.apis import schemas
from gateway.steps import Described

MESSAGES_ERROR: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": schemas.MessagesError, "description": "The request failed"}
}
"""The reply that operations below /v1/messages may give, too."""


def described_routes() -> list[Described]:
    """Return the routes that answer through the pipeline."""
    tag, summary, anthropic = "Answers", "Answer as a response", "Answer as Anthropic's API does"
    response = (summary, tag, schemas.CreateResponse, schemas.ResponseObject, True)
    texts = (tag, schemas.TextCompletionRequest, schemas.TextCompletion, True)
    error = schemas.MessagesError
    return [
        Described("POST", "/v1/completions", "Answer prompts, as legacy text completions", *texts),
        Described("POST", "/v1/responses", *response),
        Described("POST", "/responses", *response),
        Described("POST", "/v1/responses/compact", "Compact a conversation", tag, schemas.CreateResponse),
        Described("POST", "/v1/messages", anthropic, tag, schemas.CreateMessage, stream=True, failure=error),
    ]
