"""Run `tierline policy schema`: print the JSON Schema of policy files, for editors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.commands import CommandError
from gateway.exit_codes import Exit
from gateway.parts.lint.policy_schema import schema_text
from gateway.parts.standard import missing_for
from gateway.seams import tests_schema_text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy schema`."""
    parser.add_argument("--write", type=Path, metavar="FILE")
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--defaults", action="store_true")
    of.add_argument("--tests", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Print or write the schema. Raises CommandError."""
    if args.tests:
        if missing := missing_for("policy_lab", "this use of policy"):
            raise CommandError(missing)
        text = tests_schema_text()
    else:
        text = schema_text(defaults=args.defaults)
    if args.write is None:
        sys.stdout.write(text)
        return Exit.OK
    try:
        args.write.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{args.write}: {error.strerror}") from None
    return Exit.OK
