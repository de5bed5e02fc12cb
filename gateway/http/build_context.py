"""Step 3: the context of one request. Tenant and surface give the policy; headers and policy give the deadline."""

from __future__ import annotations

import time
from typing import Any

from gateway.errors import InvalidRequest, NotFound, UpstreamTimeout
from gateway.request.context import RequestContext
from gateway.request.disconnect import Client
from gateway.request.options import TIER_PREFIX, Wishes, read_wishes
from gateway.request.output_limits import effective_body, namespaced
from gateway.steps import Services
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from policies.model import Policy
from routing.decide import Clamp
from routing.features import features_of


def admit(
    services: Services,
    headers: dict[bytes, bytes],
    body: dict[str, Any],
    trace: Trace,
    ledger: Ledger,
    client: Client,
    *,
    large: bool = False,
) -> RequestContext:
    """The context of a checked body; raises ApiError for a model, a tier or a deadline that cannot be served."""
    wishes = read_wishes(headers)
    pinned = body["model"][len(TIER_PREFIX) :] if body["model"].startswith(TIER_PREFIX) else None
    policy = _policy(services, body["model"], wishes, pinned)
    ledger.surface = policy.surface
    ledger.policy = policy.label
    ledger.stream = bool(body.get("stream"))
    effective, own_limit = effective_body(body, policy.output)
    if "prompt_cache_key" in effective:
        effective = namespaced(effective, ledger.tenant)
    features = features_of(effective)
    came = time.monotonic() - trace.root.seconds
    if services.deployment.telemetry.prompts:
        trace.root.attributes[names.PROMPT] = features.text
    return RequestContext(
        request_id=ledger.request_id,
        tenant=ledger.tenant,
        policy=policy,
        body=effective,
        features=features,
        wishes=wishes,
        clamp=_clamp(policy, wishes, pinned),
        own_limit=own_limit,
        deadline=came + _deadline_s(policy, wishes),
        trace=trace,
        ledger=ledger,
        client=client,
        large=large,
        ttft_deadline=_ttft_deadline(policy, wishes, came) if features.stream else None,
    )


def _policy(services: Services, model: str, wishes: Wishes, pinned: str | None) -> Policy:
    policies = services.policies.current
    policy = policies.resolve("auto" if pinned is not None else model, wishes.surface)
    if policy is None:
        name = wishes.surface or model
        raise NotFound(
            f"There is no surface or model {name!r} here. GET /v1/models lists what there is.",
            code="model_not_found",
            param="x-tierline-surface" if wishes.surface else "model",
        )
    return policy


def _clamp(policy: Policy, wishes: Wishes, pinned: str | None) -> Clamp | None:
    if pinned is not None:
        _check_tier(policy, pinned, "model")
        return Clamp(pinned, pinned)
    if wishes.min_tier is None and wishes.max_tier is None:
        return None
    for name, header in ((wishes.min_tier, "x-tierline-min-tier"), (wishes.max_tier, "x-tierline-max-tier")):
        if name is not None:
            _check_tier(policy, name, header)
    _check_order(policy, wishes.min_tier, wishes.max_tier)
    return Clamp(wishes.min_tier, wishes.max_tier)


def _check_order(policy: Policy, least: str | None, most: str | None) -> None:
    if least is not None and most is not None and policy.tiers.index(least) > policy.tiers.index(most):
        raise InvalidRequest(
            f"x-tierline-min-tier {least!r} is above x-tierline-max-tier {most!r}, so no tier is left.",
            code="unsupported_value",
            param="x-tierline-min-tier",
        )


def _check_tier(policy: Policy, name: str, param: str) -> None:
    if name in policy.tiers:
        return
    message = f"Surface {policy.surface!r} has no tier {name!r}; it has {', '.join(policy.tiers)}."
    if param == "model":
        raise NotFound(message, code="model_not_found", param=param)
    raise InvalidRequest(message, code="unsupported_value", param=param)


def _deadline_s(policy: Policy, wishes: Wishes) -> float:
    allowed = policy.slo.deadline
    if wishes.deadline_s is not None:
        if wishes.deadline_s <= 0:
            raise UpstreamTimeout("The deadline had passed when the request came.", code="deadline_exceeded")
        allowed = min(allowed, wishes.deadline_s)
    return allowed


def _ttft_deadline(policy: Policy, wishes: Wishes, came: float) -> float | None:
    limits = [limit for limit in (policy.slo.ttft.p99, wishes.ttft_s) if limit is not None]
    return came + min(limits) if limits else None
