"""Describe the bodies of the endpoints that are served without FastAPI, for the OpenAPI document alone.

They have the fields that the gateway itself reads or writes; others are passed on, and the model's to define. What a
request must be is checked by `gateway.request.body`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

_Count = Annotated[int, Field(ge=0)]
_Some = Annotated[int, Field(ge=1)]
_Object = dict[str, JsonValue]
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


class ChatUsage(BaseModel):
    prompt_tokens: _Count
    completion_tokens: _Count = 0
    total_tokens: _Count


class ChatMessage(BaseModel):
    role: str


class ChatRequest(BaseModel):
    """OpenAI's request for a chat completion. Fields that are not listed are passed on."""

    model: Model
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: Stream = False
    max_tokens: _Some | None = None
    max_completion_tokens: _Some | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    tools: list[_Object] | None = None
    response_format: _Object | None = None


class ChatAnswer(BaseModel):
    role: str
    content: str | None


class ChatChoice(BaseModel):
    index: _Count
    message: ChatAnswer
    finish_reason: str


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: _Count
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage | None = None


class Health(BaseModel):
    """That the process lives."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether requests can be answered; whom the gateway knows as its operator is told the details."""

    status: Literal["ready", "degraded", "unavailable", "draining"]
    degraded: Annotated[list[str], Field(description="What is degraded, in words.")] = []
