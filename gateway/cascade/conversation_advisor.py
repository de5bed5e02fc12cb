"""Define what the core asks of whoever remembers the conversations that its requests are turns of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace
    from policies.model import Policy
    from routing.decide import TierCost
    from routing.difficulty.model import DifficultyModel
    from routing.embedding.embedder import Vector
    from routing.features import Features

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
