"""Define what the core asks of whoever says how sure a draft is whose log-probabilities do not (`escalate.verify`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from policies.value_type import value_type

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint
    from policies.model import Policy
    from routing.attempt import AttemptMachine
    from routing.cascade import Attempt
    from routing.confidence.judge import Evidence
    from routing.features import Features


class BesideDraft(Protocol):
    """What a verifier has begun beside the call for a draft."""

    async def aclose(self) -> None:
        """End it, and charge what it cost; called in any case."""


@value_type
class HeldDraft:
    """A draft that waits for its verdict: the request, the hop that is told of it, what was begun beside it."""

    request: RequestContext
    machine: AttemptMachine
    hop: Hop
    beside: BesideDraft | None


class AnswerVerifier(Protocol):
    """What the drafts of one worker can be verified by, in the order of `escalate.verify`."""

    def takes_s(self, policy: Policy, endpoint: Endpoint) -> float:
        """Return the seconds that the first verifier takes which a draft of this endpoint needs; 0 for none."""

    def beside(
        self,
        request: RequestContext,
        attempt: Attempt,
        endpoint: Endpoint,
        limit_s: float,
        owes: Callable[[str], int],
    ) -> BesideDraft | None:
        """Begin what is to run beside the call for a draft, with `limit_s` seconds to come; None for nothing.

        `owes` returns the completion tokens that a call of a tier is charged whose answer is never known.
        """

    async def verify(self, evidence: Evidence, draft: HeldDraft, endpoint: Endpoint) -> Evidence:
        """Return the evidence with what a verifier says of the draft; without, where none can tell."""

    async def verify_later(
        self,
        policy: Policy,
        features: Features,
        kind: str,
        messages: Sequence[Mapping[str, Any]],
        evidence: Evidence,
        quiet: Callable[[Sequence[Endpoint]], Awaitable[Endpoint | None]],
    ) -> tuple[dict[str, float], float]:
        """Return what the first verifier says of an answer for which nobody waits, by name, and the cost in US dollars.

        `kind` and `messages` are the request's. `quiet` waits for one of some backends to have room to spare.
        """
