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
    """What one worker knows of the turns before a request: who answered, how hard they were, which tier is warm."""

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

    def rated(self, policy: Policy, model: DifficultyModel, features: Features, vector: Vector) -> Features:
        """Return the features with how hard the turns before are, as far as they are read."""
