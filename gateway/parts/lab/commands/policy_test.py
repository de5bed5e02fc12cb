"""Run `tierline policy test`: the cases and requests of `*.test.yaml` files, against their policies."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from gateway.cli.commands import CommandError
from gateway.cli.flags import share
from gateway.exit_codes import Exit
from gateway.parts.lab.policy_tests.format import SUFFIXES, is_test_file, read_tests
from gateway.parts.lab.policy_tests.report import junit, text_lines, values_of_run
from gateway.parts.lab.policy_tests.run import RunResult, run_files
from gateway.report import print_json
from policies.loader import SHIPPED

_FORMATS: Final = ("text", "junit", "json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy test`."""
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--run", type=_pattern, metavar="REGEX")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--only-failures", action="store_true")
    parser.add_argument("--fail-under", type=share(zero=True), metavar="SHARE")
    parser.add_argument("--format", choices=_FORMATS, default="text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")


def run(args: argparse.Namespace) -> int:
    """Run the tests, print the results and return the exit code."""
    files = [read_tests(file) for path in args.paths or [SHIPPED] for file in _files(path)]
    result = run_files(files, args.run)
    if not result.results:
        raise CommandError("no test has a name that matches --run")
    if args.format == "json":
        print_json(values_of_run(result))
    elif args.format == "junit":
        sys.stdout.write(junit(result) + "\n")
    else:
        lines = text_lines(result, verbose=args.verbose, only_failures=args.only_failures)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    return Exit.FINDINGS if _is_bad(result, args.fail_under) else Exit.OK


def _is_bad(result: RunResult, least: float | None) -> bool:
    if any(not test.passed for test in result.results):
        return True
    return least is not None and result.share_covered < least


def _files(path: Path) -> list[Path]:
    """Return the test files that a path stands for. Raises CommandError where there are none."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if is_test_file(file.name))
        if not files:
            raise CommandError(f"{path} has no test files (*{SUFFIXES[0]})")
        return files
    if is_test_file(path.name) or not path.is_file():
        return [path]
    beside = [path.with_name(path.stem + suffix) for suffix in SUFFIXES]
    files = [file for file in beside if file.is_file()]
    if not files:
        raise CommandError(f"{path} has no tests: there is no {beside[0].name} beside it")
    return files


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
