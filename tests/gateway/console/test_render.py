"""How figures are written on pages."""

from __future__ import annotations

import pytest

from gateway.console.render import usd


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "$0"),
        (1234.5, "$1,234.50"),
        (0.5, "$0.500"),
        (0.0623437, "$0.0623"),
        (0.0005188, "$0.000519"),
        (-0.02, "−$0.0200"),
    ],
)
def test_dollars_have_three_significant_digits(value: float | None, text: str) -> None:
    assert usd(value) == text
