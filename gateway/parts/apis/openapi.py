"""Describe the routes of these APIs that are served without FastAPI, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from fastapi.routing import APIRoute

from gateway.http.openapi import ANSWERS, Replies, described
from gateway.parts.apis import schemas

MESSAGES_ERROR: Final[Replies] = {"default": {"model": schemas.MessagesError, "description": "The request failed"}}
"""The reply that operations below /v1/messages may give, too."""


def described_routes() -> list[APIRoute]:
    """Return the routes that answer through the pipeline."""
    response = (ANSWERS, schemas.CreateResponse, schemas.ResponseObject)
    texts = (ANSWERS, schemas.TextCompletionRequest, schemas.TextCompletion)
    message = (ANSWERS, schemas.CreateMessage)
    summary = "Answer prompts, as legacy text completions"
    return [
        described("POST", "/v1/completions", summary, *texts, stream=True),
        described("POST", "/v1/responses", "Answer as a response", *response, stream=True),
        described("POST", "/responses", "Answer as a response", *response, stream=True),
        described("POST", "/v1/responses/compact", "Compact a conversation", ANSWERS, schemas.CreateResponse),
        described(
            "POST", "/v1/messages", "Answer as Anthropic's API does", *message, stream=True, failure=MESSAGES_ERROR
        ),
    ]
