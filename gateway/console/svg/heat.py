"""Draw a heat map of counts, and the two shares of a value beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from gateway.console.svg import joined, share, tag

_ROW: Final = 15
_STEPS: Final = 8
"""Classes of intensity, from `h1` to `h8`, by the logarithm of the count."""


def heat_map(heat: Mapping[str, Any], text: str) -> Markup:
    """Draw cells by their counts, those with selected requests in another colour, and the selected rectangle.

    The drawing is as wide as the page; a script that lets a rectangle be drawn reads its numbers of columns and rows.
    """
    columns, rows = len(heat["columns"]) - 1, heat["rows"]
    most = math.log1p(max(heat["most"], 1))
    shapes = [tag("title", text)]
    for at, row, count, selected in heat["cells"]:
        if not 0 <= at < columns or not count:
            continue
        step = max(1, math.ceil(math.log1p(count) / most * _STEPS))
        kind = f"h{step} chosen" if selected * 2 > count else f"h{step}"
        y = (rows - 1 - row) * _ROW
        shapes.append(tag("rect", x=share(at / columns), y=y, width=share(1 / columns), height=_ROW, class_=kind))
    if heat["box"] is not None:
        first, last, low, high = heat["box"]
        y, height = (rows - 1 - high) * _ROW, (high - low + 1) * _ROW
        width = share((last + 1 - first) / columns)
        shapes.append(tag("rect", x=share(first / columns), y=y, width=width, height=height, class_="box"))
    return tag(
        "svg", joined(shapes), class_="heat", width="100%", height=rows * _ROW, role="img", aria_label=text,
        data_columns=columns, data_rows=rows,
    )  # fmt: skip


def two_shares(selected: float, rest: float, most: float) -> Markup:
    """Draw the share of the selected above that of the rest; `most` is the share that fills the width."""
    scale = 1 / most if most else 0.0
    shapes = [
        tag("rect", x=0, y=2, width=share(selected * scale), height=7, class_="selected"),
        tag("rect", x=0, y=10, width=share(rest * scale), height=7, class_="rest"),
    ]
    return tag("svg", joined(shapes), class_="two-shares", width="100%", height=19, aria_hidden="true")
