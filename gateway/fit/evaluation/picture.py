"""Draw the cost-quality curve as a PNG. Needs matplotlib (the `train` extra)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gateway.fit.figures import SHARES, Draw, Drawn, Outcomes, draw_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#1f2430"
_FAINT = "#8a909c"
_TITLE_CHARS = 96


@dataclass(frozen=True, slots=True)
class _Style:
    """The style of a method's line, and the share of large calls at which its name is written."""

    colour: str
    width: float
    dashes: Literal["-", "--", ":"]
    named_at: float
    offset: tuple[float, float] = (6, -9)
    """Offset of the name from the line, in points."""


_STYLES = {
    "random": _Style(_FAINT, 1.2, "--", 0.82, (8, -10)),
    "length": _Style("#b07d2b", 1.4, "-", 0.66),
    "groups": _Style("#4f7f52", 1.4, "-", 0.54),
    "raw_logprob": _Style("#8c4a86", 1.4, "-", 0.42),
    "ours": _Style("#1c5fb8", 2.6, "-", 0.29, (-6, 10)),
    "oracle": _Style(_INK, 1.2, ":", 0.45, (0, 0)),
}


def draw_picture(path: Path, title: str, outcomes: Outcomes, draws: Sequence[Draw], seed: int) -> None:
    """Write a PNG: accuracy against the share of large calls, or against dollars where the data gives costs.

    The band is the central 95% of the bootstrap distribution of `ours`. Raises OSError.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = draw_curves(outcomes, draws, seed)
    figure = Figure(figsize=(9, 5.6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    dollars = all(drawn.dollars is not None for drawn in curves.values())
    for name in (name for name in _STYLES if name in curves):
        _line(axes, name, curves[name], dollars)
    _ends(axes, outcomes, np.concatenate([draw.rows for draw in draws]), dollars)
    _frame(axes, title, dollars)
    figure.savefig(path, format="png")


def _line(axes: Axes, name: str, drawn: Drawn, dollars: bool) -> None:
    style = _STYLES[name]
    across = drawn.dollars if dollars and drawn.dollars is not None else 100 * SHARES
    front = 4 if name in ("ours", "random") else 3
    if name == "ours":
        axes.fill_between(across, 100 * drawn.lo, 100 * drawn.hi, color=style.colour, alpha=0.14, linewidth=0)
    axes.plot(across, 100 * drawn.accuracy, style.dashes, color=style.colour, linewidth=style.width, zorder=front)
    at = int(np.searchsorted(SHARES, style.named_at))
    axes.annotate(
        name.replace("_", " "),
        (float(across[at]), float(100 * drawn.accuracy[at])),
        xytext=style.offset,
        textcoords="offset points",
        ha="center" if style.offset[0] == 0 else "right" if style.offset[0] < 0 else "left",
        va="center",
        color=style.colour,
        fontsize=10,
        fontweight="bold" if name == "ours" else "normal",
        path_effects=_halo(),
        zorder=5,
    )


def _ends(axes: Axes, outcomes: Outcomes, rows: NDArray[np.intp], dollars: bool) -> None:
    """Mark always calling one model: horizontal lines at the large one's accuracy and at 95% of it, dots for cost."""
    small, large = 100 * float(outcomes.small[rows].mean()), 100 * float(outcomes.large[rows].mean())
    for height, text in ((large, "large model"), (0.95 * large, "95% of it")):
        axes.axhline(height, color=_FAINT, linewidth=0.8, alpha=0.6, zorder=1)
        _note(axes, text, (1.0, height), (4, 0), ("axes fraction", "data"))
    if dollars and outcomes.large_cost is not None and outcomes.small_cost is not None:
        for cost, height, text, offset in (
            (outcomes.small_cost, small, "always small", (4, -11)),
            (outcomes.large_cost, large, "always large", (-4, 11)),
        ):
            at = (1000 * float(cost[rows].mean()), height)
            axes.plot(*at, "o", color=_INK, markersize=5, zorder=6)
            _note(axes, text, at, offset, "data")


def _note(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], coords: Any) -> None:
    side = "left" if offset[0] > 0 else "right"
    where: dict[str, Any] = {"xytext": offset, "textcoords": "offset points", "ha": side, "va": "center"}
    axes.annotate(text, at, xycoords=coords, color=_INK, fontsize=9, zorder=6, path_effects=_halo(), **where)


def _halo() -> list[Any]:
    """Return a white outline that keeps a name readable where it lies over a line."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=4, foreground="white")]


def _frame(axes: Axes, title: str, dollars: bool) -> None:
    axes.set_title(textwrap.fill(title, _TITLE_CHARS), loc="left", fontsize=11, color=_INK, pad=22)
    caption = "band: central 95% of the bootstrap distribution of ours"
    axes.annotate(caption, (0, 1), xycoords="axes fraction", xytext=(0, 8), textcoords="offset points", color=_FAINT)
    axes.set_xlabel("dollars per 1,000 requests" if dollars else "share of calls to the large model, %", color=_INK)
    axes.set_ylabel("accuracy, %", color=_INK)
    axes.grid(color="#e7e9ee", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c6cad3")
    axes.tick_params(colors=_INK, labelsize=9)
    if not dollars:
        axes.set_xlim(0, 100)
