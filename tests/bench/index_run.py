"""One run of the bench of the indexes: fill, look up, write, let another worker warm up and catch up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from cache.index import Choice
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.scopes.scope import Caps
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.base import Command, StoreUnavailable
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.seams import build_pair_queue, compares_turns, index_of
from tests.bench.questions import Asked, Questions, Vectors
from tests.bench.rig import cpu_s
from tests.cache.samples import Facts, answer, body, policy
from tests.support.store import LocalStore

Times = tuple[float, float, float]
"""p50, p95 and p99, in ms."""

_BATCH = 50
_NEIGHBOURS = 5
_NEAR = 0.7
_WRITES = 200
_MISSED = 5_000
_PATIENCE_S = 300.0
_POLICY = policy(semantic={"ttl": "6h"})
_CAPS = Caps(entries=10_000_000, bytes=1 << 40)
_FACTS = Facts()
_ANSWER = answer("x" * 700)


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one index with one layout. Shares are of the lookups, bytes for each entry."""

    kind: str
    entries: int
    scopes: int
    lookup: Times
    search: Times
    cpu_here: Times
    cpu_there: float
    checked: Times | None
    """Of the lookups that asked the cross-encoder."""
    checked_share: float
    found: float
    found_near: float
    hits: float
    failed: int
    write: Times
    to_another: Times
    at_once: float
    fill_s: float
    warm_s: float
    gap_s: float | None
    missed: int
    server_bytes: float
    worker_bytes: float


