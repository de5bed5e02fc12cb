from __future__ import annotations

import pytest

from cache.store.redis_store import RedisStore
from tests.bench.scopes import QUICK, run
from tests.support.store import local_store


@pytest.mark.long
async def test_nobody_is_served_anothers_answer() -> None:
    """Of 20,000 random pairs over 1,000 tenants, a tenth of them cancelled: none, and no reply out of step."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        report = await run(store, QUICK, seed=7)
        await store.aclose()
    assert (report.across, report.out_of_step) == (0, 0)
    assert report.own > QUICK / 50, "look-ups do find what is theirs"
    assert report.cancelled > QUICK / 20
    assert report.outcomes.keys() <= {"hit", "miss", "timeout", "error", "open"}
