"""The bench of a broken store says what it found, and misses no target in silence."""

from __future__ import annotations

from tests.bench.store_faults import Asked, Phase, rows_of


def phase(name: str, *lookups_ms: float, status: int = 200, hit: bool = True) -> Phase:
    """A phase with a request every 100 ms."""
    asked = [Asked(place / 10, hit, status, lookup, lookup + 1) for place, lookup in enumerate(lookups_ms)]
    return Phase(name, asked)


def test_first_and_then_are_told_apart() -> None:
    """The breaker's first second has its own limit; what is slow later, or fails, misses the target."""
    well, back = phase("well", *[0.1] * 20), [phase(name, 0.1) for name in ("thawed", "restarted")]
    frozen = phase("frozen", *[20.0] * 5, *[0.05] * 15, hit=False)
    slow = phase("killed", *[0.05] * 19, 3.0, hit=False)
    rows = {row.what: row for row in rows_of([well, frozen, slow, *back])}
    assert rows["frozen: longest lookup of the first second, ms"].value == 20
    assert rows["frozen: lookups of 1 ms or more then"].value == 5
    assert rows["frozen: lookup p99 from then on, ms"].met
    assert not rows["killed: lookup p99 from then on, ms"].met
    assert rows["thawed: first hit after, s"].value == 0
    assert rows["failed, of 62 requests"].met


def test_a_request_that_fails_is_counted() -> None:
    """Any status but 200 is a failure; a refusal for lag is told apart as well."""
    phases = [phase(name, 0.1) for name in ("well", "thawed", "restarted")]
    phases += [phase("frozen", *[0.1] * 12, status=503), phase("killed", *[0.1] * 12, hit=False)]
    phases[3].asked.append(Asked(2.0, False, 200, 0.1, 1.0))
    phases[3].asked.append(Asked(0.0, False, 200, 0.1, 1.0))
    rows = {row.what: row for row in rows_of(phases)}
    assert rows["refused for the gateway's own lag"].value == 12
    assert not rows["failed, of 29 requests"].met
