"""Provide the seam `readiness` of `gateway.seams`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from gateway.config.backends import retirement

if TYPE_CHECKING:
    from cache.semantic.cross_encoder import MeasuredPairScorer
    from gateway.steps import Steps
    from gateway.tiers import Endpoint

_BACKEND_REFUSALS: Final = {
    "key": "it refuses our key",
    "quota": "our account is out of quota or credit",
    "model": "it has no model {model}, or another URL: set its model or base_url",
}
_STORE_REFUSALS: Final = {
    "full": "refuses writes, its memory is full (full): new answers are not kept",
    "disk": "refuses writes, it cannot save to its disk (disk): new answers are not kept",
    "no_master": "no Sentinel that answers names a master that is up (no_master)",
}


def readiness(steps: Steps) -> dict[str, Any]:
    """Return the body of `/readyz`: `status` (ready, degraded, unavailable or draining) and what is degraded, in words.

    An unconfigured tier is listed with its reason, and so is a surface that has no other; neither counts as degraded,
    but for the default surface.
    """
    tiers = {name: _tier(steps, name) for name in steps.tiers}
    store = steps.store.state()
    failure = steps.policies.failure
    policies = steps.policies.current.by_surface
    degraded = [
        f"tier {name}: {tier['state']}"
        for name, tier in tiers.items()
        if tier["state"] != "ready" and steps.tiers[name].configured
    ]
    unconfigured = {
        name: ", ".join(tier.why_not for tier in policy.unconfigured.values())
        for name, policy in policies.items()
        if not policy.ladder
    }
    default = steps.policies.current.default.surface
    degraded += [f"surface {name}: {why}" for name, why in unconfigured.items() if name == default]
    degraded += [
        f"backend {endpoint.config.name}: {_BACKEND_REFUSALS[endpoint.refused].format(model=endpoint.config.model)}"
        for tier in steps.tiers.values()
        for endpoint in tier.endpoints
        if endpoint.refused
    ]
    identities = {f"backend {one.config.name}": one.identity for tier in steps.tiers.values() for one in tier.endpoints}
    degraded += [
        f"{name}: credentials cannot be renewed: {identity.failure}"
        for name, identity in identities.items()
        if identity and identity.failure
    ]
    of_apis = [api.readiness(steps.policies.current) for api in steps.client_apis]
    degraded += [line for lines, _ in of_apis for line in lines]
    if store.status != "ok":
        degraded.append(f"store: {_STORE_REFUSALS.get(store.reason) or store.reason or store.status}")
    degraded += [] if steps.room is None else steps.room.degraded()
    if steps.telemetry.failing and store.status != "unconfigured":
        degraded.append(f"traces: not recorded ({steps.telemetry.failing})")
    scorer = steps.models.cross_encoder
    if scorer is not None and scorer.failure:
        degraded.append(f"cross-encoder: nothing that it would have to read is served; {scorer.failure}")
    index = steps.cache.index.state()
    if index.reason and store.status == "ok":
        degraded.append(f"semantic index: {index.reason}")
    if failure is not None:
        degraded.append(f"policies: the last valid ones are in force; {failure}")
    degraded += [f"policies: {note}" for note in steps.policies.notes]
    degraded += [f"keys: {note}" for note in steps.authenticator.notes]
    if steps.limits is not None:
        degraded += [f"budgets: {note}" for note in steps.limits.notes()]
    learned = steps.cache.bound.state() if steps.cache.bound is not None else {}
    degraded += [
        f"semantic cache of {surface}: more wrong hits than its max_error; its threshold was raised"
        for surface, state in learned.items()
        if state.breached
    ]
    degraded += [
        f"semantic cache of {surface}, {group}: more wrong hits than its max_error; its own threshold was raised"
        for surface, state in learned.items()
        for group in state.breached_groups
    ]
    configured = any(tier.configured for tier in steps.deployment.tiers)
    status = "unavailable" if not configured else "degraded" if degraded else "ready"
    return {
        "status": "draining" if steps.gate.draining else status,
        "degraded": degraded,
        "unconfigured_surfaces": unconfigured,
        "tiers": tiers,
        **{name: value for _, members in of_apis for name, value in members.items()},
        "store": {"status": store.status, "reason": store.reason, "nodes": store.nodes},
        "semantic_index": {"kind": index.kind, "entries": index.entries, "reason": index.reason},
        "semantic_thresholds": {
            surface: {
                "threshold": round(state.threshold, 4) if math.isfinite(state.threshold) else None,
                "labels": state.labels,
                "breached": state.breached,
                "breached_groups": state.breached_groups,
            }
            for surface, state in learned.items()
        },
        "embedder": steps.embedder.embedder.name,
        "cross_encoder": None if scorer is None else {"version": scorer.version, "state": _opened(scorer)},
        "classifier": steps.router.classifiers.default.version,
        "surfaces": {name: policy.version for name, policy in policies.items()},
        "policies": _policies(steps),
    }


def _opened(scorer: MeasuredPairScorer) -> str:
    return scorer.failure or ("open" if scorer.is_open else "not open yet")


def _policies(steps: Steps) -> dict[str, Any]:
    """Return where policies come from, and what is being tried beside those in force."""
    revision = steps.policies.revision
    return {
        "source": steps.deployment.policies.source,
        "revision": revision,
        "candidates": {
            name: {"version": version.policy.version, "mode": version.mode, "share": version.share}
            for name, version in steps.policies.current.rolling.items()
        },
    }


def _tier(steps: Steps, name: str) -> dict[str, Any]:
    tier = steps.tiers[name]
    return {
        "state": tier.health().unavailable or "ready",
        "backends": {endpoint.config.name: _backend(endpoint) for endpoint in tier.endpoints},
    }


def _backend(endpoint: Endpoint) -> dict[str, Any]:
    """Return one backend's state. `limit`: most calls in flight of this worker; `ttft_ms`: of a short prompt.
    `headroom`: what is left of each of its rate limits, None where it says nothing and is not ours."""
    now = endpoint.now()
    limits = {unit: {"left": left, "of": of} for unit, (left, of) in endpoint.quota.headroom(now).items()}
    quantiles = {name: endpoint.latency.ttft(q, 0, now) for name, q in (("p50", 0.5), ("p95", 0.95))}
    return {
        "state": endpoint.unavailable() or "ready",
        "model": endpoint.config.model,
        "confidence_head": endpoint.config.head.version if endpoint.config.head else None,
        "retirement": retirement(endpoint.config.retires) or None,
        "refused_fields": [] if endpoint.refused_fields is None else endpoint.refused_fields.names(),
        "refusals": [] if endpoint.refusals is None else endpoint.refusals.shown(),
        "context": endpoint.lengths.context,
        "drops_tools": endpoint.drops_tools,
        "in_flight": endpoint.in_flight,
        "waiting": endpoint.queue.size,
        "limit": endpoint.capacity,
        "breaker": endpoint.breaker.state(now),
        "headroom": limits or ({} if endpoint.config.is_here else None),
        "ttft_ms": {name: None if s is None else round(s * 1000, 1) for name, s in quantiles.items()},
    }
