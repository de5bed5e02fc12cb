"""Score held drafts by the deployment's scorer, in a thread: it counts words, and long texts have many."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.off_loop import off_loop

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from routing.confidence.judge import Evidence
    from routing.confidence.scorer import AnswerScorer

_NEWEST: Final = 0.1
"""Weight of the newest duration in the mean."""


class DraftScorer:
    """Score drafts with this scorer, see `gateway.cascade.verifying`."""

    def __init__(self, scorer: AnswerScorer) -> None:
        self._scorer = scorer
        self.takes_s = 0.0
        """Mean duration of a draft so far, in seconds."""

    async def score(self, request: RequestContext, evidence: Evidence) -> float | None:
        """Return how likely the draft is good enough, 0..1; None for one that the scorer was not made for."""
        began = time.monotonic()
        question, kind = request.features.text, request.ledger.kind or ""
        said = await off_loop(
            lambda: self._scorer.p_right(question, evidence.text, complete=evidence.complete, kind=kind)
        )
        self.takes_s += (time.monotonic() - began - self.takes_s) * _NEWEST
        return said
