"""Describe the routes of these APIs that are served without FastAPI, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from fastapi.routing import APIRoute

from gateway.http.openapi import ANSWERS, JSON, PASSED, Replies, described
from gateway.parts.apis import schemas

MESSAGES_ERROR: Final[Replies] = {"default": {"model": schemas.MessagesError, "description": "The request failed"}}
"""The reply that operations below /v1/messages may give, too."""
_FORM, _BYTES = "multipart/form-data", "application/octet-stream"

_PASSED_ON: Final = (
    ("POST", "/v1/moderations", "Classify a text or an image", JSON, JSON),
    ("POST", "/v1/audio/speech", "Speak a text", JSON, _BYTES),
    ("POST", "/v1/audio/transcriptions", "Transcribe speech", _FORM, JSON),
    ("POST", "/v1/audio/translations", "Translate speech into English", _FORM, JSON),
    ("POST", "/v1/images/generations", "Draw an image", JSON, JSON),
    ("POST", "/v1/images/edits", "Edit an image", _FORM, JSON),
    ("POST", "/v1/images/variations", "Vary an image", _FORM, JSON),
    ("GET", "/v1/files", "List files", None, JSON),
    ("POST", "/v1/files", "Upload a file", _FORM, JSON),
    ("GET", "/v1/files/{file_id}", "Show a file", None, JSON),
    ("DELETE", "/v1/files/{file_id}", "Delete a file", None, JSON),
    ("GET", "/v1/files/{file_id}/content", "Read a file", None, _BYTES),
    ("POST", "/v1/uploads", "Begin a large upload", JSON, JSON),
    ("POST", "/v1/uploads/{upload_id}/parts", "Upload a part", _FORM, JSON),
    ("POST", "/v1/uploads/{upload_id}/complete", "End an upload", JSON, JSON),
    ("POST", "/v1/uploads/{upload_id}/cancel", "Give an upload up", JSON, JSON),
    ("GET", "/v1/batches", "List batches", None, JSON),
    ("POST", "/v1/batches", "Begin a batch", JSON, JSON),
    ("GET", "/v1/batches/{batch_id}", "Show a batch", None, JSON),
    ("POST", "/v1/batches/{batch_id}/cancel", "Cancel a batch", JSON, JSON),
)
"""What is known of services: they may have more below the same paths."""


def described_routes() -> list[APIRoute]:
    """Return the routes of the pipeline and of embeddings, and those that are passed on."""
    response = (ANSWERS, schemas.CreateResponse, schemas.ResponseObject)
    texts = (ANSWERS, schemas.TextCompletionRequest, schemas.TextCompletion)
    message = (ANSWERS, schemas.CreateMessage)
    summary = "Answer prompts, as legacy text completions"
    return [
        described("POST", "/v1/completions", summary, *texts, stream=True),
        described("POST", "/v1/embeddings", "Embed texts", ANSWERS, schemas.CreateEmbeddings, schemas.EmbeddingList),
        described("POST", "/v1/responses", "Answer as a response", *response, stream=True),
        described("POST", "/responses", "Answer as a response", *response, stream=True),
        described("POST", "/v1/responses/compact", "Compact a conversation", ANSWERS, schemas.CreateResponse),
        described(
            "POST", "/v1/messages", "Answer as Anthropic's API does", *message, stream=True, failure=MESSAGES_ERROR
        ),
        *(
            described(method, path, summary, PASSED, body, media=media)
            for method, path, summary, body, media in _PASSED_ON
        ),
    ]
