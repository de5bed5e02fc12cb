"""Make labelled requests from recorded traffic (`tierline trace list --json`) and a file of which model was right.

A record holds the classifier's scores, the small tier's confidence and the costs. For requests that started at another
tier the small tier's confidence is unknown, so start thresholds that would have sent them there cannot be evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from gateway.cli.commands import CommandError
from gateway.parts.fit.calibration.cases import known_starts
from gateway.parts.fit.calibration.traffic import LabelledSurface, LabelledTraffic, call_dollars, cases_of
from gateway.parts.fit.datasets import DataError, Json, json_objects, rows_of
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from gateway.telemetry.sampling import HEAD
from policies.model import Policy
from routing.cascade import REJECTED
from routing.confidence.judge import Basis, outcome_of_verdict

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Request:
    """One labelled request. `values` are those that start rules use; `asked`: the small tier's answer is known."""

    small: float
    large: float
    values: Mapping[str, Any]
    classifier: str
    asked: bool
    confidence: float | None
    basis: Basis
    faulty: bool
    small_cost: float | None
    large_cost: float | None


def from_ledger(surface: LabelledSurface, records: Path, labels: Path) -> LabelledTraffic:
    """Return the surface's labelled requests. Raises CommandError, DataError."""
    right = _labels(labels)
    skipped: Counter[str] = Counter()
    left_out: set[str] = set()
    requests: dict[str, _Request] = {}
    for place, record in json_objects(records):
        try:
            request_id = str(record["ledger"]["request_id"])
            if record["ledger"]["surface"] != surface.policy.surface or request_id not in right:
                continue
            request = _request(record, surface, right[request_id])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{place}: not a record as `tierline trace list --json` prints it: {error!r}") from None
        if isinstance(request, str):
            skipped[request] += 1
            left_out.add(request_id)
        else:
            requests.setdefault(request_id, request)
    if not requests:
        raise CommandError(_nothing(surface, records, labels, skipped))
    if unseen := len(right.keys() - requests.keys() - left_out):
        skipped[f"without a record of {surface.policy.surface} in {records}"] += unseen
    return _labelled(surface, _of_one_classifier(list(requests.values()), skipped), skipped)


def _labelled(surface: LabelledSurface, requests: Sequence[_Request], skipped: Counter[str]) -> LabelledTraffic:
    values = [request.values for request in requests]
    every = [(at, surface.rules.start_cheapest(values, at)) for at in surface.rules.thresholds]
    starts, untold = known_starts(every, np.array([request.asked for request in requests]))
    if not starts:
        raise CommandError(
            f"the labelled requests never started at {surface.tiers[0]}, so its confidence on them is unknown; "
            f"let more of them start there for a while, or collect rows of both models' answers for --data",
        )
    cases, basis = cases_of(
        surface,
        ([request.small for request in requests], [request.large for request in requests]),
        ([request.small_cost for request in requests], [request.large_cost for request in requests]),
        [(request.confidence, request.basis) for request in requests],
        [request.faulty for request in requests],
        starts,
    )
    models = (surface.small.model, surface.large.model)
    return LabelledTraffic(cases, basis, models, tuple(_notes(surface, skipped, untold)))


def _labels(file: Path) -> dict[str, tuple[float, float]]:
    """Return by request id how right each of the two models' answers was, from 0 to 1. Raises DataError."""
    return dict(rows_of(file, _label, '{"request_id": "...", "small": 0..1, "large": 0..1}'))


def _label(row: Json) -> tuple[str, tuple[float, float]]:
    pair = float(row["small"]), float(row["large"])
    if not all(0 <= share <= 1 for share in pair):
        raise ValueError("small and large are shares from 0 to 1")
    return str(row["request_id"]), pair


def _request(record: Mapping[str, Any], surface: LabelledSurface, label: tuple[float, float]) -> _Request | str:
    """Return the request of a record, or why it cannot be used to choose thresholds."""
    if record["ledger"].get("kept", HEAD) != HEAD:
        return "whose hops were left out by sampling, or kept for what came of them (telemetry.sample)"
    hops: list[tuple[str, Attributes]] = [(hop["name"], hop["attributes"]) for hop in record["hops"]]
    route = next((attributes for name, attributes in hops if name == names.ROUTE), None)
    if route is None or names.DECISION not in route:
        return "answered without a routing decision (from the cache, or an error)"
    small_tier, large_tier = surface.tiers
    attempts = [attributes for name, attributes in hops if name == names.ATTEMPT]
    small = next((attempt for attempt in attempts if attempt.get(names.TIER) == small_tier), None)
    large = next((attempt for attempt in attempts if attempt.get(names.TIER) == large_tier), None)
    if small is None and not _by_rule(route):
        return "whose tier was set by the request itself or by health, not by the start rules"
    if small is not None and detail.MIN_CONFIDENCE not in small and names.CONFIDENCE_BASIS not in small:
        return f"whose answer of {small_tier} was not judged (it failed, or nothing stronger could follow)"
    tokens = _tokens(small or large or {})
    return _Request(
        *label,
        values=_values(record["ledger"], route, tokens[0], surface.policy),
        classifier=str(route.get(detail.CLASSIFIER, "")),
        asked=small is not None,
        confidence=small.get(names.CONFIDENCE) if small else None,
        basis=_basis(small or {}),
        faulty=small is not None and _is_faulty(small),
        # A call that was not made is priced by the tokens of the other tier's call.
        small_cost=call_dollars((small or {}).get(names.COST), *tokens, surface.small),
        large_cost=call_dollars((large or {}).get(names.COST), *tokens, surface.large),
    )


