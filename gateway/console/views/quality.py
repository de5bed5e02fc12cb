"""Quality: how far predictions hold, what routing costs in quality, whether judge and people agree, how inputs drift.

Each figure is made where the commands make it: `gateway.measures` with what `gateway.archive.quality` asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request

from gateway.archive.figures import against_holdout
from gateway.archive.live import LiveArchive
from gateway.archive.quality import (
    DRAWN,
    HOLDOUT,
    INPUTS,
    INPUTS_NOW,
    OPINIONS,
    QUERIES,
    RULED,
    RULES,
    SLOT_MS,
    SurfaceLabels,
    surface_labels,
)
from gateway.console.kept_figures import KeptFigures, patience_for
from gateway.console.page import BadQuery, Page, Sources
from gateway.measures.drift import FEWEST as FEWEST_REQUESTS
from gateway.measures.drift import input_drift, merged
from gateway.measures.quality import FEWEST_BOTH, surface_quality
from gateway.measures.reliability import FEWEST, head_claims, head_reliabilities
from policies.model import Policy
from routing.decision_basis import BasisError, DecisionBasis

SPANS: Final = {"24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400}
RECENT: Final = 8
"""Inputs of the last part of so many of the time span are compared with those of the others."""
_FRESH_S: Final = 60.0
"""How long computed figures are shown again."""
INPUT_WORDS: Final[Mapping[str, str]] = {
    "training": "Difficulty, against the classifier's training",
    "quantile": "Difficulty, against before",
    "length": "Length of the prompt",
    "kind": "Kind of task",
    "domain": "What the classifier knows",
}
_DOMAIN: Final = {True: "in its domain", False: "outside"}


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the page."""
    view = QualityView(sources.archive)

    async def show(request: Request) -> Mapping[str, Any]:
        span = request.query_params.get("since", "7d")
        if span not in SPANS:
            raise BadQuery(f"since={span} is not a time span of this page; there are {', '.join(SPANS)}")
        return await view.data(span, request.query_params.get("surface", ""), patience_for(request))

    yield Page("/quality", "quality.html", show, name="Quality", key="q")


