"""Make labelled requests from rows of both models' graded answers, scored by the classifier as the gateway would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.parts.fit.calibration.traffic import LabelledSurface, LabelledTraffic, call_dollars, cases_of
from gateway.parts.fit.datasets import DataError, Example, Json, LabelledAnswer, read_labelled
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.kinds import features_of_example
from gateway.parts.fit.training.sheet import trained_on
from gateway.parts.heads.head import OF_VERIFIERS
from gateway.report import OnProgress
from routing.confidence.judge import Evidence, ScoringHead, confidence_of, structural_fault
from routing.decide import rule_values
from routing.difficulty.model import DifficultyModel
from routing.embedder import Embedder

_SHOWN_EVERY = 64


@dataclass(frozen=True, slots=True)
class Scorers:
    """Models that score a request before and after the answer. `sheets` are the files of their data sheets.

    `first`: judge answers by this many of their first tokens, as streams are; None judges whole answers.
    """

    embedder: Embedder
    difficulty: DifficultyModel
    head: ScoringHead | None
    sheets: tuple[Path, ...]
    first: int | None = None


def from_data(
    surface: LabelledSurface, files: Sequence[Path], models: tuple[str, str], scorers: Scorers, on_progress: OnProgress
) -> LabelledTraffic:
    """Return the rows that both models answered as labelled requests. Raises DataError."""
    data = read_labelled(files, models[:1], models[1:])
    examples = data.examples
    values, priors = _scored(examples, surface, scorers, on_progress)
    answers = [example.answers[0] for example in examples]
    evidence = [_evidence(answer, scorers.first) for answer in answers]
    order = surface.policy.escalate.verify
    confidences = [
        confidence_of(seen, scorers.head, prior, order) for seen, prior in zip(evidence, priors, strict=True)
    ]
    pairs = zip(answers, evidence, strict=True)
    cases, basis = cases_of(
        surface,
        ([example.small for example in examples], [example.large for example in examples]),
        (
            [_cost(example.answers[0], surface, 0) for example in examples],
            [_cost(example.answers[-1], surface, 1) for example in examples],
        ),
        confidences,
        [_is_faulty(answer, seen, surface) for answer, seen in pairs],
        {at: surface.rules.start_cheapest(values, at) for at in surface.rules.thresholds},
    )
    return LabelledTraffic(cases, basis, models, tuple(_notes(surface, data.sources, models, scorers)))


def _scored(
    examples: Sequence[Example], surface: LabelledSurface, scorers: Scorers, on_progress: OnProgress
) -> tuple[list[dict[str, Any]], list[float | None]]:
    """Return for each example the values that start rules use, and P(the small tier is right) if it is in domain."""
    values: list[dict[str, Any]] = []
    priors: list[float | None] = []
    vectors = Remembered(scorers.embedder, on_progress).embed([example.prompt for example in examples])
    for number, (example, vector) in enumerate(zip(examples, vectors, strict=True)):
        if number % _SHOWN_EVERY == 0:
            on_progress("scoring prompts", number, len(examples))
        features = features_of_example(example)
        difficulty = scorers.difficulty.assess(vector, features)
        alone = features._replace(before=0.0)  # nothing is known of what was said before a labelled prompt
        values.append(rule_values(surface.policy, difficulty, alone, surface.policy.slo.deadline))
        known = difficulty.in_domain and surface.policy.route.classifier != "none"
        priors.append(scorers.difficulty.probabilities(vector, features)[0] if known else None)
    on_progress("scoring prompts", len(examples), len(examples))
    return values, priors


def _evidence(answer: LabelledAnswer, first: int | None) -> Evidence:
    """Return the evidence in a whole answer, or with `first` in its first tokens."""
    if first is not None:
        return _of_first_tokens(answer, first)
    # If a row has only the mean log-probability, every token is given the mean.
    logprobs = answer.logprobs
    if logprobs is None and answer.confidence is not None:
        logprobs = (min(0.0, answer.confidence),) * max(1, answer.tok_out or 1)
    said = {by: word for by in OF_VERIFIERS if (word := getattr(answer, by)) is not None}
    return Evidence(answer.text or "", logprobs, answer.top_logprobs, said, answer.finish_reason)


def _of_first_tokens(answer: LabelledAnswer, first: int) -> Evidence:
    if answer.logprobs is None:
        raise DataError("--stream needs the logprobs of the small model's tokens in every row; collect the rows again")
    complete = len(answer.logprobs) <= first
    return Evidence(
        text=(answer.text or "") if complete else "",
        logprobs=answer.logprobs[:first],
        top_logprobs=answer.top_logprobs and answer.top_logprobs[:first],
        finish_reason=answer.finish_reason if complete else None,
        complete=complete,
    )


def _is_faulty(answer: LabelledAnswer, seen: Evidence, surface: LabelledSurface) -> bool:
    """Return whether the judge would reject the answer for a structural fault, as far as the row shows."""
    if answer.text is not None:
        return bool(structural_fault(seen, surface.policy.escalate))
    return seen.finish_reason in surface.policy.escalate.when.finish


def _cost(answer: LabelledAnswer, surface: LabelledSurface, tier: int) -> float | None:
    return call_dollars(answer.cost_usd, answer.tok_in, answer.tok_out, (surface.small, surface.large)[tier])


def _notes(
    surface: LabelledSurface, sources: Sequence[Json], models: tuple[str, str], scorers: Scorers
) -> Iterator[str]:
    for model, backend, tier in zip(models, (surface.small, surface.large), surface.tiers, strict=True):
        if model != backend.model:
            yield (
                f"the labels are {model}'s, but {tier} runs {backend.model}: thresholds hold for the models they were "
                "chosen with"
            )
    files = {source["sha256"]: source["file"] for source in sources}
    for sheet in scorers.sheets:
        for digest in trained_on(sheet) & files.keys():
            yield f"{sheet} was fitted on {files[digest]}: expect worse results on new traffic than here"
