"""OpenAI's Responses API as a backend: requests and replies of chat completions, translated on the way.

The newest hosted models take function tools together with a reasoning effort only here.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final, Unpack

import orjson

from gateway.backends.base import (
    BackendError,
    BackendRequest,
    BadStatus,
    Completion,
    ContextExceeded,
    Event,
    InvalidReply,
    Response,
    Transport,
)
from gateway.backends.blame import says_too_long, status_in
from gateway.backends.http_backend import (
    Common,
    HttpBackend,
    Prepare,
    Prepared,
    ReplyReader,
    SseReply,
    json_object,
)
from gateway.dialects.native import Native, client_path, client_paths, lost_fields, native_body
from gateway.dialects.reasoning import NOBODY, Maker
from gateway.parts.apis.dialects.responses.backend import ResponsesRequest, request_of
from gateway.parts.apis.dialects.responses.chunks import ResponseChunks
from gateway.parts.apis.dialects.responses.input_items import Unsupported
from gateway.parts.apis.dialects.responses.reading import ENCRYPTED
from gateway.parts.apis.dialects.responses.reply import NotAResponse, ReplyFailed, chat_answer
from gateway.parts.apis.kinds.responses.one_instruction import with_one_instruction
from gateway.parts.servers.chat_forms import names_of_systems, translated_completion, with_one_system
from gateway.parts.servers.custom_tools import ToolNames, restore_names, with_names

log = logging.getLogger("tierline.backends")

_CALLERS_FAULT: Final = frozenset(
    {
        "invalid_prompt", "bio_policy", "misalignment_policy_violation", "invalid_image", "invalid_image_format",
        "invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small", "image_parse_error",
        "image_content_policy_violation", "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type",
        "empty_image_file", "failed_to_download_image", "image_file_not_found", "data_residency_mismatch",
    }
)  # fmt: skip
"""Error codes of a failed response that are due to the request."""
_NAMES: Final = {
    "input": "messages",
    "max_output_tokens": "max_completion_tokens",
    "reasoning.effort": "reasoning_effort",
    "text.format": "response_format",
    "text.verbosity": "verbosity",
}
"""Fields of this API, as errors name them, and what the client calls them."""


class ResponsesBackend(HttpBackend):
    """One endpoint. `one_system`: whether it knows one system message only, at the beginning."""

    dialect = "responses"

    def __init__(self, transport: Transport, *, one_system: bool = False, **common: Unpack[Common]) -> None:
        super().__init__(transport, **common)
        self._names = {**_NAMES, "reasoning": "reasoning_effort", "top_logprobs": "logprobs"}
        self._one_system = one_system
        self._encrypts = True
        """Whether the model can be asked for encrypted reasoning: those that do not reason refuse to be."""

    async def _send(
        self, request: BackendRequest, *, stream: bool, prepare: Prepare | None = None
    ) -> tuple[Response, ReplyReader, tuple[str, ...]]:
        """See `HttpBackend._send`. What the model refuses about encrypted reasoning is left out at a second try."""
        try:
            return await super()._send(request, stream=stream, prepare=prepare)
        except BadStatus as error:
            if error.status != 400:
                raise
            if error.told.get("code") == "invalid_encrypted_content":
                # It was made here, but the provider has changed its keys, or ours belongs to another account now.
                prepare = partial(self._prepare, unsealer=NOBODY)
            elif self._encrypts and _refuses_encryption(error):
                self._encrypts = False
                log.warning("model %s gives no encrypted reasoning; it is asked for it no more", self._model)
            elif native_body(request.native, "responses") is None:
                raise _renamed(error, request.native) from None
            else:
                raise
        return await super()._send(request, stream=stream, prepare=prepare)

    def _prepare(self, request: BackendRequest, *, stream: bool, unsealer: Maker | None = None) -> Prepared:
        alternatives = request.alternatives if request.ask_logprobs else None
        given, names = request.body, ToolNames()
        if request.native is not None and native_body(request.native, "responses") is None:
            shorter, names = with_names(given)
            given = {**given, **shorter}
        nameless: tuple[str, ...] = ()
        if self._one_system and (made := with_one_system(given["messages"])) is not None:
            nameless = names_of_systems(given["messages"])
            given = {**given, "messages": made}
        try:
            translated = request_of(
                given,
                unsealer or self._maker,
                model=self._model,
                stream=stream,
                alternatives=alternatives,
                native=request.native,
            )
        except Unsupported as error:
            raise _refusal(400, str(error), client_path(request.native, error.param), "unsupported_value") from None
        body = translated.body
        if self._one_system and native_body(request.native, "responses") is not None:
            with_one_instruction(body)
        if not self._encrypts:
            body["include"] = [name for name in body["include"] if name != ENCRYPTED]
        dropped = (*translated.dropped, *nameless)
        if dropped and not translated.native:
            dropped = client_paths(request.native, dropped)
        dropped = (*dropped, *lost_fields(request.native, "responses"))
        if request.prompt_cache is not None:
            request.prompt_cache.add_fields(body)
        return body, _ResponsesReader(translated, self._maker, self._model, names), dropped


def _refuses_encryption(error: BadStatus) -> bool:
    # The name alone says nothing: it stands among the values that the API lists when it refuses a client's own one.
    return "ncrypted content is not supported" in str(error.told.get("message"))


def _renamed(error: BadStatus, native: Native | None) -> BadStatus:
    """Return an error of the caller's making with the field named as the client knows it."""
    param = error.told.get("param")
    if not error.about_the_request or not isinstance(param, str):
        return error
    for own, known in _NAMES.items():
        if param == own or param.startswith((f"{own}.", f"{own}[")):
            return error.with_param(client_path(native, known))
    return error


