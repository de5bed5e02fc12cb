"""Describe a calibration: as a table and sentences, as JSON values, and as a picture of the curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from gateway.parts.fit.calibration.change import Change, key_for
from gateway.parts.fit.calibration.check import Check
from gateway.parts.fit.calibration.choose import Best, Choice, Point, Setting, Target
from gateway.parts.fit.calibration.traffic import LabelledSurface, LabelledTraffic
from gateway.parts.fit.datasets import DataError
from gateway.report import Report, table

BOUND = (
    "betting (Waudby-Smith and Ramdas 2024; exact binomial for 0/1 losses), fixed-sequence Learn then Test "
    "(Angelopoulos et al. 2021)"
)
_ROWS = 16
_WANTED = {"quality": "quality at least {:g} of always-large's", "error": "errors in at most {:g} of all requests"}
_WANTED["cost"] = "cost at most {:g} of always-large's"


def _values(
    surface: LabelledSurface, labelled: LabelledTraffic, choice: Choice, checked: Check | None, change: Change | None
) -> dict[str, Any]:
    """Return all results of a calibration as JSON values."""
    return {
        "surface": surface.policy.surface,
        "policy": surface.policy.label,
        "tiers": list(surface.tiers),
        "models": list(labelled.models),
        "target": asdict(choice.target),
        "chosen": _chosen(surface, choice.point, labelled),
        "n": choice.n,
        "delta": choice.delta,
        "bound": BOUND,
        "missing": choice.missing,
        "cost_unit": labelled.cases.unit,
        "traffic": surface.traffic.model_dump() if surface.traffic else None,
        "notes": list(labelled.notes),
        "curve": [_flat(surface, point) for point in choice.curve],
        "starts": [_start(surface, best) for best in choice.starts],
        "check": asdict(checked) if checked else None,
        "diff": change.diff if change else None,
    }


def _chosen(surface: LabelledSurface, point: Point | None, labelled: LabelledTraffic) -> dict[str, Any] | None:
    if point is None:
        return None
    flat = _flat(surface, point)
    key, threshold = key_for(labelled.basis), flat.pop("threshold")
    other = {"confidence_below": None, "uncalibrated_below": None, "uncalibrated": key == "uncalibrated_below"}
    return {**other, key: threshold, **flat}


def _flat(surface: LabelledSurface, point: Point) -> dict[str, Any]:
    figures = asdict(point)
    setting = figures.pop("setting")
    return {surface.rules.value: setting["start"], "threshold": setting["confidence_below"], **figures}


def _start(surface: LabelledSurface, best: Best) -> dict[str, Any]:
    figures = asdict(best)
    if (setting := figures.pop("setting")) is not None:
        setting = {surface.rules.value: setting["start"], "confidence_below": setting["confidence_below"]}
    return {surface.rules.value: figures.pop("start"), "setting": setting, **figures}


def calibration_report(
    surface: LabelledSurface, labelled: LabelledTraffic, choice: Choice, checked: Check | None, change: Change | None
) -> Report:
    """Return the curve, and the setting chosen from it."""
    small, large = surface.tiers
    title = (
        f"{surface.policy.surface}: from {small} ({labelled.models[0]}) to {large} ({labelled.models[1]}); "
        f"{choice.n} labelled requests; {wanted(choice.target)}, at {1 - choice.delta:.0%} confidence"
    )
    lines: list[str | Text | Table] = []
    if len(surface.policy.tiers) > 2:
        lines.append(f"the first step of {' -> '.join(surface.policy.tiers)}; always-large means always {large}")
    lines += [Text(f"note: {note}", "yellow") for note in labelled.notes]
    lines += ["", "the curve", *_curve(surface, choice, labelled)]
    if len(choice.starts) > 1:
        lines += ["", "the best of each start threshold", _starts(surface, choice)]
    if choice.point is not None:
        lines += ["", Text(_chosen_in_words(surface, choice.point, labelled, choice), "bold green")]
    if checked is not None:
        lines.append(_checked_in_words(checked, choice))
    return Report(_values(surface, labelled, choice, checked, change), lines, title=title, width=120)


def wanted(target: Target) -> str:
    """Return the target in words."""
    return _WANTED[target.kind].format(target.level)


def _checked_in_words(checked: Check, choice: Choice) -> str:
    """Return the results of calibrating on random halves."""
    return (
        f"check: {checked.rounds} random halves of {checked.n} labels, each calibrated by itself: "
        f"the target is missed on all labels in {checked.violated:.1%} (allowed {choice.delta:.0%}), "
        f"on the other half in {checked.violated_held_out:.1%} (that half's own chance included), "
        f"refused {checked.refused:.1%}. Mean cost {checked.cost:.3f} of always-large's, "
        f"quality {checked.quality:.3f}; "
        f"the best in hindsight: {checked.best_cost:.3f} and {checked.best_quality:.3f}."
    )


def refusal(choice: Choice) -> str:
    """Return why no setting was chosen, and what would help."""
    start = f"{choice.n} labels cannot show {wanted(choice.target)} at {1 - choice.delta:.0%} confidence"
    if choice.missing is None:
        return (
            f"{start}, and at the rates seen here no number would: no setting that saves anything meets the target. "
            "Lower the target, or give the small tier a better model or a confidence head"
        )
    return f"{start} for any setting that saves anything; about {choice.missing} more labels are missing"


def _curve(surface: LabelledSurface, choice: Choice, labelled: LabelledTraffic) -> tuple[Table, str]:
    """Return the curve as a table, and what its columns are shares of."""
    bounds = ("quality", "at least", "errors", "at most", "cost", "at most")
    curve = table("escalate below", "kept local", "large calls", *bounds, "", left=0)
    for point in _thinned(choice):
        chosen = point.setting == choice.setting
        figures = (point.kept, point.large_calls, point.quality, point.quality_at_least)
        losses = (point.error, point.error_at_most, point.cost, point.cost_at_most)
        mark = "<- chosen" if chosen else "proven" if point.proven else ""
        cells = [f"{point.setting.confidence_below:g}", *(f"{figure:.1%}" for figure in (*figures, *losses)), mark]
        curve.add_row(*cells, style="bold" if chosen else None)
    start = choice.curve[0].setting.start
    where = "" if start is None else f"local starts where {surface.rules.in_words(start)}; "
    unit = "counted in large calls" if labelled.cases.unit == "large calls" else "in dollars"
    return curve, f"{where}quality and cost ({unit}) as shares of always-large's, the rest of all requests"


def _thinned(choice: Choice) -> list[Point]:
    """Return the chosen point, and others about evenly spaced by the share of requests that stay local."""
    shown: list[Point] = []
    for point in choice.curve:
        apart = not shown or abs(shown[-1].kept - point.kept) >= 1 / _ROWS
        if apart or point.setting == choice.setting or point is choice.curve[-1]:
            shown.append(point)
    return shown


def _starts(surface: LabelledSurface, choice: Choice) -> Table:
    starts = table("starts local where", "share of delta", "escalate below", "quality", "cost", left=0)
    for best in choice.starts:
        cells = ["-", "-", "-"]
        if best.setting is not None:
            cells = [f"{best.setting.confidence_below:g}", f"{best.quality:.1%}", f"{best.cost:.1%}"]
        start = "-" if best.start is None else surface.rules.in_words(best.start)
        starts.add_row(start, f"{best.delta:.3f}", *cells, style="bold" if best.setting == choice.setting else None)
    return starts


def _chosen_in_words(surface: LabelledSurface, point: Point, labelled: LabelledTraffic, choice: Choice) -> str:
    bounds = {
        "quality": f"quality {point.quality:.1%} of always-large's, at least {point.quality_at_least:.1%}",
        "error": f"errors {point.error:.2%}, at most {point.error_at_most:.2%}",
        "cost": f"cost {point.cost:.1%} of always-large's, at most {point.cost_at_most:.1%}",
    }
    others = [f"{name} {getattr(point, name):.1%}" for name in ("quality", "cost") if name != choice.target.kind]
    setting = _settings_in_words(surface, point.setting, labelled)
    return (
        f"chosen: {setting}: {bounds[choice.target.kind]} at {1 - choice.delta:.0%} "
        f"confidence, on {choice.n} labels; kept local {point.kept:.1%}, {', '.join(others)}"
    )


def _settings_in_words(surface: LabelledSurface, setting: Setting, labelled: LabelledTraffic) -> str:
    """Return a setting as text, such as `easiest 40% of its kind, uncalibrated_below 0.92`."""
    parts: Sequence[str] = [] if setting.start is None else [surface.rules.in_words(setting.start)]
    return ", ".join([*parts, f"{key_for(labelled.basis)} {setting.confidence_below:g}"])


def plot(choice: Choice, file: Path) -> None:
    """Draw cost and quality of every escalation threshold, with bounds, into `file`. Raises DataError."""
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
        raise DataError(f"the picture cannot be written: {error}") from None
