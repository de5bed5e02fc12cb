"""`tierline check`: is the config right, are the policies, and what would run?"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import orjson

from cache.semantic.cross_encoder import CrossEncoder, CrossEncoderError
from gateway.cli.commands._flags import add_config_flags, launch_of
from gateway.config.loader import default_config
from gateway.config.schema import Deployment
from gateway.config.warnings import doubts_about
from gateway.exit_codes import Exit
from gateway.server.descriptors import why_too_few
from policies.errors import ConfigError, Problem, UnreadableFile
from policies.lint import faults, lint
from policies.loader import SHIPPED, PolicySet, policy_files, read_policy
from policies.yaml_source import read_yaml

_EXAMPLES = """examples:
  tierline check                                    the config and the policies that come with Tierline
  tierline check --config my.yaml --policies rules  your own
  tierline check --json | jq .problems              for a script

Exit code 1: something is wrong; warnings alone are 0. Exit code 2: a file or folder that was named cannot be read."""


@dataclass(frozen=True, slots=True)
class _Findings:
    """All that a check found. `deployment` and `policies` are None where they could not be loaded."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    deployment: Deployment | None
    policies: PolicySet | None
    cross_encoder: str = ""
    """The version of the one that can be served; '' where there is none."""
    unreadable: bool = False
    """Whether the config or the folder of policies could not be read at all."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `check` to the command line."""
    parser = subparsers.add_parser(
        "check",
        help="say what is wrong with the config and the policies",
        description="Checks the config and the policies, and says the file, line and key of everything wrong in them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what was found."""
    found = _check(args)
    write = _as_json if args.json else _as_text
    sys.stdout.write(write(found) + "\n")
    if found.unreadable:
        return Exit.NOT_DONE
    return Exit.FINDINGS if found.problems else Exit.OK


def _check(args: argparse.Namespace) -> _Findings:
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
    if deployment is None:  # with one, the policies were loaded as a set, which told the same
        problems += wrong
    problems += impossible
    if deployment is not None and deployment.warnings:
        warnings = [*deployment.warnings, *warnings]
    if deployment is not None and (doubt := why_too_few(deployment)):
        written = read_yaml(args.config or default_config())
        warnings.append(written.problem(("limits", "connections"), doubt))
    cross_encoder = ""
    if deployment is not None and deployment.cross_encoder is not None:
        try:
            cross_encoder = CrossEncoder.load(deployment.cross_encoder).version
        except CrossEncoderError as error:
            written = read_yaml(args.config or default_config())
            problems.append(written.problem(("cross_encoder",), str(error)))
    return _Findings(tuple(problems), tuple(warnings), deployment, policies, cross_encoder, unreadable)


def _policies_one_by_one(
    directory: Path, deployment: Deployment | None
) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """Of each policy by itself: why it does not load; else what cannot be meant, and what is doubtful.

    What is doubtful in this deployment is included if there is one.
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
            impossible += [document.problem(path, message) for path, message in faults(policy)]
            doubts = lint(policy) + (doubts_about(policy, deployment) if deployment else [])
            warnings += [document.problem(path, message) for path, message in doubts]
    return problems, impossible, warnings


def _as_text(found: _Findings) -> str:
    lines = [str(problem) for problem in found.problems]
    lines += [f"{warning} (warning)" for warning in found.warnings]
    if found.deployment is not None:
        for tier in found.deployment.tiers:
            models = ", ".join(dict.fromkeys(backend.model for backend in tier.backends))
            state = f"unconfigured: {tier.unconfigured_reason}" if tier.unconfigured_reason else "configured"
            if any(backend.kind == "scripted" for backend in tier.backends):
                state += ", scripted: replies come from the config, not from a model"
            if any(backend.lacks_url for backend in tier.backends):
                state += " (`tierline up` starts a model here itself)"
            lines.append(f"tier     {tier.name:<14} {models:<28} {state}")
            lines += [
                f"head     {backend.name:<14} {backend.model:<28} {backend.head.version}"
                for backend in tier.backends
                if backend.head is not None
            ]
        if found.cross_encoder:
            name = str(found.deployment.cross_encoder)
            lines.append(f"cross-encoder           {name:<28} {found.cross_encoder}")
    if found.policies is not None:
        lines += [
            f"surface  {policy.surface:<14} {policy.label:<28} {' -> '.join(policy.tiers)}"
            for policy in found.policies.by_surface.values()
        ]
    lines.append(_verdict(found))
    return "\n".join(lines)


def _verdict(found: _Findings) -> str:
    counted = (("problem", len(found.problems)), ("warning", len(found.warnings)))
    said = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in counted if count]
    return ", ".join(said) if said else "all is well"


def _as_json(found: _Findings) -> str:
    tiers = found.deployment.tiers if found.deployment else ()
    policies = found.policies.by_surface.values() if found.policies else ()
    report = {
        "ok": not found.problems,
        "problems": [_row(problem) for problem in found.problems],
        "warnings": [_row(warning) for warning in found.warnings],
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
                        "confidence_head": b.head.version if b.head else None,
                    }
                    for b in tier.backends
                ],
            }
            for tier in tiers
        ],
        "cross_encoder": found.cross_encoder or None,
        "surfaces": [{"name": p.surface, "policy": p.label, "version": p.version, "tiers": p.tiers} for p in policies],
    }
    return orjson.dumps(report, option=orjson.OPT_INDENT_2).decode()


def _row(problem: Problem) -> dict[str, str | int]:
    return {"file": str(problem.file), "line": problem.line, "key": problem.key, "message": problem.message}
