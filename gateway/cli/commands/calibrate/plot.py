"""Draw the curve from which a setting was chosen."""

from __future__ import annotations

from pathlib import Path

from gateway.cli.commands import CommandError
from offline.calibration.choose import Choice


def plot(choice: Choice, file: Path) -> None:
    """Draw cost and quality of every escalation threshold, with bounds, into `file`. Raises CommandError."""
    from matplotlib.figure import Figure

    points = sorted(choice.curve, key=lambda point: point.cost)
    cost = [point.cost for point in points]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(cost, [point.quality for point in points], label="seen")
    axes.plot(cost, [point.quality_at_least for point in points], "--", label=f"at least, {1 - choice.delta:.0%} each")
    if choice.target.kind == "quality":
        axes.axhline(choice.target.level, color="grey", linewidth=0.8, label="target")
    elif choice.target.kind == "cost":
        axes.axvline(choice.target.level, color="grey", linewidth=0.8, label="target")
    if choice.point is not None:
        axes.plot([choice.point.cost], [choice.point.quality], "o", label="chosen")
    axes.set_xlabel("cost, as a share of always-large's")
    axes.set_ylabel("quality, as a share of always-large's")
    axes.set_title(f"{choice.n} labels")
    axes.legend()
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise CommandError(f"the picture cannot be written: {error}") from None
