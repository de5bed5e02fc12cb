"""Evaluate confidence heads on data sets that they were not fitted to: `tierline fit eval cascade --set-out`.

Each data set in turn is left out whole, and judged by a fit to all the others. Beside what serves stands what it would
have cost to carry the others' heads over to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from gateway.parts.fit.datasets import DataError, Example
from gateway.parts.fit.evaluation.prompts import interval_json
from gateway.parts.fit.figures import Draw, Figures, Method, Outcomes, figures
from gateway.report import NONE, WIDE, OnProgress, Report, silent, table
from routing.embedder import Vectors

_HOW = ("head", "carried")


def evaluate_set_out(
    title: str, examples: Sequence[Example], vectors: Vectors, seed: int, on_progress: OnProgress
) -> Report:
    """Return, for each data set left out, the cascade APGR of the head minus that of the raw log-probability.

    `vectors` (examples, dimension) are the prompts'. Raises DataError for fewer than two data sets.
    """
    names = np.array([example.dataset for example in examples])
    sets = list(dict.fromkeys(names.tolist()))
    if len(sets) < 2:
        raise DataError("--set-out leaves out one data set at a time; name files of two or more with --data")
    made = table("left out", "n", "APGR raw", "head minus raw", "carried minus raw", "ECE raw", "head", "carried")
    values: dict[str, Any] = {}
    for done, name in enumerate(sets):
        on_progress("leaving out", done, len(sets))
        found = {how: _found(examples, vectors, names == name, seed, carried=how == "carried") for how in _HOW}
        head = found["head"]
        ahead = {how: found[how]["ours_minus"]["raw_logprob"] for how in _HOW if "ours_minus" in found[how]}
        errors = {"raw_logprob": head["ece"]["raw_logprob"], **{how: found[how]["ece"]["ours"] for how in _HOW}}
        apgr = head.get("apgr", {}).get("raw_logprob")
        cells = (apgr, *map(ahead.get, _HOW), *errors.values())
        made.add_row(name, f"{(names == name).sum():,}", *(str(cell or NONE) for cell in cells))
        values[name] = {
            "n": int((names == name).sum()),
            "minus_raw": {how: interval_json(gain) for how, gain in ahead.items()},
            "ece": {how: interval_json(error) for how, error in errors.items()},
        }
    on_progress("leaving out", len(sets), len(sets))
    notes = [
        "head: what serves; a data set without labels keeps the order of the raw log-probability",
        "carried: what the order by the heads of the data sets that were fitted would be worth there",
    ]
    least = {how: [value["minus_raw"][how]["value"] for value in values.values() if value["minus_raw"]] for how in _HOW}
    worst = {how: min(some) for how, some in least.items() if some}
    lines: list[str | Text | Table] = [
        made,
        "",
        f"worst, minus raw: {', '.join(f'{how} {value:+.4f}' for how, value in worst.items())}",
        "",
    ]
    return Report({"sets": values, "worst_minus_raw": worst, "notes": notes}, lines, notes, title, width=WIDE)


def _found(examples: Sequence[Example], vectors: Vectors, out: Any, seed: int, *, carried: bool) -> Figures:
    """Return the figures of the examples in the mask `out` by a fit to the others, as `ours` and `raw_logprob`."""
    from gateway.parts.fit.training.confidence import fit_and_judge

    fitted = [example for example, is_out in zip(examples, out, strict=True) if not is_out]
    held = [example for example, is_out in zip(examples, out, strict=True) if is_out]
    judged = fit_and_judge(fitted, vectors[~out], held, vectors[out], carried=carried)
    logprob = np.array([example.answers[0].confidence for example in held], np.float64)
    methods = (
        Method("raw_logprob", -logprob, np.exp(np.minimum(0.0, logprob))),
        Method("ours", np.asarray(judged.gain, np.float64), np.asarray(judged.p_right, np.float64)),
    )
    return figures(Outcomes.of(held), [Draw(np.arange(len(held)), methods, cascade=True)], seed, silent)
