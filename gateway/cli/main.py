"""The command line: `tierline COMMAND`. A command's module is imported only when that command is run.

Errors that have a cause the user can mend are one line each, `tierline: ...`, never a traceback. What the exit codes
mean stands in gateway.exit_codes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from gateway.cli.commands import CommandError
from gateway.exit_codes import HELP, Exit
from policies.errors import ConfigError

_OURS = ("gateway", "routing", "cache", "policies")

_EPILOG = """examples:
  tierline up                       start everything on this machine
  tierline serve --config my.yaml   the gateway alone, against your own store and backends
  tierline check                    is the config right?
  tierline trace last               what happened to the latest request, hop by hop

`tierline COMMAND --help` says more of each."""


@dataclass(frozen=True, slots=True)
class _Command:
    module: str
    summary: str
    extra: str | None = None
    """The optional dependencies it needs, as pip names them."""


COMMANDS = {
    "up": _Command("gateway.cli.commands.up", "start the store, the local model and the gateway"),
    "serve": _Command("gateway.cli.commands.serve", "start the gateway alone"),
    "check": _Command("gateway.cli.commands.check", "say what is wrong with the config and the policies"),
    "trace": _Command("gateway.cli.commands.trace", "show what happened to a request"),
    "cache": _Command("gateway.cli.commands.cache", "show what answers are kept, and take them out"),
    "ledger": _Command("gateway.cli.commands.ledger", "say what requests cost, took and were worth"),
    "collect": _Command("gateway.cli.commands.collect", "label prompts with what a model answers"),
    "train": _Command(
        "gateway.cli.commands.train", "train the difficulty classifier, or a confidence head", extra="train"
    ),
    "calibrate": _Command(
        "gateway.cli.commands.calibrate", "choose a surface's thresholds from labelled requests", extra="train"
    ),
    "eval": _Command("gateway.cli.commands.eval", "measure what routing is worth on labelled data", extra="train"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command in `argv` (by default the process's own) and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    command = COMMANDS.get(name) if name else None
    try:
        with _stopped_by_signals():
            module = import_module(command.module) if command else None
            args = _parser(name, module).parse_args(arguments)
            code = int(module.run(args)) if module else Exit.NOT_DONE
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python would flush once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NOT_DONE
    except ModuleNotFoundError as error:
        if command is None or error.name is None or error.name.split(".")[0] in _OURS:
            raise
        pip = f"tierline[{command.extra}]" if command.extra else error.name
        return _fail(f"{name} needs {error.name}, which is not installed: pip install '{pip}'", Exit.NOT_DONE)
    except ConfigError as error:
        return _fail(str(error), Exit.NOT_DONE)
    except CommandError as error:
        return _fail(str(error), error.code)
    except Exception:  # noqa: BLE001  Python's own code for a bug is 1, which would pass for a finding
        traceback.print_exc()
        return Exit.NOT_DONE


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Has SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, whatever they did before.

    A shell starts background jobs with SIGINT ignored, and Python then leaves it so: the command could not be stopped
    by it, and asyncio.run would not listen to it either. `up` and `serve` put their own handlers in place of these.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        # By way of SIGINT, for which asyncio.run has a handler that lets tasks clean up.
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _fail(message: str, code: Exit) -> Exit:
    sys.stderr.write("".join(f"tierline: {line}\n" for line in message.splitlines()))
    return code


def _parser(chosen: str | None, module: ModuleType | None) -> argparse.ArgumentParser:
    """The whole command line's parser, with the flags of the chosen command only."""
    parser = _Parser(
        prog="tierline",
        description="One OpenAI-compatible URL in front of tiers of models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if module is not None and name == chosen:
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=command.summary, add_help=False)
    return parser


class _Parser(argparse.ArgumentParser):
    """Ends every help text, a command's too, with what the exit codes mean."""

    def format_help(self) -> str:
        """See argparse."""
        return f"{super().format_help()}\n{HELP}\n"


class _Version(argparse.Action):
    """Looks the version up only when asked: importlib.metadata is slow to import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"tierline {version('tierline')}\n")
        parser.exit()
