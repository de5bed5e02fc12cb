"""Policy tests: the file format, cases, requests and coverage."""

from __future__ import annotations

import random
import re
from pathlib import Path

import jsonschema_rs
import orjson
import pytest

from gateway.cli.main import main
from gateway.parts.lab.policy_tests.clauses import Coverage
from gateway.parts.lab.policy_tests.format import Case, read_tests
from gateway.parts.lab.policy_tests.run import PolicyUnderTest, RunResult, run_files
from gateway.parts.lab.policy_tests.whole_requests import whole_request, why_not_together
from policies.errors import ConfigError
from policies.loader import SHIPPED, read_policy
from policies.yaml_source import read_yaml
from tests.cache.samples import doubtful_text

POLICY = """\
surface: chat
slo: {ttft: {p99: 900ms}, deadline: 60s, on_miss: serve_best}
tiers: [local, hosted]
route:
  start:
    local: p_adequate >= 0.7 and tokens_in < 3000
    hosted: otherwise
escalate:
  when:
    confidence_below: 0.62
    refusal: true
    finish: [length]
  stream: {hold_tokens: 24, hold_max: 250ms}
cache:
  exact: {ttl: 24h}
  semantic: {ttl: 6h}
  never: [tools, "temperature > 1"]
output: {max_tokens: 1024}
"""
WORLD = """\
policies: [chat.yaml]
world: {local: {ttft_p50: 90ms, total_p50: 1s}, hosted: {ttft_p50: 310ms, total_p50: 2s}}
tests:
"""


def ran(folder: Path, tests: str, policy: str = POLICY) -> RunResult:
    """Run these tests of this policy."""
    (folder / "chat.yaml").write_text(policy, "utf-8")
    file = folder / "chat.test.yaml"
    file.write_text(WORLD + tests, "utf-8")
    return run_files([read_tests(file)])


def failures(result: RunResult) -> list[str]:
    """Return `expected ..., got ... (line why)` of everything that was not as expected."""
    return [
        f"{one.key}: {one.expected}, got {one.got} ({one.line} {one.why})"
        for test in result.results
        for one in test.mismatches
    ]


PASSING = """\
  - name: an easy short question starts small
    given: {p_adequate: 0.83, in_domain: true, tokens_in: 40}
    expect: {start: local, rule: p_adequate >= 0.7 and tokens_in < 3000, path: direct, attempts: 1, stored: true}
  - name: a doubtful draft is replaced before the client sees a byte
    given: {p_adequate: 0.83, stream: true}
    draft: {tier: local, confidence: 0.41, tokens: 24, ttft: 110ms}
    expect: {path: escalated, tier: hosted, seen_of_draft: 0, why: 0.410 < 0.62}
  - name: too late to escalate serves the best so far
    world: {hosted: {ttft_p50: 9s}}
    given: {p_adequate: 0.83, budget_ms: 2000}
    draft: {tier: local, confidence: 0.41}
    expect: {path: degraded, tier: local, within: 2s, stored: false}
  - name: 62% is enough
    given: {p_adequate: 0.83}
    each:
      - {draft: {tier: local, confidence: 0.61}, expect: {path: escalated}}
      - {draft: {tier: local, confidence: 0.62}, expect: {path: direct}}
      - {draft: {tier: local, refusal: true}, expect: {path: escalated, called: [local, hosted]}}
      - {draft: {tier: local, fails: rejected}, expect: {refused: rejected, status: 400}}
  - name: the second call of a tier has its own draft
    given: {p_adequate: 0.83}
    world: {local: {backends: 2}}
    drafts: [{tier: local, fails: error}, {tier: local, confidence: 0.9}]
    expect: {path: direct, attempts: 2, called: [local, local]}
  - name: stored answers
    given: {p_adequate: 0.83}
    each:
      - {stored: {age: 23h, tier: hosted}, expect: {path: cache-exact, tier: hosted, attempts: 0}}
      - {stored: {age: 25h}, expect: {path: direct, cache: both, cache_why: expired}}
      - {stored: {similarity: 0.9, score: 0.99, age: 5h}, expect: {path: cache-semantic}}
      - {stored: {similarity: 0.9, score: 0.1}, expect: {path: direct, cache_why: similarity}}
      - {stored: {similarity: 0.2, score: 0.99}, expect: {path: direct}}
      - {given: {has_tools: true}, stored: {}, expect: {cache: none, cache_why: "never: tools", stored: false}}
      - {given: {temperature: 0.9}, expect: {cache: exact, cache_why: temperature}}
  - name: guards compare the texts
    given: {p_adequate: 0.83, text: How do I get a refund for order 1234?}
    stored: {question: How do I get a refund for order 1235?}
    expect: {path: direct, cache_why: numbers}
  - name: limits
    given: {p_adequate: 0.1, max_tokens: 50, ttft_ms: 500, budget_ms: 3000}
    expect: {max_tokens: 50, deadline: 3s, priority: interactive, start: hosted, not: {max_tokens: 1024}}
  - name: a tier without its key is left out
    world: {local: {configured: false}}
    given: {p_adequate: 0.83}
    expect: {start: hosted, path: direct}
  - name: nothing is up
    world: {local: {up: false}, hosted: {up: false}}
    given: {p_adequate: 0.83}
    expect: {refused: [no_tier, full], attempts: 0}
"""