def _refusal(status: int, message: str, param: str | None, code: str) -> BadStatus:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return BadStatus(status, orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}))


def _backend_error(error: ReplyFailed | NotAResponse) -> BackendError:
    """Return the error of a reply of status 200 that is no answer."""
    if isinstance(error, NotAResponse):
        return InvalidReply(str(error))
    body = orjson.dumps({"error": {"message": error.message, "code": error.code}})
    if says_too_long(400, body):
        return ContextExceeded(400, body)
    if error.code in _CALLERS_FAULT:
        return _refusal(400, error.message, error.param, error.code)
    return _refusal(status_in({"code": error.code}) or 500, error.message, None, error.code)


class _ResponsesReader:
    """Read the reply to one request."""

    def __init__(self, request: ResponsesRequest, maker: Maker, model: str, names: ToolNames) -> None:
        self._names = names
        self._request = request
        self._maker = maker
        self._model = model

    def completion(self, raw: bytes) -> Completion:
        """Return the completion of a whole response."""
        response = json_object(raw)
        try:
            value = chat_answer(response, self._request, self._maker)
        except (ReplyFailed, NotAResponse) as error:
            raise _backend_error(error) from None
        restore_names(value["choices"][0]["message"], self._names)
        return translated_completion(value, self._model)

    def stream(self, response: Response) -> SseReply:
        """Return the chunks of a stream."""
        return _ResponsesStream(response, ResponseChunks(self._request, self._maker, self._model), self._names)


class _ResponsesStream(SseReply):
    def __init__(self, response: Response, chunks: ResponseChunks, names: ToolNames) -> None:
        super().__init__(response)
        self._names = names
        self._chunks = chunks

    def _take(self, value: dict[str, Any], data: bytes, events: list[Event]) -> None:
        if self.done_seen:
            return
        try:
            for chunk in self._chunks.take(value):
                for choice in chunk["choices"]:
                    restore_names(choice["delta"], self._names)
                events.append(Event(orjson.dumps(chunk), chunk))
        except (ReplyFailed, NotAResponse) as error:
            raise _backend_error(error) from None
        self.done_seen = self._chunks.finished
