"""Say where the gateway's own calls may go: to backends with room to spare, whose price is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.tiers import Endpoint

_BUSY: Final = 0.75
"""Share of a backend's slots that may be taken, with one more call, for it to count as quiet."""


def is_quiet(endpoint: Endpoint) -> bool:
    """Return whether a call can go out at once and leaves a quarter of the slots; an idle single slot will do."""
    if not endpoint.config.configured or endpoint.unavailable() or not endpoint.unhindered:
        return False
    return endpoint.in_flight + 1 <= max(1, int(endpoint.capacity * _BUSY))
