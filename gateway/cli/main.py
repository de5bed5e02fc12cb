"""Run the command line, `tierline COMMAND`; a command's module is imported only when that command is run.

Errors that the user can correct are printed as one line each, `tierline: ...`, without a traceback. The exit codes are
defined in gateway.exit_codes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final, NoReturn

from gateway.cli.actions import add_options_of_actions
from gateway.cli.commands import CommandError, command_module, help_texts, uncollected
from gateway.exit_codes import HELP, Exit
from gateway.parts import standard
from gateway.seams import read_other_languages
from policies.errors import ConfigError, did_you_mean

_OURS = ("gateway", "routing", "cache", "policies", "tierline")
_WIDTH = 100
"""Longest line, in characters, of the prose of a help text; shorter in a narrow terminal."""

_EPILOG = """examples:
  tierline up                       start everything on this machine: store, local model and gateway
  tierline serve --config my.yaml   start the gateway alone, with your own store and backends
  tierline check --config my.yaml   check a config and the policies for errors
  tierline trace last               show the steps of the latest request, with times and reasons

`tierline COMMAND --help` describes a command, its options and its output."""


_COMMON: Final = ("up", "check", "trace", "policy", "keys", "usage", "cache", "init")
COMMANDS: Final = {
    name: help_texts()[name]
    for name in dict.fromkeys((*_COMMON, *help_texts()))
    if " " not in name and name in help_texts()
}
"""What help.toml, and those of parts, say of each command; the most common ones come first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default the process's own arguments, and return the exit code."""
    arguments = _with_new_names(list(sys.argv[1:] if argv is None else argv))
    words = [argument for argument in arguments if not argument.startswith("-")]
    name = words[0] if words else None
    for named in (" ".join(words[:2]), " ".join(words[:1])):
        if (part := standard.part_missing_for(named)) is not None:
            return _fail(standard.absent(named, part), Exit.NOT_DONE)
    command = help_texts().get(" ".join(words[:2]), help_texts().get(words[0]) if words else None)
    try:
        with _stopped_by_signals():
            with uncollected():
                read_other_languages()
                module = command_module(name) if name in COMMANDS else None
                args = _parser(module).parse_args(arguments)
            code = int(module.run(args)) if module else Exit.NOT_DONE
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Without this, Python's flush at exit would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NOT_DONE
    except ModuleNotFoundError as error:
        if (part := standard.part_missing_of(error.name or "")) is not None:
            return _fail(standard.absent(f"this use of {name}", part), Exit.NOT_DONE)
        if command is None or error.name is None or error.name.split(".")[0] in _OURS:
            traceback.print_exc()
            return Exit.NOT_DONE
        pip = f"tierline[{command['extra']}]" if "extra" in command else error.name
        return _fail(f"{name} needs {error.name}, which is not installed: pip install '{pip}'", Exit.NOT_DONE)
    except ConfigError as error:
        return _fail(str(error), Exit.NOT_DONE)
    except CommandError as error:
        return _fail(str(error), error.code)
    except standard.BrokenPart as error:
        return _fail(str(error), Exit.NOT_DONE)
    except Exception as error:  # noqa: BLE001  Python's exit code for an uncaught one is 1, which means findings here
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"{os.fsdecode(error.filename)}: {error.strerror}", Exit.NOT_DONE)
        traceback.print_exc()
        return Exit.NOT_DONE


def _with_new_names(arguments: list[str]) -> list[str]:
    """Return the arguments with the new name of a command that was renamed, and tell it on stderr."""
    name = arguments[0] if arguments else ""
    if (renamed := standard.RENAMED.get(name)) is None:
        return arguments
    sys.stderr.write(f"tierline: `{name}` is `{renamed}` now; the old name works in this release alone\n")
    return [*renamed.split(), *arguments[1:]]


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, whatever they did before.

    A shell starts background jobs with SIGINT ignored, and Python then keeps it ignored, so that neither the command
    nor asyncio.run would react to it. `up` and `serve` install their own handlers later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        # Raise SIGINT instead: asyncio.run has a handler for it that lets tasks clean up.
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))),
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _fail(message: str, code: Exit) -> Exit:
    sys.stderr.write("".join(f"tierline: {line}\n" for line in message.splitlines() if line.strip()))
    return code


def _lacks(example: str) -> bool:
    """Return whether a line of `_EPILOG` has a command that this installation lacks."""
    return example.startswith("  tierline ") and standard.part_missing_for(example.split()[1]) is not None


