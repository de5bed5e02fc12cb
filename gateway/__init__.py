"""The gateway: an OpenAI-compatible server over tiers of models, and `Tierline`, the same inside a Python program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.embedded import Tierline

__all__ = ["Tierline"]


def __getattr__(name: str) -> Any:
    """Import `Tierline` when it is first asked for: the commands, which import this package, do without."""
    if name == "Tierline":
        from gateway.embedded import Tierline

        return Tierline
    raise AttributeError(f"module 'gateway' has no attribute {name!r}")
