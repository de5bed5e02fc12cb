"""Estimate the probability that an answer is right: a confidence head fitted to one backend's labelled answers.

There are scorers for the whole answer and for its first 8, 16, 24 and 48 tokens (all that a stream's judge has seen).
They are tried best first: over all features, over those of the tokens alone, and over the mean log-probability alone,
with which the probability rises. A scorer that lacks a feature, or meets a value outside its fitted range, is skipped;
so on unfamiliar evidence answers are ranked by the raw log-probability. What another verifier says (the agreement with
a second sample, a judge, the deployment's scorer) has a scorer of its own. If none applies, the head returns None.

An artefact is one JSON file: the numbers, their SHA-256 and the data sheet. `gateway.parts.fit.training.confidence`
writes it.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from routing.difficulty.model import ArtefactError

if TYPE_CHECKING:
    from policies.model import Verifier
    from routing.confidence.judge import Evidence

FORMAT: Final = "tierline-confidence-1"
PREFIXES: Final = (8, 16, 24, 48)
"""Prefix lengths in tokens that have scorers of their own."""

WHOLE: Final = "whole"
AGREEMENT: Final = "agreement"
OF_VERIFIERS: Final[tuple[Verifier, ...]] = (AGREEMENT, "judge", "scorer")
"""Parts of a head that calibrate one number, which such a verifier gave."""

RANKED_BY: Final[Mapping[str, str]] = {AGREEMENT: AGREEMENT, "judge": "judge_logit", "scorer": "scorer_logit"}
"""The feature that such a part is fitted to: a model's probability, mostly near 0 or 1, tells most by its logit."""

TOKEN_FEATURES: Final = (
    "mean",
    "total",
    "least",
    "decile",
    "quartile",
    "median",
    "first",
    "opening",
    "doubtful",
    "log_tokens",
    "stopped",
)
"""Features of the chosen tokens' log-probabilities and of how the answer ended."""

ALTERNATIVE_FEATURES: Final = (
    "mean_margin",
    "least_margin",
    "first_margin",
    "mean_entropy",
    "most_entropy",
    "first_entropy",
)
"""Features of the likeliest alternatives of the first tokens."""

_FLOOR = -20.0  # lower log-probabilities carry no information; servers write -inf and -9999 for a forbidden token
_OPENING = 4
_EVEN = math.log(0.5)
_ALTERNATIVES_OF = 48  # tokens whose alternatives are read: they cost most of the time, and the first are most telling
_NO_CERTAINTY = 1e-4
_LEAST_OF_WORD = 1e-7  # what a judge's token leaves over tells right from wrong answers far beyond 0.9999
_NO_REST = 1e-9

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LogisticScorer:
    """A logistic model over named features, with an isotonic map of its logit where one was fitted.

    Feature i enters as (x - centre) / scale; it must lie in low..high. `knots` are (logit, probability) pairs, both
    increasing, with linear interpolation between them; without knots the probability is the logistic of the logit.
    """

    features: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    knots: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> LogisticScorer:
        """Build a scorer from JSON values. Raises KeyError, TypeError or ValueError if they are malformed."""
        names = tuple(map(str, numbers["features"]))
        columns = [tuple(map(float, numbers[key])) for key in ("centre", "scale", "weights", "low", "high")]
        if not names or any(len(column) != len(names) for column in columns) or not all(columns[1]):
            raise ValueError(f"a scorer of {len(names)} features has columns of other lengths, or a scale of 0")
        centre, scale, weights, low, high = columns
        knots = tuple((float(x), float(y)) for x, y in numbers["knots"])
        if not math.isfinite(sum(map(sum, (*columns, *knots))) + float(numbers["bias"])):
            raise ValueError("a scorer has a number that is not finite")
        if any(a >= b for (a, _), (b, _) in pairwise(knots)):
            raise ValueError("the knots of a scorer do not rise")
        return cls(names, centre, scale, weights, float(numbers["bias"]), low, high, knots)

    def numbers(self) -> dict[str, Any]:
        """Return the JSON values from which `of` builds an equal scorer."""
        keys = ("features", "centre", "scale", "weights", "bias", "low", "high")
        return {**{key: getattr(self, key) for key in keys}, "knots": [list(knot) for knot in self.knots]}

    def knows(self, values: Mapping[str, float]) -> bool:
        """Return whether every feature is present and within the range the scorer was fitted on."""
        for name, low, high in zip(self.features, self.low, self.high, strict=True):
            value = values.get(name)
            if value is None or not low <= value <= high:
                return False
        return True

    def p_right(self, values: Mapping[str, float]) -> float:
        """Return the probability that the answer is right; values outside low..high are clamped."""
        logit = self.bias
        columns = zip(self.features, self.centre, self.scale, self.weights, self.low, self.high, strict=True)
        for name, centre, scale, weight, low, high in columns:
            logit += weight * (min(high, max(low, values[name])) - centre) / scale
        return _between(self.knots, logit) if self.knots else 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, logit))))


