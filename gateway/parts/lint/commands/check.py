"""Run `tierline check`: check the config and the policies, and list the tiers and surfaces they define."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from cache.semantic.cross_encoder import CrossEncoderError, MeasuredPairScorer
from cache.store.base import StoreUnavailable
from cache.text.languages import ENGLISH
from gateway.cli.flags import Subparsers, add_command, add_config_flags, launch_of
from gateway.config.addresses import open_store
from gateway.config.backends import Auth
from gateway.config.loader import default_config
from gateway.config.schema import Deployment
from gateway.config.sections import sections_of_parts
from gateway.exit_codes import Exit
from gateway.parts.lint.codes import is_error
from gateway.parts.lint.rule_values import asks_for_quantiles
from gateway.parts.lint.warnings import findings_in
from gateway.parts.lint.written import written
from gateway.parts.standard import is_provided
from gateway.report import print_json
from gateway.seams import cut_down_quotas, drift, load_pair_scorer
from gateway.server.descriptors import why_too_few
from policies.errors import ConfigError, KeyPath, Problem, UnreadableFile
from policies.fields import SetFields
from policies.loader import SHIPPED, PolicySet, PolicySource, policy_files, read_policy
from policies.model import Policy
from policies.yaml_source import read_yaml

_SLACK: Final = 10.0
"""The store's time limits are for the gateway's event loop; a command may wait longer."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of a check. `deployment` and `policies` are None if they could not be loaded."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    deployment: Deployment | None
    policies: PolicySet | None
    cross_encoder: MeasuredPairScorer | None = None
    unreadable: bool = False
    """Whether the config or the folder of policies could not be read."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `check` to the command line."""
    parser = add_command(subparsers, "check")
    add_config_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Check, print the findings and return the exit code."""
    findings = findings_of(args)
    if args.json:
        print_json(_as_json(findings))
    else:
        sys.stdout.write(_as_text(findings) + "\n")
    if findings.unreadable:
        return Exit.NOT_DONE
    return Exit.FINDINGS if findings.problems else Exit.OK


def findings_of(args: argparse.Namespace) -> Findings:
    """Return what is wrong with the config and the policies that the arguments name."""
    problems: list[Problem] = []
    deployment: Deployment | None = None
    policies: PolicySet | None = None
    unreadable = False
    launch = launch_of(args)
    try:
        deployment = launch.deployment()
        policies = launch.policy_source(deployment).load()
    except ConfigError as error:
        problems += error.problems
        unreadable = isinstance(error, UnreadableFile)
    wrong, impossible, warnings = _policies_one_by_one(args.policies or SHIPPED, deployment)
    if deployment is None:  # otherwise loading the policies as a set has reported the same problems
        problems += wrong
    problems += impossible
    if deployment is not None and deployment.warnings:
        warnings = [*deployment.warnings, *warnings]
    if deployment is not None and (doubt := why_too_few(deployment)):
        written = read_yaml(args.config or default_config())
        warnings.append(written.problem(("limits", "connections"), doubt))
    if deployment is not None:
        written = read_yaml(args.config or default_config())
        warnings += [written.problem(path, doubt) for path, doubt in _without_credentials(deployment)]
    if deployment is not None:
        written = read_yaml(args.config or default_config())
        doubts = [doubt for sections in sections_of_parts() for doubt in sections.doubts(deployment)]
        warnings += [written.problem(doubt.path, doubt.message) for doubt in doubts]
    if deployment is not None and deployment.policies.source == "store":
        written = read_yaml(args.config or default_config())
        drift = asyncio.run(_drift(deployment, launch.policy_source(deployment)))
        warnings += [written.problem(("policies", "source"), finding) for finding in drift]
    if deployment is not None and policies is not None:
        written = read_yaml(args.config or default_config())
        warnings += [written.problem((name,), doubt) for name, doubt in cut_down_quotas(deployment, policies)]
    cross_encoder: MeasuredPairScorer | None = None
    if deployment is not None and deployment.cross_encoder_folder is not None:
        try:
            cross_encoder = load_pair_scorer(deployment.cross_encoder_folder)
            cross_encoder.open()
        except CrossEncoderError as error:
            written = read_yaml(args.config or default_config())
            problems.append(written.problem(("cross_encoder",), str(error)))
    return Findings(tuple(problems), tuple(warnings), deployment, policies, cross_encoder, unreadable)


def _without_credentials(deployment: Deployment) -> Iterator[tuple[KeyPath, str]]:
    """Yield each `auth` by which no credentials can be had here and now, by its key, with the reason."""
    servers = [server for sections in sections_of_parts() for server in sections.servers(deployment)]
    for i, tier in enumerate(deployment.tiers):
        servers += [(("tiers", i, "backends", j), backend) for j, backend in enumerate(tier.backends)]
    why_none = cache(_why_no_credentials)
    for path, server in servers:
        if server.auth is not None and (why := why_none(server.auth)):
            yield (*path, "auth"), f"no credentials can be had: {why}"


def _why_no_credentials(auth: Auth) -> str:
    identity = auth.identity()
    return "" if identity.tried() is not None else identity.failure


async def _drift(deployment: Deployment, source: PolicySource) -> tuple[str, ...]:
    """Return which files say something else than the store, from which policies come, or why that is not known."""
    if deployment.store.url is None or not is_provided("policies"):
        return ("there is no store to take policies from: `tierline serve` takes the files, `tierline up` starts one",)
    store = open_store(deployment.store.url, slack=_SLACK)
    try:
        return await drift(store, source)
    except StoreUnavailable as down:
        return (f"the store does not answer ({down.reason}), so whether the files say what is in force is not known",)
    finally:
        await store.aclose()


def _policies_one_by_one(
    directory: Path, deployment: Deployment | None
) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """Return, over all policies: why they do not load, what is impossible in them, and warnings.

    With a deployment, the warnings include those about this policy with its backends.
    """
    problems: list[Problem] = []
    impossible: list[Problem] = []
    warnings: list[Problem] = []
    for file in policy_files(directory):
        try:
            policy, document = read_policy(file)
        except ConfigError as error:
            problems += error.problems
        else:
            for finding in findings_in(policy, document, deployment):
                (impossible if is_error(finding.code) else warnings).append(finding)
    # One in the defaults is found in every policy.
    return list(dict.fromkeys(problems)), list(dict.fromkeys(impossible)), list(dict.fromkeys(warnings))


def _as_text(found: Findings) -> str:
    lines = [str(problem) for problem in found.problems]
    lines += [f"{warning} (warning)" for warning in found.warnings]
    if found.deployment is not None:
        for tier in found.deployment.tiers:
            models = ", ".join(dict.fromkeys(backend.model for backend in tier.backends))
            state = f"unconfigured: {tier.unconfigured_reason}" if tier.unconfigured_reason else "configured"
            if any(backend.in_process for backend in tier.backends):
                state += ", scripted: replies come from the config, not from a model"
            if any(backend.wants_local_model for backend in tier.backends):
                state += " (`tierline up` starts a model here itself)"
            lines.append(f"tier     {tier.name:<14} {models:<28} {state}")
            lines += [
                f"head     {backend.name:<14} {backend.model:<28} {backend.head.version}"
                for backend in tier.backends
                if backend.head is not None
            ]
            lines += [
                f"fields   {backend.name:<14} {backend.model:<28} {_fields_shown(backend)}"
                for backend in tier.backends
                if backend.sets_fields
            ]
        for sections in sections_of_parts():
            lines += sections.summary(found.deployment)
        if found.deployment.store.url is not None:
            lines.append(f"store                   {open_store(found.deployment.store.url).where:<28} configured")
        if found.cross_encoder:
            lines.append(f"cross-encoder           {found.deployment.cross_encoder:<28} {found.cross_encoder.version}")
    if found.policies is not None:
        for policy in found.policies.by_surface.values():
            lines.append(f"surface  {policy.surface:<14} {policy.label:<28} {' -> '.join(policy.tiers)}")
            lines += [
                f"start    {policy.surface:<14} {tier:<28} {rule.source}" for tier, rule in policy.route.start.items()
            ]
            lines += [f"fields   {policy.surface:<14} {where:<28} {shown}" for where, shown in _set_by(policy)]
            if asks_for_quantiles(policy):
                lines.append(f"quantile {policy.surface:<14} {_counted(policy)}")
            if languages := _languages(policy, found.cross_encoder):
                lines.append(f"meaning  {policy.surface:<14} {' '.join(languages)}; other languages go to a model")
    lines.append(_verdict(found))
    return "\n".join(lines)


def _fields_shown(fields: SetFields) -> str:
    """Return what is set in requests; '' for nothing."""
    parts = [f"{how} {written(values)}" for how, values in (("set", fields.set), ("force", fields.force)) if values]
    return ", ".join(parts)


def _set_by(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield where a policy sets something in requests, and what."""
    for where, fields in policy.tier_fields.items():
        if shown := _fields_shown(fields):
            yield where, shown
    if policy.output.instruction:
        yield "every tier", f"instruction {written(policy.output.instruction)}"


