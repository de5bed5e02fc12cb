from __future__ import annotations

import pytest

from cache.store.redis_store import RedisStore
from tests.cache.scope_crossings import run
from tests.support.store import local_store


@pytest.mark.long
async def test_nobody_is_served_anothers_answer(times: float, seed: int) -> None:
    """Of 20,000 random pairs over 1,000 tenants, a tenth of them cancelled: none, and no reply out of step.

    `--times 50` looks up a million.
    """
    pairs = round(20_000 * times)
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        report = await run(store, pairs, seed)
        await store.aclose()
    print(report)
    assert (report.across, report.out_of_step) == (0, 0)
    assert report.own > pairs / 200, "look-ups do find what is theirs"
    assert report.cancelled > pairs / 20
    assert report.outcomes.keys() <= {"hit", "miss", "timeout", "error", "open"}