def test_cases_pass(tmp_path: Path) -> None:
    """Each key of a case does what the README says."""
    result = ran(tmp_path, PASSING)
    assert failures(result) == []
    assert len(result.results) == 19


def test_what_may_change_with_time_is_served_for_a_short_time(tmp_path: Path) -> None:
    """In tests as on a gateway: up to `cache.doubt_ttl`, where a rule of `never` names `volatile`."""
    text = doubtful_text()
    tests = f"""\
  - name: an answer that may age
    given: {{p_adequate: 0.83, text: "{text}"}}
    each:
      - {{stored: {{age: 1m}}, expect: {{path: cache-exact}}}}
      - {{stored: {{age: 6m}}, expect: {{path: direct, cache: both, cache_why: in_doubt}}}}
      - {{given: {{volatile: true, text: null}}, expect: {{cache: none, cache_why: "never: volatile"}}}}
"""
    policy = POLICY.replace("never: [tools,", "never: [volatile, tools,")
    assert failures(ran(tmp_path, tests, policy)) == []
    for_good = tests.replace("path: direct, cache: both, cache_why: in_doubt", "path: cache-exact").splitlines()[:-1]
    assert failures(ran(tmp_path, "\n".join(for_good) + "\n")) == []


def test_a_test_says_how_warm_a_conversation_is(tmp_path: Path) -> None:
    """What each tier would cost it decides where an easy turn starts, and nothing for a hard one."""
    costs = "costs: {local: {usd: 0.03, cold: 9000, cold_time: 400ms}, hosted: {usd: USD}}"
    stays, goes = costs.replace("USD", "0.02"), costs.replace("USD", "0.04")
    tests = f"""\
  - name: an easy turn stays while that costs less
    given: {{p_adequate: 0.83, {stays}}}
    each:
      - {{expect: {{start: hosted, rule: "p_adequate >= 0.7 and tokens_in < 3000"}}}}
      - {{given: {{{goes}}}, expect: {{start: local}}}}
      - {{given: {{p_adequate: 0.2, {goes}}}, expect: {{start: hosted, rule: otherwise}}}}
      - {{given: {{stream: true, ttft_ms: 350, {goes}}}, expect: {{start: hosted}}}}
"""
    assert failures(ran(tmp_path, tests)) == []
    ignored = POLICY.replace("  start:", "  weigh_switching: false\n  start:")
    assert len(failures(ran(tmp_path, tests, ignored))) == 2


