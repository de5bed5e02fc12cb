"""Describe the routes of embeddings and of what is passed on."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from gateway.parts.apis import schemas
from gateway.steps import Described

_JSON, _FORM, _BYTES = "application/json", "multipart/form-data", "application/octet-stream"

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
_Several = Annotated[list[schemas.Text] | list[schemas.Tokens], Field(min_length=1, max_length=2048)]


class CreateEmbeddings(BaseModel):
    """OpenAI's request for embeddings."""

    model: schemas.Model
    input: schemas.Text | schemas.Tokens | _Several
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: schemas.Some | None = None
    user: str | None = None


class Embedding(BaseModel):
    """One vector: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: schemas.Count
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: schemas.TokenUsage


def described_services() -> list[Described]:
    """Return the routes of embeddings, and those that are passed on."""
    embeddings = Described("POST", "/v1/embeddings", "Embed texts", "Answers", CreateEmbeddings, EmbeddingList)
    passed = (
        Described(method, path, summary, "Passed on", body, media=media)
        for method, path, summary, body, media in _PASSED_ON
    )
    return [embeddings, *passed]
