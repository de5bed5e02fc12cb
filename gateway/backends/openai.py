"""The OpenAI dialect of chat completions: llama.cpp, vLLM, Ollama, OpenAI and many others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final, Unpack

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
from gateway.backends.http_backend import (
    Common,
    HttpBackend,
    Prepared,
    SseReply,
    error_in_200,
    json_object,
)
from gateway.backends.server_forms import ChatForms, ChunkMender, ReplyForms
from gateway.chat.usage import usage_of
from gateway.dialects.native import NATIVE, client_path, lost_fields
from policies.value_type import from_fields

_completion: Final = from_fields(Completion)
_INDEX = (int, NoneType)
_CALLS = frozenset({"tool_calls", "function_call"})
_LLAMAS = "timings"
"""A member that only llama.cpp's replies have."""
_NO_CHOICE = "a reply without choices"
_WATCHED = frozenset({NATIVE})
"""Keys of a delta that has to be changed, whatever the server."""
_NO_CHOICES = "an event whose choices are no choices"


class OpenAIBackend(HttpBackend):
    """One endpoint. Unknown fields are passed on.

    `stores`: whether the server keeps completions where the client asks for that. `asks_usage`: whether a stream's
    usage has to be asked for; Mistral's API sends it, and refuses the question. `forms`: what the server wants
    otherwise; None for plain chat completions.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        stores: bool = True,
        asks_usage: bool = True,
        forms: ChatForms | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(transport, **common)
        self._stores = stores
        self._asks_usage = asks_usage
        self._forms = forms
        self._reader = _ChatReader(self._model, None if forms is None else forms.usual, self._heard)

    async def _restored(self, request: BackendRequest) -> BackendRequest:
        forms = self._forms
        return request if forms is None or not forms.remembers else await forms.restored(request)

    def _learns(self, refusal: Mapping[str, Any]) -> bool:
        return self._forms is not None and self._forms.learns(refusal)

    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        payload = {**request.body, "model": self._model}
        if request.ask_logprobs:
            # Always send a number: without one llama.cpp returns twenty alternatives per token.
            payload["logprobs"] = True
            payload["top_logprobs"] = request.alternatives
        if stream:
            payload["stream"] = True
            payload["stream_options"] = {**(payload.get("stream_options") or {}), "include_usage": True}
        native, reader = request.native, self._reader
        dropped = () if native is None else lost_fields(native, "chat")
        if not self._asks_usage and (options := payload.pop("stream_options", None)):
            dropped += tuple(f"stream_options.{name}" for name in options if name != "include_usage" and options[name])
        if "store" in payload and not self._stores and payload.pop("store"):
            dropped = (*dropped, "store")
        if self._forms is not None:
            reply, lost = self._forms.prepare(payload, request)
            dropped = (*dropped, *lost)
            if reply is not None:
                reader = _ChatReader(self._model, reply, self._heard)
        if request.prompt_cache is not None:
            request.prompt_cache.add_fields(payload)
        return payload, reader, dropped

    def _heard(self) -> None:
        """Note that the server is llama.cpp, by what its whole replies alone have."""
        self._loses_ends = True

    def _named(self, error: BadStatus, request: BackendRequest) -> BadStatus:
        param = error.told.get("param")
        if request.native is None or not error.about_the_request or not isinstance(param, str):
            return error
        return error.with_param(client_path(request.native, param))


class _ChatReader:
    """Read replies of one model in the dialect of chat completions; `forms` changes those of one server.

    `is_llama` is called for each whole reply of llama.cpp's.
    """

    def __init__(self, model: str, forms: ReplyForms | None, is_llama: Callable[[], None]) -> None:
        self._model = model
        self._is_llama = is_llama
        self._forms = forms

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
        if _LLAMAS in value:
            self._is_llama()
        changed, sound = False, True
        if self._forms is not None:
            changed = self._forms.whole(value)
        for choice in choices:
            message = choice.get("message")
            if not isinstance(message, dict):
                raise InvalidReply(_NO_CHOICE)
            if not (isinstance(finish := choice.get("finish_reason"), str) and finish):
                raise InvalidReply("a reply without a finish_reason, so perhaps not whole")
            # Only the gateway's own backends may give an answer's own form.
            changed = message.pop(NATIVE, message) is not message or changed
        usage = None
        if value.get("usage") is not None:
            usage = usage_of(value)
            sound = usage is not None and not (usage.estimated and usage.incomplete)
            if usage is None:
                value["usage"] = None  # clients add impossible token counts up
                changed = True
        return _completion((orjson.dumps(value) if changed else raw, value, sound, (), usage))

    def stream(self, response: Response) -> SseReply:
        """Return the chunks of a stream."""
        return _ChatStream(response, self._forms)


class _ChatStream(SseReply):
    def __init__(self, response: Response, forms: ReplyForms | None) -> None:
        super().__init__(response)
        self._forms = forms
        self._watched = _WATCHED if forms is None else forms.watched
        """Keys of which a delta must have one to be looked at."""
        self._mender: ChunkMender | None = None
        self._last: dict[str, Any] = {}
        """The last chunk before a finish reason that is held."""
        self._takes: Callable[[Event], bool] | None = None

    def offer(self, take: Callable[[Event], bool]) -> None:
        """See `EventStream.offer`."""
        self._takes = take
        response: Any = self._response
        if hasattr(response, "taker"):
            response.taker = self._taken

    def _taken(self, chunk: bytes) -> bool:
        """Return whether who takes plain events has taken this chunk; it has not where it is anything else."""
        parser, size = self._parser, len(chunk) - 2
        if chunk[:6] != b"data: " or chunk[-1:] != b"\n" or chunk.find(b"\n") != size or b"\r" in chunk:
            return False
        if parser.parts or parser.after_cr or self._takes is None or (self._mender is not None and self._mender.holds):
            return False
        data = chunk[6:size]
        try:
            value = orjson.loads(data)
            (choice,) = value["choices"]
            delta, index = choice["delta"], choice.get("index")
            plain = type(delta["content"]) is str and self._watched.isdisjoint(delta) and _CALLS.isdisjoint(delta)
            if (logprobs := choice.get("logprobs")) and "logprob" in logprobs:
                return False
            finish = choice.get("finish_reason") or choice.get("error") or value.get("error")
        except (AttributeError, LookupError, TypeError, ValueError):
            return False
        if not plain or finish or type(index) not in _INDEX or value.get("usage") is not None:
            return False
        return self._takes(event_of((data, value)))

    def close(self) -> None:
        """See `EventStream.close`."""
        self._takes = None
        super().close()
        if self._forms is not None and self._forms.mends:
            self._forms.over()

    def _change(self, delta: dict[str, Any], *, first: bool) -> bool:
        """Change a delta in place; return whether anything had to be changed. `first`: it is of the first choice."""
        changed = delta.pop(NATIVE, delta) is not delta
        if self._forms is not None:
            changed = self._forms.change(delta, first=first) or changed
            self._watched = self._forms.watched
        return changed

    def _take(self, value: dict[str, Any], data: bytes, events: list[Event]) -> None:  # noqa: PLR0912  (per chunk)
        """Take the event, its bytes unchanged unless something must be corrected. Raises InvalidReply."""
        if value.get("error"):
            raise error_in_200(value["error"], data)
        choices = value.get("choices")
        if self._mender is not None and self._mender.holds and not choices:
            self._end(events)
        if choices is None and "usage" not in value and ("message" in value or "detail" in value):
            raise error_in_200(value, data)  # the data of an `event: error`
        if choices is None:
            # A chunk with the usage alone: clients expect the `choices` list, even if empty.
            value["choices"] = []
            if self._forms is not None:
                self._forms.standardise(value)
            events.append(event_of((orjson.dumps(value), value)))
            return
        if not isinstance(choices, list):
            raise InvalidReply(_NO_CHOICES)
        # SSE needs a `data:` on each line of JSON; re-encoded on one line it needs only one.
        changed = b"\n" in data
        if "usage" in value and self._forms is not None:
            changed = self._forms.standardise(value) or changed
        unusual = calls_tools = False
        for choice in choices:
            if not isinstance(choice, dict) or type(choice.get("index")) not in _INDEX:
                raise InvalidReply(_NO_CHOICES)
            logprobs = choice.get("logprobs")
            if logprobs and type(logprobs) is dict and "logprob" in logprobs:  # mistral.rs: the one entry itself
                choice["logprobs"], changed = {"content": [logprobs], "refusal": None}, True
            delta = choice.get("delta")
            # Texts, nearly all of a stream, are looked at here only: a call for each would cost as much as this loop.
            unusual = unusual or choice.get("finish_reason") is not None or choice.get("error") is not None
            if type(delta) is dict:
                if type(delta.get("content")) is list and self._forms is not None:
                    changed = self._forms.join(delta) or changed
                calls_tools = calls_tools or not _CALLS.isdisjoint(delta)
                if not self._watched.isdisjoint(delta):
                    changed = self._change(delta, first=not choice.get("index")) or changed
            elif delta is not None:
                raise InvalidReply(_NO_CHOICES)
        if (unusual or calls_tools) and self._forms is not None:
            if self._mender is None:
                self._mender = self._forms.mender()
            changed = self._mender.mend(choices) or changed
        events.append(event_of((orjson.dumps(value) if changed else data, value)))
        if self._mender is not None and self._mender.holds:
            self._last = value

    def _ended_early(self) -> bool:
        return self._mender is not None and self._mender.holds

    def _end(self, events: list[Event]) -> None:
        """Append the finish reasons that came beside a piece of the answer, in a chunk of their own."""
        if self._mender is not None and (choices := self._mender.end()):
            value = {**self._last, "choices": choices}
            value.pop("usage", None)
            events.append(event_of((orjson.dumps(value), value)))
