"""What passes through the seam of wrong hits: complaints and states."""

from __future__ import annotations

from cache.semantic.hit_bound import OTHERS, SurfaceState, complaint_of


def test_complaints_about_one_request_have_one_name_that_does_not_say_it() -> None:
    """Whoever complains of it, and of whichever score; two tenants' equal ids are two requests."""
    first = complaint_of("acme", "req_1", 0.9, "tenant:acme")
    assert first.request == complaint_of("acme", "req_1", 0.8, "team:sales").request
    assert first.request != complaint_of("zeta", "req_1", 0.9, "tenant:zeta").request
    assert "req_1" not in first.request and "acme" not in first.request


def test_a_state_names_the_groups_whose_bound_was_breached() -> None:
    """The others, and a surface that nobody has compared answers of, name none."""
    languages, tenants = {"Thai": True, "Latin": False, OTHERS: True}, {"team:sales": True, "tenant:acme": False}
    state = SurfaceState(0.9, 100, False, languages, tenants)
    assert state.breached_groups == ["language Thai", "other languages", "team sales"]
    assert SurfaceState(0.9, 0, True).breached_groups == []
