"""Draw shares of requests over time as stacked columns, with the scale and the ends of the time axis."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gateway.parts.console.svg import joined, share, tag

_HEIGHT = 56
_FOOT = 1


def columns(values: Sequence[Sequence[float] | None], kinds: Sequence[str], text: str) -> Markup:
    """Draw a column for each moment, made of the shares of these kinds (classes), the first at the bottom.

    The height is 100%, or the next of 50%, 25% and 10% that all columns fit in: the words at the left say which. A
    moment without requests (None) has no column, one with requests and none of these kinds a line at the bottom.
    """
    most = max((sum(value) for value in values if value is not None), default=0.0)
    top = next((limit for limit in (0.1, 0.25, 0.5) if most <= limit), 1.0)
    shapes = [
        tag("title", text),
        tag("line", x1=0, x2="100%", y1=0.5, y2=0.5, class_="grid"),
        tag("line", x1=0, x2="100%", y1=_HEIGHT / 2, y2=_HEIGHT / 2, class_="grid"),
    ]
    width = 1 / max(len(values), 1)
    for place, value in enumerate(values):
        if value is None:
            continue
        y = float(_HEIGHT - _FOOT)
        shapes.append(tag("rect", x=share(place * width), y=y, width=share(width), height=_FOOT, class_="foot"))
        for kind, part in zip(kinds, value, strict=True):
            height = part / top * (_HEIGHT - _FOOT)
            if height > 0:
                y -= height
                shapes.append(
                    tag(
                        "rect",
                        x=share(place * width),
                        y=f"{y:.2f}",
                        width=share(width * 0.86),
                        height=f"{height:.2f}",
                        class_=f"part {kind}",
                    )
                )
    shapes.append(tag("text", f"{top:.0%}", x=2, y=11, class_="scale"))
    return tag("svg", joined(shapes), class_="columns-chart", width="100%", height=_HEIGHT, role="img", aria_label=text)
