"""Say what Anthropic's models take, by the version in their names, as of November 2026.

Sources: the model pages, the migration guides and the pages on thinking, effort and structured outputs under
platform.claude.com/docs. A cutoff by version, instead of a list of names, holds for later models too. A name without a
version, such as another provider's model behind an Anthropic endpoint, gets what such endpoints document: thinking with
a budget, sampling parameters, and no assumption about its longest reply.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

from gateway.parts.servers.prompt_cache import claude_always_thinks, claude_version
from policies.value_type import value_type

Thinking = Literal["budget", "both", "adaptive", "always"]
"""Forms of `thinking` that a model takes: `enabled` with a budget only, that or `adaptive`, `adaptive` or `disabled`,
or `adaptive` only, because it always thinks."""

_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_UNKNOWN_OUTPUT: Final = 8192


@value_type
class ClaudeFacts:
    """What one model takes. `max_output` is its longest reply in tokens, None if not known."""

    max_output: int | None
    thinking: Thinking
    efforts: tuple[str, ...]
    """Values of `output_config.effort`; empty if the model has no such setting."""
    sampling: bool
    """Whether it takes `temperature`, `top_p` and `top_k`."""
    schemas: bool
    """Whether it takes a JSON schema for its output (`output_config.format`) and `strict` tools."""
    prefill: bool
    """Whether it continues a text that the last message begins in the assistant's name."""
    system_turns: bool
    """Whether messages of the role `system` may follow a user's turn."""

    @property
    def default_output(self) -> int:
        """Token limit to send for a request that sets none, since the API requires one."""
        return self.max_output or _UNKNOWN_OUTPUT


_UNKNOWN: Final = ClaudeFacts(None, "budget", (), sampling=True, schemas=True, prefill=True, system_turns=False)


@lru_cache(maxsize=64)
def facts_of_model(model: str) -> ClaudeFacts:
    """Return what is known of a model by its name, in the form of any platform (`anthropic.claude-opus-4-6-v1:0`)."""
    named = claude_version(model)
    return _UNKNOWN if named is None else _of(model, *named)


def _of(model: str, family: str, version: tuple[int, int]) -> ClaudeFacts:
    return ClaudeFacts(
        max_output=_max_output(family, version),
        thinking="always" if claude_always_thinks(model) else _thinking(version),
        efforts=_efforts(family, version),
        sampling=version < (4, 7),
        schemas=version >= (4, 5) or (family, version) == ("opus", (4, 1)),
        prefill=version < (4, 6),
        system_turns=version >= (4, 8),
    )


def _max_output(family: str, version: tuple[int, int]) -> int:
    if version >= (4, 6):
        return 128_000
    if version >= (4, 5):
        return 64_000
    if version >= (4, 0):
        return 32_000 if family == "opus" else 64_000
    if version >= (3, 7):
        return 64_000
    return 8192 if version >= (3, 5) else 4096


def _thinking(version: tuple[int, int]) -> Thinking:
    if version >= (4, 7):
        return "adaptive"
    return "both" if version >= (4, 6) else "budget"


def _efforts(family: str, version: tuple[int, int]) -> tuple[str, ...]:
    if version >= (4, 7):
        return _EFFORTS
    if version >= (4, 6):
        return ("low", "medium", "high", "max")
    return _EFFORTS[:3] if (family, version) == ("opus", (4, 5)) else ()
