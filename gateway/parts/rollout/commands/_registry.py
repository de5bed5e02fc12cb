"""Open the registry of policies for a command, refuse what cannot take effect, and say how far a change has come."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.cli.commands import CommandError
from gateway.cli.store_flags import with_store
from gateway.exit_codes import Exit
from gateway.parts.rollout.registry.records import InForce
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryError
from gateway.parts.rollout.registry.view import in_force_shown
from gateway.report import print_json
from policies.quantities import write_share

if TYPE_CHECKING:
    from gateway.config.schema import Deployment

T = TypeVar("T")

_WAIT_S: Final = 3.0
FILES_MODE: Final = (
    "policies come from files here: save the file in the gateway's folder, and it is in force within a second. "
    "To change them by command, set `policies: {source: store}` in the config (or TIERLINE_POLICY_SOURCE=store) and "
    "start the gateway again"
)


def with_registry(args: argparse.Namespace, work: Callable[[PolicyRegistry], Awaitable[T]]) -> T:
    """Return what `work` returns. Raises CommandError if the store does not answer or the registry refuses."""

    return with_store(args, lambda store: work(PolicyRegistry(store, "cli")), RegistryError)


async def check_in_use(registry: PolicyRegistry, args: argparse.Namespace) -> None:
    """Refuse a change that no gateway would follow, because policies come from files. Raises CommandError."""
    if not await registry.replicas() and deployment_of(args).policies.source == "files":
        raise CommandError(FILES_MODE)


def deployment_of(args: argparse.Namespace) -> Deployment:
    """Return the deployment of --config. Raises ConfigError."""
    from gateway.config.loader import load_deployment  # slow to import, and most actions do not need it

    return load_deployment(args.config, reads=True)


def change(
    args: argparse.Namespace,
    make: Callable[[PolicyRegistry, InForce], Awaitable[InForce]],
    done: str,
    *,
    removed: bool = False,
) -> int:
    """Make a change of `args.surface` from its present state, wait until the workers have it, and report.

    `removed`: of one that was removed, too.
    """

    async def work(registry: PolicyRegistry) -> tuple[InForce, InForce, dict[str, Any]]:
        await check_in_use(registry, args)
        before = await registry.surface(args.surface, removed=removed)
        after = await make(registry, before)
        return before, after, await wait_for_spread(registry, after)

    before, after, workers = with_registry(args, work)
    report_change(args, done, before, after, workers)
    return Exit.OK


def report_change(
    args: argparse.Namespace, done: str, before: InForce | None, after: InForce, workers: dict[str, Any]
) -> None:
    """Print a change: what was done, what is in force now, and on how many workers."""
    if args.json:
        print_json({**in_force_shown(after), "before": before and before.live, "workers": workers})
        return
    if after.removed:
        lines = [
            f"{done}: requests for {after.surface} get a 404; `tierline policy rollback {after.surface}` undoes it"
        ]
    else:
        new = before is None or before.live == after.live
        was = "" if before is None or new else ", was removed" if before.removed else f", was {_label(before)}"
        lines = [f"{done}: {_label(after)} is in force{was}"]
    if (rolling := after.rolling) is not None:
        paused = f", paused: {rolling.paused}" if rolling.paused else ""
        lines.append(
            f"trying {after.surface}@{rolling.version[:7]}: {rolling.mode} {write_share(rolling.share)}{paused}"
        )
        if rolling.mode != "evaluate" and not workers["judged"]:
            lines.append("no `tierline policy judge` is at work: until one is, the candidate gets no requests")
    if after.frozen:
        lines.append("frozen: nothing but a rollback is taken")
    if not workers["of"]:
        lines.append("no gateway follows this registry at present; one that starts takes it")
    else:
        lines.append(f"on {workers['in_force']} of {workers['of']} workers after {workers['seconds']:.1f} s")
        lines += [f"  {name} does not have it: {why}" for name, why in workers["lagging"].items()]
    sys.stdout.write("\n".join(lines) + "\n")


async def wait_for_spread(registry: PolicyRegistry, after: InForce) -> dict[str, Any]:
    """Wait up to three seconds until all workers have this state; return how many do, and why the others do not."""
    began = time.monotonic()
    while True:
        replicas = await registry.replicas()
        lagging = {
            replica.name: replica.problem or f"it has {after.surface}@{replica.surfaces.get(after.surface, '')[:7]}"
            for replica in replicas
            if replica.surfaces.get(after.surface, "") != after.live
            or (after.rolling is None and after.surface in replica.rolling)
        }
        seconds = time.monotonic() - began
        if not lagging or seconds > _WAIT_S:
            return {
                "of": len(replicas),
                "in_force": len(replicas) - len(lagging),
                "lagging": lagging,
                "seconds": round(seconds, 2),
                "judged": (await registry.pulse()).judged,
            }
        await asyncio.sleep(0.05)


def _label(state: InForce) -> str:
    return f"{state.surface}@{state.live[:7]}"


def wrapped(head: str, *paragraphs: str) -> list[str]:
    """Return paragraphs as lines of the terminal's width, the first after `head`, all others below it."""
    width = max(shutil.get_terminal_size((125, 24)).columns, len(head) + 40)
    lines: list[str] = []
    for text in paragraphs:
        begin = " " * len(head) if lines else head
        lines += textwrap.wrap(text, width, initial_indent=begin, subsequent_indent=" " * len(head)) or [begin.rstrip()]
    return lines


def when(at: float) -> str:
    """Return a time in the local zone, such as 2026-05-01 14:03."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
