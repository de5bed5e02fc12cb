"""Describe the bodies of the endpoints that are served without FastAPI, for the OpenAPI document alone.

They have the fields that the gateway itself reads or writes; others are passed on, and the model's to define. What a
request must be is checked by `gateway.request.body`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Choices = Annotated[int, Field(ge=1, le=128)]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Count], Field(min_length=1)]
Object = dict[str, JsonValue]
_NAMES = "A surface, one of its aliases, `auto` for the default surface, or `tier:NAME`."
Model = Annotated[str, Field(min_length=1, max_length=256, description=_NAMES)]
Stream = Annotated[bool, Field(description="Server-sent events in place of JSON.")]


class _ErrorFields(BaseModel):
    message: str
    type: str
    param: Annotated[str | None, Field(description="The field or header that is wrong.")]
    code: str | None


class Error(BaseModel):
    """OpenAI's error envelope."""

    error: _ErrorFields


class _MessagesErrorFields(BaseModel):
    type: str
    message: str
    param: str = ""
    code: str = ""


class MessagesError(BaseModel):
    """Anthropic's error envelope: below /v1/messages, and elsewhere for who sends `anthropic-version`."""

    type: Literal["error"]
    error: _MessagesErrorFields
    request_id: str


class TokenUsage(BaseModel):
    prompt_tokens: Count
    completion_tokens: Count = 0
    total_tokens: Count


class ChatMessage(BaseModel):
    role: str


class ChatRequest(BaseModel):
    """OpenAI's request for a chat completion. Fields that are not listed are passed on."""

    model: Model
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: Stream = False
    max_tokens: Some | None = None
    max_completion_tokens: Some | None = None
    n: Choices | None = None
    stop: str | list[str] | None = None
    tools: list[Object] | None = None
    response_format: Object | None = None


class ChatAnswer(BaseModel):
    role: str
    content: str | None


class ChatChoice(BaseModel):
    index: Count
    message: ChatAnswer
    finish_reason: str


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage | None = None


class TextCompletionRequest(BaseModel):
    """OpenAI's request for legacy text completions."""

    model: Model
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=128)] | Tokens | list[Tokens] = Field(
        description="Tokens only where a service has this endpoint (`endpoints.completions` in the policy)."
    )
    stream: Stream = False
    max_tokens: Some | None = 16
    n: Choices | None = None
    best_of: Choices | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stop: str | list[str] | None = None


class TextChoice(BaseModel):
    text: str
    index: Count
    logprobs: Object | None
    finish_reason: str | None


class TextCompletion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[TextChoice]
    usage: TokenUsage | None = None


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


class CreateResponse(BaseModel):
    """OpenAI's request for a response."""

    model: Model
    input: str | list[Object] | None = None
    stream: Stream = False
    store: bool = True


class ResponseObject(BaseModel):
    id: str
    object: Literal["response"]


class CreateMessage(BaseModel):
    """Anthropic's request for a message."""

    model: Model
    messages: list[Object]
    max_tokens: int | None = None
    stream: Stream = False


class Health(BaseModel):
    """That the process lives."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether requests can be answered; whom the gateway knows as its operator is told the details."""

    status: Literal["ready", "degraded", "unavailable", "draining"]
    degraded: Annotated[list[str], Field(description="What is degraded, in words.")] = []
