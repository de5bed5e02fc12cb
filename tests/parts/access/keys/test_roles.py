"""What roles may do: the table, who is limited to what, and members of a team."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.config.sections import deployment_model
from gateway.parts.access.keys.roles import ACTIONS, ADMIN, EDITOR, NOBODY, OWNER, VIEWER, Grant, Person, may, may_some
from gateway.parts.console.config import ConsoleSections

SEARCH_EDITOR = Person("eve", grants=(Grant("editor", ("search",)),))
WEB_KEYS = Person("kay", grants=(Grant("key_admin", ("web",)),))
WEB_MEMBER = Person("mo", teams=("web",))


def test_an_admin_may_do_everything_and_nobody_nothing() -> None:
    for action in ACTIONS:
        assert may(ADMIN, action) and may(OWNER, action, "web") and may_some(ADMIN, action)
        assert not may(NOBODY, action) and not may(NOBODY, action, "web") and not may_some(NOBODY, action)


def test_an_editor_changes_the_policies_of_their_surfaces_alone() -> None:
    assert may(SEARCH_EDITOR, "policies.change", "search") and may_some(SEARCH_EDITOR, "policies.change")
    assert not may(SEARCH_EDITOR, "policies.change", "chat")
    assert not may(SEARCH_EDITOR, "policies.change"), "of all surfaces"
    assert may(EDITOR, "policies.change") and may(EDITOR, "policies.change", "chat")
    assert not may(VIEWER, "policies.change", "chat") and may(VIEWER, "look")


def test_a_key_admin_administers_the_keys_of_their_teams_alone() -> None:
    assert may(WEB_KEYS, "keys.create", "web") and may(WEB_KEYS, "keys.change", "web") and may(WEB_KEYS, "look")
    assert not may(WEB_KEYS, "keys.create", "search") and not may(WEB_KEYS, "keys.create")
    assert not may(WEB_KEYS, "teams.change", "web"), "not even their own team's budget"
    assert not may(WEB_KEYS, "policies.change", "web"), "a surface may have a team's name"


def test_a_name_limits_an_editor_by_surface_and_not_by_team() -> None:
    """An editor of the surface web is no more a stranger to the team web than to any other."""
    editor = Person("ed", grants=(Grant("editor", ("web",)),))
    assert may(editor, "usage.see", "search") and may(editor, "usage.see")
    assert not may(editor, "keys.see", "web")


def test_a_member_serves_themself_and_no_more() -> None:
    for action in ("keys.see", "keys.create", "keys.rotate", "teams.see", "usage.see"):
        assert may(WEB_MEMBER, action, "web") and not may(WEB_MEMBER, action, "search") and not may(WEB_MEMBER, action)
        assert may_some(WEB_MEMBER, action)
    for action in ("look", "keys.change", "teams.change", "keys.move", "policies.check", "audit.see"):
        assert not may(WEB_MEMBER, action, "web") and not may_some(WEB_MEMBER, action)


def test_an_action_that_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        may(ADMIN, "keys.steal")


README = (Path(__file__).parents[4] / "gateway" / "parts" / "access" / "README.md").read_text("utf-8")


def test_the_readme_has_the_table() -> None:
    rows = re.findall(r"^\| (\w+\.?\w*) \| (.+)\. \| (.+) \| (.+) \| (.+) \| (.+) \|$", README, re.MULTILINE)
    shown = {row[0]: row[1:] for row in rows if row[0] in ACTIONS}
    assert shown.keys() == ACTIONS.keys()
    for name, rule in ACTIONS.items():
        of_editors = "their surfaces" if rule.within == "surface" else "yes"
        of_key_admins = "their teams" if rule.within == "team" else "yes"
        expected = (
            rule.what,
            "yes" if "viewer" in rule.roles else "-",
            of_editors if "editor" in rule.roles else "-",
            of_key_admins if "key_admin" in rule.roles else "-",
            "own team" if rule.members else "-",
        )
        assert shown[name] == expected, name


def test_the_readmes_example_is_a_config() -> None:
    section = README.partition("## A company's own identity")[2]
    example = section.partition("```yaml\n")[2].partition("```")[0]
    tier = {"name": "small", "backends": [{"model": "small", "base_url": "http://127.0.0.1:9/v1"}]}
    deployed = deployment_model().model_validate({"tiers": [tier], **yaml.safe_load(example)})
    assert deployed.identity.issuers[0].teams == {"llm-web": "web", "llm-search": "search"}
    assert len(deployed.roles) == 4 and deployed.of(ConsoleSections).console.login is not None
