"""Warn about parts of a policy that have no effect with this deployment's backends. `tierline check` prints them.

`policies.lint` checks a policy alone; this module checks it against the backends: those whose answers it judges (of
every tier but the last, whose answers are not escalated), the one that judges its cached answers, and those for which
its requests wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.schema import BackendConfig, Deployment
from policies.expression import Expression
from policies.model import UNCALIBRATED_BELOW, Rules
from policies.validation import Finding
from routing.difficulty.model import kinds_in, shipped_artefact, version_in


def doubts_about(policy: Rules, deployment: Deployment) -> list[Finding]:
    """Return (key path, warning) for each part of the policy that this deployment cannot carry out."""
    return [
        *_of_traffic(policy, deployment),
        *_of_kinds(policy, deployment),
        *_of_thresholds(policy, deployment),
        *_of_the_judge(policy, deployment),
        *_of_contexts(policy, deployment),
        *_of_lines(policy, deployment),
    ]


def _of_traffic(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about measured traffic that was measured with another classifier than the deployment's."""
    if policy.route.traffic is None:
        return
    artefact = deployment.classifier or shipped_artefact(deployment.embedding.kind)
    measured, version = policy.route.traffic.classifier, version_in(artefact)
    if version and measured != version:
        yield (
            ("route", "traffic", "classifier"),
            f"measured with classifier {measured}, but {version} is in use: quantiles are of its reference prompts "
            "until `tierline calibrate --traffic` measures this surface's requests again",
        )


def _of_kinds(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about rules that ask for a kind of request, or the easiest of one, which the classifier does not name."""
    if policy.route.classifier == "none":
        return
    artefact = deployment.classifier or shipped_artefact(deployment.embedding.kind)
    named = kinds_in(artefact)
    if named is None:
        return  # starting with an artefact that cannot be read says why
    rules: list[tuple[tuple[str, ...], Expression]] = [
        (("route", "start", tier), rule) for tier, rule in policy.route.start.items()
    ]
    if policy.escalate.speculate.both is not None:
        rules.append((("escalate", "speculate", "both"), policy.escalate.speculate.both))
    for at, rule in rules:
        asked = sorted(rule.names & {"kind", "quantile"})
        if not named and asked:
            yield (
                at,
                f"the classifier in {artefact} names no kind, so no comparison with {' or '.join(asked)} holds, nor "
                "`easiest ... of its kind`; train it again with this version, or go by p_adequate",
            )
        elif "kind" in asked:
            for kind in sorted(rule.words - set(named)):
                yield at, f"the classifier in {artefact} knows no kind {kind!r}; it knows {', '.join(named)}"


def _of_thresholds(policy: Rules, deployment: Deployment) -> list[Finding]:
    """Return warnings about confidence thresholds for backends with no confidence, or an uncalibrated one."""
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
        yield at, "audit is 0%, so answers are never compared"
    for backend in (backend for tier in deployment.tiers for backend in tier.backends):
        if backend.name == name and not backend.configured:
            yield (
                (*at, "backend"),
                f"backend {name!r} is unconfigured ({backend.unconfigured_reason or 'no base_url'}): it compares "
                "nothing, and the threshold learns only from differences that the guards see",
            )


def _of_contexts(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about output limits that leave no room for a prompt in a backend's context."""
    for backend in _backends(policy, deployment):
        most, context = policy.output.max_tokens, backend.context
        if most is not None and context is not None and most >= context:
            yield (
                ("output", "max_tokens"),
                f"backend {backend.name!r} holds {context} tokens, prompt and reply together, so only requests that "
                "ask for a shorter reply fit there",
            )


def _of_lines(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about waiting limits of the policy that are beyond the config's caps."""
    load = policy.load
    if "max_wait" in load.model_fields_set:
        for backend in _backends(policy, deployment):
            if backend.queue.wait is not None and backend.queue.wait < load.max_wait:
                yield (
                    ("load", "max_wait"),
                    f"backend {backend.name!r} lets no request wait for more than {backend.queue.wait:g} s (its "
                    "queue.wait in the config); raise or remove that, or lower max_wait here",
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
            f"a worker handles at most {deployment.limits.in_flight} requests at a time (limits.in_flight in the "
            "config), waiting ones included; raise that, or let fewer wait here",
        )


def _backends(policy: Rules, deployment: Deployment) -> list[BackendConfig]:
    """Return the backends of the policy's tiers."""
    return [backend for tier in deployment.tiers if tier.name in policy.tiers for backend in tier.backends]


def _doubts(policy: Rules, backend: BackendConfig) -> Iterator[Finding]:
    when = policy.escalate.when
    if backend.logprobs:
        if backend.head is None and when.uncalibrated_below is None:
            yield (
                ("escalate", "when", "confidence_below"),
                f"backend {backend.name!r} has no confidence head for {backend.model}, so the threshold of its answers "
                f"is uncalibrated_below, by default {UNCALIBRATED_BELOW:g}; set it, or fit a head with "
                "`tierline train confidence`",
            )
    elif policy.escalate.agreement is None:
        decides = "all are escalated" if policy.escalate.no_signal == "escalate" else "all are accepted"
        yield (
            ("escalate", "no_signal"),
            f"backend {backend.name!r} gives no log-probabilities, so its answers have no confidence and "
            f"{decides}; escalate.agreement would draw a second answer and compare the two",
        )