@dataclass(frozen=True, slots=True)
class ConfidenceHead:
    """The confidence head of one backend's model.

    `version` is the first 12 hex digits of the numbers' SHA-256. `scorers` maps "whole", each prefix ("8" ... "48") and
    each of OF_VERIFIERS, where they were fitted, to the scorers to try in order; the last one is used even outside its
    range. `alternatives` is how many of each token's likeliest alternatives the scorers read, 0 for none.
    `prior_weight` is the factor by which the classifier's logit, minus `prior_centre`, is added to the answer's.
    """

    model: str
    version: str
    alternatives: int
    prior_weight: float
    prior_centre: float
    scorers: Mapping[str, tuple[LogisticScorer, ...]]

    @classmethod
    def load(cls, path: Path) -> ConfidenceHead:
        """Read an artefact. Raises ArtefactError if it is missing, altered or malformed."""
        try:
            artefact = json.loads(path.read_bytes())
            if artefact["format"] != FORMAT:
                raise ValueError(f"its format is {artefact['format']!r}")
            if numbers_hash(artefact["numbers"]) != artefact["sha256"]:
                raise ArtefactError(f"{path}: the SHA-256 of its numbers differs from the one it states")
            return cls.of(str(artefact["model"]), artefact["numbers"])
        except OSError as error:
            raise ArtefactError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtefactError(f"{path} is not a {FORMAT} artefact: {type(error).__name__}: {error}") from None

    @classmethod
    def of(cls, model: str, numbers: Mapping[str, Any]) -> ConfidenceHead:
        """Build the head with these numbers. Raises KeyError, TypeError or ValueError if they are malformed."""
        scorers = {str(part): tuple(map(LogisticScorer.of, some)) for part, some in numbers["scorers"].items() if some}
        return cls(
            model=model,
            version=numbers_hash(numbers)[:12],
            alternatives=int(numbers["alternatives"]),
            prior_weight=float(numbers["prior"]["weight"]),
            prior_centre=float(numbers["prior"]["centre"]),
            scorers=scorers,
        )

    def p_right(self, evidence: Evidence, prior: float | None = None, by: Verifier = "logprobs") -> float | None:
        """Return the calibrated probability that this answer is right; None without evidence of `by` that it can use.

        `prior` is the classifier's probability that this tier is right; None where it abstains.
        """
        part, values = self._read(evidence, by)
        scorers = self.scorers.get(part, ())
        for scorer in scorers:
            last = scorer is scorers[-1]
            if scorer.knows(values) or (last and all(name in values for name in scorer.features)):
                return self._with_prior(scorer.p_right(values), prior)
        return None

    def _read(self, evidence: Evidence, by: Verifier) -> tuple[str, dict[str, float]]:
        """Return the name of the part to judge (a key of `scorers`) and its features."""
        if by != "logprobs":
            value = evidence.verified.get(by)
            return by, {} if value is None else features_of_word(by, value)
        if evidence.complete or not evidence.logprobs:
            return WHOLE, token_facts(evidence, None, self.alternatives)
        seen = len(evidence.logprobs)
        tokens = max((n for n in PREFIXES if n <= seen), default=PREFIXES[0])
        return str(tokens), token_facts(evidence, tokens, self.alternatives)

    def _with_prior(self, p_right: float, prior: float | None) -> float:
        if prior is None or not self.prior_weight:
            return p_right
        logit = logit_of(p_right) + self.prior_weight * (logit_of(prior) - self.prior_centre)
        return 1.0 / (1.0 + math.exp(-logit))


