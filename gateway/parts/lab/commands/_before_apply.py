"""Look at what `tierline policy apply` is given before it is applied: the tests beside a policy, and a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.commands import CommandError
from gateway.exit_codes import Exit
from gateway.parts.lab.commands._bound import bound_to
from gateway.parts.lab.policy_tests.format import SUFFIXES, read_tests
from gateway.parts.lab.policy_tests.report import text_lines
from gateway.parts.lab.policy_tests.run import run_files
from gateway.parts.lab.replay.plan_file import PlanError, PolicyPlan, read_plan, why_stale
from policies.errors import ConfigError

if TYPE_CHECKING:
    from gateway.config.schema import Deployment


def check_tests(file: Path) -> None:
    """Run the tests beside the file. Raises CommandError with those that fail."""
    beside = [test for suffix in SUFFIXES if (test := file.with_name(file.stem + suffix)).is_file()]
    try:
        result = run_files([read_tests(test) for test in beside])
    except ConfigError as error:
        raise CommandError(f"not applied:\n{error}", Exit.FINDINGS) from None
    if any(not test.passed for test in result.results):
        failed = "\n".join(text_lines(result, only_failures=True))
        raise CommandError(f"not applied, since its tests fail:\n{failed}", Exit.FINDINGS)


def plan_in(file: Path) -> PolicyPlan:
    """Return the plan in a file. Raises CommandError."""
    try:
        return read_plan(file)
    except (OSError, PlanError) as error:
        raise CommandError(str(error)) from None


def check_plan(plan: PolicyPlan, deployment: Deployment, base: str) -> None:
    """Refuse a plan whose tests failed, or that was made from something else than is there now, where `base` is the
    version in force. Raises CommandError.
    """
    if plan.tests is not None and plan.tests["failed"]:
        raise CommandError(f"not applied, since its tests fail: {', '.join(plan.tests['failed'])}", Exit.FINDINGS)
    if moved := why_stale(plan, bound_to(deployment, base)):
        raise CommandError(
            f"stale, so not applied: {'; '.join(moved)}. `tierline policy plan {plan.file}` makes a new plan"
        )
