"""Labels gathered off the request path: which answers agree, who is compared, and how workers share what they learn."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import numpy as np
import orjson
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from cache import shipped_cross_encoder
from cache.entry import CacheEntry, encode
from cache.response_cache import ResponseCache
from cache.semantic.hit_bound import Complaint
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.base import NoStore, Write
from cache.store.redis_store import RedisStore
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.hit_audits.audit import AuditedSurface, Audits, Sample
from gateway.parts.hit_audits.groups import LEAST_LABELS, Label
from policies.caching import AuditJudgeRules, SemanticCache
from policies.model import Policy
from tests.cache.conftest import store, valkey
from tests.cache.samples import Facts, answer, body, policy
from tests.parts.measures.test_statements import Reader
from tests.support.wait import eventually

__all__ = ["store", "valkey"]

ITALY, SAME = "What is the capital of Italy?", "what's the capital of Italy"
FACTS = Facts()
VECTOR = np.array([1, 0, 0, 0], np.float32)


def audited(audit: str = "100%") -> Policy:
    return policy(semantic={"ttl": "6h", "min_similarity": 0.85, "audit": audit})


def semantic(audit: str = "2%") -> SemanticCache:
    found = audited(audit).cache.semantic
    assert found is not None
    return found


def apart(texts: Sequence[str]) -> NDArray[np.float32]:
    """Texts of which no two are alike."""
    return np.eye(len(texts), 4, dtype=np.float32)


def near(texts: Sequence[str]) -> NDArray[np.float32]:
    """Texts that are all alike."""
    return np.ones((len(texts), 1), np.float32)


@pytest_asyncio.fixture
async def cache(store: RedisStore) -> AsyncIterator[ResponseCache]:
    made = ResponseCache(
        store, embedder_name=secrets.token_hex(4), dimension=4, bound=Audits(store, secrets.token_hex(4))
    )
    await made.start()
    yield made
    await made.aclose()


async def test_a_drawn_request_is_answered_afresh_and_its_answers_compared(cache: ResponseCache) -> None:
    """The lookup is a miss that says `audit`; the label comes once the fresh answer is kept."""
    tenant = secrets.token_hex(8)
    await cache.write(cache.plan(body(ITALY), audited(), tenant, FACTS), answer("Yes."), VECTOR)
    plan = cache.plan(body(SAME), audited(), tenant, FACTS)
    found = await cache.semantic(plan, VECTOR)
    assert (found.outcome, found.reason) == ("miss", "audit")
    await cache.write(plan, answer("No."), VECTOR)
    audits = cache.bound
    assert isinstance(audits, Audits)

    def labelled() -> bool:
        state = audits.in_force(plan.surface)
        return state is not None and state.labels == 1

    await eventually(labelled, 20)
    state = audits.in_force(plan.surface)
    assert state is not None
    assert state.threshold > 1.0
    assert state.breached


async def test_who_needs_the_stored_answer_is_not_drawn(cache: ResponseCache) -> None:
    """A request that takes only what is stored, or whose answer may not be kept, gets its hit."""
    tenant = secrets.token_hex(8)
    await cache.write(cache.plan(body(ITALY), audited(), tenant, FACTS), answer("Rome."), VECTOR)
    plan = cache.plan(body(SAME), audited(), tenant, FACTS)
    assert (await cache.semantic(plan, VECTOR, needed=True)).outcome == "hit"
    unkept = cache.plan(body(SAME), audited(), tenant, FACTS, write=False)
    assert (await cache.semantic(unkept, VECTOR)).outcome == "hit"


async def test_an_audit_of_nought_leaves_every_hit(cache: ResponseCache) -> None:
    """Nothing is compared, and the threshold stays where it starts."""
    tenant = secrets.token_hex(8)
    await cache.write(cache.plan(body(ITALY), audited("0%"), tenant, FACTS), answer("Rome."), VECTOR)
    for _ in range(20):
        plan = cache.plan(body(SAME), audited("0%"), tenant, FACTS)
        assert (await cache.semantic(plan, VECTOR)).outcome == "hit"


async def test_workers_share_what_they_learn_and_a_restart_keeps_it(store: RedisStore) -> None:
    """The labels of one worker set the threshold of another, and of one that starts later."""
    kind = secrets.token_hex(4)
    one, other = Audits(store, kind), Audits(store, kind)
    learned = one.surface("chat", semantic(), 0.9)
    assert other.surface("chat", semantic(), 0.9).control.threshold == 0.9
    learned.requests = 10_000
    learned.labels = [Label(0.7, False, 2.0, judged=True)] * LEAST_LABELS
    async with Running(one), Running(other):
        await eventually(lambda: other.state()["chat"].threshold == 0.7)
    later = Audits(store, kind)
    later.surface("chat", semantic(), 0.9)
    async with Running(later):
        await eventually(lambda: later.state()["chat"].labels == LEAST_LABELS)


async def test_a_policy_loaded_anew_keeps_what_was_learned_without_a_store() -> None:
    """Equal rules for the semantic cache go on as before, whatever else was edited; other rules begin anew."""
    audits = Audits(NoStore(), "kind")
    learned = audits.surface("chat", semantic(), 0.9)
    assert audits.surface("chat", semantic(), 0.9) is learned
    assert audits.surface("batch", semantic(), 0.9) is not learned
    stricter = semantic().model_copy(update={"max_error": 0.001})
    assert audits.surface("chat", stricter, 0.9) is not learned


async def test_without_a_store_a_worker_learns_for_itself() -> None:
    """Its own batches are folded all the same."""
    audits = Audits(NoStore(), "kind")
    surface = audits.surface("chat", semantic(), 0.9)
    surface.requests, surface.labels = 10_000, [Label(0.7, False, 2.0, judged=True)] * LEAST_LABELS
    async with Running(audits):
        await eventually(lambda: audits.state()["chat"].threshold == 0.7)


@pytest.mark.parametrize("of", ["verifier", "cross-encoder", "nothing"])
async def test_no_comparison_opens_what_a_models_own_threshold_closes(store: RedisStore, of: str) -> None:
    """167 good labels of a comparison leave the shipped thresholds where they are, and an infinite one."""
    shipped = {
        "verifier": Verifier.load(shipped_verifier("static")).strict,
        "cross-encoder": CrossEncoder.load(shipped_cross_encoder()).strict or 0.0,
        "nothing": math.inf,
    }
    strict, audits = shipped[of], Audits(store, secrets.token_hex(4))
    surface = audits.surface("chat", semantic(), strict)
    surface.requests, surface.labels = 20_000, [Label(0.077 + at / 200, False, 2.0) for at in range(167)]
    async with Running(audits):
        await eventually(lambda: audits.state()["chat"].labels == 167)
    assert strict > 0.5
    assert audits.state()["chat"].threshold == strict


def test_labels_compared_in_another_way_begin_anew(store: RedisStore) -> None:
    """What other vectors, another threshold for them or another judge have said is left aside."""

    def stream(alike: float, judge: str | None = None) -> str:
        rules = semantic().model_copy(update={"audit_judge": judge and AuditJudgeRules(backend=judge)})
        return Audits(store, "kind", alike=alike).surface("chat", rules, 0.9).stream

    assert len({stream(0.5), stream(0.6), stream(0.5, "small"), stream(0.5, "large")}) == 4
    assert stream(0.5) == stream(0.5)

    def reading(least: float) -> str:
        audits = Audits(store, "kind", scorer=Reader(same_answer=least))
        return audits.surface("chat", semantic(), 0.9).stream

    assert len({reading(0.8), reading(0.9), stream(0.5)}) == 3

    def blended(weight: float, strict: float = 0.9) -> str:
        audits = Audits(store, "kind", cross_encoder="model", cosine_weight=weight)
        return audits.surface("chat", semantic(), strict).stream

    assert len({blended(0.0), blended(4.0), blended(4.0, 0.8)}) == 3
    assert blended(0.0) == blended(0.0, 0.8)


class Judge:
    """Compares answers as it is told, and notes what it was shown."""

    def __init__(self, *said: bool | None) -> None:
        self.said = list(said)
        self.shown: list[tuple[str, str, str]] = []

    async def __call__(
        self, surface: str, rule: AuditJudgeRules, question: str, stored: str, fresh: str, owner: str
    ) -> bool | None:
        self.shown.append((question, stored, fresh))
        return self.said.pop(0)


WARM, LIKED = "It is warm there.", "You will like it."
UNREAD = ("打开设置，然后开启即可。", "打开设置，然后关闭即可。")


async def labelled(
    audits: Audits, surface: AuditedSurface, *pairs: tuple[str, str], score: float = 0.95
) -> list[Label]:
    """The labels that these pairs of a stored and a fresh answer to one question give, each standing for ten."""
    for stored, fresh in pairs:
        label = await audits._label(Sample(surface, "key", score, 10.0), stored, fresh, ITALY)
        if label is not None:
            surface.labels.append(label)
    return surface.labels


async def test_answers_far_from_each_other_are_not_the_same(store: RedisStore) -> None:
    """Where nothing contradicts, vectors far apart say so, and near ones prove nothing; that is no judge's label."""
    for embed, label in ((None, []), (near, []), (apart, [Label(0.95, True, 10.0)])):
        audits = Audits(store, secrets.token_hex(4), embed)
        assert await labelled(audits, audits.surface("chat", semantic(), 0.9), (WARM, LIKED)) == label