class QualityView:
    """Make the page."""

    def __init__(self, archive: LiveArchive) -> None:
        self._archive = archive
        for summary in (RULED, INPUTS):
            archive.keep(summary)
        self._kept = KeptFigures(self._surfaces, fresh_s=_FRESH_S)

    async def data(self, span: str = "7d", surface: str = "", patience_s: float | None = None) -> dict[str, Any]:
        """Return every surface's figures over `span`, one of SPANS' names, and of which surface the details are shown.

        Without a name that is the one of which most answers are labelled or rated. `surfaces` is None if the figures
        are not there within `patience_s` seconds; None waits for them.
        """
        made = await self._kept.get(span, patience_s)
        surfaces = [] if made is None else made.value
        chosen = next((one for one in surfaces if one["surface"] == surface), None)
        if chosen is None and not surface and surfaces:
            chosen = max(surfaces, key=lambda one: one["said"])
        return {
            "span": span,
            "spans": tuple(SPANS),
            "surface": surface,
            "surfaces": None if made is None else surfaces,
            "chosen": chosen,
            "fewest": FEWEST,
            "fewest_both": FEWEST_BOTH,
            "input_words": INPUT_WORDS,
            "recent_s": SPANS[span] / RECENT,
            "fewest_requests": FEWEST_REQUESTS,
            "widest": _widest(surfaces),
            "made_s": None if made is None else made.at,
            "made_ms": None if made is None else made.took_ms,
        }

    async def _surfaces(self, span: str) -> list[dict[str, Any]]:
        """Return the figures over a span, from the beginning of a slot of the summaries on."""
        span_ms = SPANS[span] * 1000
        ends_ms = (int(time.time() * 1000) // SLOT_MS + 1) * SLOT_MS
        from_ms, recent_ms = ends_ms - span_ms, ends_ms - span_ms // RECENT
        every = {"surface": None, "from_ms": from_ms}
        ask = self._archive.ask
        # One after the other: other pages' queries are not to wait for all of them.
        rules = await ask(RULES, from_ms=from_ms, summaries=(RULED,))
        found = {"ladders": rules, "labels": await ask(OPINIONS, every)}
        for name in QUERIES.keys() - found.keys():
            found[name] = await ask(QUERIES[name], every)
        found["holdout"] = await ask(HOLDOUT, {"from_ms": from_ms}, from_ms=from_ms, summaries=(DRAWN,))
        found["inputs"] = await ask(INPUTS_NOW, {"recent_ms": recent_ms}, from_ms=from_ms, summaries=(INPUTS,))
        return await asyncio.to_thread(_figures, found)


def _widest(surfaces: Sequence[Mapping[str, Any]]) -> float:
    """Return the end of an axis from minus to plus on which the intervals of all holdouts lie."""
    ends = [abs(end) for one in surfaces for end in one["holdout"]["interval_95"] or ()]
    return max(0.05, *ends) if ends else 0.05


def _figures(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the figures of each surface, by name."""
    labels = surface_labels({name: [dict(row) for row in found[name]] for name in QUERIES})
    bases = {row["surface"]: row["basis"] for row in found["ladders"]}
    drawn = {row["surface"]: row for row in found["ladders"] if "/" not in row["surface"]}
    names = sorted(drawn)
    shown = []
    for surface in names:
        own = labels.get(surface, SurfaceLabels())
        policy = _policy(bases.get(surface))
        rows = [row for row in found["holdout"] if row["surface"] == surface]
        inputs = [row for row in found["inputs"] if row["surface"] == surface]
        shown.append(
            {
                "surface": surface,
                "said": len(own.rows) + len(own.rated),
                "labels": len(own.rows),
                "rated": len(own.rated),
                **surface_quality(own.rows, own.feedback, own.unjudged, own.shadows),
                "heads": head_reliabilities(head_claims(own.rows, own.rated, own.ladder)),
                "holdout": _holdout(rows, own.rows, drawn.get(surface)),
                **_inputs(drifts(inputs)),
                "ladder": list(own.ladder),
                "rules": None if policy is None else _rules(policy),
            }
        )
    return shown


def _inputs(shown: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the drifts, whether any input changed, and whether difficulty is unlike the classifier's training."""
    states = {one["state"] for one in shown if one["input"] != "training"}
    worst = next((state for state in ("drifted", "moved", "stable") if state in states), "unknown")
    training = {one["state"] for one in shown if one["input"] == "training"}
    return {"inputs": list(shown), "changed": worst, "unlike_training": "drifted" in training}


def _policy(basis: str | None) -> Policy | None:
    if basis is None:
        return None
    try:
        return DecisionBasis.decode(basis.encode()).policy
    except BasisError:
        return None


def _rules(policy: Policy) -> dict[str, Any]:
    """Return what the policy says of where labels come from."""
    learn = policy.learn
    return {
        "holdout": policy.held_out,
        "judge": None if learn is None else learn.judge,
        "judged_share": None if learn is None else learn.share,
    }


def _holdout(
    rows: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, Any]], drawn: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the comparison of routed and held-out requests; of both arms also how many requests there were at all."""
    found = against_holdout(rows, labels)
    for arm in ("routed", "held_out"):
        found[arm] = {**found[arm], "drawn": 0 if drawn is None else drawn[arm]}
    return found


def drifts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the drift of each input of one surface, from the rows of INPUTS."""
    counts: dict[str, tuple[Counter[Any], Counter[Any]]] = {}
    for row in rows:
        for name in ("quantile", "length", "kind", "in_domain"):
            if row[name] is not None and row[name] != "":
                counts.setdefault(name, (Counter(), Counter()))[row["now"]][row[name]] += row["requests"]
    shown = []
    if (quantiles := counts.get("quantile")) is not None:
        before, now = ({_tenth(place): float(some[place]) for place in range(10)} for some in quantiles)
        shown.append(input_drift("training", dict.fromkeys(now, 0.1), now, exact=True))
        shown.append(input_drift("quantile", before, now))
    if (lengths := counts.get("length")) is not None:
        old, new = lengths
        fine = [(_tokens(place), float(old[place]), float(new[place])) for place in sorted({*old, *new})]
        shown.append(input_drift("length", *merged(fine)))
    if (kinds := counts.get("kind")) is not None:
        shown.append(input_drift("kind", *kinds))
    if (domain := counts.get("in_domain")) is not None:
        before, now = ({words: float(some[key]) for key, words in _DOMAIN.items()} for some in domain)
        shown.append(input_drift("domain", before, now))
    return shown


def _tenth(place: int) -> str:
    return f"{10 * place}–{10 * place + 10}%"


def _tokens(place: int) -> str:
    """Return the beginning of a bin of lengths, which are quarters of a doubling."""
    return f"{2 ** (place / 4):.0f}"
