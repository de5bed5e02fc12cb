"""Define the config of `kind: decisions`, and make its backends."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from gateway.backends.server_forms import PromptCacheFacts
from gateway.config.backends import BackendConfig
from routing.features import Capability

if TYPE_CHECKING:
    from gateway.backends.base import Backend, MakeTransport
    from gateway.backends.http_backend import Common
    from gateway.backends.server_forms import CallMemory


class DecisionsConfig(BackendConfig):
    """A backend that judges drafts by the decisions API."""

    has_not: ClassVar[frozenset[str]] = frozenset(get_args(Capability))
    judges_alone: ClassVar[bool] = True

    @property
    def has(self) -> frozenset[str]:
        """See `BackendConfig.has`."""
        return frozenset()

    @cached_property
    def not_settable(self) -> frozenset[str]:
        """See `BackendConfig.not_settable`."""
        return frozenset(self.omit)

    @cached_property
    def prompt_cache(self) -> PromptCacheFacts | None:
        """See `BackendConfig.prompt_cache`."""
        return None

    def make(self, common: Common, transport: MakeTransport, calls: CallMemory | None) -> Backend:
        """See `BackendConfig.make`."""
        from gateway.parts.apis.kinds.decisions.backend import DecisionsBackend

        return DecisionsBackend(transport("/decisions"), **common)


KIND: Final = DecisionsConfig