async def test_the_pair_model_reads_what_answers_say(store: RedisStore) -> None:
    """Off the event loop, in the languages that it reads. What it cannot tell gives no label."""
    audits = Audits(store, secrets.token_hex(4), near, scorer=CrossEncoder.load(shipped_cross_encoder()))
    same = ("The jacket should be hand washed.", "Wash the jacket by hand.")
    unclear = ("Choose the person and click Add.", "Press the button to add the person to it.")
    labels = await labelled(audits, audits.surface("chat", semantic(), 0.9), same, unclear, UNREAD)
    assert [label.wrong for label in labels] == [False, True]


async def test_what_a_comparison_cannot_tell_gives_no_label(store: RedisStore) -> None:
    """Vectors that are far apart show that two answers differ; near ones do not show that opposites agree."""
    opposed = ("Tap the bell and switch it on.", "Tap the bell and switch it off.")
    for embed, wrong in ((None, []), (apart, [True])):
        audits = Audits(store, secrets.token_hex(4), embed)
        labels = await labelled(audits, audits.surface("chat", semantic(), 0.9), opposed, UNREAD)
        assert [label.wrong for label in labels] == wrong


async def test_a_judge_reads_what_a_comparison_cannot_tell(store: RedisStore) -> None:
    """In any script. What it has no call left for gives no label, and its later labels stand for that too."""
    audits, surface = judged_by(store, Judge(False), per_hour=1)
    labels = await labelled(audits, surface, UNREAD, UNREAD)
    assert labels == [Label(0.95, True, 10.0, judged=True)]
    assert surface.owed == [0.0, 10.0]