def _parser(module: ModuleType | None) -> argparse.ArgumentParser:
    """Return the parser of the whole command line, with the options of the chosen command only, if one is."""
    parser = _Parser(
        prog="tierline",
        usage="tierline [-h] [--version] COMMAND ...",
        description="Tierline is a gateway: one OpenAI-compatible URL in front of several tiers of models. It answers "
        "from a cache what was answered before, and sends other requests to the cheapest tier that should be good "
        "enough in time.",
        epilog="\n".join(line for line in _EPILOG.splitlines() if not _lacks(line)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        required=True,
        title="commands",
        description=_listed(),
        help=argparse.SUPPRESS,
        prog="tierline",
    )
    if module is not None:
        module.add_parser(subparsers)  # of the others none can be meant: each parser takes half a millisecond
        return parser
    for name in COMMANDS:
        subparsers.add_parser(name, add_help=False)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line with all commands that this installation has, and their actions.

    A command that needs a package which is not installed is there without its options. It takes a second to import all.
    """
    parser = _parser(None)
    (subparsers,) = parser._subparsers._group_actions  # type: ignore[union-attr]  # argparse has no public name for them
    assert isinstance(subparsers, argparse._SubParsersAction)  # noqa: S101
    subparsers.help = None  # readers of parsers take what has no help to be hidden
    for name in COMMANDS:
        with suppress(ImportError):
            module = command_module(name)
            del subparsers.choices[name]
            module.add_parser(subparsers)
            add_options_of_actions(subparsers.choices[name])
    return parser


def _listed() -> str:
    """Return the list of commands in groups: the most common ones, the gateway's others, and those of each part."""
    groups: dict[str, list[str]] = {}
    of_parts = {name: part.title for part in standard.PARTS for name in part.commands}
    for name in COMMANDS:
        groups.setdefault("" if name in _COMMON else of_parts.get(name, "the gateway"), []).append(name)
    width = min(_WIDTH, shutil.get_terminal_size().columns - 2) - 2
    lines = []
    for title, names in groups.items():
        lines += [f"{title}:"] if title else []
        for name in names:
            text = f"{name:11}{COMMANDS[name]['summary']}"
            lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent=" " * 13)
    return "\n".join(lines)


_USAGE_LINES: Final = 3
"""A usage of more lines says less than the list of options below it."""
_NOT_ONE_OF: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class _Parser(argparse.ArgumentParser):
    """Wrap descriptions, and append the meaning of the exit codes to every help text, including those of commands."""

    def error(self, message: str) -> NoReturn:
        """Print a mistake in the arguments, with the name that was perhaps meant, and exit; see argparse."""
        if (match := _NOT_ONE_OF.search(message)) is not None:
            near = did_you_mean(match[1], re.findall(r"'([^']*)'", match[2]))
            message = message.replace(match[0], f"there is no {match[1]!r}{near or f'; it is one of {match[2]}'}")
        if message.startswith("the following arguments are required"):
            message += f"; `{self.prog} --help` describes them"
        super().error(message)

    def format_help(self) -> str:
        """Return the help text; see argparse."""
        # Commands use RawDescriptionHelpFormatter for the examples in their epilogs; it wraps no prose.
        self.description, self.epilog = _filled(self.description), _filled(self.epilog)
        if self.usage is None and self.format_usage().count("\n") > _USAGE_LINES:
            self.usage = _short_usage(self)
        return f"{super().format_help()}\n{HELP}\n"


def _short_usage(parser: argparse.ArgumentParser) -> str:
    """Return a usage that names the options which are required alone."""
    formatter = parser._get_formatter()
    actions = [action for action in parser._actions if action.required or not action.option_strings]
    formatter.add_usage(None, actions, parser._mutually_exclusive_groups, prefix="")
    needed = " ".join(formatter.format_help().split()).removeprefix(parser.prog).strip()
    return f"%(prog)s [options] {needed}".strip()


def _filled(text: str | None) -> str | None:
    """Return a text whose paragraphs fit the terminal; those with lines that are indented stay as they are."""
    width = min(_WIDTH, shutil.get_terminal_size().columns - 2)
    parts = (text or "").split("\n\n")
    return "\n\n".join(part if "\n " in part else textwrap.fill(part, width) for part in parts) or None


class _Version(argparse.Action):
    """Print the version; it is looked up only here, as this takes time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from gateway.version import version

        sys.stdout.write(f"tierline {version()}\n")
        parser.exit()
