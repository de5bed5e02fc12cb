"""Run `tierline up`: start, supervise and stop the store, the local model and the gateway together."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from gateway.cli.flags import Subparsers, add_command, add_server_flags, launch_of, whole
from gateway.exit_codes import Exit
from gateway.parts.local import CannotStart
from gateway.parts.local.banner import render
from gateway.parts.local.child import Child, Say
from gateway.parts.local.family import Family
from gateway.parts.local.plan import Plan, gather_facts, make_plan
from gateway.parts.local.state import StateFolder, claimed_folder
from gateway.parts.logs.logs import LineWriter

Then = Callable[[Sequence[Child], Say], Awaitable[None]]
"""What runs beside the children once they are up, given them and the function that prints a line."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `up` to the command line."""
    parser = add_command(subparsers, "up")
    add_server_flags(parser)
    parser.add_argument("--state", type=Path, default=Path(".state"), metavar="DIR")
    parser.add_argument("--console-port", type=whole(0, 65535), metavar="N")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until a signal and return the exit code. Raises ConfigError."""
    launch = launch_of(args)
    try:
        with claimed_folder(args.state) as state:
            plan = make_plan(launch, state, args.console_port)
            surfaces = launch.policy_source(plan.deployment).load().names
            return asyncio.run(supervised(plan, surfaces, state))
    except CannotStart as error:
        sys.stderr.write(f"tierline: {error}\n")  # one prefix: lines after the first quote the child's log
        return Exit.NOT_DONE


async def supervised(plan: Plan, surfaces: Sequence[str], state: StateFolder, then: Then | None = None) -> int:
    """Run the children of `plan` until a signal, and return the exit code. Raises CannotStart.

    Once all are up, the banner is printed and `then` runs beside them; it is cancelled at the end.
    """
    # A stopped terminal (Ctrl-S) or a pipe that is not read must not block the supervision of the children.
    output = LineWriter[str](sys.stdout.fileno(), _line, lambda missing: _line(f"({missing} lines are missing)"))
    say = output.put
    beside: list[asyncio.Future[None]] = []

    async def announce(children: Sequence[Child]) -> None:
        try:
            state.announce(plan.up)
        except OSError as error:  # go on serving on a full disk
            say(f"tierline trace will need --store: cannot write {state.path}/up.json ({error.strerror or error})")
        say(render(await gather_facts(plan, surfaces, state, children)))
        if then is not None:
            beside.append(asyncio.ensure_future(then(children, say)))
            beside[0].add_done_callback(tell_failure)

    def tell_failure(task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            say("".join(traceback.format_exception(error)).rstrip())

    with contextlib.closing(output):
        try:
            return await Family(plan.specs, say, announce).run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


def _line(text: str) -> bytes:
    return f"{text}\n".encode(errors="backslashreplace")
