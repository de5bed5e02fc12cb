"""Run `tierline policy lint`: find mistakes in policy files, say what to write instead, and write it."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.commands import CommandError
from gateway.cli.flags import add_json_flag, duration
from gateway.exit_codes import Exit
from gateway.parts.lint.codes import CODES, is_error
from gateway.parts.lint.edit import CannotEdit
from gateway.parts.lint.mends import mended
from gateway.parts.lint.warnings import findings_in
from gateway.parts.standard import missing_for
from gateway.report import print_json
from gateway.seams import archive_folder, recorded_doubts
from policies.errors import ConfigError, Finding, Problem
from policies.loader import SHIPPED, PolicySource, policy_files, read_policy
from policies.misfits import problems_together
from policies.model import Policy
from policies.yaml_source import Document

if TYPE_CHECKING:
    from gateway.config.schema import Deployment

_MOST_FIXES = 200


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy lint`."""
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--since", type=duration, metavar="TIME")
    parser.add_argument("--ledger", type=Path, metavar="DIR")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--format", choices=("text", "json", "sarif", "github"), default="text")
    add_json_flag(parser, "text, as --format json does")


def run(args: argparse.Namespace) -> int:
    """Check the files, print the findings and return the exit code. Raises CommandError."""
    form = "json" if args.json else args.format
    deployment, source = _deployed(args.config)
    if not args.paths and deployment is not None and deployment.policies.source == "store":
        raise CommandError(
            f"the policies of {args.config} are in the store; name the files to check, such as one that "
            "`tierline policy show SURFACE > FILE` made"
        )
    paths = args.paths or [SHIPPED]
    for path in paths:
        if not path.exists():
            raise CommandError(f"{path}: no such file or folder")
        if path.is_dir() and not policy_files(path):
            raise CommandError(f"{path}: no policy files (*.yaml) here")
    if args.since is None and args.ledger is None:
        return _run(args, form, Checks(paths, deployment, source))
    if missing := missing_for("policy_lab", "this use of policy"):
        raise CommandError(missing)
    folder = args.ledger or Path(".state") / "ledger"
    if args.ledger is None and deployment is not None:
        folder = archive_folder(deployment) or deployment.embedding.state / "ledger"
    oldest = None if args.since is None else time.time() - args.since
    with recorded_doubts(folder, oldest) as doubts:
        return _run(args, form, Checks(paths, deployment, source, doubts))


def _run(args: argparse.Namespace, form: str, checks: Checks) -> int:
    fixed = fix(checks) if args.fix else []
    findings = checks.findings()
    if form == "json":
        rows = {"findings": [_row(finding) for finding in findings], "fixed": [_row(finding) for finding in fixed]}
        print_json({**rows, **_counts(findings)})
    elif form == "sarif":
        print_json(_sarif(findings))
    elif form == "github":
        sys.stdout.write("".join(_annotation(finding) for finding in findings))
    else:
        sys.stdout.write(_text(findings, fixed))
    bad = [finding for finding in findings if args.strict or is_error(finding.code)]
    return Exit.FINDINGS if bad else Exit.OK


def _deployed(config: Path | None) -> tuple[Deployment | None, PolicySource | None]:
    if config is None:
        return None, None
    from gateway.config.launch import Launch

    launch = Launch(config=config)
    deployment = launch.deployment(reads=True)
    return deployment, launch.policy_source(deployment)


class Checks:
    """All that is checked: the files, and what they are held against."""

    def __init__(
        self,
        paths: Sequence[Path],
        deployment: Deployment | None,
        source: PolicySource | None,
        recorded: Callable[[Policy], list[Finding]] = lambda _: [],
    ) -> None:
        self._paths = paths
        self._deployment = deployment
        self._source = source
        self._recorded = recorded

    def findings(self) -> list[Problem]:
        """Return every finding in these files and in the defaults of their folders, each once, in order."""
        files = [file for path in self._paths for file in (policy_files(path) if path.is_dir() else [path])]
        found: list[Problem] = []
        for folder in dict.fromkeys(file.parent for file in files):
            chosen = [file for file in files if file.parent == folder]
            others = [file for file in policy_files(folder) if file not in chosen]
            read: list[tuple[Policy, Document]] = []
            for file in [*chosen, *others]:
                try:
                    policy, document = read_policy(file)
                except ConfigError as error:
                    found += error.problems if file in chosen else []
                else:
                    read.append((policy, document))
                    found += self._findings_of(policy, document) if file in chosen else []
            # Which of two files took a name first goes by their names, as it does where policies are loaded.
            read.sort(key=lambda pair: pair[1].file)
            together = [*problems_together(read), *(self._source.misfits(read) if self._source else [])]
            found += [problem for problem in together if problem.file in chosen]
        unique = dict.fromkeys(found)
        return sorted(unique, key=lambda problem: (str(problem.file), problem.line, problem.column, problem.code))

    def _findings_of(self, policy: Policy, document: Document) -> Iterator[Problem]:
        yield from findings_in(policy, document, self._deployment)
        yield from map(document.locate, self._recorded(policy))


