"""The OpenAI dialect of chat completions: llama.cpp, vLLM, Ollama, OpenAI and many others."""

from __future__ import annotations

from types import NoneType
from typing import Any, Unpack

import orjson

from gateway.backends.base import (
    BackendRequest,
    BadStatus,
    Completion,
    Event,
    InvalidReply,
    Response,
    Transport,
    event_of,
)
from gateway.backends.blame import BYTE_ORDER_MARK
from gateway.backends.http_backend import Common, HttpBackend, Prepared, SseReply, error_in_200, json_object
from gateway.chat.normalised import DeltaNormaliser, normalise
from gateway.chat.usage import standardise, usage_of
from gateway.dialects.chat_reasoning import (
    MAY_HOLD_REASONING,
    TranslatedReasoning,
    checks_calls,
    own_reasoning,
    seal_reasoning,
    with_short_ids,
    with_signed_calls,
)
from gateway.dialects.client_paths import client_path
from gateway.dialects.native import NATIVE, lost_fields
from gateway.dialects.reasoning import Maker
from gateway.dialects.system_text import names_of_systems, with_one_system
from gateway.dialects.tool_names import ToolNames, restore_names, with_short_names

_INDEX = (int, NoneType)
_CALLS = frozenset({"tool_calls", "function_call"})
_NO_CHOICE = "a reply without choices"
_MAY_CHANGE = MAY_HOLD_REASONING | {NATIVE}
"""Keys of a delta that may have to be changed."""
_NO_CHOICES = "an event whose choices are no choices"


