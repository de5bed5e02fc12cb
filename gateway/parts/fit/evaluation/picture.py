"""Draw the cost-quality curve as a PNG. Needs matplotlib (the `train` extra)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gateway.parts.fit.figures import SHARES, Draw, Outcomes, draw_curves

_INK: Final = "#1f2430"
_FAINT: Final = "#8a909c"
_TITLE_CHARS: Final = 96
_STYLES: Final[Mapping[str, tuple[str, float, str]]] = {
    "ours": ("#1c5fb8", 2.6, "-"),
    "oracle": (_INK, 1.2, ":"),
    "raw_logprob": ("#8c4a86", 1.4, "-"),
    "groups": ("#4f7f52", 1.4, "-"),
    "length": ("#b07d2b", 1.4, "-"),
    "random": (_FAINT, 1.2, "--"),
}
"""Colour, width and dashes of each method's line, in the order of the legend."""


def draw_picture(path: Path, title: str, outcomes: Outcomes, draws: Sequence[Draw], seed: int) -> None:
    """Write a PNG: accuracy against the share of large calls, or against dollars where the data gives costs.

    The band is the central 95% of the bootstrap distribution of `ours`. Raises OSError.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves, rows = draw_curves(outcomes, draws, seed), np.concatenate([draw.rows for draw in draws])
    dollars = all(drawn.dollars is not None for drawn in curves.values())
    figure = Figure(figsize=(9, 5.6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (colour, width, dashes) in _STYLES.items():
        if (drawn := curves.get(name)) is None:
            continue
        across = drawn.dollars if dollars and drawn.dollars is not None else 100 * SHARES
        if name == "ours":
            axes.fill_between(across, 100 * drawn.lo, 100 * drawn.hi, color=colour, alpha=0.14, linewidth=0)
        axes.plot(across, 100 * drawn.accuracy, dashes, color=colour, linewidth=width, label=name.replace("_", " "))
    small, large = 100 * float(outcomes.small[rows].mean()), 100 * float(outcomes.large[rows].mean())
    for height, words, dashes in ((large, "large model", "-"), (0.95 * large, "95% of it", "-.")):
        axes.axhline(height, color=_FAINT, linewidth=0.8, linestyle=dashes, label=words, zorder=1)
    if dollars and outcomes.large_cost is not None and outcomes.small_cost is not None:
        for cost, height, marker, words in (
            (outcomes.small_cost, small, "o", "always small"),
            (outcomes.large_cost, large, "s", "always large"),
        ):
            axes.plot(1000 * float(cost[rows].mean()), height, marker, color=_INK, markersize=5, label=words)
    axes.set_title(textwrap.fill(title, _TITLE_CHARS), loc="left", fontsize=11, color=_INK)
    axes.set_xlabel("dollars per 1,000 requests" if dollars else "share of calls to the large model, %")
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, fontsize=9, title="band: central 95% of ours, by bootstrap", title_fontsize=9)
    axes.grid(color="#e7e9ee", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    if not dollars:
        axes.set_xlim(0, 100)
    figure.savefig(path, format="png")
