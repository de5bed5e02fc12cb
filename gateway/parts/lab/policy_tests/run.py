"""Run the tests of policies: what failed and why, and which clauses were seen both ways."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.lab.policy_tests.case import GOT, CaseOutcome, PolicyUnderTest, Request, is_as_expected
from gateway.parts.lab.policy_tests.clauses import Clause, Coverage, as_written, clauses_of
from gateway.parts.lab.policy_tests.format import Case, RequestsTest, Tested, TestFile
from policies.errors import KeyPath, dotted
from policies.quantities import write_duration
from policies.value_type import value_type

if TYPE_CHECKING:
    from gateway.parts.lab.walk import Step
    from policies.model import Policy

AnyTest = Case | RequestsTest


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key of `expect` that was not as expected, and the line of the policy that explains what was got."""

    key: str
    expected: str
    got: str
    line: int = 0
    why: str = ""


@value_type
class TestResult:
    """The result of one test with one policy."""

    __test__ = False
    name: str
    line: int
    policy: Tested
    mismatches: Sequence[Mismatch]
    seconds: float
    outcome: CaseOutcome | None = None
    """What a case got; None for requests."""

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not self.mismatches


@dataclass(slots=True)
class PolicyResult:
    """What the tests of all files together show of one policy."""

    tested: Tested
    clauses: Sequence[Clause] = ()
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def unseen(self) -> list[tuple[Clause, bool]]:
        """The outcomes of clauses that no case had."""
        return list(self.coverage.missing(self.clauses))

    @property
    def covered(self) -> int:
        """The number of clauses that were seen both ways."""
        return len(self.clauses) - len({clause.at for clause, _ in self.unseen})


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of all files, in their order, and of all policies."""

    files: Sequence[tuple[TestFile, Sequence[TestResult]]]
    policies: Sequence[PolicyResult]

    @property
    def results(self) -> list[TestResult]:
        """The results of all tests."""
        return [result for _, results in self.files for result in results]

    @property
    def share_covered(self) -> float:
        """The share of all clauses that were seen both ways, 0..1."""
        clauses = sum(len(policy.clauses) for policy in self.policies)
        return sum(policy.covered for policy in self.policies) / clauses if clauses else 1.0


def run_files(files: Sequence[TestFile], only: re.Pattern[str] | None = None) -> RunResult:
    """Run the tests whose name matches `only`. Raises ConfigError where a test lacks a value that its policy needs."""
    results: list[tuple[TestFile, Sequence[TestResult]]] = []
    policies: dict[Path, PolicyResult] = {}
    requests = Requests()
    for file in files:
        chosen = [test for test in file.tests if only is None or only.search(test.name)]
        of_file: list[TestResult] = []
        for tested in file.policies:
            under = PolicyUnderTest(tested)
            path = tested.document.file.resolve()
            result = policies.setdefault(path, PolicyResult(tested, clauses_of(tested)))
            its = [test for test in chosen if _surface(test) in (None, tested.policy.surface)]
            of_file += [run_test(under, test, requests, result.coverage) for test in its]
        results.append((file, of_file))
    return RunResult(results, list(policies.values()))


def _surface(test: AnyTest) -> str | None:
    return test.surface if isinstance(test, Case) else test.case.surface


def run_test(under: PolicyUnderTest, test: AnyTest, requests: Requests, coverage: Coverage) -> TestResult:
    """Run one test with one policy."""
    began = time.perf_counter()
    outcome = None
    if isinstance(test, Case):
        outcome = under.run(test)
        coverage.add(outcome.parts)
        mismatches = mismatches_of(under, test, outcome)
    else:
        mismatches = _requests_together(under, test, requests, coverage)
    return TestResult(test.name, test.line, under.tested, mismatches, time.perf_counter() - began, outcome)


def mismatches_of(under: PolicyUnderTest, case: Case, outcome: CaseOutcome, prefix: str = "") -> list[Mismatch]:
    """Return what is not as the case expects."""
    policy = under.policy
    problems = []
    for key, expected in case.expect.items():
        got = GOT[key](policy, outcome)
        if not is_as_expected(key, expected, got):
            line, why = explain(under, key, outcome)
            problems.append(Mismatch(prefix + key, worded(key, expected), worded(key, got), line, why))
    for key, refused in case.expect_not.items():
        got = GOT[key](policy, outcome)
        if is_as_expected(key, refused, got):
            line, why = explain(under, key, outcome)
            problems.append(Mismatch(prefix + key, f"not {worded(key, refused)}", worded(key, got), line, why))
    return problems


def worded(key: str, value: Any) -> str:
    """Return a value of `expect` in the words of a test file."""
    if isinstance(value, tuple):
        return (
            " or ".join(worded(key, one) for one in value) if key not in ("called", "stop") else f"[{', '.join(value)}]"
        )
    if isinstance(value, bool):
        return str(value).lower()
    if key in ("first_token_within", "within", "deadline") and isinstance(value, float):
        return write_duration(value)
    return "nothing" if value in ("", None) else str(value)


# --- why it is as it is ---------------------------------------------------------------------------------------------

_CACHE_KEYS: Final = frozenset({"cache", "cache_why", "stored"})
_OF_THE_POLICY: Final[Mapping[str, KeyPath]] = {
    "max_tokens": ("output", "max_tokens"),
    "stop": ("output", "stop"),
    "priority": ("load", "priority"),
    "deadline": ("slo", "deadline"),
}


def explain(under: PolicyUnderTest, key: str, outcome: CaseOutcome) -> tuple[int, str]:
    """Return the line of the policy that explains what was got for a key of `expect`, and the explanation."""
    tested, got = under.tested, outcome.walk
    if key in _OF_THE_POLICY:
        at = _OF_THE_POLICY[key]
        return tested.line(at), dotted(at)
    steps = [
        step for step in outcome.steps if (step.at[0] == "cache") == (key in _CACHE_KEYS or bool(outcome.cache.hit))
    ]
    routed = [step for step in steps if step.at[:2] == ("route", "start")]
    if key in ("start", "rule") or not got.called:
        if got.decision is not None and got.decision.stand_in and key == "start":
            return 0, got.decision.stand_in
        if got.refused:
            return 0, got.reason
        return _step_explained(tested, steps[-1]) if steps and not routed else _rule_explained(tested, routed, outcome)
    held = [step for step in steps if step.held and step.at[0] in ("escalate", "slo", "load", "cache") and step.text]
    if held:
        return _step_explained(tested, held[-1])
    if key in _CACHE_KEYS and (why := outcome.cache.missed or outcome.cache.why):
        return tested.line(("cache",)), f"cache: {why}"
    if got.judged is not None:
        return tested.line(("escalate", "when")), f"escalate.when: no condition held: {got.judged.reason}"
    return _rule_explained(tested, routed, outcome)


def _step_explained(tested: Tested, step: Step) -> tuple[int, str]:
    at = step.at
    name = dotted(tuple(part for part in at if isinstance(part, str)))
    return tested.line(at), f"{name}: {step.text}"


def _rule_explained(tested: Tested, steps: Sequence[Step], outcome: CaseOutcome) -> tuple[int, str]:
    """Say which condition kept the first start rule from holding, or which rule held."""
    failed = [step for step in steps if not step.held and isinstance(step.at[-1], int)]
    whole = [step for step in steps if not step.held and not isinstance(step.at[-1], int)]
    held = next((step for step in steps if step.held and not isinstance(step.at[-1], int)), None)
    if failed or whole:
        step = failed[0] if failed else whole[0]
        return tested.line(step.at), f"route.start.{step.at[2]}: {as_written(step.text)} does not hold"
    if held is not None:
        return tested.line(held.at), f"route.start.{held.at[2]}: {held.text} holds"
    return 0, outcome.walk.reason


# --- requests ----------------------------------------------------------------------------------------------------


class Requests:
    """The whole requests of tests as the classifier reads them, each read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, str], tuple[Any, Any, Request]] = {}
        """By the body and the policy's `route.traffic` and `input`: all of a policy that such a request is read by."""

    def of(self, body: Mapping[str, Any], policy: Policy) -> Request:
        """Return the request with this body."""
        traffic, shorter = policy.route.traffic, str(policy.content.get("input"))
        key = id(body), id(traffic), shorter
        known = self._known.get(key)
        if known is None:
            from gateway.parts.lab.policy_tests.whole_requests import whole_request

            known = self._known[key] = (body, traffic, whole_request(body, policy))
        return known[2]