def _by_rule(route: Attributes) -> bool:
    """Return whether a start rule chose the first tier: then the reason is `TIER: RULE` and nothing else."""
    reason, first = str(route.get(names.REASON, "")), route[names.DECISION][0]
    return reason.startswith(f"{first}: ") and ";" not in reason


def _values(ledger: Mapping[str, Any], route: Attributes, tokens_in: int | None, policy: Policy) -> dict[str, Any]:
    """Return the values of a record that start rules use; a comparison with any other name is false."""
    return {
        "p_adequate": route.get(detail.P_ADEQUATE),
        "difficulty": route.get(detail.DIFFICULTY),
        "in_domain": bool(route.get(detail.IN_DOMAIN)),
        "kind": route.get(detail.KIND),
        "quantile": _quantile(route, policy),
        "conversation_difficulty": route.get(detail.CONVERSATION),
        "last_tier": policy.tiers.index(last) + 1 if (last := route.get(names.LAST_TIER)) in policy.tiers else 0,
        "tokens_in": tokens_in,
        "stream": ledger["stream"],
        "budget_ms": route.get(detail.BUDGET_LEFT),
    }


def _quantile(route: Attributes, policy: Policy) -> float | None:
    """Return the share of requests of its kind that are easier, as a start rule of this policy sees it."""
    kind, quantile = route.get(detail.KIND), route.get(detail.QUANTILE)
    if kind is None or quantile is None:
        return None
    own = policy.route.share_easier(kind, quantile, str(route.get(detail.CLASSIFIER, "")))
    return float(quantile) if own is None else own


def _tokens(attempt: Attributes) -> tuple[int | None, int | None]:
    return attempt.get(names.GEN_AI_TOKENS_IN), attempt.get(names.GEN_AI_TOKENS_OUT)


def _basis(attempt: Attributes) -> Basis:
    basis = attempt.get(names.CONFIDENCE_BASIS, "logprob")
    if basis not in ("calibrated", "logprob", "judge", "agreement", "scorer", "none"):
        raise ValueError(f"unknown basis of confidence {basis!r}")
    return cast(Basis, basis)


def _is_faulty(attempt: Attributes) -> bool:
    """Return whether an answer was rejected by a structural fault, whatever its confidence."""
    # Older records say low_confidence of those, too.
    return attempt.get(names.OUTCOME) in REJECTED and outcome_of_verdict(attempt.get(names.REASON, "")) == "unfit"


def _of_one_classifier(requests: list[_Request], skipped: Counter[str]) -> list[_Request]:
    """Return the requests scored by the first one's classifier, the newest: classifiers' scores are not comparable."""
    version = next((request.classifier for request in requests if request.classifier), "")
    same = [request for request in requests if request.classifier in ("", version)]
    if len(same) < len(requests):
        skipped[f"scored by another classifier than {version}, the newest one's"] += len(requests) - len(same)
    return same


def _notes(surface: LabelledSurface, skipped: Counter[str], untold: Sequence[float | None]) -> Iterator[str]:
    for reason, count in skipped.items():
        yield f"left out: {count} {reason}"
    if untold:
        named = ", ".join(surface.rules.in_words(threshold) for threshold in untold if threshold is not None)
        yield (
            f"start thresholds not looked at: {named}; with them, requests would start at {surface.tiers[0]} for which "
            "its answer is unknown"
        )


def _nothing(surface: LabelledSurface, records: Path, labels: Path, skipped: Counter[str]) -> str:
    why = "; ".join(f"{count} {reason}" for reason, count in skipped.items())
    left_out = f" (left out: {why})" if why else ""
    return (
        f"no labelled request of {surface.policy.surface} in {records} can be used{left_out}; "
        f"{labels} must name request ids of it"
    )
