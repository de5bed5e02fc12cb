"""Say how a candidate does: the lines of `tierline policy status`, and the JSON that the judge keeps in the store.

    {"version": "...", "mode": "canary", "share": 0.05, "step": 1, "steps": 3, "since": 1767225600.1, "paused": "",
     "at": 1767225700.3, "lines": ["candidate 120 requests of 41 units, control 2310 of 803", ...],
     "move": "wait", "reason": "", "elapsed_s": 100.2, "units": {"candidate": 41, "control": 803},
     "requests": {"candidate": 120, "control": 2310}, "guards": [{...the fields of `GuardFigures`...}]}

`at` is when it was made, in Unix seconds. For a candidate that is only evaluated, `move` and what follows are replaced
by what `Evaluation.as_json` returns; for one in shadow mode by what `ShadowFigures.as_json` returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from policies.quantities import milliseconds, percent, period

if TYPE_CHECKING:
    from gateway.parts.rollout.evaluation import Evaluation
    from gateway.parts.rollout.registry.records import Rolling
    from gateway.parts.rollout.shadow_figures import ShadowFigures
    from gateway.parts.rollout.trial import GuardFigures, TrialVerdict


def canary_report(rolling: Rolling, steps: int, verdict: TrialVerdict, now: float) -> dict[str, Any]:
    """Return the report on a canary with so many steps."""
    lines = list(_canary_lines(rolling, verdict))
    return {**_head(rolling, now), "steps": steps, "lines": lines, **verdict.as_json()}


def evaluation_report(rolling: Rolling, evaluation: Evaluation, now: float) -> dict[str, Any]:
    """Return the report on a candidate that is only evaluated."""
    return {**_head(rolling, now), "lines": list(evaluation.lines()), **evaluation.as_json()}


def shadow_report(rolling: Rolling, figures: ShadowFigures, now: float) -> dict[str, Any]:
    """Return the report on a candidate in shadow mode."""
    return {**_head(rolling, now), "lines": list(figures.lines()), **figures.as_json()}


def details_of(verdict: TrialVerdict) -> str:
    """Return the figures that a verdict rests on, for the audit trail: a line for each guard."""
    return "\n".join([_counts(verdict), *(" ".join(_guard_line(guard).split()) for guard in verdict.guards)])


def _head(rolling: Rolling, now: float) -> dict[str, Any]:
    return {**rolling.shown(), "at": now}


def _canary_lines(rolling: Rolling, verdict: TrialVerdict) -> Iterator[str]:
    if verdict.reason and not rolling.paused:
        yield f"{verdict.move}: {verdict.reason}"
    yield _counts(verdict)
    for guard in verdict.guards:
        yield _guard_line(guard)
        if guard.missing:
            yield f"          {guard.missing}"
            yield "          without either, this step ends undecided"


def _counts(verdict: TrialVerdict) -> str:
    units, requests = verdict.units, verdict.requests
    return (
        f"candidate {requests['candidate']} requests of {units['candidate']} units, "
        f"control {requests['control']} of {units['control']}"
    )


def _guard_line(figures: GuardFigures) -> str:
    what = f"waits for {figures.waits_for}" if figures.waits_for else figures.change()
    if figures.guard == "ttft_p95":
        what = what if figures.waits_for else f"late first tokens {what}"
        if figures.candidate is not None and figures.control is not None:
            what = f"{milliseconds(figures.candidate * 1000)} against {milliseconds(figures.control * 1000)}; {what}"
        what = f"{what}; allowed {milliseconds((figures.allowed_s or 0.0) * 1000, signed=True)}"
    else:
        judge = "; by the judge alone" if figures.word == "judge" else ""
        what = f"{what}; allowed {percent(figures.allowed, signed=True)}{judge}"
    if figures.state == "open" and figures.decided_in_s is not None:
        return f"{figures.guard:<9} open     {what}; decided in about {period(figures.decided_in_s)} at this pace"
    return f"{figures.guard:<9} {figures.state:<8} {what}"