def _counted(policy: Policy) -> str:
    """Return whose requests the quantiles of the surface's rules count, by kind."""
    traffic = policy.route.traffic
    if traffic is None:
        return "of the classifier's reference prompts; `tierline fit calibrate --traffic` measures this surface's own"
    return f"of this surface's own requests: {', '.join(traffic.deciles)}; else of the classifier's reference prompts"


def _languages(policy: Policy, cross_encoder: MeasuredPairScorer | None) -> list[str]:
    """Return the languages whose questions may get the answer of another one that means the same, by code."""
    semantic = policy.cache.semantic
    if semantic is None:
        return []
    return sorted(cross_encoder.languages) if cross_encoder and semantic.verify == "default" else [ENGLISH]


def _verdict(findings: Findings) -> str:
    counted = (("problem", len(findings.problems)), ("warning", len(findings.warnings)))
    counts = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in counted if count]
    return ", ".join(counts) if counts else "all is well"


def _as_json(findings: Findings) -> dict[str, Any]:
    tiers = findings.deployment.tiers if findings.deployment else ()
    policies = findings.policies.by_surface.values() if findings.policies else ()
    return {
        "ok": not findings.problems,
        "problems": [_row(problem) for problem in findings.problems],
        "warnings": [_row(warning) for warning in findings.warnings],
        "tiers": [
            {
                "name": tier.name,
                "configured": tier.configured,
                "reason": tier.unconfigured_reason,
                "backends": [
                    {
                        "name": b.name,
                        "kind": b.kind,
                        "model": b.model,
                        "configured": b.configured,
                        "reason": b.unconfigured_reason,
                        "set": b.set,
                        "force": b.force,
                        "confidence_head": b.head.version if b.head else None,
                    }
                    for b in tier.backends
                ],
            }
            for tier in tiers
        ],
        **_of_parts(findings.deployment),
        "cross_encoder": findings.cross_encoder.version if findings.cross_encoder else None,
        "surfaces": [
            {
                "name": p.surface,
                "policy": p.label,
                "version": p.version,
                "tiers": p.tiers,
                "start": {tier: rule.source for tier, rule in p.route.start.items()},
                "fields": {
                    name: {"set": fields.set, "force": fields.force}
                    for name, fields in p.tier_fields.items()
                    if _fields_shown(fields)
                },
                "instruction": p.output.instruction,
                "answers_by_meaning_in": _languages(p, findings.cross_encoder),
                "own_quantiles": sorted(p.route.traffic.deciles) if p.route.traffic else [],
            }
            for p in policies
        ],
    }


def _of_parts(deployment: Deployment | None) -> dict[str, Any]:
    """Return what parts show of their sections; nothing of a config that does not load."""
    if deployment is None:
        return {}
    return {name: value for sections in sections_of_parts() for name, value in sections.shown(deployment).items()}


def _row(problem: Problem) -> dict[str, str | int]:
    return {
        "file": str(problem.file),
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "key": problem.key,
        "message": problem.message,
        "mend": problem.mend,
    }