async def test_a_judge_is_not_asked_where_one_answer_denies_the_other(store: RedisStore) -> None:
    """The pair model has found that; a judge that would call them the same is not asked."""
    audits = Audits(store, "kind", near, scorer=Reader(), judge=Judge())
    rules = semantic().model_copy(update={"audit_judge": AuditJudgeRules(backend="hosted")})
    labels = await labelled(audits, audits.surface("chat", rules, 0.9), UNREAD)
    assert labels == [Label(0.95, True, 10.0)]


def judged_by(store: RedisStore, judge: Judge, per_hour: int = 60, hour: int = 0) -> tuple[Audits, AuditedSurface]:
    audits = Audits(store, secrets.token_hex(4), apart, judge=judge, clock=lambda: hour * 3600.0)
    rules = semantic().model_copy(update={"audit_judge": AuditJudgeRules(backend="hosted", per_hour=per_hour)})
    return audits, audits.surface(secrets.token_hex(4), rules, 0.9)


async def test_a_judge_decides_where_the_guards_see_no_difference(store: RedisStore) -> None:
    """It is shown the question and both answers; equal ones and contradictions are settled without it."""
    judge = Judge(True, False)
    audits, surface = judged_by(store, judge)
    labels = await labelled(audits, surface, (WARM, LIKED), (LIKED, WARM), ("Rome.", "Rome."), ("Yes.", "No."))
    assert [label.wrong for label in labels] == [False, True, False, True]
    assert [label.judged for label in labels] == [True, True, True, False]
    assert judge.shown == [(ITALY, WARM, LIKED), (ITALY, LIKED, WARM)]