def test_a_test_says_how_much_of_a_budget_is_spent(tmp_path: Path) -> None:
    """From the policy's share on a hard request starts at the cap, and thresholds come down."""
    tests = """\
  - name: the last of a budget
    given: {p_adequate: 0.2}
    each:
      - {given: {budget_share: 0.89}, expect: {start: hosted}}
      - {given: {budget_share: 0.95}, expect: {start: local, why: capped at local}}
      - {given: {budget_share: 0.95, budget_cap: hosted}, expect: {start: hosted}}
  - name: the thresholds
    given: {p_adequate: 0.9, budget_cap: hosted}
    draft: {tier: local, confidence: 0.5}
    each:
      - {expect: {path: escalated}}
      - {given: {budget_share: 0.99}, expect: {path: direct, stored: false}}
"""
    assert failures(ran(tmp_path, tests)) == []
    assert len(failures(ran(tmp_path, tests, POLICY.replace("route:", "spending: {cap: none}\nroute:")))) == 2


def test_a_draft_says_whose_word_its_confidence_is(tmp_path: Path) -> None:
    """A judge's, held against the threshold for what no head calibrated; of one that is not asked there is no word."""
    asked = POLICY.replace("    refusal: true", "    uncalibrated_below: 0.7\n    refusal: true").replace(
        "escalate:\n", "escalate:\n  verify: [logprobs, judge]\n  judge: {backend: judge}\n"
    )
    tests = """\
  - name: the judge's word counts
    given: {p_adequate: 0.9, tokens_in: 50}
    each:
      - {draft: {tier: local, confidence: 0.7, calibrated: false, by: judge}, expect: {path: direct}}
      - {draft: {tier: local, confidence: 0.69, calibrated: false, by: judge}, expect: {path: escalated}}
      - {draft: {tier: local, confidence: 0.62, by: judge}, expect: {path: direct}}
      - {draft: {tier: local, confidence: 0.99, by: scorer}, expect: {path: escalated}}
"""
    assert failures(ran(tmp_path, tests, asked)) == []
    unasked = POLICY.replace("escalate:\n", "escalate:\n  verify: [logprobs, judge]\n")
    assert len(failures(ran(tmp_path, tests, unasked))) == 2


def test_what_a_tier_lacks_moves_a_request(tmp_path: Path) -> None:
    """What a request needs beside tools, images and JSON is said by name; `n` follows from the request's own."""
    result = ran(
        tmp_path,
        """\
  - name: two choices
    given: {p_adequate: 0.83, n: 2}
    each:
      - {expect: {start: local}}
      - {world: {local: {lacks: [n]}}, expect: {start: hosted}}
      - {world: {local: {lacks: [n]}, hosted: {lacks: [n]}}, expect: {refused: unable, status: 400}}
  - name: a service tier
    given: {p_adequate: 0.83, needs: [service_tier_flex]}
    world: {local: {lacks: [service_tier_flex]}}
    expect: {start: hosted}
  - name: a request of two choices in another service tier
    requests: [{messages: [{role: user, content: Hi}], n: 2, service_tier: priority}]
    world: {local: {lacks: [service_tier_priority]}}
    expect: {start: hosted}
  - name: audio
    given: {p_adequate: 0.83, needs: [audio]}
    each:
      - {expect: {refused: unable}}
      - {world: {hosted: {can: [audio]}}, expect: {start: hosted}}
""",
    )
    assert failures(result) == []
    assert len(result.results) == 7


