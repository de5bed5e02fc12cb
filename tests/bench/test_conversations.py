"""A sample of the conversations that change tier, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.conversations import rows_of, upper_bound
from tests.support.app import in_process
from tests.support.store import LocalStore, local_store
from tests.support.strict_messages import StrictMessages
from tests.support.tier_changes import DIALECTS, Conversation, World


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with local_store() as started:
        yield started


async def test_conversations_that_change_tier(tmp_path: Path, store: LocalStore) -> None:
    """Three of each kind of client: none is refused, and reasoning is removed for other makers alone, and said so."""
    with World() as world:
        settings = world.deployment(store.url)
        settings.pop("store")
        async with in_process(
            tmp_path,
            "http://127.0.0.1:9/v1",
            store_url=store.url,
            policies=world.policies(),
            settings=settings,
            env={"CLAUDE_KEY": StrictMessages.KEY},
        ) as app:
            outcomes = [
                await Conversation(world, app.client, dialect, seed).run(most=4)
                for seed, dialect in enumerate(DIALECTS * 3)
            ]
        assert [one for outcome in outcomes for one in outcome.wrong] == []
        assert world.refusals() == []
    rows = rows_of(outcomes)
    assert sum(row["own"] for row in rows) == sum(row["own_due"] for row in rows) > 5
    assert sum(row["removed"] for row in rows) == sum(row["told"] for row in rows) > 5


def test_the_bound_of_no_hits() -> None:
    assert upper_bound(0, 299) == pytest.approx(0.00997, abs=1e-4)
    assert upper_bound(5, 100) == pytest.approx(0.112, abs=1e-3)
