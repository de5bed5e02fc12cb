"""Print a calibration as a table and sentences, or as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from gateway.cli.commands.calibrate.change import Change, key_for
from gateway.cli.commands.calibrate.labelled import LabelledSurface, LabelledTraffic
from offline.calibration.check import Check
from offline.calibration.choose import Choice, Point, Setting, Target
from offline.report import console_of_stdout

BOUND = (
    "betting (Waudby-Smith and Ramdas 2024; exact binomial for 0/1 losses), fixed-sequence Learn then Test "
    "(Angelopoulos et al. 2021)"
)
_ROWS = 16
_WANTED = {"quality": "quality at least {:g} of always-large's", "error": "errors in at most {:g} of all requests"}
_WANTED["cost"] = "cost at most {:g} of always-large's"


def as_json(
    surface: LabelledSurface, labelled: LabelledTraffic, choice: Choice, checked: Check | None, change: Change | None
) -> dict[str, Any]:
    """Return all results of a calibration as JSON values."""
    return {
        "surface": surface.policy.surface,
        "policy": surface.policy.label,
        "tiers": list(surface.tiers),
        "models": list(labelled.models),
        "target": asdict(choice.target),
        "chosen": _chosen(choice.point, labelled),
        "n": choice.n,
        "delta": choice.delta,
        "bound": BOUND,
        "missing": choice.missing,
        "cost_unit": labelled.cases.unit,
        "notes": list(labelled.notes),
        "curve": [_flat(point) for point in choice.curve],
        "starts": [asdict(best) for best in choice.starts],
        "check": asdict(checked) if checked else None,
        "diff": change.diff if change else None,
    }


def _chosen(point: Point | None, labelled: LabelledTraffic) -> dict[str, Any] | None:
    if point is None:
        return None
    flat = _flat(point)
    key, threshold = key_for(labelled.basis), flat.pop("threshold")
    other = {"confidence_below": None, "uncalibrated_below": None, "uncalibrated": key == "uncalibrated_below"}
    return {**other, key: threshold, **flat}


def _flat(point: Point) -> dict[str, Any]:
    figures = asdict(point)
    setting = figures.pop("setting")
    return {"p_adequate": setting["p_adequate"], "threshold": setting["confidence_below"], **figures}


def show(surface: LabelledSurface, labelled: LabelledTraffic, choice: Choice) -> None:
    """Print the curve, and the setting chosen from it."""
    out = console_of_stdout()
    small, large = surface.tiers
    out.print(
        f"{surface.policy.surface}: from {small} ({labelled.models[0]}) to {large} ({labelled.models[1]}); "
        f"{choice.n} labelled requests; {wanted(choice.target)}, at {1 - choice.delta:.0%} confidence",
        style="bold",
    )
    if len(surface.policy.tiers) > 2:
        out.print(f"the first step of {' -> '.join(surface.policy.tiers)}; always-large means always {large}")
    for note in labelled.notes:
        out.print(f"note: {note}", style="yellow")
    out.print(_curve(choice, labelled))
    if len(choice.starts) > 1:
        out.print(_starts(choice))
    if choice.point is not None:
        out.print(_chosen_in_words(choice.point, labelled, choice), style="bold green")


def wanted(target: Target) -> str:
    """Return the target in words."""
    return _WANTED[target.kind].format(target.level)


def show_check(checked: Check, choice: Choice) -> None:
    """Print the results of calibrating on random halves."""
    console_of_stdout().print(
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


def _curve(choice: Choice, labelled: LabelledTraffic) -> Table:
    table = Table(title="the curve", title_justify="left", box=None, caption_justify="left")
    for heading in ("escalate below", "kept local", "large calls"):
        table.add_column(heading, justify="right")
    for heading, bound in (("quality", "at least"), ("errors", "at most"), ("cost", "at most")):
        table.add_column(heading, justify="right")
        table.add_column(bound, justify="right", style="dim")
    table.add_column("")
    for point in _thinned(choice):
        chosen = point.setting == choice.setting
        figures = (point.kept, point.large_calls, point.quality, point.quality_at_least)
        losses = (point.error, point.error_at_most, point.cost, point.cost_at_most)
        mark = "<- chosen" if chosen else "proven" if point.proven else ""
        cells = [f"{point.setting.confidence_below:g}", *(f"{figure:.1%}" for figure in (*figures, *losses)), mark]
        table.add_row(*cells, style="bold" if chosen else None)
    start = choice.curve[0].setting.p_adequate
    where = "" if start is None else f"local starts where p_adequate >= {start:g}; "
    unit = "counted in large calls" if labelled.cases.unit == "large calls" else "in dollars"
    table.caption = f"{where}quality and cost ({unit}) as shares of always-large's, the rest of all requests"
    return table


def _thinned(choice: Choice) -> list[Point]:
    """Return the chosen point, and others about evenly spaced by the share of requests that stay local."""
    shown: list[Point] = []
    for point in choice.curve:
        apart = not shown or abs(shown[-1].kept - point.kept) >= 1 / _ROWS
        if apart or point.setting == choice.setting or point is choice.curve[-1]:
            shown.append(point)
    return shown


def _starts(choice: Choice) -> Table:
    table = Table(title="the best of each start threshold", title_justify="left", box=None)
    for heading in ("p_adequate >=", "share of delta", "escalate below", "quality", "cost"):
        table.add_column(heading, justify="right")
    for best in choice.starts:
        cells = ["-", "-", "-"]
        if best.setting is not None:
            cells = [f"{best.setting.confidence_below:g}", f"{best.quality:.1%}", f"{best.cost:.1%}"]
        start = "-" if best.p_adequate is None else f"{best.p_adequate:g}"
        table.add_row(start, f"{best.delta:.3f}", *cells, style="bold" if best.setting == choice.setting else None)
    return table


def _chosen_in_words(point: Point, labelled: LabelledTraffic, choice: Choice) -> str:
    bounds = {
        "quality": f"quality {point.quality:.1%} of always-large's, at least {point.quality_at_least:.1%}",
        "error": f"errors {point.error:.2%}, at most {point.error_at_most:.2%}",
        "cost": f"cost {point.cost:.1%} of always-large's, at most {point.cost_at_most:.1%}",
    }
    others = [f"{name} {getattr(point, name):.1%}" for name in ("quality", "cost") if name != choice.target.kind]
    return (
        f"chosen: {settings_in_words(point.setting, labelled)}: {bounds[choice.target.kind]} at {1 - choice.delta:.0%} "
        f"confidence, on {choice.n} labels; kept local {point.kept:.1%}, {', '.join(others)}"
    )


def settings_in_words(setting: Setting, labelled: LabelledTraffic) -> str:
    """Return a setting as text, such as `p_adequate >= 0.3, uncalibrated_below 0.92`."""
    parts: Sequence[str] = [] if setting.p_adequate is None else [f"p_adequate >= {setting.p_adequate:g}"]
    return ", ".join([*parts, f"{key_for(labelled.basis)} {setting.confidence_below:g}"])
