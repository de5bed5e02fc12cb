"""What is known of one request on arrival. Its fields never change; what happens goes into its trace and ledger."""

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
    """One request. `body` is the client's body with the policy's output limits applied.

    `deadline` and `ttft_deadline` are in `time.monotonic()` seconds. `policy` is the version in force when the request
    arrived; a reload does not change it.
    """

    request_id: str
    tenant: str
    policy: Policy
    body: Mapping[str, Any]
    features: Features
    options: RequestOptions
    clamp: Clamp | None
    """Lowest and highest tier that the request allows; None for all tiers of its surface."""
    own_limit: bool
    """Whether the token limit in `body` is the client's own rather than the policy's."""
    deadline: float
    trace: Trace
    ledger: Ledger
    client: Client
    large: bool = False
    """Whether the body is so large that work on all of it must run in a thread (`gateway.off_loop`)."""
    ttft_deadline: float | None = None
    """When a stream's first token is due, by the policy's p99 and the client's limit; None if neither sets one."""

    def ladder(self) -> tuple[str, ...]:
        """Return the configured tiers of its surface that the request allows, cheapest first."""
        return self.policy.ladder if self.clamp is None else self.clamp.of(self.policy)

    def allowed_tiers(self) -> frozenset[str] | None:
        """Return the tiers whose stored answers may serve the request; None for any tier's."""
        return None if self.clamp is None else frozenset(self.ladder())

    def is_classified(self) -> bool:
        """Return whether there is anything for the classifier to decide."""
        return self.policy.route.classifier != "none" and len(self.ladder()) > 1

    def budget_s(self) -> float:
        """Return the seconds left until the deadline; negative once it has passed."""
        return self.deadline - time.monotonic()

    def left(self) -> Left:
        """Return the seconds left until the deadline and until the first token is due."""
        now = time.monotonic()
        ttft = None if self.ttft_deadline is None else self.ttft_deadline - now
        return Left(self.deadline - now, ttft)

    def affinity(self) -> int:
        """Return the CRC-32 of the tenant and the first two messages: the affinity key for sticky selection.

        The first two messages, usually the system prompt and the first user message, stay the same in every turn of a
        conversation. Never 0.
        """
        messages = self.body["messages"][:2]
        return crc32(orjson.dumps((self.tenant, messages), default=str)) or 1
