"""A ledger of recorded requests, made by the code that serves, the store and the keeper."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.parts.ledger.folder import locked
from gateway.parts.ledger.keeper import Keeper, Rotation
from gateway.parts.recorder.decision_record import DecisionRecorder
from gateway.telemetry.ledger import TRACES, ledger_blob
from gateway.telemetry.trace import RecordedDecision, Trace
from policies.loader import read_policy
from policies.model import Policy
from routing.decide import DecisionInput, TierHealth, decide
from routing.difficulty.model import CLASSIFIER, Difficulty
from routing.features import Features
from tests.gateway.telemetry.requests_made import escalated
from tests.support.store import UNHURRIED, local_store


@contextlib.asynccontextmanager
async def recorded_ledger(folder: Path, policy_file: Path, tokens: Sequence[int]) -> AsyncIterator[Path]:
    """Yield the folder with a record of `req-0`, `req-1`, ... decided by a policy, with so many tokens in each."""
    policy, _ = read_policy(policy_file)
    recorder = DecisionRecorder({CLASSIFIER: "abcdef012345"})
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        for number, count in enumerate(tokens):
            trace, ledger = escalated(f"req-{number}")
            with_decision(trace, policy, count)
            await store.apply([Append(TRACES, ledger_blob(trace, ledger, recorder), 1000)])
        await keep_bases(store, recorder)
        with locked(folder):
            await Keeper(store, folder, Rotation(after_s=1e9), lambda _: None).catch_up()
        await store.aclose()
        yield folder


def with_decision(trace: Trace, policy: Policy, tokens: int, **unavailable: str) -> None:
    """Let the router decide on a prompt of so many tokens. `unavailable`: why these tiers cannot answer."""
    health = {name: TierHealth(name, frozenset(), 1, unavailable.get(name, "")) for name in policy.tiers}
    easy = Difficulty((0.8, 0.9), True, "abcdef012345", "chat", 0.2, 1.0)
    given = DecisionInput(easy, Features("", 1, tokens), health, 30.0)
    trace.decision = RecordedDecision(policy, given, decide(policy, given))


async def keep_bases(store: RedisStore, recorder: DecisionRecorder) -> None:
    """Write what the recorded decisions were made by into the store."""
    await store.ask(recorder.commands())
