"""Check a policy's text as it is being edited: its mistakes at their lines, each with its mend as a change of lines."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.schema import Deployment
from gateway.parts.lint.codes import is_error
from gateway.parts.lint.edit import CannotEdit
from gateway.parts.lint.mends import mended
from gateway.parts.lint.warnings import findings_in
from policies.errors import ConfigError, Edit, Problem
from policies.loader import DEFAULTS, PolicySource, read_policy
from policies.model import Policy
from policies.yaml_source import Document


@dataclass(frozen=True, slots=True)
class CheckedText:
    """The result of checking a policy's text: the policy, if it can be read, and every mistake in it."""

    text: str
    policy: Policy | None
    document: Document | None
    problems: tuple[Problem, ...]

    def with_problem(self, problem: Problem) -> CheckedText:
        """Return this result with one more mistake."""
        return replace(self, problems=(*self.problems, problem))

    def findings(self, more: Iterable[Problem] = ()) -> list[dict[str, Any]]:
        """Return the mistakes as plain values, by line; `more` are those that recorded requests show."""
        problems = [*[(problem, False) for problem in self.problems], *[(warning, True) for warning in more]]
        problems.sort(key=lambda pair: (pair[0].line, pair[0].column))
        return [_finding(problem, self.text, recorded=recorded) for problem, recorded in problems]


class PolicyChecker:
    """Check texts against one deployment and its policy folder."""

    def __init__(self, source: PolicySource, deployment: Deployment) -> None:
        self._source = source
        self._deployment = deployment

    def check(self, text: str) -> CheckedText:
        """Read a text and find every mistake in it; takes milliseconds."""
        text = text.replace("\r\n", "\n")
        with self.file_of(text) as file:
            try:
                policy, document = read_policy(file, self._source.tiers)
            except ConfigError as error:
                return CheckedText(text, None, None, error.problems)
        findings = [*findings_in(policy, document, self._deployment), *self._source.misfits([(policy, document)])]
        return CheckedText(text, policy, document, tuple(dict.fromkeys(findings)))

    @contextlib.contextmanager
    def file_of(self, text: str, name: str = "policy.yaml", *, whole: bool = False) -> Iterator[Path]:
        """Yield a file with this text, beside the defaults of the policies' folder, or beside the `whole` of it."""
        directory = self._source.directory
        with tempfile.TemporaryDirectory(prefix="tierline-console-") as folder:
            file = Path(folder, name)
            file.write_text(text.replace("\r\n", "\n").removesuffix("\n") + "\n", encoding="utf-8")
            others = directory.iterdir() if whole and directory.is_dir() else [directory / DEFAULTS]
            for other in others:
                if other.name != name and other.exists():
                    Path(folder, other.name).symlink_to(other.resolve())
            yield file


def _finding(problem: Problem, text: str, *, recorded: bool) -> dict[str, Any]:
    return {
        "code": problem.code, "line": problem.line, "column": problem.column, "key": problem.key,
        "message": problem.message, "mend": problem.mend, "error": is_error(problem.code), "recorded": recorded,
        "fix": _fix(text, problem.edits),
    }  # fmt: skip


def _fix(text: str, edits: tuple[Edit, ...]) -> dict[str, Any] | None:
    """Return a mend as lines to put in place of others; None where no script can make it.

    `line` is the first of `count` lines to replace, from 1, and `lines` what takes their place.
    """
    if not edits:
        return None
    try:
        after = mended(text, edits)
    except (CannotEdit, ConfigError):
        return None
    old, new = text.split("\n"), after.split("\n")
    most = min(len(old), len(new))
    same = next((i for i in range(most) if old[i] != new[i]), most)
    behind = next((i for i in range(most - same) if old[-1 - i] != new[-1 - i]), most - same)
    return {"line": same + 1, "count": len(old) - behind - same, "lines": new[same : len(new) - behind]}
