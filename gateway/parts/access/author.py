"""Say who makes a change, for the audit trail."""

from __future__ import annotations

import argparse
import getpass

from gateway.cli.commands import CommandError


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
