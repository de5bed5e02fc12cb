"""Random look-ups of a thousand tenants: is anybody served another's answer?

A thousand tenants, some in teams, with names made to be confused, ask the same few questions on several surfaces and
under several policies. Each look-up is a pair: one who asks, and an entry to the very same question that lies in the
store for another. Look-ups are exact ones and semantic ones in turn, many at a time over one store, and every tenth is
cancelled in the middle of it: a reply that was left on a connection must never be read by the next who uses it.

Counted are answers that the asker may not see, and entries that came under a wrong key (a reply out of step). Both must
be 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from cache.entry import Lookup
from cache.index import Vector
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from policies.model import Policy
from tests.cache.samples import Facts, answer, body, policy

TENANTS = 1_000
_QUESTIONS = 40
_TEAMS = 50
_FORMS = ("{0}", "{0}:", "tenant:{0}", "team:{0}", "{0}\0{0}")
_ENTRIES = 12_000
_AT_ONCE = 12
_CANCELLED = 0.1
_PATIENCE_S = 120.0
_DIMENSION = 32
_FACTS = Facts()


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it. `own` are hits that their askers may see, `outcomes` of the look-ups that were not cancelled.

    Look-ups that the store did not answer in time, on a busy machine, are no pairs, and are made up for.
    """

    pairs: int
    cancelled: int
    own: int
    across: int
    out_of_step: int
    outcomes: dict[str, int]
    seconds: float


class _World:
    """Who there is, what they ask, and who may see whose answers."""

    def __init__(self, chance: random.Random) -> None:
        self.tenants = [form.format(i // len(_FORMS)) for i in range(TENANTS) for form in [_FORMS[i % len(_FORMS)]]]
        self.teams = {tenant: f"team-{i % _TEAMS}" for i, tenant in enumerate(self.tenants) if i % 2}
        self.policies = _policies()
        self.questions = [f"What is the capital of country number {i}?" for i in range(_QUESTIONS)]
        vectors = np.random.default_rng(chance.randrange(1 << 30)).normal(size=(_QUESTIONS, _DIMENSION))
        self.vectors: list[Vector] = [(v / np.linalg.norm(v)).astype(np.float32) for v in vectors]

    def plan(self, cache: ResponseCache, tenant: str, rules: int, question: int) -> CachePlan:
        return cache.plan(body(self.questions[question]), self.policies[rules], tenant, _FACTS)

    def label(self, tenant: str, rules: int, question: int) -> str:
        """The answer of this asker to this question here: who may see it can be told from it."""
        return orjson.dumps((self.owner(tenant, rules), rules, question)).decode()

    def owner(self, tenant: str, rules: int) -> str:
        shared = self.policies[rules].cache.scope == "team" and tenant in self.teams
        return f"team {self.teams[tenant]}" if shared else f"tenant {tenant}"


def _policies() -> tuple[Policy, ...]:
    tenant, other, team = policy("1111111"), policy("2222222"), policy("3333333", scope="team")
    return tenant, other, team, tenant.model_copy(update={"surface": "batch"})


async def run(store: RedisStore, pairs: int, seed: int) -> Report:
    """Writes what the tenants keep, then looks up `pairs` times."""
    chance = random.Random(seed)
    world = _World(chance)
    cache = ResponseCache(store, embedder_name=f"scopes-{seed}", dimension=_DIMENSION, teams=world.teams)
    await cache.start()
    try:
        await _fill(cache, world, chance)
        return await _look_up(cache, world, chance, pairs)
    finally:
        await cache.aclose()


async def _fill(cache: ResponseCache, world: _World, chance: random.Random) -> None:
    keeps = []
    for who, rules, question in (_drawn(world, chance) for _ in range(_ENTRIES)):
        kept = answer(world.label(who, rules, question))
        keeps.append(CacheWrite(world.plan(cache, who, rules, question), kept, world.vectors[question]))
    deadline = time.monotonic() + _PATIENCE_S
    while keeps:
        some, keeps = keeps[:50], keeps[50:]
        outcomes = await cache.write_all(some)
        refused = [keep for keep, outcome in zip(some, outcomes, strict=True) if not outcome.stored]
        if refused and time.monotonic() > deadline:
            raise RuntimeError(f"answers are not kept: {outcomes[-1].reason}")
        if refused:
            await asyncio.sleep(0.05)  # a busy machine
        keeps += refused


async def _look_up(cache: ResponseCache, world: _World, chance: random.Random, pairs: int) -> Report:
    counts: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()

    async def asker() -> None:
        while counts["pairs"] < pairs:
            who, rules, question = _drawn(world, chance)
            plan = world.plan(cache, who, rules, question)
            asked = cache.semantic(plan, world.vectors[question]) if chance.random() < 0.5 else cache.exact(plan)
            found = await _perhaps_cancelled(asked, chance)
            if found is None:
                counts["cancelled"] += 1
                counts["pairs"] += 1
                continue
            outcomes[found.outcome] += 1
            if found.outcome not in ("hit", "miss"):
                await asyncio.sleep(0.02)  # a busy machine: the store was not asked, or had no time
                continue
            counts["pairs"] += 1
            counts["out_of_step"] += found.reason in {"corrupt", "index_disagrees"}
            if found.hit is not None:
                said = orjson.loads(found.hit.entry.body)["choices"][0]["message"]["content"]
                counts["own" if said == world.label(who, rules, question) else "across"] += 1

    started = time.monotonic()
    await asyncio.gather(*(asker() for _ in range(_AT_ONCE)))
    took = round(time.monotonic() - started, 1)
    return Report(
        counts["pairs"],
        counts["cancelled"],
        counts["own"],
        counts["across"],
        counts["out_of_step"],
        dict(outcomes),
        took,
    )


async def _perhaps_cancelled(asked: Any, chance: random.Random) -> Lookup | None:
    """What was found; None for one that was cancelled after a few turns of the loop, wherever it was by then."""
    if chance.random() >= _CANCELLED:
        found: Lookup = await asked
        return found
    task = asyncio.ensure_future(asked)
    for _ in range(chance.randrange(6)):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return None


def _drawn(world: _World, chance: random.Random) -> tuple[str, int, int]:
    return chance.choice(world.tenants), chance.randrange(len(world.policies)), chance.randrange(_QUESTIONS)
