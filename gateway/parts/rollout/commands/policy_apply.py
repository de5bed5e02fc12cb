"""Run `tierline policy apply`: put a policy into the registry, in force or as a candidate.

The lab is asked only for what it alone can say: of the tests beside the policy, and of a plan.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import glob
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.commands import CommandError
from gateway.cli.flags import launch_of, share
from gateway.exit_codes import Exit
from gateway.parts.access.author import add_change_flags, author_of
from gateway.parts.rollout.commands._registry import (
    check_in_use,
    deployment_of,
    report_change,
    wait_for_spread,
    with_registry,
)
from gateway.parts.rollout.registry.apply import How, apply_file
from policies.errors import ConfigError
from policies.loader import DEFAULTS, read_policy

if TYPE_CHECKING:
    from gateway.parts.lab.replay.plan_file import PolicyPlan
    from gateway.parts.rollout.registry.apply import Applied
    from gateway.parts.rollout.registry.records import InForce
    from gateway.parts.rollout.registry.registry import PolicyRegistry


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy apply`."""
    parser.add_argument("file", type=Path, metavar="FILE|PLAN")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--evaluate", action="store_true")
    how.add_argument("--shadow", type=share(zero=False), metavar="SHARE")
    how.add_argument("--canary", action="store_true")
    how.add_argument("--now", action="store_true")
    add_change_flags(parser, "`policy history` and `policy blame`")


def run(args: argparse.Namespace) -> int:
    """Apply the file, wait until the workers have it, and report."""
    author, plan = author_of(args), _plan_in(args.file)

    async def work(registry: PolicyRegistry) -> tuple[InForce | None, Applied, dict[str, Any]]:
        await check_in_use(registry, args)
        deployment = deployment_of(args)
        source = launch_of(args).policy_source(deployment)
        before = await registry.in_force()
        if plan is None:
            await asyncio.to_thread(_check_tests, args.file)
        else:
            from gateway.parts.lab.commands._before_apply import check_plan

            check_plan(plan, deployment, before[plan.surface].live if plan.surface in before else "")
        try:
            with _policy_file(args.file, plan) as file:
                applied = await apply_file(
                    registry,
                    source,
                    file,
                    how=_how(args),
                    share=args.shadow or 0.0,
                    author=author,
                    message=args.message,
                    at=time.time(),
                    base=None if plan is None else plan.bound.base or None,
                    surface=None if plan is None else plan.surface,
                )
        except ConfigError as error:
            raise CommandError(f"not applied:\n{error}", Exit.FINDINGS) from None
        return before.get(applied.version.surface), applied, await wait_for_spread(registry, applied.state)

    before, applied, workers = with_registry(args, work)
    report_change(args, f"applied {applied.version.label}", before, applied.state, workers)
    if applied.doubt:
        sys.stderr.write(f"warning: {applied.doubt}\n")
    return Exit.OK


def _check_tests(file: Path) -> None:
    """Run the tests beside the file, where there are any. Raises CommandError with those that fail."""
    if any(file.parent.glob(f"{glob.escape(file.stem)}.test.y*ml")) and file.is_file():
        from gateway.parts.lab.commands._before_apply import check_tests

        check_tests(file)


def _plan_in(file: Path) -> PolicyPlan | None:
    """Return the plan in a file; None if that is a policy file, which begins otherwise. Raises CommandError."""
    try:
        if not file.is_file() or file.read_bytes()[:1] != b"{":
            return None
    except OSError as error:
        raise CommandError(str(error)) from None
    from gateway.parts.lab.commands._before_apply import plan_in

    return plan_in(file)


@contextlib.contextmanager
def _policy_file(file: Path, plan: PolicyPlan | None) -> Iterator[Path]:
    """Yield the policy file: the one named, or one with the text that was planned, with the defaults beside the plan.

    Raises CommandError if that makes another policy than the one that was planned.
    """
    if plan is None:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="tierline-plan-") as folder:
        planned = Path(folder) / Path(plan.file).name
        planned.write_text(plan.text, encoding="utf-8")
        if (defaults := file.with_name(DEFAULTS)).is_file():
            shutil.copy(defaults, folder)
        policy, _ = read_policy(planned)
        if policy.version != plan.version:
            raise CommandError(
                f"the plan is of {plan.label}, but its text makes {policy.label}: is {DEFAULTS} beside it, unchanged?"
            )
        yield planned


def _how(args: argparse.Namespace) -> How | None:
    if args.shadow is not None:
        return "shadow"
    return "evaluate" if args.evaluate else "canary" if args.canary else "now" if args.now else None
