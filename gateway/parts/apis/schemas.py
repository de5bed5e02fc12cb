"""Describe the bodies of these APIs, for the OpenAPI document alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Choices = Annotated[int, Field(ge=1, le=128)]
Object = dict[str, JsonValue]
_NAMES = "A surface, one of its aliases, `auto` for the default surface, or `tier:NAME`."
Model = Annotated[str, Field(min_length=1, max_length=256, description=_NAMES)]
Stream = Annotated[bool, Field(description="Server-sent events in place of JSON.")]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Count], Field(min_length=1)]


class TokenUsage(BaseModel):
    prompt_tokens: Count
    completion_tokens: Count = 0
    total_tokens: Count


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
