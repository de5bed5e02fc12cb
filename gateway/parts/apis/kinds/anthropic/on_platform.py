"""Anthropic's models on Bedrock (`invoke`) and Vertex (`rawPredict`): the Messages API, less the model in the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from gateway.backends.base import BackendRequest, Transport
from gateway.backends.http_backend import Common, Prepared
from gateway.parts.apis.dialects.messages.backend import protocol_of
from gateway.parts.apis.kinds.anthropic.backend import AnthropicBackend

_BETAS = "anthropic-beta"


class PlatformMessagesBackend(AnthropicBackend):
    """One model, which both URLs name. `version` is the one that the platform wants in each body."""

    def __init__(self, transport: Transport, *, streaming: Transport, version: str, **common: Unpack[Common]) -> None:
        super().__init__(transport, **common)
        self._streaming = streaming
        self._version = version
        self._by_url = version.startswith("bedrock")
        """Whether the URL alone says that a stream is wanted, and the body which betas."""

    async def aclose(self) -> None:
        """Close both transports."""
        await super().aclose()
        await self._streaming.aclose()

    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        body, reader, dropped = super()._prepare(request, stream=stream)
        del body["model"]
        body["anthropic_version"] = self._version
        if self._by_url:
            body.pop("stream", None)
            if betas := protocol_of(request.body, request.native).get(_BETAS):
                body["anthropic_beta"] = betas.split(",")
        return body, reader, dropped

    def _headers_for(self, request: BackendRequest) -> Mapping[str, str]:
        return self._headers if self._by_url else super()._headers_for(request)