def shipped_head(model: str) -> Path | None:
    """Return the artefact shipped with Tierline for that model; None if there is none."""
    path = Path(__file__).parent / "artefacts" / f"{Path(model).name}.json"
    return path if path.is_file() else None


def numbers_hash(numbers: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of an artefact's numbers as JSON with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def logit_of(probability: float, least: float = _NO_CERTAINTY) -> float:
    """Return log(p / (1 - p)), with p clamped to `least`..1 - `least`."""
    p = min(1.0 - least, max(least, probability))
    return math.log(p / (1.0 - p))


def features_of_word(by: str, value: float) -> dict[str, float]:
    """Return the features of what a verifier says, 0..1: as it is, which older heads read, and its logit."""
    return {by: value, f"{by}_logit": logit_of(value, _LEAST_OF_WORD)}


def token_facts(evidence: Evidence, tokens: int | None, alternatives: int) -> dict[str, float]:
    """Return TOKEN_FEATURES of the answer or of its first `tokens`, and ALTERNATIVE_FEATURES if it has `alternatives`.

    Evidence without log-probabilities has no features. Structural faults are not features: the policy rejects them.
    """
    if not evidence.logprobs:
        return {}
    values = _of_tokens(_bounded(evidence.logprobs[:tokens]))
    values["stopped"] = float(tokens is None and evidence.finish_reason == "stop")
    if alternatives > 1 and evidence.top_logprobs:
        first = min(tokens or _ALTERNATIVES_OF, _ALTERNATIVES_OF)
        given = [token[:alternatives] for token in evidence.top_logprobs[:first] if len(token) >= alternatives]
        if given:
            values |= _of_alternatives(_bounded(given))
    return values


def _bounded(logprobs: Sequence[Any]) -> Floats:
    # fmax returns the floor where the log-probability is NaN.
    return np.minimum(0.0, np.fmax(_FLOOR, np.array(logprobs, np.float64)))


def _of_tokens(logprobs: Floats) -> dict[str, float]:
    n = len(logprobs)
    ordered = np.sort(logprobs)
    total = float(logprobs.sum())
    opening = logprobs[:_OPENING].tolist()
    return {
        "mean": total / n,
        "total": total,
        "least": float(ordered[0]),
        "decile": float(ordered[n // 10]),
        "quartile": float(ordered[n // 4]),
        "median": float(ordered[n // 2]),
        "first": opening[0],
        "opening": sum(opening) / len(opening),
        "doubtful": int(ordered.searchsorted(_EVEN)) / n,
        "log_tokens": math.log1p(n),
    }


def _of_alternatives(logprobs: Floats) -> dict[str, float]:
    """Return the margins of the likeliest alternative over the next, and the entropies; input (tokens, alternatives).

    The entropy counts the probability that the alternatives leave over as one more alternative.
    """
    margins = logprobs[:, 0] - logprobs[:, 1]
    probabilities = np.exp(logprobs)
    rest = np.maximum(_NO_REST, 1.0 - probabilities.sum(axis=1))
    entropies = -(probabilities * logprobs).sum(axis=1) - rest * np.log(rest)
    return {
        "mean_margin": float(margins.mean()),
        "least_margin": float(margins.min()),
        "first_margin": float(margins[0]),
        "mean_entropy": float(entropies.mean()),
        "most_entropy": float(entropies.max()),
        "first_entropy": float(entropies[0]),
    }


def _between(knots: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between the knots at x; constant beyond both ends."""
    after = bisect_right(knots, x, key=lambda knot: knot[0])
    if after == 0 or after == len(knots):
        return knots[min(after, len(knots) - 1)][1]
    (left, low), (right, high) = knots[after - 1], knots[after]
    return low + (high - low) * (x - left) / (right - left)
