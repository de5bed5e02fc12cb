"""Conversations that change tier, before servers that refuse what the providers refuse (`tests.support.tier_changes`).

Signed reasoning of others, or in another place; calls without results and results without calls; ids that are too long,
have other characters or come again; fields of other models. The tier of each request follows from a pin (`tier:NAME`),
from start rules, from drafts that are not sure, or from tiers that are down. Clients of four kinds send back exactly
what they were given: chat completions, responses with all items, responses with `previous_response_id`, and messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.app import in_process
from tests.support.store import LocalStore, local_store
from tests.support.strict_messages import StrictMessages
from tests.support.tier_changes import DIALECTS, Conversation, World


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with local_store() as started:
        yield started


async def test_conversations_that_change_tier(tmp_path: Path, store: LocalStore, times: float, seed: int) -> None:
    """Three of each kind of client: none is refused, and reasoning is removed for other makers alone, and said so.

    `--times 42` holds 500, of up to 20 turns.
    """
    most = 4 if times == 1 else 20
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
                await Conversation(world, app.client, DIALECTS[number % len(DIALECTS)], seed - 1 + number).run(
                    most=most
                )
                for number in range(round(3 * times) * len(DIALECTS))
            ]
        assert [one for outcome in outcomes for one in outcome.wrong] == []
        assert world.refusals() == []
    counted = {
        name: sum((Counter(getattr(outcome, name)) for outcome in outcomes), Counter[str]())
        for name in ("replies", "own", "own_due", "lost", "removed", "told")
    }
    changes = sum(outcome.changes for outcome in outcomes)
    stays = [stayed for outcome in outcomes for stayed in outcome.stays]
    print(f"{counted}, {changes} changes of tier, {sum(stays)} of {len(stays)} started where they should")
    assert counted["own"] == counted["own_due"] and counted["own"].total() > 5
    assert counted["removed"] == counted["told"] and counted["removed"].total() > 5
    assert all(stays)
