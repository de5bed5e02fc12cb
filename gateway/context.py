"""What is known of one request on its way down: fixed at the door, handed to every hop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.client import Client
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from gateway.wishes import Wishes
from policies.model import Policy
from routing.decide import Clamp
from routing.features import Features


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request. `body` is the effective request: the client's, with the policy's output limits. `deadline` is in
    `time.monotonic()` seconds. The policy is the version that held at the door, whatever is reloaded meanwhile.
    """

    request_id: str
    tenant: str
    policy: Policy
    body: Mapping[str, Any]
    features: Features
    wishes: Wishes
    clamp: Clamp | None
    """The tiers it allows itself; None for all of its surface's."""
    own_limit: bool
    """The client itself limits the output below what the policy would."""
    deadline: float
    trace: Trace
    ledger: Ledger
    client: Client

    def budget_s(self) -> float:
        """What is left of the deadline, in seconds; negative once it has passed."""
        return self.deadline - time.monotonic()
