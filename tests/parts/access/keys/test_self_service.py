"""What keys people may make for their own team."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.parts.access.keys.key_caller import Limited, caller_of
from gateway.parts.access.keys.records import KeyRecord, OwnerRecord
from gateway.parts.access.keys.roles import ADMIN, Grant, Person
from gateway.parts.access.keys.self_service import NotAllowed, allowed_key, may_with
from gateway.parts.access.quotas.terms import Budget, Terms

NOW, DAY = 1_800_000_000.0, 86400.0
MEMBER = Person("mo@acme.example", "u_1", tenant="acme", teams=("web",))
KEY_ADMIN = Person("kay@acme.example", "u_2", (Grant("key_admin", ("web",)),), tenant="acme")
WEB = OwnerRecord(
    "team",
    "web",
    terms=Terms(requests_per_minute=100, budgets=(Budget(usd=500, per="month"), Budget(usd=50, per="day"))),
    surfaces=("chat", "search"),
    tiers=("local", "small"),
    longest_life_s=90 * DAY,
)


def key(**more: Any) -> KeyRecord:
    return KeyRecord("", "", **{"tenant": "acme", "team": "web", **more})


def test_what_a_key_leaves_open_is_what_the_team_allows() -> None:
    made = allowed_key(MEMBER, key(), WEB, NOW)
    assert made.surfaces == WEB.surfaces and made.tiers == WEB.tiers
    assert made.expires == NOW + 90 * DAY and made.owner == "mo@acme.example"


def test_a_key_within_its_team_is_made_as_it_is_wanted() -> None:
    terms = Terms(requests_per_minute=100, concurrent=5, budgets=(Budget(usd=500, per="month"),))
    wanted = key(surfaces=("chat",), tiers=("small",), default_surface="chat", terms=terms, expires=NOW + DAY)
    assert allowed_key(MEMBER, wanted, WEB, NOW) == replace(wanted, owner="mo@acme.example", maker="u_1")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"team": "search"}, "You may not make keys of team search; yours: web"),
        ({"team": ""}, "You may not make keys of no team"),
        ({"tenant": "globex"}, "its tenant is globex; yours is acme"),
        ({"may_try": True}, "only an admin"),
        ({"surfaces": ("chat", "billing")}, "surfaces billing, of chat, search"),
        ({"tiers": ("frontier",)}, "tiers frontier, of local, small"),
        ({"default_surface": "billing"}, "default surface billing"),
        ({"surfaces": ("chat",), "default_surface": "search"}, "default surface search, of chat"),
        ({"expires": NOW + 91 * DAY}, "more than 90 days"),
        ({"terms": Terms(requests_per_minute=101)}, "requests_per_minute 101, of 100"),
        ({"per_user": Terms(requests_per_minute=101)}, "requests_per_minute 101, of 100"),
        ({"terms": Terms(budgets=(Budget(usd=501, per="month"),))}, "a budget of $501 a month, of $500 a month"),
        ({"terms": Terms(budgets=(Budget(usd=51, per="day"),))}, "a budget of $51 a day, of $50 a day"),
        ({"terms": Terms(budgets=(Budget(usd=501, per="week"),))}, "a budget of $501 a week, of $500 a month"),
    ],
    ids=str,
)
def test_a_key_beyond_its_team_is_refused_with_what_would_be_allowed(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(NotAllowed) as refused:
        allowed_key(MEMBER, key(**wanted), WEB, NOW)
    assert said in str(refused.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(NotAllowed, match=r"billing.*frontier"):
        allowed_key(MEMBER, key(surfaces=("billing",), tiers=("frontier",)), WEB, NOW)


def test_a_budget_of_all_time_may_be_more_than_a_months() -> None:
    terms = Terms(budgets=(Budget(usd=5000, per="total"),))
    assert allowed_key(MEMBER, key(terms=terms), WEB, NOW).terms == terms


def test_a_key_admin_makes_keys_for_others_within_the_team() -> None:
    assert allowed_key(KEY_ADMIN, key(owner="mo@acme.example"), WEB, NOW).owner == "mo@acme.example"
    assert allowed_key(KEY_ADMIN, key(), WEB, NOW).owner == "", "a program's key"
    with pytest.raises(NotAllowed, match="billing"):
        allowed_key(KEY_ADMIN, key(surfaces=("billing",)), WEB, NOW)
    with pytest.raises(NotAllowed, match="globex"):
        allowed_key(KEY_ADMIN, key(tenant="globex"), WEB, NOW)


def test_a_rotated_key_stays_whose_it_was() -> None:
    assert allowed_key(MEMBER, key(owner="", replaces="0" * 64), WEB, NOW).owner == ""


def test_an_admin_makes_any_key() -> None:
    wanted = key(tenant="globex", team="search", may_try=True, surfaces=("billing",))
    assert allowed_key(ADMIN, wanted, WEB, NOW) == wanted


def test_a_team_without_a_record_limits_nothing() -> None:
    assert allowed_key(MEMBER, key(tiers=("frontier",)), None, NOW).tiers == ("frontier",)


LIMITED = replace(
    MEMBER,
    surfaces=("search", "mail"),
    terms=Terms(concurrent=2, budgets=(Budget(usd=1, per="day"),)),
    longest_life_s=10 * DAY,
)


@pytest.mark.parametrize("team", [None, replace(WEB, surfaces=(), longest_life_s=None)])
def test_a_key_is_no_wider_than_the_person_who_makes_it(team: OwnerRecord | None) -> None:
    """In surfaces, money and life, with a record of its team and without one; what it leaves open is what they have."""
    made = allowed_key(LIMITED, key(), team, NOW)
    assert made.surfaces == LIMITED.surfaces and made.expires == NOW + 10 * DAY
    assert (made.maker, made.maker_terms) == ("u_1", LIMITED.terms)
    caller = caller_of(made, team)
    assert Limited("key", "u_1", LIMITED.terms) in caller.limited and caller.is_limited
    beyond: tuple[tuple[dict[str, Any], str], ...] = (
        ({"surfaces": ("chat",)}, "surfaces chat, of search, mail"),
        ({"default_surface": "chat"}, "default surface chat, of search, mail"),
        ({"expires": NOW + 11 * DAY}, "more than 10 days"),
        ({"terms": Terms(concurrent=3)}, "concurrent 3, of 2"),
        ({"terms": Terms(budgets=(Budget(usd=2, per="day"),))}, "a budget of $2 a day, of $1 a day"),
        ({"per_user": Terms(concurrent=3)}, "concurrent 3, of 2"),
    )
    for wanted, said in beyond:
        with pytest.raises(NotAllowed) as refused:
            allowed_key(LIMITED, key(**wanted), team, NOW)
        assert said in str(refused.value)


def test_a_key_has_the_surfaces_that_team_and_person_share() -> None:
    assert allowed_key(LIMITED, key(), WEB, NOW).surfaces == ("search",)
    assert allowed_key(LIMITED, key(), WEB, NOW).expires == NOW + 90 * DAY, "the team states a life"
    nothing_shared = allowed_key(replace(LIMITED, surfaces=("mail",)), key(), WEB, NOW)
    assert nothing_shared.surfaces == ("-",), "and so it may use none"


def test_a_key_that_a_role_makes_counts_against_its_team_alone() -> None:
    """It is no person's; but of surfaces it has none that its maker has not, now or after a change."""
    admin = replace(KEY_ADMIN, surfaces=("search",), terms=LIMITED.terms, longest_life_s=DAY)
    made = allowed_key(admin, key(), None, NOW)
    assert (made.surfaces, made.maker, made.expires) == (("search",), "", None)
    assert not caller_of(made).is_limited
    with pytest.raises(NotAllowed, match="surfaces chat"):
        allowed_key(admin, replace(made, replaces="0" * 64, surfaces=("chat",)), None, NOW)


def test_members_rotate_their_own_keys_alone() -> None:
    """Whoever rotates a key ends it for everybody else: another's needs a role, and an equal name is not enough."""
    own, given = key(maker="u_1", owner="mo@acme.example"), key(owner="mo@acme.example")
    others = [key(), key(owner="ada@acme.example"), key(maker="u_9", owner="mo@acme.example")]
    for one in (own, given):
        assert may_with(MEMBER, "keys.rotate", one) and may_with(KEY_ADMIN, "keys.rotate", one)
        assert not may_with(MEMBER, "keys.rotate", replace(one, tenant="globex"))
        assert not may_with(replace(MEMBER, teams=("mail",)), "keys.rotate", one)
    for one in others:
        assert not may_with(MEMBER, "keys.rotate", one)
        assert may_with(KEY_ADMIN, "keys.rotate", one) and may_with(ADMIN, "keys.rotate", one)
        assert may_with(MEMBER, "keys.see", one)
