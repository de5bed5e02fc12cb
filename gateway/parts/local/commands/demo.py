"""Run `tierline demo`: start everything with scripted models, send varied traffic, and open the console."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, whole
from gateway.config.addresses import open_store
from gateway.parts.local import CannotStart
from gateway.parts.local.child import Child, Say
from gateway.parts.local.commands.up import supervised
from gateway.parts.local.plan import Plan, make_plan
from gateway.parts.local.state import claimed_folder

if TYPE_CHECKING:
    from gateway.config.launch import Launch
    from gateway.parts.local.demo.policies import DemoPolicies

_MARK: Final = "demo"
"""File in the state folder by which the demo knows its own."""
_NOT_FOR_A_DEMO: Final = ("TIERLINE_STORE_URL", "TIERLINE_STATE", "TIERLINE_POLICY_SOURCE")
"""Variables that would lead a demo to the user's own store, files or policies."""
_CONFIG: Final = Path(__file__).parents[1] / "demo" / "tierline.yaml"


def add_parser(subparsers: Subparsers) -> None:
    """Add `demo` to the command line."""
    parser = add_command(subparsers, "demo")
    parser.add_argument("--minutes", type=_positive, default=3.0, metavar="N")
    parser.add_argument("--rate", type=_positive, default=5.0, metavar="N")
    port = whole(0, 65535)
    parser.add_argument("--port", type=port, metavar="N")
    parser.add_argument("--console-port", type=port, metavar="N")
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument(
        "--seed",
        type=whole(0),
        default=0,
        metavar="N",
        help="random seed; the same seed sends the same requests (default: 0)",
    )
    parser.add_argument("--state", type=Path, default=Path(".state/demo"), metavar="DIR")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until a signal and return the exit code. Raises CommandError and ConfigError."""
    from gateway.config.launch import Launch
    from gateway.parts.local.demo.policies import write_policies

    _check_own(args.state)
    for name in _NOT_FOR_A_DEMO:
        os.environ.pop(name, None)
    if args.console_port is not None:
        os.environ["TIERLINE_DEMO_CONSOLE_PORT"] = str(args.console_port)
    try:
        with claimed_folder(args.state) as state:
            (state.path / _MARK).touch()
            policies = write_policies(state.path)
            launch = Launch(config=_CONFIG, policies=policies.folder, port=args.port)
            plan = make_plan(launch, state)
            surfaces = launch.policy_source(plan.deployment).load().names
            traffic = _AfterStart(args, launch, plan, policies)
            return asyncio.run(supervised(plan, surfaces, state, traffic.begin))
    except CannotStart as error:
        raise CommandError(str(error)) from None


class _AfterStart:
    """Opens the console and sends the traffic, once everything is up."""

    def __init__(self, args: argparse.Namespace, launch: Launch, plan: Plan, policies: DemoPolicies) -> None:
        self._args = args
        self._launch = launch
        self._plan = plan
        self._policies = policies

    async def begin(self, children: Sequence[Child], say: Say) -> None:
        """Send all traffic, and say what it comes to."""
        from gateway.parts.local.demo.traffic import DemoTraffic  # slow to import, while the children start

        say("All models here are scripted: what they say, how long they take and what they cost is made up.\n")
        console, args = self._plan.up.console_url, self._args
        if console and not args.no_browser and _has_display():
            await asyncio.to_thread(webbrowser.open, f"{console}/now?since=15m")
        traffic = DemoTraffic(
            self._plan.up.url, minutes=args.minutes, rate=args.rate, seed=args.seed, say=say, canary=self._try_candidate
        )
        await traffic.run()
        say(f"The traffic has ended. Look around at {console}; Ctrl-C stops everything.")
        for text, page in _worth_a_look(traffic.shown, self._policies.surface):
            say(f"  {text:<52} {console}{page}")

    async def _try_candidate(self) -> str:
        """Start the canary, unless one is under way from an earlier run; return what to say of it."""
        from cache.store.base import StoreUnavailable
        from gateway.errors import Conflict
        from gateway.parts.rollout.stored_policies import StoredPolicies

        store = open_store(self._plan.up.store_url, slack=10.0)
        try:
            applied = await StoredPolicies(store, "cli").apply(
                self._launch.policy_source(self._plan.deployment),
                self._policies.candidate,
                self._policies.surface,
                how="canary",
                author="tierline demo",
                message=self._policies.message,
            )
        except (Conflict, StoreUnavailable) as error:
            return f"no canary: {error}"
        finally:
            await store.aclose()
        return f"canary: {applied['policy']} is tried on some conversations of {self._policies.surface}"


def _worth_a_look(shown: Mapping[str, str], canary: str) -> Iterator[tuple[str, str]]:
    """Yield pages that show most, each with what it shows; `shown` has ids of requests by `DemoTraffic.shown`."""
    yield "what needs somebody, and who misses which limit", "/now"
    if "escalated" in shown:
        yield "a doubtful draft, and the answer in its place", f"/requests/{shown['escalated']}"
    if "cache-semantic" in shown:
        yield "a question in other words, from the cache", f"/requests/{shown['cache-semantic']}"
    if "wrong" in shown:
        yield "a stored answer that is wrong: take it back", f"/requests/{shown['wrong']}"
    yield "a canary that makes answers worse, and its guards", "/changes"
    yield f"what another threshold would do on {canary}", f"/what-if?surface={canary}"


def _check_own(folder: Path) -> None:
    """Refuse a folder that holds something else than a demo's state. Raises CommandError."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise CommandError(f"{folder} holds something else than a demo's state; name another folder with --state")


def _has_display() -> bool:
    """Whether a browser would open a window; one in the terminal would cover what is printed there."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < 1e6:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
