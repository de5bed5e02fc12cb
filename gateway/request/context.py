"""What is known of one request on its way down: fixed at the door, handed to every hop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import orjson

from gateway.request.disconnect import Client
from gateway.request.options import RequestOptions
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from policies.model import Policy
from routing.cascade import Left
from routing.decide import Clamp
from routing.features import Features


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request. `body` is the effective request: the client's, with the policy's output limits. `deadline` and
    `ttft_deadline` are in `time.monotonic()` seconds. The policy is the version that held at the door, whatever is
    reloaded meanwhile.
    """

    request_id: str
    tenant: str
    policy: Policy
    body: Mapping[str, Any]
    features: Features
    options: RequestOptions
    clamp: Clamp | None
    """The tiers it allows itself; None for all of its surface's."""
    own_limit: bool
    """The client itself limits the output below what the policy would."""
    deadline: float
    trace: Trace
    ledger: Ledger
    client: Client
    large: bool = False
    """Its body is so large that whatever reads all of it is to run off the loop (`gateway.off_loop`)."""
    ttft_deadline: float | None = None
    """When a stream's first token is due, by the policy's p99 and the client; None where nobody waits for one."""

    def ladder(self) -> tuple[str, ...]:
        """The configured tiers of its surface that it allows itself, cheapest first."""
        return self.policy.ladder if self.clamp is None else self.clamp.of(self.policy)

    def allowed_tiers(self) -> frozenset[str] | None:
        """Whose stored answers may serve it; None for any tier's: a weaker one's never serves a stronger wish."""
        return None if self.clamp is None else frozenset(self.ladder())

    def is_classified(self) -> bool:
        """Return whether there is anything for the classifier to decide."""
        return self.policy.route.classifier != "none" and len(self.ladder()) > 1

    def budget_s(self) -> float:
        """What is left of the deadline, in seconds; negative once it has passed."""
        return self.deadline - time.monotonic()

    def left(self) -> Left:
        """What is left of the deadline, and of the time to the first token."""
        now = time.monotonic()
        ttft = None if self.ttft_deadline is None else self.ttft_deadline - now
        return Left(self.deadline - now, ttft)

    def affinity(self) -> int:
        """A number that the requests of one conversation share, the same in every process: of its tenant and beginning.

        The system prompt and the first word of the user are the part that no later turn changes.
        """
        messages = self.body["messages"][:2]
        return crc32(orjson.dumps((self.tenant, messages), default=str)) or 1
