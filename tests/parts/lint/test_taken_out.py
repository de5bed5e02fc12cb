"""Keys and words that were taken out of policies: read for one release, without effect, and named by lint."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.lint.commands.policy_lint import Checks, fix
from gateway.parts.lint.taken_out import TAKEN_OUT
from policies import ADDED
from policies.errors import ConfigError
from policies.loader import read_policy

PLAIN = """\
surface: chat
slo: {deadline: 20s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
"""
VERSION = "cdf8843d7d185bebf35f7ab70e0ca243943808b3d7b0a31d7b69dfd662d5ff59"
"""That of PLAIN when policies had these keys; those of WITH are below."""
WITH = {
    "escalate.speculate.during_lookup": "escalate: {speculate: {during_lookup: true}}\n",
    "escalate.stream.on_break": "escalate: {stream: {on_break: correct}}\n",
    "cache.replay": "cache: {exact: {ttl: 1h}, replay: paced}\n",
}


def test_a_policy_keeps_its_version(tmp_path: Path) -> None:
    """So that what was decided by it can be decided again."""
    file = tmp_path / "chat.yaml"
    file.write_text(PLAIN)
    assert read_policy(file)[0].version == VERSION
    file.write_text(PLAIN + "escalate: {speculate: {during_lookup: false}}\n")
    assert read_policy(file)[0].version == VERSION
    for more, version in zip(WITH.values(), ("cd02528", "789a335", "18afc51"), strict=True):
        file.write_text(PLAIN + more)
        assert read_policy(file)[0].version[:7] == version


def test_a_policy_has_the_same_version_where_nobody_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has such a key is refused then, without a word of what to write instead."""
    monkeypatch.setattr(ADDED, "reading", lambda: None)
    file = tmp_path / "chat.yaml"
    file.write_text(PLAIN)
    assert read_policy(file)[0].version == VERSION
    file.write_text(PLAIN + WITH["cache.replay"].replace("1h", "1 h"))
    with pytest.raises(ConfigError, match=r"cache\.replay: unknown key") as caught:
        read_policy(file)
    assert [problem.mend for problem in caught.value.problems] == ["", ""]


@pytest.mark.parametrize("key", WITH)
def test_it_is_read_and_lint_says_what_to_write(tmp_path: Path, key: str) -> None:
    """At its line, and a script can mend it."""
    file = tmp_path / "chat.yaml"
    file.write_text(PLAIN + WITH[key])
    checks = Checks([tmp_path], None, None)
    [finding] = checks.findings()
    assert (finding.code, finding.key, finding.line) == ("T109", key, 5)
    fix(checks)
    assert checks.findings() == []
    assert {".".join(one.at) for one in TAKEN_OUT} == set(WITH)


OF_OUTPUT = "output: {force: {service_tier: flex}, set: {verbosity: low, reasoning_effort: low}}\n"


def test_what_output_sets_counts_at_each_tier(tmp_path: Path) -> None:
    """Where the tier says no other; the policy keeps its version, and lint says where to write it."""
    file = tmp_path / "chat.yaml"
    file.write_text(PLAIN + "output: {set: {verbosity: low}}\n")
    assert read_policy(file)[0].version[:7] == "708e02f"
    file.write_text(PLAIN + "tier_fields: {hosted: {set: {thinking: null, seed: 1}}}\n" + OF_OUTPUT)
    policy, _ = read_policy(file)
    assert {tier: dict(fields) for tier, fields in policy.tier_fields.items()} == {
        "local": {"set": {"verbosity": "low", "reasoning_effort": "low"}, "force": {"service_tier": "flex"}},
        "hosted": {"set": {"verbosity": "low", "thinking": None, "seed": 1}, "force": {"service_tier": "flex"}},
    }
    found = Checks([tmp_path], None, None).findings()
    assert [(one.code, one.key) for one in found] == [("T109", "output.force"), ("T109", "output.set")]
    file.write_text(
        PLAIN + "tier_fields: {hosted: {set: {seed: 1}}}\noutput: {force: {service_tier: flex}, "
        "set: {verbosity: low}}\n"
    )
    assert read_policy(file)[0].version[:7] == "8d5a301"