def fix(checks: Checks) -> list[Problem]:
    """Write mends until none is left that a script can make; return what was mended."""
    fixed: list[Problem] = []
    failed: set[Problem] = set()
    while len(fixed) < _MOST_FIXES:
        finding = next((finding for finding in checks.findings() if finding.edits and finding not in failed), None)
        if finding is None or finding in fixed:
            break
        try:
            text = mended(finding.file.read_text(encoding="utf-8"), finding.edits)
        except (CannotEdit, ConfigError):
            failed.add(finding)
            continue
        finding.file.write_text(text, encoding="utf-8")
        fixed.append(finding)
    return fixed


def _counts(findings: Sequence[Problem]) -> dict[str, int]:
    errors = sum(is_error(finding.code) for finding in findings)
    return {"errors": errors, "warnings": len(findings) - errors}


def _severity(finding: Problem) -> str:
    return "error" if is_error(finding.code) else "warning"


def _title(finding: Problem) -> str:
    return CODES[finding.code].title if finding.code in CODES else "mistake"


def _text(findings: Sequence[Problem], fixed: Sequence[Problem]) -> str:
    blocks = [f"mended {fault.place}: {fault.code} {_title(fault)}: {fault.mend or fault.message}" for fault in fixed]
    blocks += [""] if fixed else []
    sources: dict[Path, list[str]] = {}
    for finding in findings:
        blocks.append(f"{finding.place}: {_severity(finding)} {finding.code}: {_title(finding)}")
        if finding.line and finding.file not in sources:
            sources[finding.file] = _lines_of(finding.file)
        lines = sources.get(finding.file, [])
        if 0 < finding.line <= len(lines):
            line = lines[finding.line - 1]
            blocks.append(f"{finding.line:>5} | {line}")
            if finding.column:
                word = re.match(r"[\w.%'\"-]+", line[finding.column - 1 :])
                blocks.append(f"      | {' ' * (finding.column - 1)}{'^' * (len(word[0]) if word else 1)}")
        key = f"{finding.key}: " if finding.key else ""
        blocks.append(f"  why   {key}{finding.message}")
        blocks += [f"  mend  {finding.mend}"] if finding.mend else []
        blocks.append("")
    counts = [f"{count} {name[:-1]}{'' if count == 1 else 's'}" for name, count in _counts(findings).items() if count]
    mendable = sum(bool(finding.edits) for finding in findings)
    hint = f"; --fix can mend {mendable} of them" if mendable else ""
    return "\n".join([*blocks, ", ".join(counts) + hint if counts else "all is well"]) + "\n"


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _row(finding: Problem) -> dict[str, Any]:
    return {
        "file": str(finding.file),
        "line": finding.line,
        "column": finding.column,
        "key": finding.key,
        "code": finding.code,
        "severity": _severity(finding),
        "title": _title(finding),
        "message": finding.message,
        "mend": finding.mend,
        "edits": [asdict(edit) for edit in finding.edits],
    }


def _annotation(finding: Problem) -> str:
    """Return a workflow command of GitHub Actions, which shows the finding at its line."""
    text = "; ".join(part for part in (finding.message, finding.mend) if part)
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = f"{finding.code} {_title(finding)}".replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    place = f"file={finding.file.as_posix()}"
    place += f",line={finding.line}" if finding.line else ""
    place += f",col={finding.column}" if finding.column else ""
    return f"::{_severity(finding)} {place},title={title}::{escaped}\n"


def _sarif(findings: Sequence[Problem]) -> dict[str, Any]:
    """Return the findings as a SARIF 2.1.0 log, which code-scanning services read."""
    rules = [
        {
            "id": code,
            "shortDescription": {"text": title.title},
            "fullDescription": {"text": title.reason},
            "defaultConfiguration": {"level": title.severity},
        }
        for code, title in CODES.items()
    ]
    results = []
    for finding in findings:
        region = {"startLine": finding.line, **({"startColumn": finding.column} if finding.column else {})}
        location: dict[str, Any] = {"artifactLocation": {"uri": finding.file.as_posix()}}
        text = "; ".join(part for part in (finding.message, finding.mend) if part)
        results.append(
            {
                "ruleId": finding.code,
                "level": _severity(finding),
                "message": {"text": f"{finding.key}: {text}" if finding.key else text},
                "locations": [{"physicalLocation": {**location, **({"region": region} if finding.line else {})}}],
            }
        )
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "tierline policy lint", "rules": rules}}, "results": results}],
    }
