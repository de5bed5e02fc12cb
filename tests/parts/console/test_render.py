"""How figures are written on pages."""

from __future__ import annotations

from gateway.parts.console.render import time_element


def test_a_time_is_written_in_utc_with_what_a_browser_needs_for_its_own_zone() -> None:
    """Whatever the zone of the console's machine is."""
    assert time_element(1764106000.123, "day") == (
        '<time datetime="2025-11-25T21:26:40.123+00:00" data-utc="day" title="2025-11-25 21:26:40 UTC">'
        "Tue 25 Nov 21:26</time>"
    )
