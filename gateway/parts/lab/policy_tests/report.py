"""Print the results of policy tests: as text for people, as JUnit XML for CI, as one JSON object for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as Xml

from policies.errors import dotted

if TYPE_CHECKING:
    from gateway.parts.lab.policy_tests.clauses import Clause
    from gateway.parts.lab.policy_tests.format import TestFile
    from gateway.parts.lab.policy_tests.run import Mismatch, PolicyResult, RunResult, TestResult

_NAME_WIDTH: Final = range(48, 80)
"""Narrowest and widest column of names; a longer name moves its line's end."""
_MISSING: Final = {(True, False): "never asked", (True,): "never true", (False,): "never false"}
"""What to say of a clause, by the outcomes that no case had."""


def text_lines(run: RunResult, *, verbose: bool = False, only_failures: bool = False) -> Iterator[str]:
    """Yield the lines of the report."""
    for file, results in run.files:
        shown = [result for result in results if not result.passed or not only_failures]
        if shown:
            yield _shown_path(file.file)
        longest = max((len(_name(file, result)) for result in shown), default=0)
        width = min(max(longest, _NAME_WIDTH.start), _NAME_WIDTH.stop)
        for result in shown:
            yield from _test_lines(file, result, width, verbose=verbose)
    failed = sum(not result.passed for result in run.results)
    passed = len(run.results) - failed
    parts = [f"{passed} passed" + (f", {failed} failed" if failed else "")]
    clauses, covered = (
        sum(len(policy.clauses) for policy in run.policies),
        sum(policy.covered for policy in run.policies),
    )
    if clauses:
        parts.append(f"clauses {covered} of {clauses} both ways ({whole_percent(covered, clauses)})")
    yield "       ".join(parts)
    for policy in run.policies:
        yield from _policy_lines(policy)


def whole_percent(part: int, whole: int) -> str:
    """Return a share in whole percent, rounded down: 100% means all."""
    return f"{part * 100 // whole if whole else 100}%"


def _name(file: TestFile, result: TestResult) -> str:
    return f"{result.name} ({result.policy.policy.surface})" if len(file.policies) > 1 else result.name


def _test_lines(file: TestFile, result: TestResult, width: int, *, verbose: bool) -> Iterator[str]:
    name, policy = _name(file, result), result.policy.document.file.name
    if result.passed:
        yield f"  ok    {name:<{width}} {result.seconds * 1000:8.1f} ms"
    else:
        yield f"  FAIL  {name:<{width}} {file.file.name}:{result.line}"
    yield from (f"        {line}" for line in _explained(result.mismatches, policy))
    if verbose and result.outcome is not None:
        for at, held, text in result.outcome.steps:
            name = dotted(tuple(part for part in at if isinstance(part, str)))
            line = result.policy.line(at)
            explained = f"{name}: {text}" if text else name
            yield f"          {policy}:{line:<4} {explained} ({'held' if held else 'did not hold'})"


def _expected(mismatch: Mismatch) -> str:
    return f"expected {mismatch.key} {mismatch.expected}, got {mismatch.got}"


def _policy_lines(result: PolicyResult) -> Iterator[str]:
    file = result.tested.document.file.name
    missing: dict[Clause, tuple[bool, ...]] = {}
    for clause, held in result.unseen:
        missing[clause] = (*missing.get(clause, ()), held)
    for outcomes, label in _MISSING.items():
        for clause, unseen in missing.items():
            if unseen == outcomes:
                yield f"  {label + ':':<14} {file}:{clause.line} {clause.text}"


def _shown_path(file: Path) -> str:
    """Return a path as seen from the working directory, where it is below it."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


def values_of_run(run: RunResult) -> dict[str, Any]:
    """Return the report as plain values."""
    return {
        "files": [
            {"file": str(file.file), "tests": [_test_values(result) for result in results]}
            for file, results in run.files
        ],
        "passed": sum(result.passed for result in run.results),
        "failed": sum(not result.passed for result in run.results),
        "clauses_covered": run.share_covered,
        "policies": [_policy_values(policy) for policy in run.policies],
    }


def _test_values(result: TestResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "line": result.line,
        "surface": result.policy.policy.surface,
        "passed": result.passed,
        "ms": round(result.seconds * 1000, 3),
        "mismatches": [
            {
                "key": mismatch.key,
                "expected": mismatch.expected,
                "got": mismatch.got,
                "policy_line": mismatch.line,
                "why": mismatch.why,
            }
            for mismatch in result.mismatches
        ],
    }


def _policy_values(result: PolicyResult) -> dict[str, Any]:
    def place(clause: Clause) -> dict[str, Any]:
        return {"line": clause.line, "clause": clause.text}

    return {
        "file": str(result.tested.document.file),
        "surface": result.tested.policy.surface,
        "clauses": len(result.clauses),
        "covered": result.covered,
        "never_true": [place(clause) for clause, missing in result.unseen if missing],
        "never_false": [place(clause) for clause, missing in result.unseen if not missing],
    }


def junit(run: RunResult) -> str:
    """Return the report as JUnit XML: a suite for each file, a test case for each test and policy."""
    root = Xml.Element("testsuites")
    for file, results in run.files:
        failures = sum(not result.passed for result in results)
        seconds = sum(result.seconds for result in results)
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=str(file.file),
            tests=str(len(results)),
            failures=str(failures),
            time=f"{seconds:.6f}",
        )
        for result in results:
            surface = result.policy.policy.surface
            case = Xml.SubElement(
                suite, "testcase", name=result.name, classname=surface, file=str(file.file), line=str(result.line),
                time=f"{result.seconds:.6f}",
            )  # fmt: skip
            if not result.passed:
                failure = Xml.SubElement(case, "failure", message=_expected(result.mismatches[0]))
                failure.text = "\n".join(_explained(result.mismatches, result.policy.document.file.name))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True)


def _explained(mismatches: Sequence[Mismatch], policy: str) -> Iterator[str]:
    """Yield what was expected and got, and below those that one line of the policy explains, that line."""
    for i, mismatch in enumerate(mismatches):
        yield _expected(mismatch)
        following = mismatches[i + 1] if i + 1 < len(mismatches) else None
        if mismatch.why and (following is None or (following.line, following.why) != (mismatch.line, mismatch.why)):
            yield f"{policy}:{mismatch.line} {mismatch.why}" if mismatch.line else mismatch.why
