"""Provide the seam `reasons` (`gateway.seams`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.parts.reasons.words import reasons_of

if TYPE_CHECKING:
    from gateway.telemetry.trace import Trace

__all__ = ["hop_completer", "reasons_of"]


def hop_completer() -> Callable[[Trace], None]:
    """Return what adds to the hops of a finished trace what decided them."""
    from gateway.parts.reasons.details import complete  # not needed by who only reads records

    return complete
