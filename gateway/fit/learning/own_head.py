"""Fit confidence heads anew to the judged answers of each tier, and measure them on later ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.fit.datasets import DataError, LabelledAnswer
from gateway.fit.figures import Interval, share
from gateway.fit.learning.labels import unpacked
from gateway.fit.training.answer_heads import FittedHead, fit_head
from gateway.fit.training.scorers import log_losses
from gateway.measures.curves import Floats
from gateway.progress import silent
from routing.confidence.head import ConfidenceHead, shipped_head
from routing.confidence.judge import Evidence

_FEWEST: Final = 150
_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class OwnHead:
    """The head of one tier's model: measured by a fit to the earlier answers, and if it is better fitted to all.

    `loss_saved` is how much smaller its log-loss is on the `held` later answers than that of `other`, the head shipped
    for the model or the mean log-probability. `better` says whether that is more than chance.
    """

    tier: str
    model: str
    answers: int
    held: int
    other: str
    loss_saved: Interval
    head: FittedHead

    @property
    def better(self) -> bool:
        """Whether it is surely better than what there was."""
        return self.loss_saved.lo > 0


def own_heads(rows: Sequence[Mapping[str, Any]], held: NDArray[np.bool_], seed: int) -> Iterator[OwnHead]:
    """Yield the heads of the tiers with enough judged answers; `held` masks the rows that are measured on."""
    for role in ("small", "strong"):
        found = [
            (row[role], out, str(row.get("kind") or ""))
            for row, out in zip(rows, held, strict=True)
            if row[role]["evidence"]
        ]
        models = {answer["model"] for answer, *_ in found}
        if len(found) < _FEWEST or len(models) != 1:
            continue
        [model] = models
        answers, later = [_answer(answer) for answer, *_ in found], np.array([out for _, out, _ in found])
        kinds = [kind for *_, kind in found]
        earlier = np.flatnonzero(~later).tolist()
        try:
            measured_on = fit_head(
                [answers[row] for row in earlier], model, seed, silent, sets=[kinds[row] for row in earlier]
            )
        except DataError:  # hardly any right, or hardly any wrong answers: there is nothing to tell apart
            continue
        tests = [one for one, out in zip(answers, later, strict=True) if out]
        right = np.array([test.correct for test in tests])
        shipped = shipped_head(model)
        other = None if shipped is None else ConfidenceHead.load(shipped)
        saved = log_losses(_by_head(other, tests), right)
        saved = saved - log_losses(_by_head(ConfidenceHead.of(model, measured_on.numbers), tests), right)
        saving = share(saved, seed, _RESAMPLES)
        yield OwnHead(
            found[0][0]["tier"],
            model,
            len(answers),
            len(tests),
            "the mean log-probability" if other is None else f"the shipped head {other.version}",
            saving,
            fit_head(answers, model, seed, silent, sets=kinds) if saving.lo > 0 else measured_on,
        )


def _answer(answer: Mapping[str, Any]) -> LabelledAnswer:
    evidence = answer["evidence"]
    width = int(evidence["alternatives"])
    tops = unpacked(evidence["top_logprobs"]).reshape(-1, width) if width else np.zeros((0, 0))
    logprobs = unpacked(evidence["logprobs"])
    return LabelledAnswer(
        float(answer["adequate"]),
        confidence=min(0.0, float(logprobs.mean())),
        logprobs=tuple(logprobs.tolist()),
        finish_reason=evidence["finish_reason"],
        top_logprobs=tuple(map(tuple, tops.tolist())) or None,
    )


def _by_head(head: ConfidenceHead | None, answers: Sequence[LabelledAnswer]) -> Floats:
    """Return P(adequate) of each answer by a head; without one, the geometric mean of its tokens' probabilities."""
    by_head = []
    for answer in answers:
        logprobs = answer.logprobs or ()
        evidence = Evidence(answer.text or "", logprobs, answer.top_logprobs, finish_reason=answer.finish_reason)
        p = None if head is None else head.p_right(evidence)
        by_head.append(math.exp(sum(logprobs) / max(1, len(logprobs))) if p is None else p)
    return np.array(by_head)
