"""Define the config of `kind: responses`, and make its backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.config.backends import ANTHROPICS, BackendConfig
from gateway.parts.apis.kinds.responses.set_fields import response_with_fields
from policies.errors import Finding

if TYPE_CHECKING:
    from gateway.backends.base import Backend, MakeTransport
    from gateway.backends.http_backend import Common
    from gateway.backends.server_forms import CallMemory


class ResponsesBackendConfig(BackendConfig):
    """A backend that speaks OpenAI's Responses API."""

    dialect: ClassVar[str] = "responses"
    has_not: ClassVar[frozenset[str]] = frozenset({"audio", "n", "background"})
    own_names: ClassVar[Mapping[str, str]] = {"hosted_tools": "responses_hosted_tools"}

    @property
    def has(self) -> frozenset[str]:
        """See `BackendConfig.has`."""
        return frozenset({"store", "prompt_cache_key"})

    def findings(self) -> Iterator[Finding]:
        """See `BackendConfig.findings`."""
        yield from super().findings()
        if self.continuation in ("prefill", "continue_final_message"):
            message = "the Responses API does not continue a message that another model began; write prompt, or none"
            yield Finding(("continuation",), message)

    def with_fields(self, body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str) -> dict[str, Any]:
        """See `BackendConfig.with_fields`."""
        return response_with_fields(body, changes, instruction)

    @cached_property
    def not_settable(self) -> frozenset[str]:
        """See `BackendConfig.not_settable`."""
        return frozenset((*self.omit, *ANTHROPICS))

    @property
    def takes_file_urls(self) -> bool:
        """See `BackendConfig.takes_file_urls`."""
        return True

    @property
    def gen_ai_provider(self) -> str:
        """See `BackendConfig.gen_ai_provider`."""
        return "openai" if self.auth is None else self.auth.provider

    def make(self, common: Common, transport: MakeTransport, calls: CallMemory | None) -> Backend:
        """See `BackendConfig.make`."""
        from gateway.parts.apis.kinds.responses.backend import ResponsesBackend

        return ResponsesBackend(transport("/responses"), one_system=self.roles != "any", **common)


KIND: Final = ResponsesBackendConfig
