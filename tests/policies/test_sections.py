"""Sections that somebody above adds to policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from pydantic import Field

from gateway.parts.lint.difference import difference
from gateway.parts.lint.rules import faults, lint
from gateway.parts.standard import PARTS
from policies import ADDED
from policies.errors import ConfigError, Finding
from policies.loader import SHIPPED, policy_files, read_policy
from policies.model import DeployedTier, Policy, Rules
from policies.sections import PolicySections, all_added
from policies.validation import Section

PLAIN = "surface: chat\nslo: {deadline: 5s}\ntiers: [small, large]\noptional_tiers: [small]\n"
ROUTE = "route: {start: {large: otherwise, small: stream}}\n"


class Ration(Section):
    """A section of a test."""

    tier: str
    cups: Annotated[int, Field(ge=0)] = 1


class RationSections(PolicySections):
    """The sections that these tests add."""

    ration: Ration | None = None
    cook: str = ""

    unversioned: ClassVar[frozenset[str]] = frozenset({"cook"})
    aside: ClassVar[frozenset[str]] = frozenset({"cook"})
    of_answers: ClassVar[frozenset[str]] = frozenset({"ration"})

    @classmethod
    def check(cls, rules: Rules) -> Iterator[Finding]:
        ration = rules.of(cls).ration
        if ration is not None and ration.tier not in rules.tiers:
            yield Finding(("ration", "tier"), f"no tier {ration.tier}", "T202")

    @classmethod
    def lint(cls, rules: Rules) -> Iterator[Finding]:
        ration = rules.of(cls).ration
        if ration is not None and ration.cups > 9:
            yield Finding(("ration", "cups"), "many cups", "T601")

    @classmethod
    def faults(cls, rules: Rules) -> Iterator[Finding]:
        ration = rules.of(cls).ration
        if ration is not None and ration.cups == 0:
            yield Finding(("ration", "cups"), "no cup", "T602")

    @classmethod
    def without_tiers(cls, rules: Rules, tiers: Sequence[str]) -> Mapping[str, object]:
        ration = rules.of(cls).ration
        gone = ration is not None and ration.tier not in tiers
        return {"ration": None} if gone else {}

    @classmethod
    def labels(cls, rules: Rules) -> bool:
        return rules.of(cls).cook == "judge"


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    others = all_added()
    monkeypatch.setattr(ADDED, "find", lambda: (*others, RationSections))
    monkeypatch.setattr(ADDED, "lacking", lambda: {"oven": "the section oven needs the part kitchen"})


def policy(folder: Path, more: str = "", tiers: Sequence[DeployedTier] | None = None) -> Policy:
    """The policy of these tests with more sections."""
    file = folder / "chat.yaml"
    file.write_text(PLAIN + ROUTE + more)
    return read_policy(file, tiers)[0]


def test_the_list_of_parts_names_the_sections_that_their_modules_define(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [name for part in all_added() for name in part.model_fields] == [
        name for part in PARTS for name in part.policy_sections
    ]


def test_a_policy_has_the_sections_that_were_added(tmp_path: Path) -> None:
    assert policy(tmp_path, "ration: {tier: small, cups: 2}\n").of(RationSections).ration == Ration(
        tier="small", cups=2
    )


def test_a_section_at_its_default_leaves_the_version_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {policy(tmp_path, more).version for more in ("", "cook: ann\n", "ration: null\n")}
    other = policy(tmp_path, "ration: {tier: small}\n")
    monkeypatch.undo()
    assert versions == {policy(tmp_path).version} and other.version not in versions


def test_stored_answers_belong_to_some_sections(tmp_path: Path) -> None:
    tiers = [DeployedTier("small", ("m",)), DeployedTier("large", ("n",))]
    plain, cook = policy(tmp_path, "", tiers), policy(tmp_path, "cook: ann\n", tiers)
    ration = policy(tmp_path, "ration: {tier: small}\n", tiers)
    assert plain.answers_version == cook.answers_version != ration.answers_version


def test_what_is_wrong_between_sections_is_told_at_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(tmp_path, "ration: {tier: medium}\n")
    assert [problem.key for problem in caught.value.problems] == ["ration.tier"]


def test_a_section_that_nobody_here_has_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the part kitchen"):
        policy(tmp_path, "oven: {}\n")


def test_mistakes_and_doubts_are_found(tmp_path: Path) -> None:
    many, none = (policy(tmp_path, f"ration: {{tier: small, cups: {cups}}}\n") for cups in (10, 0))
    assert "many cups" in {finding.message for finding in lint(many)}
    assert "no cup" in {finding.message for finding in faults(none)}


def test_a_section_that_names_a_tier_that_is_not_deployed_goes_with_it(tmp_path: Path) -> None:
    deployed = policy(tmp_path, "ration: {tier: small}\n", [DeployedTier("large", ("n",))])
    assert deployed.tiers == ("large",) and deployed.of(RationSections).ration is None


def test_a_share_is_held_out_where_somebody_labels_answers(tmp_path: Path) -> None:
    assert policy(tmp_path).held_out == 0 < policy(tmp_path, "cook: judge\n").held_out


def test_a_change_of_a_section_is_a_change_of_the_policy(tmp_path: Path) -> None:
    before, after = policy(tmp_path), policy(tmp_path, "ration: {tier: small}\ncook: ann\n")
    assert [(change.path, change.weight) for change in difference(before, after).changes] == [
        ("ration", "changes"),
        ("cook", "aside"),
    ]


def test_a_shipped_policy_that_needs_what_is_not_there_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Somebody's own is an error, as its caps would be in force no more."""
    everything = [file.name for file in policy_files(SHIPPED)]
    monkeypatch.setattr(ADDED, "lacking", lambda: {"session": "the section session needs the part agents"})
    assert sorted({*everything} - {file.name for file in policy_files(SHIPPED)}) == ["agent.yaml", "research.yaml"]
    (tmp_path / "own.yaml").write_text((SHIPPED / "agent.yaml").read_text())
    assert [file.name for file in policy_files(tmp_path)] == ["own.yaml"]
