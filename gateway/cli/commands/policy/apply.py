"""Run `tierline policy apply`: put a policy into the registry, in force or as a candidate."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import launch_of
from gateway.cli.commands.policy._bound import bound_to
from gateway.cli.commands.policy._registry import (
    add_change_flags,
    author_of,
    check_in_use,
    deployment_of,
    report_change,
    spread,
    with_registry,
)
from gateway.exit_codes import Exit
from gateway.registry.apply import How, apply_file
from offline.policy_tests.format import SUFFIXES, read_tests
from offline.policy_tests.report import text_lines
from offline.policy_tests.run import run_files
from offline.replay.plan_file import Plan, PlanError, is_plan, read_plan, why_stale
from policies.errors import ConfigError
from policies.loader import DEFAULTS, read_policy
from policies.validation import share

if TYPE_CHECKING:
    from gateway.config.schema import Deployment
    from gateway.registry.apply import Applied
    from gateway.registry.records import InForce
    from gateway.registry.registry import PolicyRegistry

DESCRIPTION = """Check a policy file and put it into the registry in the store; all workers take it within a second.
Without an option for how, a policy with a `rollout` section starts as a canary, any other is in force at once.
If a file of tests is beside it (chat.test.yaml beside chat.yaml), they must pass. A plan (`tierline policy plan --out`)
is refused as stale if what it was made from has moved."""
EXAMPLES = """examples:
  tierline policy apply chat.yaml -m "escalate less"            as its `rollout` says, else in force at once
  tierline policy apply chat.yaml -m "escalate less" --evaluate  decide beside the live policy; calls nothing
  tierline policy apply chat.yaml -m "escalate less" --shadow 10%  call models too, off the path of requests
  tierline policy apply chat.yaml -m "typo" --now --json        for all at once, with JSON for a script
  tierline policy apply chat.plan -m "escalate less"            what was reviewed, unless it is stale

exit code 1: the policy has errors or a test fails, and nothing was changed; 2: it could not be done, such as where
policies come from files, another candidate is being tried, or the surface has changed since."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy apply`."""
    parser.add_argument("file", type=Path, metavar="FILE|PLAN", help="the policy file, or a plan of it")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--evaluate", action="store_true", help="only decide with it, beside the live policy")
    how.add_argument("--shadow", type=_share, metavar="SHARE", help="call models for this share, off the path: 10%%")
    how.add_argument("--canary", action="store_true", help="serve it to the shares in its `rollout`, step by step")
    how.add_argument("--now", action="store_true", help="put it in force for all at once")
    add_change_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Apply the file, wait until the workers have it, and report."""
    author = author_of(args)

    async def work(registry: PolicyRegistry) -> tuple[InForce | None, Applied, dict[str, Any]]:
        await check_in_use(registry, args)
        deployment = deployment_of(args)
        source = launch_of(args).policy_source(deployment)
        before = await registry.in_force()
        try:
            if plan is None:
                await asyncio.to_thread(_check_tests, args.file)
            else:
                state = before.get(plan.surface)
                await asyncio.to_thread(_check_plan, plan, file, deployment, "" if state is None else state.live)
            applied = await apply_file(
                registry,
                source,
                file,
                base=None if plan is None else plan.bound.base or None,
                surface=None if plan is None else plan.surface,
                how=_how(args),
                share=args.shadow or 0.0,
                author=author,
                message=args.message,
                at=time.time(),
            )
        except ConfigError as error:
            raise CommandError(f"not applied:\n{error}", Exit.FINDINGS) from None
        return before.get(applied.version.surface), applied, await spread(registry, applied.state)

    with contextlib.ExitStack() as stack:
        plan = _plan_of(args.file)
        file = args.file if plan is None else stack.enter_context(_text_of(plan, args.file.parent))
        before, applied, workers = with_registry(args, work)
    report_change(args, f"applied {applied.version.label}", before, applied.state, workers)
    return Exit.OK


def _plan_of(file: Path) -> Plan | None:
    """Return the plan in the file; None if it is a policy. Raises CommandError."""
    try:
        return read_plan(file) if file.is_file() and is_plan(file) else None
    except (OSError, PlanError) as error:
        raise CommandError(str(error)) from None


@contextlib.contextmanager
def _text_of(plan: Plan, beside: Path) -> Iterator[Path]:
    """Give a file with the policy of the plan, and the `_defaults.yaml` that stands beside the plan, if one does."""
    with tempfile.TemporaryDirectory(prefix="tierline-plan-") as folder:
        file = Path(folder) / Path(plan.file).name
        file.write_text(plan.text, encoding="utf-8")
        if (beside / DEFAULTS).is_file():
            shutil.copy(beside / DEFAULTS, folder)
        yield file


def _check_plan(plan: Plan, file: Path, deployment: Deployment, live: str) -> None:
    """Raise CommandError if the plan's figures do not hold any more, or if tests had failed when it was made."""
    if moved := why_stale(plan, bound_to(deployment, live)):
        what = "; ".join(moved)
        raise CommandError(f"the plan is stale: {what}. Make it again with `tierline policy plan {plan.file}`")
    policy, _ = read_policy(file)
    if policy.version != plan.version:
        raise CommandError(
            f"the plan is of {plan.label}, but its text makes {policy.label}: is its {DEFAULTS} beside it, unchanged?"
        )
    if plan.tests and plan.tests.get("failed"):
        raise CommandError(f"not applied: {plan.tests['failed']} of the plan's tests failed", Exit.FINDINGS)


def _check_tests(file: Path) -> None:
    """Run the tests beside the file. Raises CommandError with those that fail."""
    beside = [test for suffix in SUFFIXES if (test := file.with_name(file.stem + suffix)).is_file()]
    if not beside or not file.is_file():
        return
    try:
        result = run_files([read_tests(test) for test in beside])
    except ConfigError as error:
        raise CommandError(f"not applied:\n{error}", Exit.FINDINGS) from None
    if any(not one.passed for one in result.results):
        failed = "\n".join(text_lines(result, only_failures=True))
        raise CommandError(f"not applied, since its tests fail:\n{failed}", Exit.FINDINGS)


def _how(args: argparse.Namespace) -> How | None:
    if args.shadow is not None:
        return "shadow"
    return "evaluate" if args.evaluate else "canary" if args.canary else "now" if args.now else None


def _share(text: str) -> float:
    """Parse a share such as 10% or 0.1."""
    value = share(text) if text.endswith("%") else None
    try:
        number = float(text) if value is None else float(str(value))
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 10% or 0.1")
    return number
