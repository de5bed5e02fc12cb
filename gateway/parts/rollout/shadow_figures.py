"""Sum up what a candidate in shadow mode did: its requests, what they cost, and how its answers compare."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.parts.measures.label import of_served
from gateway.parts.measures.quality import paired_quality
from policies.quantities import dollars

_MOST: Final = 20_000
"""Latest pairs that are compared."""
_BETTER: Final = {"small": "present", "strong": "new"}


@dataclass(slots=True)
class ShadowFigures:
    """The figures of one candidate. `judged` is whether its policy, or the one in force, names a judge."""

    judged: bool
    requests: int = 0
    failed: int = 0
    usd: float = 0.0
    pairs: deque[tuple[int, float, float, str]] = field(default_factory=lambda: deque(maxlen=_MOST))
    """Conversation, how adequate the candidate's and the served answer are, and which is better."""

    def add(self, ledger: Mapping[str, Any]) -> None:
        """Count a request that was run again under the candidate."""
        self.requests += 1
        self.failed += ledger["error"] is not None
        self.usd += ledger["cost_usd"]

    def compare(self, label: Mapping[str, Any]) -> None:
        """Count a judge's label of the served answer and the candidate's."""
        row = label["conversation"], float(label["strong"]["adequate"]), of_served(label)
        self.pairs.append((*row, _BETTER.get(label["better"], "")))

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values; `quality` is None before the first pair."""
        quality = paired_quality(self.pairs).as_json() if self.pairs else None
        return {"requests": self.requests, "failed": self.failed, "usd": self.usd, "quality": quality}

    def lines(self) -> Iterator[str]:
        """Yield the figures as a person reads them."""
        failed = f", {self.failed} of them failed" if self.failed else ""
        yield f"{self.requests} requests run again{failed}, {dollars(self.usd)}; no client got the answers"
        if self.pairs:
            yield f"quality  {paired_quality(self.pairs)}"
        elif self.judged:
            yield "quality  no pair of answers judged yet; tierline_shadows_total says what became of them"
        else:
            yield (
                "quality  not judged: give the candidate a `learn` section, whose judge then compares its answers with "
                "those that were served"
            )
