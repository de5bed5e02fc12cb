"""Define the config of `kind: anthropic`, and make its backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from gateway.cascade.call import ONE_HOUR
from gateway.config.backends import BackendConfig
from gateway.parts.apis.dialects.messages.models import facts_of_model
from gateway.parts.apis.kinds.anthropic.set_fields import message_with_fields
from gateway.parts.servers.prompt_cache import ProviderCacheFacts, claude_caches_from
from policies.errors import Finding
from policies.validation import raise_findings

if TYPE_CHECKING:
    from gateway.backends.base import Backend, MakeTransport
    from gateway.backends.http_backend import Common
    from gateway.backends.server_forms import CallMemory

_ON_PLATFORM: Final = {
    "aws": ("/model/{}/", "invoke", "invoke-with-response-stream", "bedrock-2023-05-31"),
    "google": ("/publishers/anthropic/models/{}:", "rawPredict", "streamRawPredict", "vertex-2023-10-16"),
}
"""Paths of Anthropic's models on Bedrock and Vertex, what whole and streamed calls add, and the version to name."""


class AnthropicConfig(BackendConfig):
    """A backend that speaks Anthropic's Messages API. Its URL may leave `/v1` out."""

    dialect: ClassVar[str] = "messages"
    has_not: ClassVar[frozenset[str]] = frozenset({"audio", "n", "background", "store", "prompt_cache_key"})
    # The field of chat completions for searches cannot be translated, and what its own clients send is a tool.
    own_names: ClassVar[Mapping[str, str]] = {
        "hosted_tools": "messages_hosted_tools",
        "web_search": "messages_web_search",
    }
    tells_cache_writes: ClassVar[bool] = True

    @property
    def has(self) -> frozenset[str]:
        """See `BackendConfig.has`."""
        return frozenset()

    @classmethod
    def known(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `BackendConfig.known`. The API has no log-probabilities and no service tiers."""
        if data.get("logprobs") is True:
            raise_findings([Finding(("logprobs",), "Anthropic's API has no log-probabilities; leave it out")])
        return {**super().known(data), "service_tiers": (), "logprobs": False}

    def findings(self) -> Iterator[Finding]:
        """See `BackendConfig.findings`."""
        yield from super().findings()
        if self.service_tiers:
            yield Finding(("service_tiers",), "Anthropic's API has none to choose from; leave it out")
        prefill = self.continuation == "prefill"
        if self.continuation == "continue_final_message" or (prefill and not facts_of_model(self.model).prefill):
            who = f"{self.model} continues no begun message" if prefill else "it is a field of vLLM's API"
            yield Finding(("continuation",), f"{who}; write prompt, which asks for the rest in words")

    def with_fields(self, body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str) -> dict[str, Any]:
        """See `BackendConfig.with_fields`."""
        return message_with_fields(body, changes, instruction, self.model)

    @cached_property
    def not_settable(self) -> frozenset[str]:
        """See `BackendConfig.not_settable`."""
        return frozenset(self.omit)

    @property
    def takes_file_urls(self) -> bool:
        """See `BackendConfig.takes_file_urls`."""
        return not self.names_model_in_url

    @cached_property
    def prompt_cache(self) -> ProviderCacheFacts | None:
        """See `BackendConfig.prompt_cache`."""
        least = 0 if "cache_control" in self.omit else claude_caches_from(self.model)
        return ProviderCacheFacts("markers", least, ONE_HOUR) if least else None

    @property
    def cloud(self) -> str:
        """The cloud whose identity calls it; '' for a key, or nothing."""
        return "" if self.auth is None else self.auth.kind

    @property
    def names_model_in_url(self) -> bool:
        """Whether it is Bedrock's `invoke` or Vertex's `rawPredict`, by which Anthropic's models are called there.

        Bedrock has Anthropic's own API too, below a path.
        """
        return self.cloud == "google" or (self.cloud == "aws" and not urlsplit(self.base_url).path)

    def make(self, common: Common, transport: MakeTransport, calls: CallMemory | None) -> Backend:
        """See `BackendConfig.make`."""
        from gateway.parts.apis.kinds.anthropic.backend import AnthropicBackend

        if self.names_model_in_url:
            from gateway.parts.apis.kinds.anthropic.on_platform import PlatformMessagesBackend

            path, whole, streamed, version = _ON_PLATFORM[self.cloud]
            path = path.format(quote(self.model, safe="@" if self.cloud == "google" else ""))
            streaming = transport(path + streamed)
            return PlatformMessagesBackend(transport(path + whole), streaming=streaming, version=version, **common)
        bills = f".{urlsplit(self.base_url).hostname}".endswith(".anthropic.com")
        path = "/messages" if self.base_url.endswith("/v1") else "/v1/messages"
        return AnthropicBackend(transport(path), bills=bills, **common)


KIND: Final = AnthropicConfig