def test_failures_name_the_line_that_explains_them(tmp_path: Path) -> None:
    """What was expected, what was got, and the rule of the policy that made it so."""
    result = ran(
        tmp_path,
        """\
  - name: long
    given: {p_adequate: 0.83, tokens_in: 5000}
    expect: {start: local}
  - name: sure
    given: {p_adequate: 0.83}
    draft: {tier: local, confidence: 0.41}
    expect: {path: direct}
""",
    )
    assert failures(result) == [
        "start: local, got hosted (6 route.start.local: tokens_in < 3000 does not hold)",
        "path: direct, got escalated (10 escalate.when.confidence_below: 0.41 < 0.62)",
    ]
    assert [one.line for one in result.results] == [4, 7]


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("  - {name: a, expect: {pth: direct}}\n", "chat.test.yaml:4.*expect.pth: unknown key .did you mean 'path'"),
        ("  - {name: a, expect: {start: lokal}}\n", "chat.test.yaml:4.*no tested policy has a tier 'lokal'.*'local'"),
        (
            "  - {name: a, draft: {tier: big}, expect: {path: direct}}\n",
            "draft.tier: no tested policy has a tier 'big'",
        ),
        ("  - {name: a}\n", "expect: says nothing, so the test can never fail"),
        ("  - {name: a, expect: {same: start}}\n", "expect.same: compares requests"),
        (
            "  - {name: a, forall: {turns: 1..2}, expect: {always: {start: local}}}\n",
            "forall: is no longer searched; write the values .* of `each`",
        ),
        ("  - {name: a, expect: {never_falls: tier, as: turns}}\n", "expect.never_falls: went with `forall`"),
        ("  - {name: a, requests: [none.json], expect: {path: direct}}\n", r"requests\[0\]: cannot be read"),
        ("  - {name: a, surface: voice, expect: {path: direct}}\n", "no tested policy is of 'voice'"),
    ],
)
def test_mistakes_in_a_test_file_are_told(tmp_path: Path, tests: str, problem: str) -> None:
    """With file, line and key, before anything runs."""
    with pytest.raises(ConfigError) as raised:
        ran(tmp_path, tests)
    assert re.search(problem, str(raised.value)), str(raised.value)


def test_values_that_a_rule_needs_are_asked_for(tmp_path: Path) -> None:
    """In its domain the classifier always gives p_adequate, so a test has to."""
    with pytest.raises(ConfigError, match=r"a rule of chat\.yaml asks for p_adequate"):
        ran(tmp_path, "  - {name: a, given: {in_domain: true}, expect: {start: local}}\n")


def test_whole_requests_are_rated_and_compared(tmp_path: Path) -> None:
    """The real classifier rates them, and the cache's own plan and guards say whether they share an answer."""
    asked = {"messages": [{"role": "user", "content": "How do I get a refund for order 1234?"}]}
    (tmp_path / "one.json").write_bytes(orjson.dumps(asked))
    result = ran(
        tmp_path,
        """\
  - name: other numbers
    requests: [one.json, {messages: [{role: user, content: "How do I get a refund for order 1235?"}]}]
    expect: {same: start, not_cached_together: true, path: [direct, escalated]}
  - name: the same again
    requests: [one.json, one.json]
    expect: {cached_together: true}
  - name: not the same
    requests: [one.json, one.json]
    expect: {not_cached_together: true}
""",
    )
    assert failures(result) == [
        "not_cached_together: not together, got the answer to one.json would be served for one.json (14 cache: a hit)"
    ]


