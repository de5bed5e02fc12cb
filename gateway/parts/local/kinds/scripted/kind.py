"""Define the config of `kind: scripted`, and make its backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.config.backends import BackendConfig
from gateway.parts.local.kinds.scripted.script import ScriptedRule
from policies.errors import Finding

if TYPE_CHECKING:
    from gateway.backends.base import Backend, MakeTransport
    from gateway.backends.http_backend import Common
    from gateway.backends.server_forms import CallMemory

_OF_CALLS: Final = ("auth", "base_url", "key_env", "key_file", "http", "connect_timeout")


class ScriptedConfig(BackendConfig):
    """A backend that follows a script."""

    own_fields: ClassVar[Mapping[str, str]] = {"script": "only a backend of kind: scripted follows one"}
    in_process: ClassVar[bool] = True

    script: tuple[ScriptedRule, ...] = ()
    """Rules: the first that matches a request gives its reply; the last must match all."""

    @property
    def has(self) -> frozenset[str]:
        """See `BackendConfig.has`."""
        return frozenset({"n", "store", "prompt_cache_key"})

    @classmethod
    def known(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `BackendConfig.known`."""
        return {"model": "scripted", **super().known(data), "price": {}}

    def findings(self) -> Iterator[Finding]:
        """See `BackendConfig.findings`."""
        yield from super().findings()
        if not self.script:
            yield Finding(("script",), "a scripted backend needs one, such as [{reply: {text: Hello.}}]")
        elif not self.script[-1].always:
            message = "the last rule answers what no other does; leave out match, match_regex and times"
            yield Finding(("script", len(self.script) - 1), message)
        for name in _OF_CALLS:
            if name in self.model_fields_set:
                yield Finding((name,), "a scripted backend calls nobody; leave it out")

    def make(self, common: Common, transport: MakeTransport, calls: CallMemory | None) -> Backend:
        """See `BackendConfig.make`."""
        from gateway.parts.local.kinds.scripted.replies import ScriptedTransport

        return super().make(common, lambda _: ScriptedTransport(self.script, max_reply=self.max_reply), calls)


KIND: Final = ScriptedConfig
