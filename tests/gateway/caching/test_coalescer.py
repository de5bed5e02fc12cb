from __future__ import annotations

from gateway.caching.coalescer import RecentKeys


def test_a_key_is_known_until_a_lookup_misses_it() -> None:
    """What a lookup has shown last is what is expected next."""
    known = RecentKeys()
    known.note("a", found=True)
    assert "a" in known
    known.note("a", found=False)
    known.note("a", found=False)
    assert "a" not in known


def test_only_the_latest_are_known() -> None:
    """The oldest go first, however many there were."""
    known = RecentKeys(most=2)
    for key in ("a", "b", "a", "c"):
        known.note(key, found=True)
    assert [key for key in "abc" if key in known] == ["b", "c"]
