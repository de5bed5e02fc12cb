"""Count the tokens of requests at Anthropic's API, which alone knows the tokenizers of its models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import InvalidReply
from gateway.off_loop import off_loop
from gateway.parts.apis.dialects.messages.backend import VERSION, messages_request, protocol_of
from gateway.parts.apis.dialects.messages.models import facts_of_model

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.dialects.reasoning import Maker
    from gateway.parts.apis.service import ServiceClient

_PATH: Final = "/v1/messages/count_tokens"
_COUNTED: Final = frozenset(
    {
        "messages", "model", "system", "tools", "tool_choice", "thinking", "output_config", "output_format",
        "cache_control", "context_management", "mcp_servers",
    }
)  # fmt: skip
"""Fields of a request that the API counts; it refuses the others."""


class TokenCounter:
    """Count at one endpoint: `model` replaces the client's, `maker` marks the thinking that may be sent there."""

    def __init__(self, service: ServiceClient, *, model: str, key: str | None, maker: Maker) -> None:
        self._service = service
        self._model = model
        self._facts = facts_of_model(model)
        self._maker = maker
        self.rekey(key)

    def rekey(self, key: str | None) -> None:
        """Send another key from now on, None for none."""
        self._headers = {"Content-Type": "application/json", "anthropic-version": VERSION}
        if key is not None:
            self._headers["x-api-key"] = key

    async def count(self, body: Mapping[str, Any], native: Native, *, large: bool) -> int:
        """Return the input tokens of a chat-completions body and its own form. Raises BackendError."""
        prepare = partial(self._prepared, body, native)
        raw = await off_loop(prepare) if large else prepare()
        reply = await self._service.send("POST", _PATH, {**self._headers, **protocol_of(body, native)}, raw)
        try:
            counted = await reply.read()
        finally:
            reply.close()
        try:
            tokens = orjson.loads(counted)["input_tokens"]
        except (orjson.JSONDecodeError, LookupError, TypeError):
            raise InvalidReply("a reply without a count of tokens") from None
        if type(tokens) is not int or tokens < 0:
            raise InvalidReply("a count of tokens that is no number")
        return tokens

    async def aclose(self) -> None:
        """Close every connection."""
        await self._service.aclose()

    def _prepared(self, body: Mapping[str, Any], native: Native) -> bytes:
        whole = {**body, "max_tokens": self._facts.default_output}  # which a request to count lacks
        made = messages_request(whole, self._model, self._facts, self._maker, stream=False, native=native)
        return orjson.dumps({name: value for name, value in made.body.items() if name in _COUNTED})
