"""Run `tierline policy show`: print a version of a policy as it was applied."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.store_flags import add_registry_flags
from gateway.exit_codes import Exit
from gateway.parts.rollout.commands._registry import when, with_registry
from gateway.parts.rollout.registry.view import shown_version
from gateway.report import print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy show`."""
    parser.add_argument("version", metavar="SURFACE[@VERSION]")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the version's text on stdout, and where it comes from on stderr."""
    surface, _, prefix = args.version.partition("@")
    version = with_registry(args, lambda registry: shown_version(registry, surface, prefix))
    if args.json:
        print_json(version)
        return Exit.OK
    about = f"{version['policy']}, {version['state']}: {version['author']}, {when(version['at'])}: {version['message']}"
    sys.stderr.write(about + "\n")
    sys.stdout.write(version["text"])
    return Exit.OK
