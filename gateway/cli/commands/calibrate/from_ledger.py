"""Labelled requests from records of real traffic (`tierline trace list --json`) and a file that says who was right.

A record tells what the classifier said, what the small tier's answer was worth to the judge, and what was paid. Of the
requests that the start rules sent past the small tier nobody knows how sure it would have been, so start thresholds
that would have sent them there cannot be chosen from them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from gateway.cli.commands import CommandError
from gateway.cli.commands.calibrate.labelled import LabelledSurface, LabelledTraffic, costs, dollars, judged
from gateway.telemetry import names
from routing.confidence.judge import Basis
from routing.offline.calibration.cases import Cases, known_starts
from routing.offline.dataset import DataError

Attributes = Mapping[str, Any]
# Structural faults are reasons of another kind, and turn an answer down whatever its confidence.
_ABOUT_CONFIDENCE = ("confidence ", "no signal")


@dataclass(frozen=True, slots=True)
class _Request:
    """One labelled request. `values` is what start rules may ask of it; `asked`: the small tier's answer is known."""

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
    """The surface's labelled requests. Raises CommandError, DataError."""
    right = _labels(labels)
    skipped: Counter[str] = Counter()
    left_out: set[str] = set()
    found: dict[str, _Request] = {}
    for place, record in _lines(records):
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
            found.setdefault(request_id, request)
    if not found:
        raise CommandError(_nothing(surface, records, labels, skipped))
    if unseen := len(right.keys() - found.keys() - left_out):
        skipped[f"without a record of {surface.policy.surface} in {records}"] += unseen
    return _labelled(surface, _of_one_classifier(list(found.values()), skipped), skipped)


def _labelled(surface: LabelledSurface, requests: Sequence[_Request], skipped: Counter[str]) -> LabelledTraffic:
    values = [request.values for request in requests]
    every = [(at, surface.rules.start_cheapest(values, at)) for at in surface.rules.thresholds]
    starts, untold = known_starts(every, np.array([request.asked for request in requests]))
    if not starts:
        raise CommandError(
            f"the labelled requests never started at {surface.tiers[0]}, so nobody knows how sure it would have been; "
            f"lower the start rule's p_adequate for a while, or collect rows of both models' answers for --data",
        )
    verdicts = judged(
        surface,
        [(request.confidence, request.basis) for request in requests],
        [request.faulty for request in requests],
    )
    small_cost, large_cost, unit = costs(
        [request.small_cost for request in requests], [request.large_cost for request in requests]
    )
    cases = Cases(
        small=np.array([request.small for request in requests]),
        large=np.array([request.large for request in requests]),
        confidence=verdicts.confidence,
        unfit=verdicts.unfit,
        small_cost=small_cost,
        large_cost=large_cost,
        starts=starts,
        unit=unit,
        accepts_unknown=surface.policy.escalate.no_signal == "accept",
    )
    models = (surface.small.model, surface.large.model)
    return LabelledTraffic(cases, verdicts.basis, models, tuple(_notes(surface, skipped, untold)))


def _labels(file: Path) -> dict[str, tuple[float, float]]:
    """How right each tier's answer was, by request id."""
    found: dict[str, tuple[float, float]] = {}
    for place, line in _lines(file):
        try:
            pair = float(line["small"]), float(line["large"])
            found[str(line["request_id"])] = pair
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f'{place}: not a label; write {{"request_id": "...", "small": 0..1, "large": 0..1}}'
            ) from None
        if not all(0 <= share <= 1 for share in pair):
            raise DataError(f"{place}: small and large are shares from 0 to 1")
    return found


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f"{file}:{number}", json.loads(line)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{file}: not JSON lines: {error}") from None


def _request(record: Mapping[str, Any], surface: LabelledSurface, label: tuple[float, float]) -> _Request | str:
    """The request of a record, or why it says nothing about thresholds."""
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
    if small is not None and names.MIN_CONFIDENCE not in small and names.CONFIDENCE_BASIS not in small:
        return f"whose answer of {small_tier} was not judged (it failed, or nothing stronger could follow)"
    tokens = _tokens(small or large or {})
    return _Request(
        *label,
        values=_values(record["ledger"], route, tokens[0]),
        classifier=str(route.get(names.CLASSIFIER, "")),
        asked=small is not None,
        confidence=small.get(names.CONFIDENCE) if small else None,
        basis=_basis(small or {}),
        faulty=small is not None and _is_faulty(small),
        # A request that never met the tier is priced by the tokens it had at the other.
        small_cost=dollars((small or {}).get(names.COST), *tokens, surface.small),
        large_cost=dollars((large or {}).get(names.COST), *tokens, surface.large),
    )


def _by_rule(route: Attributes) -> bool:
    """Whether the start rules chose the first tier: the reason then begins with its name, and says nothing more."""
    reason, first = str(route.get(names.REASON, "")), route[names.DECISION][0]
    return reason.startswith(f"{first}: ") and ";" not in reason


def _values(ledger: Mapping[str, Any], route: Attributes, tokens_in: int | None) -> dict[str, Any]:
    """What a record tells of the names that start rules may use; comparisons with the others do not hold."""
    return {
        "p_adequate": route.get(names.P_ADEQUATE),
        "difficulty": route.get(names.DIFFICULTY),
        "in_domain": bool(route.get(names.IN_DOMAIN)),
        "tokens_in": tokens_in,
        "stream": ledger["stream"],
        "budget_ms": route.get(names.BUDGET_LEFT),
    }


def _tokens(attempt: Attributes) -> tuple[int | None, int | None]:
    return attempt.get(names.GEN_AI_TOKENS_IN), attempt.get(names.GEN_AI_TOKENS_OUT)


def _basis(attempt: Attributes) -> Basis:
    said = attempt.get(names.CONFIDENCE_BASIS, "logprob")
    if said not in ("calibrated", "logprob", "agreement", "none"):
        raise ValueError(f"unknown basis of confidence {said!r}")
    return cast(Basis, said)


def _is_faulty(attempt: Attributes) -> bool:
    reason = str(attempt.get(names.REASON, ""))
    return attempt.get(names.OUTCOME) == "low_confidence" and not reason.startswith(_ABOUT_CONFIDENCE)


def _of_one_classifier(requests: list[_Request], skipped: Counter[str]) -> list[_Request]:
    """Those scored by the classifier that scored the first, which is the newest: scores of two are on two scales."""
    version = next((request.classifier for request in requests if request.classifier), "")
    kept = [request for request in requests if request.classifier in ("", version)]
    if len(kept) < len(requests):
        skipped[f"scored by another classifier than {version}, the newest one's"] += len(requests) - len(kept)
    return kept


def _notes(surface: LabelledSurface, skipped: Counter[str], untold: Sequence[float | None]) -> Iterator[str]:
    for reason, count in skipped.items():
        yield f"left out: {count} {reason}"
    if untold:
        named = ", ".join(f"{threshold:g}" for threshold in untold if threshold is not None)
        yield (
            f"start thresholds not looked at: {named}; under them requests would start at {surface.tiers[0]} that it "
            "was never asked"
        )


def _nothing(surface: LabelledSurface, records: Path, labels: Path, skipped: Counter[str]) -> str:
    why = "; ".join(f"{count} {reason}" for reason, count in skipped.items())
    left_out = f" (left out: {why})" if why else ""
    return (
        f"no labelled request of {surface.policy.surface} in {records} can be used{left_out}; "
        f"{labels} must name request ids of it"
    )
