"""Which request fields may be set, and what they change about a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import ConfigError
from policies.loader import read_policy
from policies.model import DeployedTier, Policy

POLICY = """surface: chat
slo: {deadline: 20s}
tiers: [local, hosted]
route: {start: {local: otherwise}}
"""
TIERS = (DeployedTier("local", ("small",)), DeployedTier("hosted", ("large",)))


def made(folder: Path, more: str = "", tiers: tuple[DeployedTier, ...] = TIERS) -> Policy:
    """The policy with `more` at its end."""
    file = folder / "chat.yaml"
    file.write_text(POLICY + more)
    return read_policy(file, tiers)[0]


def test_a_policy_that_sets_nothing_keeps_its_versions(tmp_path: Path) -> None:
    """Stored answers of a version without these keys are still served."""
    plain = made(tmp_path)
    written = made(tmp_path, "tier_fields: {}\noutput: {}\n")
    assert not plain.sets_fields and not written.sets_fields
    assert (written.version, written.answers_version) == (plain.version, plain.answers_version)


@pytest.mark.parametrize(
    "more",
    [
        "tier_fields: {hosted: {set: {reasoning_effort: low}}}\n",
        "tier_fields: {hosted: {force: {reasoning_effort: low}}}\n",
        "output: {instruction: Be concise.}\n",
    ],
)
def test_what_is_set_is_part_of_what_makes_an_answer(tmp_path: Path, more: str) -> None:
    """Another value is another version of the answers, and of the policy."""
    plain, low, high = made(tmp_path), made(tmp_path, more), made(tmp_path, more.replace("low", "high"))
    assert low.sets_fields
    assert low.answers_version != plain.answers_version and low.version != plain.version
    assert (low == high) == (low.answers_version == high.answers_version)


def test_what_a_backend_sets_is_part_of_what_makes_an_answer(tmp_path: Path) -> None:
    """The policy stays the same; its answers do not."""
    low, high = (
        made(tmp_path, tiers=(TIERS[0], DeployedTier("hosted", ("large",), fields=(effort,))))
        for effort in ('{"set":{"reasoning_effort":"low"}}', '{"set":{"reasoning_effort":"high"}}')
    )
    assert low.version == high.version and low.answers_version != high.answers_version


def test_the_order_of_fields_has_no_meaning(tmp_path: Path) -> None:
    """Neither in the version nor for stored answers."""
    one = made(tmp_path, "tier_fields: {local: {set: {verbosity: low, seed: 7}}}\n")
    other = made(tmp_path, "tier_fields: {local: {set: {seed: 7, verbosity: low}}}\n")
    assert (one.version, one.answers_version) == (other.version, other.answers_version)


@pytest.mark.parametrize(
    ("more", "key", "says"),
    [
        (
            "tier_fields: {local: {set: {max_tokens: 9}}}\n",
            "tier_fields.local.set.max_tokens",
            "write output.max_tokens",
        ),
        ("tier_fields: {local: {force: {model: x}}}\n", "tier_fields.local.force.model", "write it at the backend"),
        (
            "tier_fields: {local: {set: {messages: []}}}\n",
            "tier_fields.local.set.messages",
            "it is what the client asks for",
        ),
        (
            "tier_fields: {local: {set: {t: {at_most: 1, at_least: 2}}}}\n",
            "tier_fields.local.set.t",
            "at_least is more than at_most",
        ),
        ("tier_fields: {local: {set: {t: {at_most: hot}}}}\n", "tier_fields.local.set.t", "write numbers"),
        ("tier_fields: {local: {set: {t: {at_most: 1, x: 2}}}}\n", "tier_fields.local.set.t", "stand alone"),
        ("tier_fields: {local: {set: {t: .nan}}}\n", "tier_fields.local.set.t", "cannot be written as JSON"),
        ("tier_fields: {hsted: {set: {seed: 1}}}\n", "tier_fields.hsted", "write hosted"),
        ("tier_fields: {hosted: {sets: {seed: 1}}}\n", "tier_fields.hosted.sets", "did you mean"),
    ],
)
def test_a_field_that_cannot_be_set_is_refused_at_its_place(tmp_path: Path, more: str, key: str, says: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError) as refused:
        made(tmp_path, more)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert says in str(problem)