def _requests_together(
    under: PolicyUnderTest, test: RequestsTest, requests: Requests, coverage: Coverage
) -> list[Mismatch]:
    found: list[Mismatch] = []
    outcomes: list[CaseOutcome] = []
    read = [requests.of(body, under.policy) for _, body in test.bodies]
    for (name, _), parsed in zip(test.bodies, read, strict=True):
        request = Request(parsed.features, parsed.body, {**parsed.given, **test.case.given}, parsed.difficulty)
        outcome = under.run(test.case, request)
        outcomes.append(outcome)
        coverage.add(outcome.parts)
        found += mismatches_of(under, test.case, outcome, f"{name}: ")
    for key in ("same", "different"):
        if (aspect := test.together.get(key)) is not None:
            got = [GOT[aspect](under.policy, outcome) for outcome in outcomes]
            if (len(set(got)) == 1) != (key == "same"):
                each = ", ".join(f"{name} {value}" for (name, _), value in zip(test.bodies, got, strict=True))
                line, why = explain(under, aspect, outcomes[-1])
                found.append(
                    Mismatch(key, f"{'the same' if key == 'same' else 'a different'} {aspect}", each, line, why)
                )
    for key, wanted in (("not_cached_together", False), ("cached_together", True)):
        if (asked := test.together.get(key)) is not None:
            found += _cached_together(under, test, read, key, wanted == asked)
    return found


def _cached_together(
    under: PolicyUnderTest, test: RequestsTest, read: Sequence[Request], key: str, wanted: bool
) -> list[Mismatch]:
    """Compare the cache's verdict on each pair of requests, in both orders, with what is wanted."""
    from gateway.parts.lab.policy_tests.whole_requests import why_not_together

    at = under.tested.line(("cache",))
    problems = []
    for i, body in enumerate(read):
        for j, other in enumerate(read):
            if i == j or (wanted and i > j):
                continue
            why = why_not_together(under.policy, body, other)
            if (not why) != wanted:
                ours, theirs = test.bodies[i][0], test.bodies[j][0]
                got = f"the answer to {ours} would {'' if not why else 'not '}be served for {theirs}"
                problems.append(
                    Mismatch(key, "together" if wanted else "not together", got, at, f"cache: {why or 'a hit'}")
                )
    return problems[:1]
