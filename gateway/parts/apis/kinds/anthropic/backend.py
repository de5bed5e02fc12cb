"""Anthropic's Messages API: Anthropic itself, and the many others that offer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Unpack

import orjson

from gateway.backends.base import (
    BackendRequest,
    Completion,
    Event,
    InvalidReply,
    Response,
    Transport,
)
from gateway.backends.http_backend import (
    Common,
    HttpBackend,
    Prepared,
    SseReply,
    error_in_200,
    json_object,
)
from gateway.dialects.native import native_body, without_billing_line
from gateway.dialects.reasoning import Maker
from gateway.parts.apis.dialects.messages.backend import VERSION, messages_request, protocol_of
from gateway.parts.apis.dialects.messages.backend_replies import MessageChunks, completion_of
from gateway.parts.apis.dialects.messages.markers import SystemTexts, add_markers
from gateway.parts.apis.dialects.messages.models import facts_of_model
from gateway.parts.servers.chat_forms import translated_completion
from gateway.parts.servers.custom_tools import (
    CustomCalls,
    ToolNames,
    as_functions,
    plain_name,
    restore_names,
    with_names,
)

_MOST_HEADERS: Final = 64
_NO_NAMES: Final[ToolNames] = {}
_NO_CUSTOM: Final[frozenset[str]] = frozenset()
_WRONG_EVENT: Final = "an event that is not of the Messages API"
_NAMES: Final = {
    **dict.fromkeys(("thinking", "output_config", "output_config.effort"), "reasoning_effort"),
    "stop_sequences": "stop",
    "system[].cache_control": "messages[].cache_control",
}
"""Fields of this API, and what chat completions call them."""


class AnthropicBackend(HttpBackend):
    """One endpoint. `bills`: whether it is Anthropic's own, which is sent Claude Code's billing line."""

    dialect = "messages"

    def __init__(self, transport: Transport, *, bills: bool = False, **common: Unpack[Common]) -> None:
        self._with_protocol: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        super().__init__(transport, headers={"anthropic-version": VERSION}, **common)
        self._names = _NAMES
        self._facts = facts_of_model(self._model)
        self._bills = bills
        self._system_texts = SystemTexts()

    def rekey(self, key: str | None) -> None:
        """Send another key from now on, None for none."""
        self._with_protocol.clear()
        super().rekey(key)

    def _key_headers(self, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}

    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        native = native_body(request.native, "messages") is not None
        body, names, custom = request.body, _NO_NAMES, _NO_CUSTOM
        if not native:
            functions, custom = as_functions(body)
            body = {**body, **functions} if functions else body
            changed, names = with_names(body, plain_name)
            body = {**body, **changed} if changed else body
        made = messages_request(body, self._model, self._facts, self._maker, stream=stream, native=request.native)
        if native and not self._bills and "system" in made.body:
            made.body["system"] = without_billing_line(made.body["system"])
            if not made.body["system"]:
                del made.body["system"]
        if (ask := request.prompt_cache) is not None:
            ask.added = add_markers(made.body, ask.control, ask.least, self._system_texts, goes_on=ask.goes_on)
        return made.body, _MessageReader(self._model, self._maker, names, custom, native=native), made.dropped

    def _headers_for(self, request: BackendRequest) -> Mapping[str, str]:
        """Return the headers of a request: with the client's own version and betas, if it speaks the dialect."""
        protocol = protocol_of(request.body, request.native)
        if not protocol:
            return self._headers
        key = tuple(protocol.items())
        headers = self._with_protocol.get(key)
        if headers is None:
            headers = {**self._headers, **protocol}
            if len(self._with_protocol) < _MOST_HEADERS:
                self._with_protocol[key] = headers
        return headers


class _MessageReader:
    """Read the reply to one request."""

    def __init__(self, model: str, maker: Maker, names: ToolNames, custom: frozenset[str], *, native: bool) -> None:
        self._model = model
        self._maker = maker
        self._names = names
        self._custom = custom
        self._native = native

    def completion(self, raw: bytes) -> Completion:
        """Return the completion for a whole message."""
        message = json_object(raw)
        if message.get("type") == "error" or message.get("error"):
            raise error_in_200(message.get("error"), raw)
        if not (isinstance(stopped := message.get("stop_reason"), str) and stopped):
            raise InvalidReply("a reply without a stop_reason, so perhaps not whole")
        content = message["content"] = message.get("content") or []  # null where thinking took all tokens
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise InvalidReply("a reply without content")
        try:
            value = completion_of(message, self._maker, native=self._native)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise InvalidReply("a reply that is not of the Messages API") from None
        if self._names:
            restore_names(value["choices"][0]["message"], self._names)
        if self._custom:
            CustomCalls(self._custom).whole(value["choices"][0]["message"])
        return translated_completion(value, self._model)

    def stream(self, response: Response) -> SseReply:
        """Return the chunks of a stream."""
        custom = CustomCalls(self._custom) if self._custom else None
        return _MessageStream(response, MessageChunks(self._maker, native=self._native), self._names, custom)


class _MessageStream(SseReply):
    def __init__(
        self,
        response: Response,
        chunks: MessageChunks,
        names: ToolNames = _NO_NAMES,
        custom: CustomCalls | None = None,
    ) -> None:
        super().__init__(response)
        self._custom = custom
        self._chunks = chunks
        self._names = names

    def _take(self, value: dict[str, Any], data: bytes, events: list[Event]) -> None:
        """Take one event: chunks for all but pings. Raises BackendError for an error, InvalidReply for a wrong one."""
        if value.get("type") == "error":
            raise error_in_200(value.get("error"), data)
        try:
            chunks = self._chunks.add(value)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise InvalidReply(_WRONG_EVENT) from None
        for chunk in chunks if self._names else ():
            for choice in chunk["choices"]:
                restore_names(choice["delta"], self._names)
        if (custom := self._custom) is not None:
            for chunk in chunks:
                for choice in chunk["choices"]:
                    custom.chunk(choice)
        events += [Event(orjson.dumps(chunk), chunk) for chunk in chunks]
        self.done_seen = self._chunks.finished
