"""Describe the routes of embeddings and of what is passed on, for the OpenAPI document alone."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from gateway.http.openapi import ANSWERS, JSON, PASSED, described
from gateway.http.schemas import Count, Model, Some, TokenUsage
from gateway.parts.apis.schemas import Text, Tokens

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


class CreateEmbeddings(BaseModel):
    """OpenAI's request for embeddings."""

    model: Model
    input: Text | Tokens | Annotated[list[Text] | list[Tokens], Field(min_length=1, max_length=2048)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Some | None = None
    user: str | None = None


class Embedding(BaseModel):
    """One vector: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage


def described_services() -> list[APIRoute]:
    """Return the routes of embeddings, and those that are passed on."""
    embeddings = described("POST", "/v1/embeddings", "Embed texts", ANSWERS, CreateEmbeddings, EmbeddingList)
    passed = (
        described(method, path, summary, PASSED, body, media=media) for method, path, summary, body, media in _PASSED_ON
    )
    return [embeddings, *passed]
