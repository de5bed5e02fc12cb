"""Run `tierline policy lint`: find mistakes in policy files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.commands._flags import add_json_flag
from gateway.config.warnings import findings_in
from gateway.exit_codes import Exit
from offline.report import print_json
from policies.errors import ConfigError, Problem
from policies.loader import SHIPPED, policy_files, read_policy

DESCRIPTION = "Find mistakes in policy files: what cannot be read, rules that can never hold, settings that do nothing."
EXAMPLES = """examples:
  tierline policy lint                              check the policies shipped with Tierline
  tierline policy lint rules rules2/chat.yaml       check a folder and a file
  tierline policy lint rules --json | jq .findings  use the findings in a script"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy lint`."""
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="policy files, or folders of them")
    add_json_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Check the files, print the findings and return the exit code."""
    findings = [finding for path in args.paths or [SHIPPED] for file in _files(path) for finding in _findings(file)]
    if args.json:
        rows = [{"file": str(f.file), "line": f.line, "key": f.key, "message": f.message} for f in findings]
        print_json({"findings": rows})
    else:
        sys.stdout.write("".join(f"{finding}\n" for finding in findings) or "all is well\n")
    return Exit.FINDINGS if findings else Exit.OK


def _files(path: Path) -> list[Path]:
    return policy_files(path) if path.is_dir() else [path]


def _findings(file: Path) -> list[Problem]:
    try:
        policy, document = read_policy(file)
    except ConfigError as error:
        return list(error.problems)
    return findings_in(policy, document, None)
