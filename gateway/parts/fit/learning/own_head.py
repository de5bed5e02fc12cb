"""Fit confidence heads anew to the judged answers of each tier, and measure them on later ones.

An answer is judged by a model (a label) or by people (feedback); the evidence is its log-probabilities or what the
policy's verifier said of it, which each have a part of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gateway.parts.fit.curves import Floats, calibration_error
from gateway.parts.fit.datasets import DataError, LabelledAnswer
from gateway.parts.fit.figures import Interval, mean_share
from gateway.parts.fit.learning.labels import began_last, unpacked
from gateway.parts.fit.training.answer_heads import FittedHead, fit_head
from gateway.parts.fit.training.scorers import log_losses
from gateway.parts.heads.head import OF_VERIFIERS, ConfidenceHead, shipped_head
from gateway.parts.measures.label import PairLabel
from gateway.report import silent
from policies.model import VERIFIERS
from routing.confidence.judge import Evidence, confidence_of

_FEWEST: Final = 150
_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class OwnHead:
    """The head of one tier's model: measured by a fit to the earlier answers, and if it is better fitted to all.

    `loss_saved` is how much smaller its log-loss is on the `held` later answers than that of `other`, the head shipped
    for the model or what the evidence says as it stands. `better` says whether that is more than chance. `ece` is its
    calibration error there.
    """

    tier: str
    model: str
    answers: int
    held: int
    other: str
    loss_saved: Interval
    ece: float
    head: FittedHead

    @property
    def better(self) -> bool:
        """Whether the head is better than `other` by more than chance."""
        return self.loss_saved.lo > 0


def own_heads(
    rows: Sequence[Mapping[str, Any]], rated: Sequence[Mapping[str, Any]], seed: int, fewest: int = _FEWEST
) -> Iterator[OwnHead]:
    """Yield the heads of the tiers with at least `fewest` judged answers of their present model.

    They are measured on the conversations that began last, about three answers in ten.

    `rows` are labels, `rated` answers without a label that people rated, as the archive has them.
    """
    found: dict[str, list[_Judged]] = {}
    for row in rows:
        for role in ("small", "strong"):
            answer, kind = row[role], str(row.get("kind") or "")
            if answer["evidence"] or answer.get("verified"):
                at, session = float(row["judged_at"]), int(row["conversation"])
                judged = _Judged(at, session, answer["model"], kind, _answer(answer))
                found.setdefault(answer["tier"], []).append(judged)
    labelled = {(row["tenant"], row["request_id"]) for row in rows}
    for row in rated:
        if row.get("verifier") and (row["tenant"], row["request_id"]) not in labelled:
            word: dict[str, Any] = {row["verifier"]: float(row["verified"])}
            given = LabelledAnswer(float(row["score"]), **word)
            session = PairLabel.conversation_of(row["session"] or "")
            judged = _Judged(row["started"], session, row["model"], row["kind"] or "", given)
            found.setdefault(row["tier"], []).append(judged)
    for tier, every in found.items():
        every.sort(key=lambda label: label.at)
        some = [label for label in every if label.model == every[-1].model]
        if len(some) >= fewest:
            yield from _own_head(tier, some, seed)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A judged answer: when (Unix seconds), of which conversation, model and kind of request."""

    at: float
    conversation: int
    model: str
    kind: str
    answer: LabelledAnswer


def _own_head(tier: str, judged: Sequence[_Judged], seed: int) -> Iterator[OwnHead]:
    model = judged[0].model
    answers, kinds = [label.answer for label in judged], [label.kind for label in judged]
    held = began_last(np.array([label.conversation for label in judged]), np.array([label.at for label in judged]))
    earlier = np.flatnonzero(~held).tolist()
    try:
        measured_on = fit_head(
            [answers[row] for row in earlier], model, seed, silent, sets=[kinds[row] for row in earlier]
        )
    except DataError:  # hardly any right, or hardly any wrong answers: there is nothing to tell apart
        return
    tests = [answers[row] for row in np.flatnonzero(held).tolist()]
    right = np.array([test.correct for test in tests])
    shipped = shipped_head(model)
    other = None if shipped is None else ConfidenceHead.load(shipped)
    predicted = _by_head(ConfidenceHead.of(model, measured_on.numbers), tests)
    saving = mean_share(log_losses(_by_head(other, tests), right) - log_losses(predicted, right), seed, _RESAMPLES)
    yield OwnHead(
        tier,
        model,
        len(answers),
        len(tests),
        "what the evidence says as it stands" if other is None else f"the shipped head {other.version}",
        saving,
        calibration_error(predicted, right),
        fit_head(answers, model, seed, silent, sets=kinds) if saving.lo > 0 else measured_on,
    )


def _answer(answer: Mapping[str, Any]) -> LabelledAnswer:
    said = answer.get("verified") or {}
    evidence = answer["evidence"]
    if not evidence:
        return LabelledAnswer(float(answer["adequate"]), **said)
    width = int(evidence["alternatives"])
    tops = unpacked(evidence["top_logprobs"]).reshape(-1, width) if width else np.zeros((0, 0))
    logprobs = unpacked(evidence["logprobs"])
    return LabelledAnswer(
        float(answer["adequate"]),
        confidence=min(0.0, float(logprobs.mean())),
        logprobs=tuple(logprobs.tolist()),
        finish_reason=evidence["finish_reason"],
        top_logprobs=tuple(map(tuple, tops.tolist())) or None,
        **said,
    )


def _by_head(head: ConfidenceHead | None, answers: Sequence[LabelledAnswer]) -> Floats:
    """Return P(adequate) of each answer by a head; without one, or where it cannot tell, what its evidence says."""
    by_head = []
    for answer in answers:
        said = {by: word for by in OF_VERIFIERS if (word := getattr(answer, by)) is not None}
        evidence = Evidence("", answer.logprobs, answer.top_logprobs, said, answer.finish_reason)
        p, _ = confidence_of(evidence, head, None, VERIFIERS)
        by_head.append(0.5 if p is None else p)
    return np.array(by_head)
