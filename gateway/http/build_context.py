"""Build the context of one request (step 3): its policy from the surface, its deadline from headers and policy.

Of the client's body only the output limits (tokens, stop strings) and the key of the prompt cache are changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.caller import ANYBODY, Caller, OpenModels, in_tenants_space
from gateway.cascade.protocols import LEAST_LOOKED_AT
from gateway.dialects.native import Native
from gateway.errors import InvalidRequest, NotFound, UpstreamTimeout
from gateway.request.context import Client, RequestContext
from gateway.request.options import TIER_PREFIX, RequestOptions, read_options, session_of
from gateway.telemetry import names
from policies.loader import AUTO
from routing.decide import Clamp
from routing.features import effective_body, features_of

if TYPE_CHECKING:
    from gateway.caller import OpenModels, Rights
    from gateway.steps import Steps
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace
    from policies.loader import PolicySet
    from policies.model import Policy


def build_context(
    steps: Steps,
    headers: dict[bytes, bytes],
    body: dict[str, Any],
    trace: Trace,
    ledger: Ledger,
    client: Client,
    *,
    large: bool = False,
    native: Native | None = None,
    instead: Policy | None = None,
    caller: Caller = ANYBODY,
) -> RequestContext:
    """Return the context of a checked body, the translation of `native` if there is one.

    Raises ApiError for an unknown model or tier, or a passed deadline.

    The policy is the one in force or its candidate, unless another is given as `instead`.
    """
    options = read_options(headers)
    pinned = body["model"][len(TIER_PREFIX) :] if body["model"].startswith(TIER_PREFIX) else None
    policies, rights = steps.policies.current, caller.rights
    policy = instead or policy_of(policies, body["model"], options, pinned, rights)
    ledger.session, ledger.conversation, named = session_of(ledger.tenant, headers, body)
    if policies.rolling and instead is None:
        policy, ledger.arm, ledger.unit = steps.policies.assigned(policy, headers, ledger.tenant, ledger.session)
    ledger.surface = policy.surface
    ledger.policy = policy.label
    ledger.stream = bool(body.get("stream"))
    models: OpenModels | None = None
    if rights is not None and rights.some_models:
        rights.check_fields(body)
        models = rights.open_models(policy, policies, models_of(steps, policy))
    effective, own_limit = effective_body(body, policy.output)
    if not own_limit and (cap := policy.output.max_tokens) is not None:
        trace.root.attributes[names.OUTPUT_LIMIT] = cap
    if "prompt_cache_key" in effective:
        effective = namespaced(effective, ledger.tenant)
    features = features_of(effective)
    if native is not None and native.needs:
        features = features._replace(further=features.further | native.needs)
    conversation, advisor = None, steps.router.conversations
    if (advisor is not None and len(policy.ladder) > 1) and (
        features.approx_tokens >= LEAST_LOOKED_AT or features.has_tools or "last_tier" in policy.asked
    ):
        features, conversation = advisor.enter(policy, ledger, effective, features, trace, named=named)
    if "reasoning_above" in policy.asked:
        above = steps.router.tier_of_reasoning(effective["messages"]) in policy.tiers[1:]
        features = features._replace(reasoning_above=above)
    came = time.monotonic() - trace.root.seconds
    if steps.deployment.telemetry.prompts and steps.deployment.telemetry.captures(policy.surface):
        trace.captures = True
        trace.root.attributes[names.PROMPT] = features.text
    if steps.telemetry.exports:
        trace.asked = names.asked_in(effective)
    trace.policy = policy
    trace.deadline_s = allowed_s = deadline_s(policy, options)
    first_due = ttft_deadline(policy, options, came) if features.stream else None
    if first_due is not None:
        trace.ttft_s = first_due - came
    return RequestContext(
        request_id=ledger.request_id,
        tenant=ledger.tenant,
        policy=policy,
        body=effective,
        features=features,
        options=options,
        clamp=clamp_of(policy, options, pinned, rights, models),
        own_limit=own_limit,
        deadline=came + allowed_s,
        trace=trace,
        ledger=ledger,
        client=client,
        large=large,
        native=native,
        ttft_deadline=first_due,
        caller=caller,
        hold=steps.limits.hold(caller, trace, ledger) if steps.limits is not None and caller.is_limited else None,
        conversation=conversation,
        models=models,
    )


def policy_of(
    policies: PolicySet, model: str, options: RequestOptions, pinned: str | None, rights: Rights | None
) -> Policy:
    """Return the policy in force that a request chooses. Raises NotFound, and Forbidden."""
    named, surface = AUTO if pinned is not None else model, options.surface
    policy = policies.by_name.get(named) if surface is None and rights is None else None
    if policy is None:
        policy = chosen_policy(policies, named, surface, rights)
    if policy is None:
        name = options.surface or model
        raise NotFound(
            f"There is no surface or model {name!r} here. GET /v1/models lists what there is.",
            code="model_not_found",
            param="x-tierline-surface" if options.surface else "model",
        )
    return policy


def chosen_policy(policies: PolicySet, name: str, surface: str | None, rights: Rights | None) -> Policy | None:
    """Return the policy that a request chooses: by the `surface` that it names, or else by the `name` in `model`.

    None if there is no such policy. Raises Forbidden where `rights` do not open it.
    """
    return policies.resolve(name, surface) if rights is None else rights.choose(policies, name, surface)


def models_of(steps: Steps, policy: Policy) -> dict[str, frozenset[str]]:
    """Return, by tier of the policy, the models of the tier's backends."""
    return {name: steps.tiers[name].models for name in policy.tiers if name in steps.tiers}


