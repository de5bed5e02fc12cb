"""Names of accounts, and windows of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.parts.access.quotas.accounts import Account, OwnerAccounts, window_of
from gateway.parts.access.quotas.terms import Budget, Terms
from gateway.telemetry.ledger import ACCOUNT_PREFIX, TRACES


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("budget", "now", "name", "hours"),
    [
        ("25/month", "2026-11-26T12:00:00Z", "2026-11@UTC", 30 * 24),
        ("25/month", "2026-02-28T23:59:59Z", "2026-02@UTC", 28 * 24),
        ("25/month@Europe/Berlin", "2026-11-30T22:59:59Z", "2026-11@Europe/Berlin", 30 * 24),
        ("25/month@Europe/Berlin", "2026-11-30T23:00:00Z", "2026-12@Europe/Berlin", 31 * 24),
        ("25/month@Europe/Berlin", "2026-03-15T00:00:00Z", "2026-03@Europe/Berlin", 31 * 24 - 1),
        ("5/day@Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29@Europe/Berlin", 23),
        ("5/day@Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25@Europe/Berlin", 25),
        ("5/day@Asia/Kathmandu", "2026-11-26T18:14:59Z", "2026-11-26@Asia/Kathmandu", 24),
        ("5/day@Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-24@Africa/Cairo", 23),
        ("5/week", "2027-01-01T00:00:00Z", "2026-W53@UTC", 7 * 24),
        ("5/week@Europe/Berlin", "2026-10-25T23:30:00Z", "2026-W44@Europe/Berlin", 7 * 24),
    ],
)
def test_windows_begin_at_midnight_of_their_zone(budget: str, now: str, name: str, hours: int) -> None:
    """A day has 23 or 25 hours where the clock is changed, and a month as many days as it has."""
    window = window_of(Budget.read(budget), _at(now))
    assert (window.name, window.ends - window.begins) == (name, hours * 3600)
    assert window.begins <= _at(now) < window.ends
    assert window_of(Budget.read(budget), window.ends).begins == window.ends, "no second belongs to two windows"


def test_all_windows_of_a_year_follow_one_another() -> None:
    """No second of a year is in no window or in two, whatever the zone does to its clock."""
    for zone in ("UTC", "Europe/Berlin", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe", "America/Sao_Paulo"):
        for per in ("day", "week", "month"):
            now, names = _at("2018-01-01T00:00:00Z"), []
            while now < _at("2019-03-01T00:00:00Z"):
                window = window_of(Budget.read(f"1/{per}@{zone}"), now)
                assert window.begins <= now < window.ends
                assert not names or window.begins == now
                names.append(window.name)
                now = window.ends
            assert len(set(names)) == len(names)


def test_an_account_is_named_after_its_owner_unit_and_window() -> None:
    """What would end the name is written otherwise, so two owners never share an account."""
    now = datetime(2026, 11, 26, tzinfo=UTC).timestamp()
    owned = OwnerAccounts(
        "key", "k_7fq2", Terms(requests_per_minute=3, concurrent=2, budgets=(Budget.read("25/month"),))
    )
    assert [account.name for account in owned.rates] == ["key:k_7fq2/requests", "key:k_7fq2/concurrent"]
    [money] = owned.money(now)
    assert (money.name, money.limit) == ("key:k_7fq2/usd/2026-11@UTC", 25_000_000_000)
    assert owned.money(now + 86400)[0] is money
    assert owned.money(now + 5 * 86400)[0].name == "key:k_7fq2/usd/2026-12@UTC"
    assert owned.money(now)[0].name == money.name, "a clock that goes back is in the former window again"
    assert OwnerAccounts("key", "k", Terms()).money(now) == ()
    assert Account("user", "a/usd {b}", "tokens", 1).name == "user:a%2Fusd%20%7Bb%7D/tokens"


def test_accounts_are_in_the_slot_of_the_records() -> None:
    """One script appends a record and adds its charge, so a cluster must keep both on one server."""
    assert ACCOUNT_PREFIX.startswith(f"{{{TRACES}}}:")
