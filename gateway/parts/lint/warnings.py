"""Warn about parts of a policy that have no effect with this deployment's backends. `tierline check` prints them.

`rules` checks a policy alone; this module checks it against the backends: those whose answers it judges (of every tier
but the last, whose answers are not escalated), the one that judges its cached answers, and those for which its requests
wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.config.backends import PROXIED, BackendConfig
from gateway.config.schema import Deployment
from gateway.parts.lint.model_sizes import is_too_small
from gateway.parts.lint.rules import faults, lint
from gateway.parts.lint.taken_out import lint_taken_out
from gateway.parts.standard import absent, settings_of_missing_parts
from policies.errors import Edit, Finding, KeyPath, Problem
from policies.expression import Expression
from policies.model import UNCALIBRATED_BELOW, Policy, Rules
from policies.sections import all_added
from policies.yaml_source import Document
from routing.difficulty.model import SHEET_FILE, shipped_artefact, version_in


def findings_in(policy: Policy, document: Document, deployment: Deployment | None) -> list[Problem]:
    """Return every mistake in a policy that loads, at its place; with a deployment, also what that lacks."""
    doubts = doubts_about(policy, deployment) if deployment is not None else []
    return [
        document.locate(finding)
        for finding in (*lint_taken_out(document.value), *faults(policy), *lint(policy), *_of_parts(policy), *doubts)
    ]


def _of_parts(policy: Policy) -> Iterator[Finding]:
    """Warn about settings that only a part reads which this installation lacks."""
    for setting, part in settings_of_missing_parts():
        *sections, key = path = tuple(setting.split("."))
        section: Any = policy
        for name in sections:
            section = getattr(section, name, None)
        if isinstance(section, frozenset):
            if key in section:
                yield Finding(tuple(sections), absent(f"the setting {setting}", part), "T719", "leave it out")
        elif section is not None and key in section.model_fields_set:
            yield Finding(path, absent(f"the setting {setting}", part), "T719", "leave it out", (Edit(path),))


def doubts_about(policy: Rules, deployment: Deployment) -> list[Finding]:
    """Return (key path, warning) for all in the policy that this deployment cannot carry out."""
    return [
        *_of_traffic(policy, deployment),
        *_of_kinds(policy, deployment),
        *_of_thresholds(policy, deployment),
        *_of_the_draft_judge(policy, deployment),
        *_of_the_judge(policy, deployment),
        *(doubt for part in all_added() for doubt in part.doubts(policy, deployment.policies.source)),
        *_of_lines(policy, deployment),
        *_of_prices(policy, deployment),
        *_of_set_fields(policy, deployment),
    ]


def _of_traffic(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about measured traffic that was measured with another classifier than the deployment's."""
    if policy.route.traffic is None:
        return
    artefact = deployment.classifier or shipped_artefact(deployment.embedding.kind)
    measured, version = policy.route.traffic.classifier, version_in(artefact)
    if version and measured != version:
        yield Finding(
            ("route", "traffic", "classifier"),
            f"measured with classifier {measured}, but {version} is in use: quantiles are of its reference prompts "
            "until `tierline fit calibrate --traffic` measures this surface's requests again",
            "T706",
            "measure again, or leave route.traffic out",
            (Edit(("route", "traffic")),),
        )