SHARING = """\
surface: chat
slo: {ttft: {p99: 900ms}, total: {p95: 3s}, deadline: 20s, on_miss: serve_best}
tiers: [local, hosted]
route:
  start: {local: p_adequate >= 0.7 and tokens_in < 3000 or budget_ms < 900, hosted: otherwise}
escalate:
  when: {confidence_below: 0.62, refusal: true, finish: [length], invalid: [json]}
  stream: {hold_tokens: 24, hold_max: 250ms}
  hedge: {after: p95, max_extra_spend: 3%}
  speculate: {both: 0.4 < quantile < 0.6}
cache:
  exact: {ttl: 24h}
  semantic: {ttl: 6h}
  never: [tools, "temperature > 1", turns > 3 and stream, tokens_in > 4000, json]
output: {max_tokens: 1024}
load: {priority: interactive, max_wait: 1s}
holdout: 1%
"""
SHARED_VALUES: dict[str, list[str]] = {
    "p_adequate": ["0.5", "0.9"],
    "tokens_in": ["40", "3500", "5000"],
    "turns": ["1", "5"],
    "quantile": ["0.1", "0.5"],
    "stream": ["true", "false"],
    "wants_json": ["true"],
    "has_tools": ["true"],
    "has_images": ["true"],
    "budget_ms": ["800", "2500", "9000"],
    "ttft_ms": ["200"],
    "max_tier": ["local"],
    "holdout": ["true"],
    "may_hedge": ["false"],
    "temperature": ["0.2", "0.9", "1.5"],
    "n": ["2"],
    "seed": ["7"],
    "max_tokens": ["50", "5000"],
    "text": ["What is the weather in Lisbon today?"],
}
SHARED_WORLDS = [
    "{}",
    "{hosted: {ttft_p50: 9s}}",
    "{local: {queue: 600ms, waiting: 2}, hosted: {watch_drafts: true}}",
    "{local: {ttft_p50: 400ms, ttft_p95: 500ms, total_p95: 900ms, backends: 2, watch_drafts: true}}",
    "{local: {ttft_p95: 200ms, total_p95: 1500ms}, hosted: {ttft_p50: 100ms, total_p50: 400ms}}",
    "{local: {configured: false}}",
    "{hosted: {up: false, failing: true}}",
]
SHARED_DRAFTS = [
    "{tier: local, confidence: 0.4}",
    "{tier: local, confidence: 0.4, tokens: 300, total: 2s}",
    "{tier: local, fails: error}",
    "{tier: local, fails: too_long}",
    "{tier: local, ttft: 3s, total: 4s}",
    "{tier: local, invalid: json, tokens: 200}",
    "{tier: local, finish: length}",
    "{tier: hosted, fails: rejected}",
]
SHARED_STORED = ["{}", "{age: 25h}", "{age: 5h, similarity: 0.95, score: 0.99}", "{tier: hosted}"]


