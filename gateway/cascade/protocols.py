"""Define what the cascade asks of parts, which it works without.

AnswerVerifier        how sure a draft is whose log-probabilities do not say so (`escalate.verify`)
StreamSuccessor       another call, for a committed stream that broke
ConversationAdvisor   the conversations that requests are turns of
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from policies.value_type import value_type

if TYPE_CHECKING:
    from gateway.backends.base import BackendError, Event
    from gateway.cascade.call import BackendCall
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop, Trace
    from gateway.tiers import Endpoint
    from policies.model import Policy
    from routing.attempt import AttemptMachine
    from routing.cascade import Attempt
    from routing.confidence.judge import Evidence
    from routing.decide import TierCost
    from routing.difficulty.model import DifficultyModel
    from routing.embedder import Vector
    from routing.features import Features


class BesideDraft(Protocol):
    """Work for a verifier, such as a second sample, that runs while the draft of an answer is awaited."""

    async def aclose(self) -> None:
        """End it, and charge what it cost; called in any case."""


@value_type
class HeldDraft:
    """A draft that waits for its verdict: its request, the hop that records the verdict, and what runs beside it."""

    request: RequestContext
    machine: AttemptMachine
    hop: Hop
    beside: BesideDraft | None


class AnswerVerifier(Protocol):
    """Verifies the drafts of one worker by what `escalate.verify` names, in that order."""

    def takes_s(self, policy: Policy, endpoint: Endpoint) -> float:
        """Return the seconds that verifying a draft of this endpoint takes; 0 where no verifier is needed."""

    def beside(
        self,
        request: RequestContext,
        attempt: Attempt,
        endpoint: Endpoint,
        limit_s: float,
        owes: Callable[[str], int],
    ) -> BesideDraft | None:
        """Begin the work of a verifier beside the call for a draft; None where there is none to begin.

        `limit_s` are the seconds that it may take. `owes` returns the completion tokens that a call of a tier is
        charged if its answer is never known.
        """

    async def verify(self, evidence: Evidence, draft: HeldDraft, endpoint: Endpoint) -> Evidence:
        """Return the evidence with a verifier's score of the draft added; unchanged where no verifier can score it."""

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


@dataclass(frozen=True, slots=True)
class Continued:
    """A call that continues a broken stream: its first token has come, in `events`."""

    tier: str
    number: int
    call: BackendCall
    events: list[Event]


class StreamSuccessor(Protocol):
    """Continue a committed stream that broke with another call, before its client notices the break."""

    async def take_over(
        self, request: RequestContext, error: BackendError, attempt: Attempt, call: BackendCall
    ) -> Continued | None:
        """Return a call that continues the stream of `call`, which `error` broke; None if none can.

        When cancelled with its request, at any moment, it leaves no call open.
        """


LEAST_LOOKED_AT: Final = 512
"""Tokens by the gateway's own estimate, which may be half of the provider's count; shorter prompts are in no cache."""


class ConversationAdvisor(Protocol):
    """What one worker remembers of a request's earlier turns: who answered, how hard they were, which tier is warm."""

    def enter(
        self, policy: Policy, ledger: Ledger, body: Mapping[str, Any], features: Features, trace: Trace, *, named: bool
    ) -> tuple[Features, object | None]:
        """Return a turn's features, with the tier of the answer before where a rule asks for it, and its conversation.

        That is None where nothing is known of it; else it goes into the request's context, for `costs` alone. `named`:
        the client names its session. The turn is remembered when its request is over.
        """

    def costs(self, request: RequestContext) -> Mapping[str, TierCost] | None:
        """Return what the request's conversation costs at its tiers; None or empty where that changes nothing."""

    async def read(
        self,
        features: Features,
        vector: Vector,
        embed: Callable[[Sequence[str], float], Awaitable[Sequence[Vector]]],
        limit_s: float,
    ) -> None:
        """Remember the vector of the request's turn, and of earlier ones that this worker has not read, by `embed`.

        `embed` raises TimeoutError after so many seconds; then nothing is known of the conversation.
        """

    def rated(
        self, policy: Policy, model: DifficultyModel, features: Features, vector: Vector, effort: float | None
    ) -> Features:
        """Return the features with how hard earlier turns make this one, as far as their vectors are known.

        `effort` is how much work this turn asks for by itself, where that is known.
        """