class _Tap(RedisStore):
    """A store whose stream can be cut off."""

    cut = False

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        if self.cut:
            raise StoreUnavailable("lost")
        return await super().after(stream, last_id, count, block_ms)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's cache, and its store."""

    store: _Tap
    cache: ResponseCache

    def plan(self, text: str, tenant: str) -> CachePlan:
        """What a request with this question would have."""
        return self.cache.plan(body(text), _POLICY, tenant, _FACTS)

    async def keep(self, keeps: list[CacheWrite]) -> None:
        """Keeps answers; tries again what a loaded server did not take in time."""
        for _ in range(100):
            outcomes = await self.cache.write_all(keeps)
            keeps = [keep for keep, outcome in zip(keeps, outcomes, strict=True) if not outcome.stored]
            if not keeps:
                return
            await asyncio.sleep(0.2)
        raise SystemExit(f"the store took no more writes: {outcomes[0].reason}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: an index on a server, with these questions over so many scopes."""

    server: LocalStore
    choice: Choice
    questions: Questions
    scopes: int
    cross_encoder: CrossEncoder | None = None

    def tenant(self, row: int) -> str:
        """Whose the question in a row is."""
        return f"tenant-{row % self.scopes}"

    def rows(self, row: int) -> np.ndarray:
        """The rows of that question's scope."""
        return np.arange(row % self.scopes, len(self.questions.kept.texts), self.scopes)


@contextlib.asynccontextmanager
async def _worker(plan: Plan, name: str) -> AsyncIterator[Worker]:
    store = _Tap.from_url(plan.server.url)
    assert isinstance(store, _Tap)
    verifier = Verifier.load(shipped_verifier("static"))
    dimension = plan.questions.kept.vectors.shape[1]
    cache = ResponseCache(
        store,
        embedder_name=name,
        dimension=dimension,
        index=index_of(plan.choice),
        verifier=verifier,
        cross_encoder=None if plan.cross_encoder is None else build_pair_queue(plan.cross_encoder),
        turn_by_turn=compares_turns(),
        caps=_CAPS,
    )
    await cache.start()
    while cache.index.state().kind != plan.choice:
        await asyncio.sleep(0.05)
    yield Worker(store, cache)
    await cache.aclose()
    await store.aclose()


async def measure(plan: Plan, console: Console) -> Figures:
    """Fills an index and measures it."""
    name, kept, asked = secrets.token_hex(4), plan.questions.kept, plan.questions.asked
    entries = len(kept.texts)
    async with _worker(plan, name) as writer:
        empty = await _used(writer.store)
        began = time.perf_counter()
        await _fill(plan, writer, console)
        fill_s = time.perf_counter() - began
        server_bytes = (await _used(writer.store) - empty) / entries
        resident, began = _resident(), time.perf_counter()
        async with _worker(plan, name) as reader:
            await _until(lambda: plan.choice != "replica" or len(reader.cache.index) >= 0.999 * entries)
            warm_s, worker_bytes = time.perf_counter() - began, (_resident() - resident) / entries
            search, found, found_near = await _searches(plan, reader, asked)
            lookup, hits, failed, here, there, checked = await _lookups(plan, reader, asked)
            write, to_another, at_once = await _writes(plan, writer, reader)
            gap_s, missed = await _gap(plan, writer, reader) if plan.choice == "replica" else (None, 0)
    return Figures(
        plan.choice, entries, plan.scopes, lookup, search, here, there,
        _spread(checked) if checked else None, len(checked) / max(1, len(asked.texts)), found, found_near, hits, failed,
        write, to_another, at_once, fill_s, warm_s, gap_s, missed, server_bytes, worker_bytes,
    )  # fmt: skip


async def _fill(plan: Plan, writer: Worker, console: Console) -> None:
    kept = plan.questions.kept
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{plan.choice}, {plan.scopes:,} scopes: filling", total=len(kept.texts))
        for first in range(0, len(kept.texts), _BATCH):
            rows = range(first, min(len(kept.texts), first + _BATCH))
            await writer.keep([_keep(writer, kept, row, plan.tenant(row)) for row in rows])
            progress.advance(task, len(rows))


def _keep(writer: Worker, of: Asked, row: int, tenant: str) -> CacheWrite:
    return CacheWrite(writer.plan(of.texts[row], tenant), _ANSWER, of.vectors[row])


async def _searches(plan: Plan, worker: Worker, asked: Asked) -> tuple[Times, float, float]:
    """How long a search takes, and how often the true nearest is among what it returns: of all, and of the near."""
    took, answers = list[float](), dict[int, set[str]]()
    for row, (text, vector) in enumerate(zip(asked.texts, asked.vectors, strict=True)):
        await asyncio.sleep(0)  # lets the worker read its scopes' generations, without which it finds nothing
        keys = worker.plan(text, plan.tenant(row)).keys
        assert keys is not None
        began = time.perf_counter()
        with contextlib.suppress(StoreUnavailable):
            found = await worker.cache.index.nearest(keys.partition, vector, _NEIGHBOURS, 0.5)
            took.append(time.perf_counter() - began)
            answers[row] = {one.question for one in found}
    # Judged only now: the products would keep every core busy between two searches.
    right, near = 0, [0, 0]
    for row, questions in answers.items():
        cosine, texts = _truly_nearest(plan, row, asked.vectors[row])
        right += not texts.isdisjoint(questions)
        near[0] += not texts.isdisjoint(questions) and cosine >= _NEAR
        near[1] += cosine >= _NEAR
    return _spread(took), right / max(1, len(took)), near[0] / max(1, near[1])


def _truly_nearest(plan: Plan, row: int, vector: Vectors) -> tuple[float, set[str]]:
    """The greatest cosine in the scope, and the questions that have it."""
    rows = plan.rows(row)
    # By einsum, on one core: a BLAS of several waits long for each of them on a machine that does much else.
    cosines = np.einsum("ij,j->i", plan.questions.kept.vectors[rows if plan.scopes > 1 else slice(None)], vector)
    best = float(cosines.max())
    return best, {plan.questions.kept.texts[int(rows[place])] for place in np.flatnonzero(cosines >= best - 2e-4)}


_READ_AGAIN_S = 0.6
"""Time in which a worker that was held up has read its scopes' generations again."""


async def _lookups(plan: Plan, worker: Worker, asked: Asked) -> tuple[Times, float, int, Times, float, list[float]]:
    """How long a lookup takes, the share of hits, how many failed, the CPU of one, here and there (the mean), and the
    seconds of those that asked the cross-encoder.
    """
    await asyncio.sleep(_READ_AGAIN_S)
    took, cost, checked, hits, failed = list[float](), list[float](), list[float](), 0, 0
    before = cpu_s(plan.server.pid)
    for row, (text, vector) in enumerate(zip(asked.texts, asked.vectors, strict=True)):
        await asyncio.sleep(0)
        each = worker.plan(text, plan.tenant(row))  # now: a plan is of the generations that the worker knows
        began, spent = time.perf_counter(), time.thread_time()
        found = await worker.cache.semantic(each, vector)
        took.append(time.perf_counter() - began)
        cost.append(time.thread_time() - spent)
        if found.stage == "cross_encoder":
            checked.append(took[-1])
        hits += found.outcome == "hit"
        if found.outcome not in ("hit", "miss"):
            failed += 1
            await asyncio.sleep(0.05)
    there = (cpu_s(plan.server.pid) - before) / len(asked.texts) * 1000
    return _spread(took), hits / len(asked.texts), failed, _spread(cost), there, checked


async def _writes(plan: Plan, writer: Worker, reader: Worker) -> tuple[Times, Times, float]:
    """How long a write takes, how long after it another worker serves the entry, and how many at the first request."""
    asked = plan.questions.asked
    took, came, at_once = [], [], 0
    for row in range(min(_WRITES, len(asked.texts))):
        tenant, vector = plan.tenant(row), asked.vectors[row]
        text = f"{asked.texts[row]} (new {row})"
        keep = CacheWrite(writer.plan(text, tenant), _ANSWER, vector)
        began = time.perf_counter()
        await writer.keep([keep])
        kept, tries = time.perf_counter(), 0
        took.append(kept - began)
        while time.perf_counter() - kept < 5:
            tries += 1
            served = await reader.cache.semantic(reader.plan(text, tenant), vector)
            if served.outcome == "hit" and served.question == text:
                break
            await asyncio.sleep(0)
        came.append(time.perf_counter() - kept)
        at_once += tries == 1
        await asyncio.sleep(0)
    return _spread(took), _spread(came), at_once / len(took)


async def _gap(plan: Plan, writer: Worker, reader: Worker) -> tuple[float, int]:
    """Seconds from when the stream can be read again to when a worker has what it missed, and how much that was."""
    kept = plan.questions.kept
    missed = min(_MISSED, len(kept.texts) // 4)
    reader.store.cut = True
    for first in range(0, missed, _BATCH):
        rows = range(first, min(missed, first + _BATCH))
        await writer.keep([_renamed(writer, kept, row, plan.tenant(row)) for row in rows])
    await _until(lambda: bool(reader.cache.index.state().reason))
    last = _renamed(reader, kept, missed - 1, plan.tenant(missed - 1)).plan
    assert last.keys is not None
    reader.store.cut = False
    await _until(lambda: not reader.cache.index.state().reason)
    began = time.perf_counter()
    while not any(
        one.question == last.keys.question
        for one in await reader.cache.index.nearest(last.keys.partition, kept.vectors[missed - 1], _NEIGHBOURS)
    ):
        await asyncio.sleep(0.001)
        if time.perf_counter() - began > _PATIENCE_S:
            raise SystemExit("the second worker never caught up")
    return time.perf_counter() - began, missed


def _renamed(worker: Worker, of: Asked, row: int, tenant: str) -> CacheWrite:
    return CacheWrite(worker.plan(f"{of.texts[row]} (again)", tenant), _ANSWER, of.vectors[row])


async def _until(holds: Callable[[], bool]) -> None:
    began = time.perf_counter()
    while not holds():
        if time.perf_counter() - began > _PATIENCE_S:
            raise SystemExit("the second worker never got warm")
        await asyncio.sleep(0.005)


async def _used(store: RedisStore) -> int:
    """Bytes of memory that the server uses."""
    (said,) = await store.ask([Command((b"INFO", b"memory"))], 1.0)
    return int(said.partition(b"used_memory:")[2].split()[0])


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _spread(seconds: list[float]) -> Times:
    p50, p95, p99 = np.quantile(np.array(seconds) * 1000, [0.5, 0.95, 0.99])
    return float(p50), float(p95), float(p99)
