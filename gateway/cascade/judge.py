"""The verdict on an answer, from its evidence, the confidence head of its backend and the policy."""

from __future__ import annotations

from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from gateway.tiers import Endpoint
from routing.cascade import Attempt
from routing.confidence.judge import Assessment, Evidence, assess

UNJUDGED = Assessment(True, None, "nothing stronger follows")
"""The verdict on an answer that nothing could replace."""


def judge(request: RequestContext, attempt: Attempt, endpoint: Endpoint, hop: Hop, evidence: Evidence) -> Assessment:
    """Return whether the answer with this evidence may go out, and note on the hop what that was based on."""
    verdict = assess(evidence, request.policy.escalate, endpoint.config.head, attempt.prior)
    attributes = hop.attributes
    attributes[names.CONFIDENCE_BASIS] = verdict.basis
    if verdict.threshold is not None:
        attributes[names.MIN_CONFIDENCE] = verdict.threshold
    if verdict.head:
        attributes[names.CONFIDENCE_HEAD] = verdict.head
    return verdict


def alternatives_for(endpoint: Endpoint) -> int:
    """Return how many alternatives of each token the endpoint's head reads; 0 for none, or without a head."""
    head = endpoint.config.head
    return 0 if head is None else head.alternatives
