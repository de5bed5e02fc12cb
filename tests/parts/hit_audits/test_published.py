"""What audits publish for processes beside the gateway, and complaints that come from there."""

from __future__ import annotations

import math
import secrets

from cache.semantic.hit_bound import complaint_of
from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.hit_audits.audit import Audits
from gateway.parts.hit_audits.control import RiskControl
from gateway.parts.hit_audits.groups import Batch, Label, decode_batch
from gateway.parts.hit_audits.published import PUBLISHED, PublishedRisk, complain, publication, read_published
from policies.caching import SemanticCache
from tests.cache.conftest import store, valkey
from tests.parts.hit_audits.test_audit import Running
from tests.support.wait import eventually

__all__ = ["store", "valkey"]


async def test_figures_come_back_as_they_were_published(store: RedisStore) -> None:
    """A threshold that serves nothing is infinite, which JSON has no number for; other versions are left out."""
    await store.delete(PUBLISHED)
    assert await read_published(store) == []
    control = RiskControl(0.01, 0.9)
    control.fold(Batch(100, (0.95,) * 30, tuple(Label(0.95, True, 40.0) for _ in range(200))))
    control.threshold = math.inf
    risk = PublishedRisk("chat", "tierline:risk", 12.5, control.figures())
    await store.ask([publication(risk)])
    await store.ask([Command((b"HSET", PUBLISHED.encode(), b"other", b'{"surface": "other"}'))])
    await store.ask([Command((b"HSET", PUBLISHED.encode(), b"torn", b"{"))])
    assert await read_published(store) == [risk]
    await store.delete(PUBLISHED)


async def test_a_complaint_from_outside_raises_the_owners_threshold_in_every_worker(store: RedisStore) -> None:
    """It goes to the stream that the surface's figures name, and counts once per request."""
    await store.delete(PUBLISHED)
    audits = Audits(store, secrets.token_hex(4))
    surface = audits.surface("chat", SemanticCache(ttl="6h"), 0.8)
    async with Running(audits):
        await eventually(lambda: surface.published is not None, 20)
        [risk] = await read_published(store)
        assert risk.stream == surface.stream
        for _ in range(2):
            await complain(store, risk, complaint_of("acme", "req-1", 0.93, "tenant:acme"))
        await eventually(lambda: surface.control.threshold_for("tenant:acme") > 0.93, 20)
        await eventually(lambda: surface.published is not None and surface.published.complaints == 1, 20)
        assert surface.published is not None and surface.published.owners == 1
    entries = [decode_batch(value) for _, value in await store.latest(surface.stream, 10)]
    assert len({one.request for batch in entries for one in batch.complaints}) == 1


def test_figures_say_how_the_bound_stands() -> None:
    """The estimate at the threshold in force with its upper bound, which takes enough labels."""
    control = RiskControl(0.01, strict=0.9)
    control.fold(Batch(1_000, (0.95,) * 100, (Label(0.95, True, 4.0), *(Label(0.95, False, 4.0),) * 20)))
    few = control.figures()
    assert few.error == 4 / 1_000 and few.error_most is None and (few.served, few.wrong) == (21, 1)
    control.fold(Batch(9_000, (0.95,) * 900, (Label(0.95, False, 4.0),) * 200))
    many = control.figures()
    assert many.error == 4 / 10_000 and many.error_most is not None
    assert many.error < many.error_most <= many.max_error and many.labels == 221
