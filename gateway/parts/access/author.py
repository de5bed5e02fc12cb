"""Say who makes a change, for the audit trail."""

from __future__ import annotations

import argparse
import getpass

from gateway.cli.commands import CommandError
from gateway.cli.store_flags import add_registry_flags


def add_change_flags(parser: argparse.ArgumentParser, shown_by: str = "") -> None:
    """Add -m, --author and the flags of the registry to a command that makes a change.

    What shows the message later may be said, as in "`policy history`": then there must be one.
    """
    why = f"why, for {shown_by or 'the audit trail'}"
    parser.add_argument("-m", "--message", required=bool(shown_by), default="", metavar="WHY", help=why)
    add_author_flag(parser)
    add_registry_flags(parser)


def add_author_flag(parser: argparse.ArgumentParser) -> None:
    """Add --author, which `author_of` reads."""
    parser.add_argument("--author", metavar="NAME", help="who (default: the user of the operating system)")


def author_of(args: argparse.Namespace) -> str:
    """Return who makes a change, for the audit trail. Raises CommandError if the operating system does not know."""
    if args.author:
        return str(args.author)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise CommandError("the operating system does not say who you are; name yourself with --author") from None