def clamp_of(
    policy: Policy,
    options: RequestOptions,
    pinned: str | None,
    rights: Rights | None = None,
    models: OpenModels | None = None,
) -> Clamp | None:
    """Return the tiers that a request and its sender's rights allow; None for all. `models` are those that are open.

    Raises ApiError for a tier that the surface lacks or that is closed to the sender.
    """
    least, most = (pinned, pinned) if pinned is not None else (options.min_tier, options.max_tier)
    for name, header in ((least, "x-tierline-min-tier"), (most, "x-tierline-max-tier")):
        if name is not None:
            _check_tier(policy, name, "model" if pinned is not None else header)
    if least is not None and most is not None:
        _check_order(policy, least, most)
    if rights is not None and (allowed := rights.clamp(policy, least, most, models)) is not None:
        return allowed
    return None if least is None and most is None else Clamp(least, most)


def _check_order(policy: Policy, least: str, most: str) -> None:
    if policy.tiers.index(least) > policy.tiers.index(most):
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


def deadline_s(policy: Policy, options: RequestOptions) -> float:
    """Return the seconds that a request may take. Raises UpstreamTimeout if its deadline has passed."""
    allowed = policy.slo.deadline
    if options.deadline_s is not None:
        if options.deadline_s <= 0:
            raise UpstreamTimeout("The deadline had passed when the request arrived.", code="deadline_exceeded")
        allowed = min(allowed, options.deadline_s)
    return allowed


def ttft_deadline(policy: Policy, options: RequestOptions, came: float) -> float | None:
    """Return when a stream's first token is due, for a request that came at `came` (seconds); None without a limit."""
    limits = [limit for limit in (policy.slo.ttft.p99, options.ttft_s) if limit is not None]
    return came + min(limits) if limits else None


def namespaced(body: Mapping[str, Any], tenant: str) -> Mapping[str, Any]:
    """Return the body with its `prompt_cache_key` hashed with the tenant, so that tenants share no prompt cache."""
    key = body["prompt_cache_key"]
    return {**body, "prompt_cache_key": in_tenants_space(tenant, key)} if isinstance(key, str) else body