class OpenAIBackend(HttpBackend):
    """One endpoint. Unknown fields are passed on.

    `stores`: whether the server keeps completions where the client asks for that. `one_system`: whether it knows one
    system message only, at the beginning. `asks_usage`: whether a stream's usage has to be asked for; Mistral's API
    sends it, and refuses the question.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        stores: bool = True,
        asks_usage: bool = True,
        one_system: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(transport, **common)
        self._stores = stores
        self._asks_usage = asks_usage
        self._one_system = one_system
        self._reader = _ChatReader(self._model, self._maker)
        self._checks_calls = checks_calls(self._model)

    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        payload = {**request.body, "model": self._model}
        native = request.native
        reader = self._reader
        if native is not None:
            shorter, names = with_short_names(payload)
            payload.update(shorter)
            reader = _ChatReader(self._model, self._maker, native.dialect, names)
        if request.ask_logprobs:
            # Always send a number: without one llama.cpp returns twenty alternatives per token.
            payload["logprobs"] = True
            payload["top_logprobs"] = request.alternatives
        if stream:
            payload["stream"] = True
            payload["stream_options"] = {**(payload.get("stream_options") or {}), "include_usage": True}
        dropped = lost_fields(native, "chat")
        if not self._asks_usage and (options := payload.pop("stream_options", None)):
            dropped += tuple(f"stream_options.{name}" for name in options if name != "include_usage" and options[name])
        if "store" in payload and not self._stores and payload.pop("store"):
            dropped = (*dropped, "store")
        if self._one_system and (made := with_one_system(payload["messages"])) is not None:
            dropped += names_of_systems(payload["messages"])
            payload["messages"] = made
        own = own_reasoning(payload["messages"], self._maker)
        if own is not None:
            payload["messages"] = own[0]
            dropped = (*dropped, "reasoning") if own[1] else dropped
        payload["messages"] = with_short_ids(payload["messages"]) or payload["messages"]
        if self._checks_calls:
            payload["messages"] = with_signed_calls(payload["messages"]) or payload["messages"]
        if request.prompt_cache is not None:
            request.prompt_cache.add_fields(payload)
        return payload, reader, dropped

    def _named(self, error: BadStatus, request: BackendRequest) -> BadStatus:
        param = error.told.get("param")
        if request.native is None or not error.about_the_request or not isinstance(param, str):
            return error
        return error.with_param(client_path(request.native, param))


class _ChatReader:
    """Read replies of one model in the dialect of chat completions.

    `dialect` is the client's, if it is another, and `names` are its names of tools that were cut.
    """

    def __init__(self, model: str, maker: Maker, dialect: str | None = None, names: ToolNames | None = None) -> None:
        self._model = model
        self._maker = maker
        self._dialect = dialect
        self._names = names or {}

    def _translated(self) -> TranslatedReasoning | None:
        if self._dialect is None:
            return None
        return TranslatedReasoning(self._maker, calls=self._dialect == "messages")

    def completion(self, raw: bytes) -> Completion:
        """Return the completion with missing members filled in; its bytes stay unchanged if none is missing."""
        raw = raw.removeprefix(BYTE_ORDER_MARK)
        value = json_object(raw)
        if value.get("error"):
            raise error_in_200(value["error"], raw)
        choices = value.get("choices")
        if not isinstance(choices, list) or not choices:
            raise InvalidReply(_NO_CHOICE)
        for choice in choices:
            if not isinstance(choice, dict):
                raise InvalidReply(_NO_CHOICE)
        changed, sound = normalise(value, self._model), True
        translated = self._translated()
        for choice in choices:
            message = choice.get("message")
            if not isinstance(message, dict):
                raise InvalidReply(_NO_CHOICE)
            if not choice.get("finish_reason"):
                raise InvalidReply("a reply without a finish_reason, so perhaps not whole")
            changed = _made_ours(message, self._maker, translated) or changed
            if self._names:
                changed = restore_names(message, self._names) or changed
        changed = standardise(value) or changed
        usage = None
        if value.get("usage") is not None:
            usage = usage_of(value)
            sound = usage is not None and not usage.incomplete
            if usage is None:
                value["usage"] = None  # clients add impossible token counts up
                changed = True
        return Completion(orjson.dumps(value) if changed else raw, value, sound, (), usage)

    def stream(self, response: Response) -> SseReply:
        """Return the chunks of a stream."""
        return _ChatStream(response, self._maker, self._translated(), self._names)


class _ChatStream(SseReply):
    def __init__(
        self, response: Response, maker: Maker, translated: TranslatedReasoning | None, names: ToolNames
    ) -> None:
        super().__init__(response)
        self._names = names
        self._maker = maker
        self._translated = translated
        self._normaliser: DeltaNormaliser | None = None

    def _take(self, value: dict[str, Any], data: bytes, events: list[Event]) -> None:
        """Take the event, its bytes unchanged unless something must be corrected. Raises InvalidReply."""
        if value.get("error"):
            raise error_in_200(value["error"], data)
        choices = value.get("choices")
        if choices is None:
            # A chunk with the usage alone: clients expect the `choices` list, even if empty.
            value["choices"] = []
            standardise(value)
            events.append(event_of((orjson.dumps(value), value)))
            return
        if not isinstance(choices, list):
            raise InvalidReply(_NO_CHOICES)
        # SSE needs a `data:` on each line of JSON; re-encoded on one line it needs only one.
        changed = ("usage" in value and standardise(value)) or b"\n" in data
        unusual = calls_tools = False
        for choice in choices:
            if not isinstance(choice, dict) or type(choice.get("index")) not in _INDEX:
                raise InvalidReply(_NO_CHOICES)
            delta = choice.get("delta")
            # Texts, nearly all of a stream, are looked at here only: a call for each would cost as much as this loop.
            unusual = unusual or choice.get("finish_reason") is not None or choice.get("error") is not None
            if type(delta) is dict:
                calls_tools = calls_tools or not _CALLS.isdisjoint(delta)
                if not _MAY_CHANGE.isdisjoint(delta):
                    changed = _made_ours(delta, self._maker, self._translated) or changed
            elif delta is not None:
                raise InvalidReply(_NO_CHOICES)
        if unusual or calls_tools:
            if self._normaliser is None:
                self._normaliser = DeltaNormaliser()
            changed = self._normaliser.mend(choices) or changed
            for choice in choices if self._names else ():
                changed = restore_names(choice.get("delta") or {}, self._names) or changed
        events.append(event_of((orjson.dumps(value) if changed else data, value)))


def _made_ours(holder: dict[str, Any], maker: Maker, translated: TranslatedReasoning | None) -> bool:
    """Change what a message or delta of a backend may not hold as it came, in place; return whether there was any."""
    changed = holder.pop(NATIVE, holder) is not holder  # only the gateway's own backends may give an answer's own form
    if translated is not None:
        changed = translated.turn(holder) or changed
    return seal_reasoning(holder, maker) or changed