async def test_a_judge_that_says_nothing_gives_no_label_and_the_next_ones_stand_for_it(store: RedisStore) -> None:
    """Each for one more at most, on the same side of the threshold, and only those that the judge gave."""
    audits, surface = judged_by(store, Judge(None, None, True, False, True))
    assert await labelled(audits, surface, (WARM, LIKED), (WARM, LIKED)) == []
    await labelled(audits, surface, ("Yes.", "No."))
    await labelled(audits, surface, (WARM, LIKED), score=0.5)
    await labelled(audits, surface, (WARM, LIKED), (WARM, LIKED))
    assert [label.weight for label in surface.labels] == [10.0, 10.0, 20.0, 20.0]


async def test_a_judge_is_called_so_often_in_an_hour_by_all_workers(store: RedisStore) -> None:
    """Beyond that the vectors decide, for near misses beyond half of that; the next hour begins anew."""
    judge = Judge(*[True] * 5)
    audits, surface = judged_by(store, judge, per_hour=4)
    near_misses = await labelled(audits, surface, *[(WARM, LIKED)] * 4, score=0.5)
    assert [label.wrong for label in near_misses] == [False, False, True, True]
    labels = await labelled(audits, surface, *[(WARM, LIKED)] * 3)
    assert [label.wrong for label in labels[4:]] == [False, False, True]
    later = Audits(store, "kind", apart, judge=judge, clock=lambda: 3600.0)
    assert not (await labelled(later, surface, (WARM, LIKED)))[-1].wrong


async def test_closing_does_not_wait_for_a_judge_that_takes_its_time(store: RedisStore) -> None:
    """What is being compared is given up after a moment."""
    asked = asyncio.Event()

    class Slow(Judge):
        async def __call__(
            self, surface: str, rule: AuditJudgeRules, question: str, stored: str, fresh: str, owner: str
        ) -> bool | None:
            asked.set()
            await asyncio.sleep(600)
            return True

    audits, surface = judged_by(store, Slow())
    key = f"tierline:test:{secrets.token_hex(8)}"
    body = orjson.dumps(answer(WARM).completion)
    entry = CacheEntry(body, "local", "local-1", "m", "chat", "chat@1", None, 0.0, 1e12, ITALY, None)
    await store.apply([Write(key, encode(key, entry), 60.0)])
    audits.compare(Sample(surface, key, 0.95, 10.0), answer(LIKED).completion, ITALY)
    async with asyncio.timeout(30):
        await asked.wait()
        await audits.aclose()
    assert not surface.labels


class Running:
    """Audits at work inside the block."""

    def __init__(self, audits: Audits) -> None:
        self._audits = audits

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._audits.run())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def test_a_complaint_is_known_to_every_worker_and_after_a_restart(store: RedisStore) -> None:
    """Also where the worker that hears of it has served nothing yet; the surfaces beside it learn nothing."""
    kind, complaint = secrets.token_hex(4), Complaint(0.9312345678, "tenant:acme", "ab")
    one, other = Audits(store, kind), Audits(store, kind)
    served = other.surface("chat", semantic(), 0.8)
    async with Running(one), Running(other):
        idle = one.surface("chat", semantic(), 0.8)
        one.complain("chat", semantic(), 0.8, complaint)
        await eventually(
            lambda: idle.control.has_heard("ab") and served.control.threshold_for("tenant:acme") > complaint.score
        )
        one.complain("chat", semantic(), 0.8, complaint)
        assert not idle.complaints
        served.count("tenant:acme", "Latin")
        served.count("tenant:zeta", "Latin")
        assert (served.requests, served.asked) == (2, {"tenant:acme": 1})
    later, beside = Audits(store, kind), Audits(store, kind).surface("batch", semantic(), 0.8)
    again = later.surface("chat", semantic(), 0.8)
    async with Running(later):
        await eventually(lambda: again.control.threshold_for("tenant:acme") > complaint.score)
    state = later.in_force("chat", "tenant:zeta", "Latin")
    assert state is not None
    assert state.threshold == beside.control.threshold_for("tenant:acme") == 0.8
