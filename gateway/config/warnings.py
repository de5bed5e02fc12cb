"""What a policy asks of answers that this deployment's backends cannot give. `tierline check` prints it.

`policies.lint` looks at a policy alone; this looks at it beside the backends: those whose answers it judges, of every
tier but the last, which nothing can replace; the one that is to judge answers of its cache; and those for which its
requests wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.schema import BackendConfig, Deployment
from policies.model import UNCALIBRATED_BELOW, Rules
from policies.validation import Finding


def doubts_about(policy: Rules, deployment: Deployment) -> list[Finding]:
    """(where, what) for everything that is asked for and cannot be had, or is other than it seems."""
    return [
        *_of_thresholds(policy, deployment),
        *_of_the_judge(policy, deployment),
        *_of_contexts(policy, deployment),
        *_of_lines(policy, deployment),
    ]


def _of_thresholds(policy: Rules, deployment: Deployment) -> list[Finding]:
    """Every threshold that is held against other evidence than it seems, or against none."""
    if not policy.escalate.when.asks_for_confidence or policy.escalate.max_attempts == 1:
        return []
    return [
        finding
        for tier in deployment.tiers
        if tier.name in policy.tiers[:-1]
        for backend in tier.backends
        for finding in _doubts(policy, backend)
    ]


def _of_the_judge(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    semantic = policy.cache.semantic
    if semantic is None or semantic.audit_judge is None:
        return
    at, name = ("cache", "semantic", "audit_judge"), semantic.audit_judge.backend
    if not semantic.audit:
        yield at, "audit is 0%, so no answers are ever compared"
    for backend in (backend for tier in deployment.tiers for backend in tier.backends):
        if backend.name == name and not backend.configured:
            yield (
                (*at, "backend"),
                f"backend {name!r} is unconfigured ({backend.unconfigured_reason or 'no base_url'}): it compares "
                "nothing, and the threshold learns only from differences that the guards see",
            )


def _of_contexts(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Replies for which a model has no room, whatever the prompt is."""
    for backend in _backends(policy, deployment):
        most, context = policy.output.max_tokens, backend.context
        if most is not None and context is not None and most >= context:
            yield (
                ("output", "max_tokens"),
                f"backend {backend.name!r} holds {context} tokens, prompt and reply together, so no request fits there "
                "that does not ask for a shorter reply",
            )


def _of_lines(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """What the policy itself says of waiting, and a cap of the config does not allow."""
    load = policy.load
    if "max_wait" in load.model_fields_set:
        for backend in _backends(policy, deployment):
            if backend.queue.wait is not None and backend.queue.wait < load.max_wait:
                yield (
                    ("load", "max_wait"),
                    f"backend {backend.name!r} lets nobody wait for longer than {backend.queue.wait:g} s (its "
                    "queue.wait in the config); raise or remove that, or wait for less here",
                )
    if "max_waiting" not in load.model_fields_set:
        return
    for tier in (tier for tier in deployment.tiers if tier.name in policy.tiers):
        lengths = [backend.queue.length for backend in tier.backends if backend.queue.length is not None]
        if len(lengths) == len(tier.backends) and sum(lengths) < load.max_waiting:
            yield (
                ("load", "max_waiting"),
                f"tier {tier.name!r} lets no more than {sum(lengths)} requests wait (its backends' queue.length in the "
                "config); raise or remove that, or let fewer wait here",
            )
    if deployment.limits.in_flight < load.max_waiting:
        yield (
            ("load", "max_waiting"),
            f"a worker takes no more than {deployment.limits.in_flight} requests in hand (limits.in_flight in the "
            "config), those that wait included; raise that, or let fewer wait here",
        )


def _backends(policy: Rules, deployment: Deployment) -> list[BackendConfig]:
    """The backends of the policy's tiers."""
    return [backend for tier in deployment.tiers if tier.name in policy.tiers for backend in tier.backends]


def _doubts(policy: Rules, backend: BackendConfig) -> Iterator[Finding]:
    when = policy.escalate.when
    if backend.logprobs:
        if backend.head is None and when.uncalibrated_below is None:
            yield (
                ("escalate", "when", "confidence_below"),
                f"backend {backend.name!r} has no confidence head for {backend.model}, so its answers are held to "
                f"uncalibrated_below, {UNCALIBRATED_BELOW:g} where the policy does not say; set it, or fit a head with "
                "`tierline train confidence`",
            )
    elif policy.escalate.agreement is None:
        decides = "all go on to the next tier" if policy.escalate.no_signal == "escalate" else "all are accepted"
        yield (
            ("escalate", "no_signal"),
            f"backend {backend.name!r} gives no log-probabilities, so there is no evidence for its answers and "
            f"{decides}; escalate.agreement would ask it once more and compare",
        )
