"""Run `tierline policy plan`: lint, tests, differences and replay of a policy file on one page, and as a file."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.cli.commands import CommandError
from gateway.cli.flags import launch_of
from gateway.cli.store_flags import ledger_folder, take_running
from gateway.exit_codes import Exit
from gateway.parts.lab.commands._bound import bound_to
from gateway.parts.lab.commands._replay_view import change_text, interval_text, quality_text
from gateway.parts.lab.commands.policy_replay import add_ledger_flags, gate_lines, gates_of, replay_of
from gateway.parts.lab.replay.plan_file import PolicyPlan, plan_as_json, write_plan
from gateway.parts.lint.codes import is_error
from gateway.parts.lint.difference import difference
from gateway.parts.lint.warnings import findings_in
from gateway.parts.rollout.commands._policies_in_force import policies_in_force
from gateway.parts.rollout.forecast import CanaryForecast, canary_forecast
from gateway.parts.rollout.policy import RolloutSections
from gateway.report import print_json
from policies.loader import read_policy
from policies.quantities import figure, percent

if TYPE_CHECKING:
    from gateway.parts.lab.replay.run import Replayed
    from gateway.parts.lint.difference import Difference
    from policies.model import Policy
    from policies.yaml_source import Document

_VERIFIED: Final = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy plan`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the policy file to try")
    add_ledger_flags(parser)
    parser.add_argument("--policies", type=Path, metavar="DIR")
    parser.add_argument("--from-store", action="store_true")
    parser.add_argument("--store", metavar="URL")
    parser.add_argument("--out", type=Path, metavar="PLAN")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")


def run(args: argparse.Namespace) -> int:
    """Make the plan, print and write it, and return the exit code. Raises CommandError and ConfigError."""
    from gateway.parts.lab.replay.gates import failed_gates

    gates = gates_of(args)
    take_running(args)
    launch = launch_of(args)
    deployment = launch.deployment(reads=True)
    source = launch.policy_source(deployment)
    candidate, document = read_policy(args.file, source.tiers)
    in_force = policies_in_force(args, deployment, source, from_store=args.from_store)
    base = in_force.by_surface.get(candidate.surface)
    findings = findings_in(candidate, document, deployment)
    tests = _tests(args.file)
    changes = None if base is None else difference(base[0], candidate, lambda path: document.problem(path, "").line)
    if changes and (unguarded := RolloutSections.unguarded_quality(changes.paths, candidate)) is not None:
        findings.append(document.locate(unguarded))
    args.json = args.format == "json"
    began = time.perf_counter()
    replayed, why_not = _replayed(args, candidate)
    seconds = time.perf_counter() - began
    canary = None if replayed is None else _canary(args, candidate, replayed.figures["goodput"].before)
    plan = PolicyPlan(
        surface=candidate.surface,
        file=args.file.name,
        text=args.file.read_text(encoding="utf-8-sig"),
        version=candidate.version,
        bound=bound_to(deployment, "" if base is None else base[0].version),
        made_s=time.time(),
        lint={"findings": [str(finding) for finding in findings]},
        tests=tests,
        changes=_changes(changes),
        replay=None if replayed is None else replayed.as_json(),
        canary=None if canary is None else canary.as_json(),
    )
    failed = [] if replayed is None else failed_gates(gates, replayed)
    unmet = gates if replayed is None else failed
    if args.format == "json":
        print_json({**plan_as_json(plan), "seconds": seconds, "failed_gates": [gate.source for gate in unmet]})
    else:
        lines = [
            *_head(plan, base, document, changes, in_force.where),
            *_parts(plan, tests, replayed, seconds, why_not),
            *([] if replayed is None else _figures(replayed)),
            *([] if canary is None else canary.lines()),
            *gate_lines(args.fail_if, unmet),
        ]
        sys.stdout.write(_markdown(lines) if args.format == "markdown" else "".join(f"{line}\n" for line in lines))
    refused = any(is_error(finding.code) for finding in findings) or (tests is not None and tests["failed"])
    if args.out is not None:
        _write(args.out, plan, "refuses it until that is mended" if refused else "applies it")
    return Exit.FINDINGS if refused or unmet else Exit.OK


def _tests(file: Path) -> dict[str, Any] | None:
    """Return how the tests beside the file went; None if there are none."""
    from gateway.parts.lab.policy_tests.format import SUFFIXES, read_tests
    from gateway.parts.lab.policy_tests.run import run_files

    beside = [path for suffix in SUFFIXES if (path := file.with_name(file.stem + suffix)).is_file()]
    if not beside:
        return None
    result = run_files([read_tests(path) for path in beside])
    failed = [test.name for test in result.results if not test.passed]
    return {"passed": len(result.results) - len(failed), "failed": failed, "covered": result.share_covered}


def _replayed(args: argparse.Namespace, candidate: Policy) -> tuple[Replayed | None, str]:
    """Return the replay, or why there is none."""
    try:
        return replay_of(args, candidate, _VERIFIED), ""
    except CommandError as error:
        if args.ledger is not None:
            raise
        return None, str(error)


def _canary(args: argparse.Namespace, candidate: Policy, goodput: float) -> CanaryForecast | None:
    """Return how long the candidate's canary would take, by the records that are replayed. Raises CommandError."""
    from gateway.parts.ledger.query import connect

    since = time.time() - args.since if args.since else None
    with connect(ledger_folder(args), threads=1) as database:
        return canary_forecast(database, candidate.surface, since, candidate.of(RolloutSections).rollout, goodput)


