"""Measure how many cases of policy tests run in a second of CPU time on one core.

    python -m tests.bench.policy_tests [--cases 10000] [--policy policies/chat.yaml]

Every case is another one, read once and run once, with its coverage. `routing` asks where a request starts and what
path it takes; `drafts` has a doubtful draft that escalates; `fails` has a call that fails. In these, what follows on a
decision is the same for many cases, and is worked out once; in `distinct` each has a draft of its own. The interval is
the range of the middle 90% of batches of 100 cases: on a machine that does other work, the upper end is nearer to what
a core of its own gives. Reading the file (YAML, checks of every key) is measured apart.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gateway.parts.lab.policy_tests.format import Case, read_tests
from gateway.parts.lab.policy_tests.run import Coverage, PolicyUnderTest, Requests, run_test
from policies.loader import SHIPPED
from tests.bench.command import bench_parser

_BATCH = 100
_IN_FILE = 500
_GIVEN = "given: {{kind: chat, quantile: {share:.4f}, p_adequate: {share:.4f}, tokens_in: {tokens}, stream: {stream}}}"
KINDS: Mapping[str, str] = {
    "routing": "{given}, expect: {{refused: false}}",
    "drafts": "{given}, draft: {{tier: {first}, confidence: 0.1}}, expect: {{refused: false}}",
    "distinct": "{given}, draft: {{tier: {first}, confidence: {share}, ttft: {ms}ms}}, expect: {{refused: false}}",
    "fails": "{given}, draft: {{tier: {first}, fails: error}}, expect: {{path: [direct, fallback]}}",
}


def test_file(policy: Path, kind: str, first: str, cases: int) -> str:
    """Return a test file with this many different cases of one kind."""
    lines = [
        f"policies: ['{policy.resolve()}']",
        "world: {" + f"{first}: {{ttft_p50: 90ms, total_p50: 1s}}" + "}",
        "tests:",
    ]
    for i in range(cases):
        given = _GIVEN.format(share=i / cases, tokens=i % 5000, stream=str(i % 2 == 0).lower())
        said = KINDS[kind].format(given=given, first=first, share=f"{i / cases:.4f}", ms=i % 300)
        lines.append(f"  - {{name: case {i}, {said}}}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the figures."""
    parser = bench_parser("policy_tests", __doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--policy", type=Path, default=SHIPPED / "chat.yaml")
    options = parser.parse_args(arguments)
    print(f"{options.cases:,} cases of each kind against {options.policy.name}; CPU time of one thread")
    for kind in KINDS:
        read_s, took = _measured(options.policy, kind, options.cases)
        rates = sorted(_BATCH / seconds for seconds in took)
        low, middle, high = (rates[round(q * (len(rates) - 1))] for q in (0.05, 0.5, 0.95))
        print(
            f"{kind:8s} {middle:8,.0f} cases/s (90% of batches: {low:,.0f} to {high:,.0f}), "
            f"{1e6 / middle:5.0f} us a case; reading the file {read_s / options.cases * 1e6:4.0f} us a case"
        )


def _measured(policy: Path, kind: str, cases: int) -> tuple[float, list[float]]:
    """Return the CPU seconds for reading the file, and for each batch of cases."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.test.yaml"
        read_s, took = 0.0, []
        for _ in range(max(1, cases // _IN_FILE)):
            # A file holds 256 KiB at most, so the cases come in several files.
            file.write_text(test_file(policy, kind, "local", _IN_FILE) + "\n", "utf-8")
            began = time.thread_time()
            read = read_tests(file)
            read_s += time.thread_time() - began
            under, coverage, requests = PolicyUnderTest(read.policies[0]), Coverage(), Requests()
            tests = [test for test in read.tests if isinstance(test, Case)]
            for start in range(0, len(tests), _BATCH):
                began = time.thread_time()
                for test in tests[start : start + _BATCH]:
                    run_test(under, test, requests, coverage)
                took.append(time.thread_time() - began)
    return read_s, took


if __name__ == "__main__":
    main()
