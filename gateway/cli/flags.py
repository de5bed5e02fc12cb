"""Define commands and the options that several of them share, and make values from parsed options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.cli.commands import help_texts
from policies.quantities import read_duration, read_share

if TYPE_CHECKING:
    from gateway.config.launch import Launch

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    subparsers: Subparsers,
    name: str,
    usage: str | None = None,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.ArgumentParser:
    """Add a command, with the options of its `parents`, to the command line; help.toml has its texts, by its `name`.

    A subcommand has several words, such as `trace last`.
    """
    texts = help_texts()[name]
    return subparsers.add_parser(
        name.rsplit(maxsplit=1)[-1],
        usage=usage,
        parents=parents,
        help=texts["summary"],
        description=texts.get("description", texts["summary"]),
        epilog=texts.get("examples"),
        formatter_class=partial(HelpFormatter, texts.get("options", {})),
    )


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Describe the options that have no text of their own by `options`, those of the command in its help.toml."""

    def __init__(self, options: Mapping[str, str], **settings: Any) -> None:
        super().__init__(max_help_position=34, **settings)
        self._options = options

    def add_argument(self, action: argparse.Action) -> None:
        """Add an option; see argparse. Raises KeyError for one that is described nowhere."""
        if action.help is None and action.nargs != argparse.PARSER:  # not a list of subcommands
            action.help = self._options[action.option_strings[0] if action.option_strings else action.dest]
        super().add_argument(action)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add --config and --policies to a command."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the config file (default: the one shipped)")
    parser.add_argument("--policies", type=Path, metavar="DIR", help="the folder of policies (default: those shipped)")


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add --host, --port, --config, --policies and --workers to a command."""
    parser.add_argument("--host", metavar="ADDRESS", help="the address to listen on (default: the config's, 127.0.0.1)")
    parser.add_argument(
        "--port", type=whole(0, 65535), metavar="N", help="the port to listen on (default: the config's, 8787)"
    )
    add_config_flags(parser)
    parser.add_argument(
        "--workers", type=whole(1, 256), default=1, metavar="N", help="number of gateway processes (default: 1)"
    )


def add_json_flag(parser: argparse.ArgumentParser, instead_of: str = "tables") -> None:
    """Add --json to a command."""
    parser.add_argument("--json", action="store_true", help=f"print one JSON object instead of {instead_of}")


def launch_of(args: argparse.Namespace) -> Launch:
    """Return the Launch of these options; fields without an option keep their defaults."""
    from gateway.config.launch import Launch  # slow to import, and not needed by commands that only read the store

    return Launch(**{field.name: getattr(args, field.name) for field in fields(Launch) if field.name in args})


def share(*, zero: bool) -> Callable[[str], float]:
    """Return a parser of shares up to 1, such as 10% or 0.1; 0 is one where `zero` says so."""

    def read(text: str) -> float:
        try:
            value = float(str(read_share(text)))
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1 or not (zero or value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 10% or 0.1")
        return value

    return read


def duration(text: str) -> float:
    """Parse a time such as 400ms, 90s, 15m, 1h or 2d into seconds."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser for option values that are whole numbers from `least` to `most`."""
    bounds = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {bounds}")
        return int(text)

    return read
