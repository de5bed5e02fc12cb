"""Draw amounts over time as stacked bars, with the amounts of the axis and the times below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gateway.parts.console.render import stamp, utc
from gateway.parts.console.svg import joined, share, tag
from policies.quantities import dollars

_WIDTH: Final = 1000
_LEFT: Final = 62
_SCALE: Final = 56
"""Width of the scale, which bars.css has, too: the first time below the bars may begin before them."""
_HEIGHT: Final = 190
_TOP: Final = 8
_FOOT: Final = 22
_COUNTS: Final = 48
"""Height of the bars of requests over time, in pixels."""
_LINES: Final = 4
_DAY: Final = 86400
TONES: Final = 8
"""How many parts have a colour of their own; the last of them is for all others."""


def stacked_bars(
    bars: Sequence[Sequence[float]], names: Sequence[str], start_s: float, step_s: float, text: str
) -> Markup:
    """Draw a bar for each `step_s` seconds from `start_s`: its parts in the order of `names`, the first lowest.

    The amounts of the axis are a drawing of their own, which stays in sight where the bars are scrolled.
    """
    most = _nice(max((math.fsum(bar) for bar in bars), default=0.0))
    room = _HEIGHT - _TOP - _FOOT
    foot = _TOP + room
    shapes, amounts = [tag("title", text)], []
    for line in range(_LINES + 1):
        y = f"{foot - room * line / _LINES:.1f}"
        shapes.append(tag("line", x1=_LEFT, x2=_WIDTH, y1=y, y2=y, class_="grid"))
        amounts.append(tag("text", dollars(most * line / _LINES), x=_LEFT - 8, y=float(y) + 4, class_="amount"))
    pitch = (_WIDTH - _LEFT) / max(len(bars), 1)
    for place, bar in enumerate(bars):
        if any(bar):
            shapes.append(_bar(bar, names, _LEFT + place * pitch, pitch, most, start_s + place * step_s))
    labels = max(1, math.ceil(len(bars) / 8))
    for place in range(0, len(bars), labels):
        at = start_s + place * step_s
        x, form = f"{_LEFT + (place + 0.5) * pitch:.1f}", "minute" if step_s * len(bars) <= 2 * _DAY else "month"
        shapes.append(tag("text", utc(at, form), x=x, y=_HEIGHT - 4, class_="tick", **stamp(at, form)))
    box = f"{_SCALE} 0 {_WIDTH - _SCALE} {_HEIGHT}"
    scale = tag("svg", joined(amounts), class_="amounts", viewBox=f"0 0 {_SCALE} {_HEIGHT}", aria_hidden="true")
    drawn = tag("svg", joined(shapes), class_="bars", viewBox=box, role="img", aria_label=text)
    return tag("div", joined([scale, drawn]), class_="scaled")


def counts_over_time(over_time: Mapping[str, Any], query: str) -> Markup:
    """Draw how many requests there were in each part of a span: failed ones, those that missed a limit, and the rest.

    A bar leads to the list from its end backwards, as its title says; the same is below the chart in words.
    """
    bars, width = over_time["bars"], 1 / len(over_time["bars"])
    most = max(*(bar["requests"] for bar in bars), 1)
    shapes = []
    for place, bar in enumerate(bars):
        if not bar["requests"]:
            continue
        began = over_time["from_ms"] + place * over_time["step_ms"]
        y, drawn = float(_COUNTS), []
        for name in ("failed", "slow", "rest"):
            count = bar["requests"] - bar["failed"] - bar["slow"] if name == "rest" else bar[name]
            height = (_COUNTS - 2) * count / most
            if count > 0:
                y -= max(height, 1.0)
                size = {"width": share(width * 0.84), "height": f"{max(height, 1.0):.1f}"}
                drawn.append(tag("rect", x=share((place + 0.08) * width), y=f"{y:.1f}", **size, class_=name))
        words = f"{bar['requests']:,} requests, {bar['failed']:,} failed, {bar['slow']:,} missed a limit"
        title = tag("title", f"{utc(began / 1000)}: {words}", **stamp(began / 1000))
        href = f"?{query}{'&' if query else ''}before={began + over_time['step_ms']}-0"
        shapes.append(tag("a", joined([title, *drawn]), href=href, tabindex="-1", aria_hidden="true"))
    base = tag("line", x1="0%", x2="100%", y1=_COUNTS, y2=_COUNTS, class_="axis")
    return tag("svg", joined([*shapes, base]), class_="counts", width="100%", height=_COUNTS + 1)


def _bar(bar: Sequence[float], names: Sequence[str], x: float, pitch: float, most: float, at: float) -> Markup:
    room = _HEIGHT - _TOP - _FOOT
    y = float(_HEIGHT - _FOOT)
    lines = [f"{utc(at, 'date')}: {dollars(math.fsum(bar))}"]
    shapes = []
    for place, value in enumerate(bar):
        if value <= 0:
            continue
        height = value / most * room
        y -= height
        lines.append(f"{names[place]} {dollars(value)}")
        shapes.append(
            tag("rect", x=f"{x + pitch * 0.12:.1f}", width=f"{pitch * 0.76:.1f}", y=f"{y:.2f}", height=f"{height:.2f}",
                class_=f"tone{min(place, TONES - 1)}")
        )  # fmt: skip
    return tag("g", joined([tag("title", "\n".join(lines), **stamp(at, "date")), *shapes]))


def _nice(value: float) -> float:
    """Return the least of 1, 2, 4, 5, 8 and 10 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 5, 8, 10, 20) if power * step >= value)
