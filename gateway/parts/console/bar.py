"""Define one hop of a request as its page draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.parts.console.policy_keys import PolicyKey
from gateway.telemetry import names


@dataclass(frozen=True, slots=True)
class Bar:
    """One hop. `lane` counts the hops of the same name that ran when this one began: parallel ones lie side by side."""

    number: int
    name: str
    label: str
    kind: str
    """What it is drawn as: cache, embed, route, attempt, write or other."""
    start_ms: float
    duration_ms: float
    error: str | None
    served: bool
    """Whether the client got the text of this attempt."""
    lane: int
    reasons: Sequence[str]
    attributes: Mapping[str, Any]
    queue_ms: float
    """Of an attempt: how long it waited for its backend before it was called, from its start on."""
    first_ms: float | None
    """Milliseconds from the request's start to the attempt's first token."""
    verdict_ms: float | None
    """Milliseconds from the request's start until the attempt was judged."""
    clause: str
    """The key of the policy that decided the hop; empty if none did."""
    line: int | None
    """The line of the policy's file where that stands; None where it came from no file."""
    keys: Sequence[PolicyKey]
    """All keys of the policy that the hop rests on, `clause` first."""
    budget_ms: float | None
    """Time that was left until the deadline when the hop began; None where the record does not say."""

    @property
    def end_ms(self) -> float:
        """Time from the request's start to the end of the hop."""
        return self.start_ms + self.duration_ms

    @property
    def lost(self) -> bool:
        """Whether it was cancelled because a parallel attempt was faster."""
        return self.attributes.get(names.OUTCOME) == names.LOST