def _changes(changes: Difference | None) -> dict[str, Any]:
    if changes is None:
        return {"changes": [], "drops_answers": False}
    return {"changes": [asdict(change) for change in changes.changes], "drops_answers": changes.drops_answers}


def _head(
    plan: PolicyPlan, base: tuple[Policy, Document] | None, document: Document, found: Difference | None, where: str
) -> list[str]:
    if base is None or found is None:
        return [f"{plan.label} (new: {where} has no policy of {plan.surface} in force)"]
    changes = found.in_force
    counted = f"{len(changes)} change{'' if len(changes) == 1 else 's'}"
    lines = [f"{base[0].label} -> {plan.label}    {counted}"]
    for change in changes:
        place = f"{document.file.name}:{change.line}" if change.line else document.file.name
        lines.append(f"  {change.path} {change.before} -> {change.after} ({place})")
    if not changes:
        lines.append(
            "  rules the same as what is in force; to see what a change would do, make it in a copy and name that"
        )
    if found.drops_answers:
        lines.append("  stored answers are not served any more")
    return lines


def _parts(
    plan: PolicyPlan, tests: dict[str, Any] | None, replayed: Replayed | None, seconds: float, why_not: str
) -> list[str]:
    findings = plan.lint["findings"]
    counted = f"lint {len(findings)} finding{'' if len(findings) == 1 else 's'}"
    tested = "tests none: no test file beside it"
    if tests is not None:
        total = tests["passed"] + len(tests["failed"])
        tested = f"tests {tests['passed']} of {total}, {percent(tests['covered'], 0)} of clauses both ways"
    if replayed is None:
        shown = f"replay none: {why_not}"
    else:
        n = max(replayed.requests, 1)
        exact = (n - replayed.estimated - replayed.no_evidence) / n
        shown = (
            f"replay {replayed.requests:,} requests in {seconds:.1f} s, {percent(exact)} exact, "
            f"{percent(replayed.estimated / n)} estimated"
        )
        if replayed.no_evidence:
            shown += f", {percent(replayed.no_evidence / n)} no evidence"
        fidelity = replayed.fidelity
        if not fidelity.whole:
            shown += f"; {fidelity.decided - fidelity.same:,} recorded decisions are not made again"
    lines = [f"{counted}   {tested}   {shown}"]
    in_force = f"{plan.surface}@{plan.bound.base[:7]}"
    if plan.bound.base and replayed is not None and set(replayed.recorded) != {in_force}:
        lines.append(f"  before: as served by {', '.join(replayed.recorded)}, not by {in_force}")
    lines += [f"  {finding}" for finding in findings]
    return lines + [f"  FAIL {name}" for name in ([] if tests is None else tests["failed"])]


def _figures(replayed: Replayed) -> list[str]:
    figures = replayed.figures

    def shown(name: str, unit: str) -> str:
        change = figures[name]
        interval = interval_text(change, unit)
        if not change.estimated or interval == "-":
            return change_text(change, unit)
        difference = figure(change.difference, unit, signed=True)
        return f"{change_text(change, unit)} ({difference}, 95% interval {interval})"

    lines = [
        f"  path           escalated {shown('escalated', 'share')}",
        f"                 degraded {shown('degraded', 'share')}    hits {shown('hits', 'share')}",
        f"  goodput        {shown('goodput', 'share')}",
        f"  TTFT p95       {shown('ttft_p95', 'ms')}    p50 {shown('ttft_p50', 'ms')}",
        f"  cost per 1,000 {shown('cost', 'usd')}",
        f"  wasted         {shown('wasted', 'usd')}",
    ]
    lines.append(f"  quality        {quality_text(replayed)}")
    if replayed.slices:
        traits = ", ".join(f"{part.trait} ({percent(part.changed, 0)})" for part in replayed.slices[:2])
        lines.append(f"  most changed   {traits}; for example {' '.join(replayed.examples)}")
    return lines + [f"  note           {note}" for note in replayed.notes]


def _markdown(lines: list[str]) -> str:
    """Return the page for a pull request: a heading, and the rest as it is printed."""
    return (
        f"### Policy plan: {lines[0].split('    ')[0]}\n\n```text\n" + "".join(f"{line}\n" for line in lines) + "```\n"
    )


def _write(file: Path, plan: PolicyPlan, what_apply_does: str) -> None:
    try:
        write_plan(file, plan)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror or error}") from None
    sys.stderr.write(f"plan written to {file}; `tierline policy apply {file} -m WHY` {what_apply_does}\n")
