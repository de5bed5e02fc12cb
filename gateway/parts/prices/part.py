"""Provide the seam `price` of `gateway.chat.usage`."""

from __future__ import annotations

from gateway.parts.prices.steps import SteppedPrice


def price_class() -> type[SteppedPrice]:
    """Return the class of what configs write as `price`."""
    return SteppedPrice
