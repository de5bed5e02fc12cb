"""The OpenAI dialect of chat completions: llama.cpp, vLLM, Ollama, OpenAI and many others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any, Self, Unpack

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
from gateway.backends.call_reasoning import NOTED, AnswerNotes, CallMemory, with_reasoning
from gateway.backends.http_backend import (
    Common,
    HttpBackend,
    Prepare,
    Prepared,
    ReplyReader,
    SseReply,
    error_in_200,
    json_object,
)
from gateway.chat.content_parts import join_parts
from gateway.chat.normalised import DeltaNormaliser, normalise
from gateway.chat.usage import standardise, usage_of
from gateway.dialects.chat_reasoning import (
    MAY_HOLD_REASONING,
    TranslatedReasoning,
    checks_calls,
    own_reasoning,
    seal_reasoning,
    with_joined_calls,
    with_short_ids,
    with_signed_calls,
)
from gateway.dialects.client_paths import client_path
from gateway.dialects.custom_tools import CustomCalls, as_functions, has_custom
from gateway.dialects.native import NATIVE, lost_fields
from gateway.dialects.readable_reasoning import ReasoningName
from gateway.dialects.reasoning import Maker
from gateway.dialects.system_text import names_of_systems, with_one_system
from gateway.dialects.tool_names import ToolNames, restore_names, with_names

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
    sends it, and refuses the question. `calls` remembers the reasoning of tool calls for clients that do not.
    `custom_tools`: whether it knows tools that take a free text; if not, it is sent functions instead.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        stores: bool = True,
        asks_usage: bool = True,
        one_system: bool = False,
        calls: CallMemory | None = None,
        custom_tools: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(transport, **common)
        self._calls = calls
        self._custom_tools = custom_tools
        self._reasoning_name = ReasoningName()
        self._stores = stores
        self._asks_usage = asks_usage
        self._one_system = one_system
        self._reader = _ChatReader(self._model, self._maker)
        self._checks_calls = checks_calls(self._model)

    async def _send(
        self, request: BackendRequest, *, stream: bool, prepare: Prepare | None = None
    ) -> tuple[Response, ReplyReader, tuple[str, ...]]:
        """See `HttpBackend._send`. What the messages lack of this model's reasoning is put back first.

        A server that refuses calls without reasoning is asked again with some text in its place, and from then on.
        """
        if request.conversation and self._calls is not None:
            space = f"{self._maker.name}.{request.conversation}"
            if (made := await with_reasoning(request.body["messages"], self._calls, space)) is not None:
                request = replace(request, body={**request.body, "messages": made})
        try:
            return await super()._send(request, stream=stream, prepare=prepare)
        except BadStatus as refused:
            if not self._reasoning_name.learn(refused.told):
                raise
        return await super()._send(request, stream=stream, prepare=prepare)

    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        payload = {**request.body, "model": self._model}
        native = request.native
        reader = self._reader
        custom: frozenset[str] = frozenset()
        tools = payload.get("tools")
        if not self._custom_tools and (native is not None or (tools and has_custom(tools))):
            functions, custom = as_functions(payload)
            payload.update(functions)
            reader = _ChatReader(self._model, self._maker, custom=custom)
        if native is not None:
            payload["messages"] = with_joined_calls(payload["messages"]) or payload["messages"]
            shorter, names = with_names(payload)
            payload.update(shorter)
            reader = _ChatReader(self._model, self._maker, native.dialect, names, custom)
        if request.conversation and self._calls is not None:
            reader = reader.noting(self._calls, f"{self._maker.name}.{request.conversation}", self._reasoning_name)
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
        if self._reasoning_name.name:
            payload["messages"] = self._reasoning_name.sent(payload["messages"])
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

    def __init__(
        self,
        model: str,
        maker: Maker,
        dialect: str | None = None,
        names: ToolNames | None = None,
        custom: frozenset[str] = frozenset(),
    ) -> None:
        self._model = model
        self._maker = maker
        self._dialect = dialect
        self._names = names or {}
        self._custom = custom
        self._kept: _ReplyNotes | None = None

    def noting(self, memory: CallMemory, space: str, name: ReasoningName) -> Self:
        """Return a reader of one reply that notes the reasoning of its calls in this space, and how it is called."""
        made = type(self)(self._model, self._maker, self._dialect, self._names, self._custom)
        made._kept = _ReplyNotes(memory, space, name)
        return made

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
        if self._kept is not None and isinstance(first := choices[0].get("message"), dict):
            self._kept.add(first)
            self._kept.called(first)
            self._kept.over()
        for choice in choices:
            message = choice.get("message")
            if not isinstance(message, dict):
                raise InvalidReply(_NO_CHOICE)
            if not choice.get("finish_reason"):
                raise InvalidReply("a reply without a finish_reason, so perhaps not whole")
            changed = _made_ours(message, self._maker, translated, whole=True) or changed
            if self._names:
                changed = restore_names(message, self._names) or changed
            if self._custom:
                changed = CustomCalls(self._custom).whole(message) or changed
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
        custom = CustomCalls(self._custom) if self._custom else None
        return _ChatStream(response, self._maker, self._translated(), self._names, self._kept, custom)


class _ChatStream(SseReply):
    def __init__(
        self,
        response: Response,
        maker: Maker,
        translated: TranslatedReasoning | None,
        names: ToolNames,
        kept: _ReplyNotes | None,
        custom: CustomCalls | None,
    ) -> None:
        super().__init__(response)
        self._names = names
        self._maker = maker
        self._translated = translated
        self._kept = kept
        self._custom = custom
        self._watched = _MAY_CHANGE
        """Keys of which a delta must have one to be looked at."""
        self._watch()
        self._normaliser: DeltaNormaliser | None = None
        self._last: dict[str, Any] = {}
        """The last chunk before a finish reason that is held."""

    def close(self) -> None:
        """See `EventStream.close`."""
        super().close()
        if self._kept is not None:
            self._kept.over()

    def _watch(self) -> None:
        if self._translated is not None:
            self._watched = _MAY_CHANGE | self._translated.watched
        if self._kept is not None:
            self._watched |= NOTED

    def _change(self, delta: dict[str, Any], *, first: bool) -> bool:
        """Change a delta in place; return whether anything had to be changed. `first`: it is of the first choice."""
        if self._kept is not None and first:
            self._kept.add(delta)
        changed = _made_ours(delta, self._maker, self._translated)
        if self._translated is not None:
            self._watch()
        return changed

    def _take(self, value: dict[str, Any], data: bytes, events: list[Event]) -> None:  # noqa: PLR0912  (per chunk)
        """Take the event, its bytes unchanged unless something must be corrected. Raises InvalidReply."""
        if value.get("error"):
            raise error_in_200(value["error"], data)
        choices = value.get("choices")
        if self._normaliser is not None and self._normaliser.holds and not choices:
            self._end(events)
        if choices is None and "usage" not in value and ("message" in value or "detail" in value):
            raise error_in_200(value, data)  # the data of an `event: error`
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
                if type(delta.get("content")) is list:
                    changed = join_parts(delta) or changed
                calls_tools = calls_tools or not _CALLS.isdisjoint(delta)
                if not self._watched.isdisjoint(delta):
                    changed = self._change(delta, first=not choice.get("index")) or changed
            elif delta is not None:
                raise InvalidReply(_NO_CHOICES)
        if unusual or calls_tools:
            changed = self._mend(choices) or changed
        events.append(event_of((orjson.dumps(value) if changed else data, value)))
        if self._normaliser is not None and self._normaliser.holds:
            self._last = value

    def _ended_early(self) -> bool:
        return self._normaliser is not None and self._normaliser.holds

    def _end(self, events: list[Event]) -> None:
        """Append the finish reasons that came beside a piece of the answer, in a chunk of their own."""
        if self._normaliser is not None and (choices := self._normaliser.end()):
            value = {**self._last, "choices": choices}
            value.pop("usage", None)
            if self._translated is not None:
                self._end_reasoning(choices)
            if (custom := self._custom) is not None:
                for choice in choices:
                    custom.chunk(choice)
            events.append(event_of((orjson.dumps(value), value)))

    def _mend(self, choices: list[dict[str, Any]]) -> bool:
        """Bring tool calls and ends into form; return whether anything had to be changed."""
        if self._normaliser is None:
            self._normaliser = DeltaNormaliser()
        changed = self._normaliser.mend(choices)
        for choice in choices if self._names else ():
            changed = restore_names(choice.get("delta") or {}, self._names) or changed
        if (custom := self._custom) is not None:
            for choice in choices:
                changed = custom.chunk(choice) or changed
        if self._kept is not None and choices:
            self._kept.called(choices[0].get("delta") or {})
        if self._translated is not None:
            changed = self._end_reasoning(choices) or changed
        return changed

    def _end_reasoning(self, choices: list[dict[str, Any]]) -> bool:
        """Seal reasoning that nothing has followed where its choice ends; return whether there was any."""
        ended = False
        for choice in choices:
            if self._translated is not None and choice.get("finish_reason") and not choice.get("index"):
                delta = choice["delta"] = choice.get("delta") or {}
                ended = self._translated.turn(delta, ends=True) or ended
        return ended


class _ReplyNotes:
    """Note one reply's reasoning for the requests that follow it."""

    def __init__(self, memory: CallMemory, space: str, name: ReasoningName) -> None:
        self._memory = memory
        self._space = space
        self._name = name
        self._notes = AnswerNotes()
        self.called = self._notes.called

    def add(self, holder: Mapping[str, Any]) -> None:
        """Note what a message or delta has of reasoning."""
        self._name.see(holder)
        self._notes.add(holder)

    def over(self) -> None:
        """Keep what was noted, once."""
        self._notes.keep(self._memory, self._space)


def _made_ours(
    holder: dict[str, Any], maker: Maker, translated: TranslatedReasoning | None, *, whole: bool = False
) -> bool:
    """Change what a message or delta of a backend may not hold as it came, in place; return whether there was any."""
    changed = holder.pop(NATIVE, holder) is not holder  # only the gateway's own backends may give an answer's own form
    if translated is not None:
        changed = translated.turn(holder, ends=whole) or changed
    return seal_reasoning(holder, maker) or changed
