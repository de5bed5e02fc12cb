"""What roles may do: the table, who is limited to what, and members of a team."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.config.sections import deployment_model
from gateway.parts.access.keys.roles import ACTIONS, ADMIN, EDITOR, NOBODY, OWNER, VIEWER, Grant, Person
from gateway.parts.console.config import ConsoleSections

SEARCH_EDITOR = Person("eve", grants=(Grant("editor", ("search",)),))
WEB_KEYS = Person("kay", grants=(Grant("key_admin", ("web",)),))
WEB_MEMBER = Person("mo", teams=("web",))


def test_an_admin_may_do_everything_and_nobody_nothing() -> None:
    for action in ACTIONS:
        assert ADMIN.may(action) and OWNER.may(action, "web") and ADMIN.may_some(action)
        assert not NOBODY.may(action) and not NOBODY.may(action, "web") and not NOBODY.may_some(action)


def test_an_editor_changes_the_policies_of_their_surfaces_alone() -> None:
    assert SEARCH_EDITOR.may("policies.change", "search") and SEARCH_EDITOR.may_some("policies.change")
    assert not SEARCH_EDITOR.may("policies.change", "chat")
    assert not SEARCH_EDITOR.may("policies.change"), "of all surfaces"
    assert EDITOR.may("policies.change") and EDITOR.may("policies.change", "chat")
    assert not VIEWER.may("policies.change", "chat") and VIEWER.may("look")


def test_a_key_admin_administers_the_keys_of_their_teams_alone() -> None:
    assert WEB_KEYS.may("keys.create", "web") and WEB_KEYS.may("keys.change", "web") and WEB_KEYS.may("look")
    assert not WEB_KEYS.may("keys.create", "search") and not WEB_KEYS.may("keys.create")
    assert not WEB_KEYS.may("teams.change", "web"), "not even their own team's budget"
    assert not WEB_KEYS.may("policies.change", "web"), "a surface may have a team's name"


def test_a_name_limits_an_editor_by_surface_and_not_by_team() -> None:
    """An editor of the surface web is no more a stranger to the team web than to any other."""
    editor = Person("ed", grants=(Grant("editor", ("web",)),))
    assert editor.may("usage.see", "search") and editor.may("usage.see")
    assert not editor.may("keys.see", "web")


def test_a_member_serves_themself_and_no_more() -> None:
    for action in ("keys.see", "keys.create", "keys.rotate", "teams.see", "usage.see"):
        assert WEB_MEMBER.may(action, "web") and not WEB_MEMBER.may(action, "search") and not WEB_MEMBER.may(action)
        assert WEB_MEMBER.may_some(action)
    for action in ("look", "keys.change", "teams.change", "keys.move", "policies.check", "audit.see"):
        assert not WEB_MEMBER.may(action, "web") and not WEB_MEMBER.may_some(action)


def test_an_action_that_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        ADMIN.may("keys.steal")


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