def test_what_cases_share_is_what_each_would_get_alone(tmp_path: Path) -> None:
    """Of cases that differ in one value each, all get what they get from a policy of their own."""
    draw = random.Random(1)
    tests = []
    for i, world in enumerate(SHARED_WORLDS * 2):
        draft, stored = draw.choice(SHARED_DRAFTS), SHARED_STORED[i // 3] if i % 3 == 2 else ""
        said = f"world: {world}, draft: {draft}, {f'stored: {stored}, ' if stored else ''}expect: {{refused: false}}"
        base = {"p_adequate": "0.9", "stream": str(i % 2 == 0).lower()}
        for name, values in {**SHARED_VALUES, "": [""]}.items():
            for value in values:
                given = ", ".join(f"{key}: {one}" for key, one in {**base, name: value}.items() if key)
                tests.append(f"  - {{name: case {len(tests)}, given: {{{given}}}, {said}}}\n")
    (tmp_path / "chat.yaml").write_text(SHARING, "utf-8")
    (tmp_path / "chat.test.yaml").write_text(WORLD + "".join(tests), "utf-8")
    read = read_tests(tmp_path / "chat.test.yaml")
    together, covered, covered_alone = PolicyUnderTest(read.policies[0]), Coverage(), Coverage()
    paths = set()
    for case in read.tests:
        assert isinstance(case, Case)
        shared, alone = together.run(case), PolicyUnderTest(read.policies[0]).run(case)
        assert (shared, shared.steps) == (alone, alone.steps), case.name
        covered.add(shared.parts)
        covered_alone.add(alone.parts)
        paths.add(shared.walk.path)
    assert covered.seen == covered_alone.seen
    assert paths == {"", "direct", "escalated", "degraded", "fallback", "hedged", "cache-exact", "cache-semantic"}


def test_coverage_lists_what_was_never_seen(tmp_path: Path) -> None:
    """Each clause both ways: a condition of a rule is a clause of its own."""
    (one,) = ran(tmp_path, PASSING).policies
    unseen = {(clause.text, missing) for clause, missing in one.unseen}
    assert ("escalate.when.refusal", True) not in unseen
    assert ("escalate.when.finish.length", True) in unseen
    assert ("route.start.local: tokens_in < 3000", False) in unseen
    assert ("cache.never: temperature > 1", True) in unseen
    assert ("slo.on_miss", True) not in unseen


def test_command_prints_what_a_reader_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failures with lines, what is not covered, the exit code; JSON and JUnit for machines."""
    ran(tmp_path, PASSING)
    assert main(["policy", "test", str(tmp_path / "chat.yaml"), "--fail-under", "10%"]) == 0
    told = capsys.readouterr().out
    assert "  ok    an easy short question starts small" in told
    assert re.search(r"^19 passed       clauses \d+ of \d+ both ways \(\d+%\)$", told, re.MULTILINE)
    assert "  never true:    chat.yaml:12 escalate.when.finish.length" in told
    assert main(["policy", "test", str(tmp_path), "--fail-under", "99%", "--only-failures"]) == 1
    assert "ok    " not in capsys.readouterr().out
    file = tmp_path / "chat.test.yaml"
    file.write_text(WORLD + PASSING.replace("attempts: 1,", "attempts: 2,"), "utf-8")
    assert main(["policy", "test", str(file), "--run", "easy"]) == 1
    assert "  FAIL  an easy short question starts small" in (told := capsys.readouterr().out)
    assert "        expected attempts 2, got 1" in told
    assert main(["policy", "test", str(file), "--format", "junit"]) == 1
    assert '<failure message="expected attempts 2, got 1">' in capsys.readouterr().out
    assert main(["policy", "test", str(file), "--json"]) == 1
    assert orjson.loads(capsys.readouterr().out)["failed"] == 1
    assert main(["policy", "test", str(file), "--run", "nowhere"]) == 2
    assert main(["policy", "test", str(tmp_path / "none")]) == 2


def test_the_schema_of_test_files_takes_what_the_reader_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Editors mark what the reader would refuse, and nothing in a file that it reads."""
    assert main(["policy", "schema", "--tests"]) == 0
    schema = jsonschema_rs.Draft7Validator(orjson.loads(capsys.readouterr().out))
    for file in sorted(SHIPPED.glob("*.test.yaml")):
        assert [str(error) for error in schema.iter_errors(read_yaml(file).value)] == []
    (tmp_path / "t.yaml").write_text(WORLD + PASSING, "utf-8")
    assert schema.is_valid(read_yaml(tmp_path / "t.yaml").value)
    for wrong in ("{pth: direct}", "{path: straight}", "{within: 3}", "{held: many}"):
        (tmp_path / "t.yaml").write_text(f"{WORLD}  - {{name: a, expect: {wrong}}}\n", "utf-8")
        assert not schema.is_valid(read_yaml(tmp_path / "t.yaml").value), wrong


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("怎么开启手机的蓝牙功能？", "怎么关闭手机的蓝牙功能？", "guard: script"),
        ("How do I mute the \U0001f514 sign?", "How can I silence the \U0001f514 sign?", "guard: unknown_token"),
        ("How do I renew a passport?", "how do i renew a passport", ""),
    ],
)
def test_questions_that_no_model_can_read_share_no_answer(one: str, other: str, why: str) -> None:
    """A test says so as the gateway does, by the same names."""
    shipped = read_policy(SHIPPED / "chat.yaml")[0]
    asked = [whole_request({"messages": [{"role": "user", "content": text}]}, shipped) for text in (one, other)]
    assert why_not_together(shipped, *asked) == why