def _of_kinds(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about rules that ask for a kind of request, or the easiest of one, which the classifier does not name."""
    if policy.route.classifier == "none":
        return
    artefact = deployment.classifier or shipped_artefact(deployment.embedding.kind)
    named = _kinds_in(artefact)
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
            yield Finding(
                at,
                f"the classifier in {artefact} names no kind, so no comparison with {' or '.join(asked)} holds, nor "
                "`easiest ... of its kind`",
                "T707",
                "train it again with this version, or go by p_adequate",
            )
        elif "kind" in asked:
            for kind in sorted(rule.words - set(named)):
                message = f"the classifier in {artefact} knows no kind {kind!r}; it knows {', '.join(named)}"
                yield Finding(at, message, "T707")


def _of_thresholds(policy: Rules, deployment: Deployment) -> list[Finding]:
    """Return warnings about confidence thresholds for backends with no confidence, or an uncalibrated one."""
    if not policy.escalate.when.asks_for_confidence or policy.escalate.max_attempts == 1:
        return []
    return [
        finding
        for tier in deployment.tiers
        if tier.name in policy.tiers[:-1]
        for backend in tier.backends
        for finding in _doubts(policy, deployment, backend)
    ]


def _of_the_draft_judge(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about a judge of drafts that can give no verdict."""
    judge, at = policy.escalate.judge, ("escalate", "judge", "backend")
    backend = None if judge is None else next((one for one in deployment.backends if one.name == judge.backend), None)
    if backend is None:
        return
    why = ""
    if not backend.configured:
        why = f"is unconfigured ({backend.unconfigured_reason or 'no base_url'})"
    elif not backend.logprobs:
        why = "gives no log-probabilities, so nobody knows how surely it says yes"
    elif backend.price is None:
        why = "has no price, and what nobody can count is not spent"
    if why:
        started = " unless `tierline up` starts it" if backend.wants_local_model else ""
        message = f"backend {backend.name!r} {why}: it judges no draft{started}"
        yield Finding(at, message, "T710", "name another, or mend that", (Edit(at[:2]),))


def _of_the_judge(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    semantic = policy.cache.semantic
    if semantic is None or semantic.audit_judge is None:
        return
    at, name = ("cache", "semantic", "audit_judge"), semantic.audit_judge.backend
    if not semantic.audit:
        yield Finding(at, "audit is 0%, so answers are never compared", "T710", "leave it out", (Edit(at),))
    for backend in deployment.backends:
        if backend.name == name and not backend.configured:
            yield Finding(
                (*at, "backend"),
                f"backend {name!r} is unconfigured ({backend.unconfigured_reason or 'no base_url'}): it compares "
                "nothing, and the threshold learns only from differences that the guards see",
                "T710",
                "configure it, or leave audit_judge out",
                (Edit(at),),
            )


def _of_lines(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about waiting limits of the policy that are beyond the config's caps."""
    load, tiers = policy.load, [tier for tier in deployment.tiers if tier.name in policy.tiers]

    def beyond(key: str, message: str, mend: str, value: str) -> Finding:
        return Finding(("load", key), f"{message} in the config)", "T712", mend, (Edit(("load", key), value),))

    if "max_wait" in load.model_fields_set:
        for backend in (backend for tier in tiers for backend in tier.backends):
            if backend.queue.wait is not None and backend.queue.wait < load.max_wait:
                longest = f"{backend.queue.wait:g}"
                message = f"backend {backend.name!r} lets no request wait for more than {longest} s (its queue.wait"
                yield beyond("max_wait", message, "raise or remove that, or lower max_wait here", f"{longest}s")
    if "max_waiting" not in load.model_fields_set:
        return
    for tier in tiers:
        lengths = [backend.queue.length for backend in tier.backends if backend.queue.length is not None]
        if len(lengths) == len(tier.backends) and sum(lengths) < load.max_waiting:
            message = f"tier {tier.name!r} lets no more than {sum(lengths)} requests wait (its backends' queue.length"
            yield beyond("max_waiting", message, "raise or remove that, or let fewer wait here", str(sum(lengths)))
    if (most := deployment.limits.in_flight) < load.max_waiting:
        message = f"a worker handles at most {most} requests at a time, waiting ones included (limits.in_flight"
        yield beyond("max_waiting", message, "raise that, or let fewer wait here", str(most))


def _can_judge(backend: BackendConfig) -> bool:
    """Return whether a judge's verdict can be read from it, and is paid for and worth something."""
    return backend.logprobs and backend.configured and backend.price is not None and not is_too_small(backend.model)


def _doubts(policy: Rules, deployment: Deployment, backend: BackendConfig) -> Iterator[Finding]:
    escalate, when = policy.escalate, policy.escalate.when
    if backend.logprobs:
        if backend.head is None and when.uncalibrated_below is None:
            yield Finding(
                ("escalate", "when", "confidence_below"),
                f"backend {backend.name!r} has no confidence head for {backend.model}, so the threshold of its answers "
                f"is uncalibrated_below, by default {UNCALIBRATED_BELOW:g}",
                "T708",
                "set it, or fit a head with `tierline fit train confidence`",
                (Edit(("escalate", "when", "uncalibrated_below"), f"{UNCALIBRATED_BELOW:g}"),),
            )
    elif escalate.agreement is None and escalate.judge is None:
        decides = "all are escalated" if escalate.no_signal == "escalate" else "all are accepted"
        judge = next((other.name for other in deployment.backends if _can_judge(other)), "")
        at, value, what = (
            ("judge", f"{{backend: {judge}}}", "whose model reads each draft")
            if judge
            else ("agreement", "{samples: 1}", "which draws a second answer and compares the two")
        )
        yield Finding(
            ("escalate", "no_signal"),
            f"backend {backend.name!r} gives no log-probabilities, so its answers have no confidence and {decides}",
            "T709",
            f"write {at}: {value}, {what}",
            (Edit(("escalate", at), value),),
        )


def _of_prices(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about backends whose price nobody states."""
    judge = None if policy.cache.semantic is None else policy.cache.semantic.audit_judge
    unknown = [backend for backend in deployment.backends if backend.price is None and backend.base_url]

    def finding(at: KeyPath, backend: BackendConfig, so: str) -> Finding:
        mend = "write there price: {input: ..., output: ...} in US dollars per million tokens, price: {} if it is free"
        if backend.is_here:
            so, mend = (
                f" ({PROXIED}){so}",
                "write there price: {} if nobody pays for it, else price: {input: ..., output: ...}",
            )
        return Finding(at, f"the price of backend {backend.name!r} ({backend.model}) is unknown{so}", "T713", mend)

    for backend in unknown:
        if judge is not None and backend.name == judge.backend:
            at = ("cache", "semantic", "audit_judge", "backend")
            yield finding(at, backend, ", so it is not asked")
    so = "its calls are in no cost or saving, and no hedge, shadow or comparison calls it, as their limits could not be"
    owners = f"; {deployment.of_unknown_price}" if deployment.of_unknown_price else ""
    for i, name in enumerate(policy.tiers):
        of_tier = [backend for tier in deployment.tiers if tier.name == name for backend in tier.backends]
        yield from (finding(("tiers", i), backend, f": {so} kept{owners}") for backend in unknown if backend in of_tier)


def _of_set_fields(policy: Rules, deployment: Deployment) -> Iterator[Finding]:
    """Warn about fields that are set at a tier one of whose backends is not sent them."""
    for tier in deployment.tiers:
        fields = policy.tier_fields.get(tier.name)
        for how, values in (("set", fields.set), ("force", fields.force)) if fields is not None else ():
            for backend in tier.backends:
                for name in sorted(values.keys() & backend.not_settable):
                    at = ("tier_fields", tier.name, how, name)
                    message = f"backend {backend.name!r} ({backend.model}) refuses {name}, so it is never sent there"
                    yield Finding(at, message, "T718", "leave it out, or give that tier another model", (Edit(at),))


def _kinds_in(folder: Path) -> list[str] | None:
    """Return the kinds that the data sheet in `folder` names, none for a format without kinds; None without a sheet."""
    try:
        sheet = json.loads((folder / SHEET_FILE).read_bytes())
        return list(sheet["measured"].get("kinds", ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
