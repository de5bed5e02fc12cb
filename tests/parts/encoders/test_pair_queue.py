"""How requests wait for the cross-encoder and for each other, and what a lookup makes of its score."""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("onnx", reason="the minilm extra is not installed")

from cache.entry import Lookup
from cache.response_cache import ResponseCache
from cache.semantic.cross_encoder import Checked, CrossEncoderError, TextPair, TextPairScorer
from cache.store.redis_store import RedisStore
from cache.text.reading import SCRIPTS
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.encoders.pair_queue import CrossEncoderQueue
from gateway.parts.hit_audits.audit import Audits
from gateway.seams import build_pair_queue, compares_turns
from policies.model import Policy
from tests.cache.samples import Facts, answer, body, policy
from tests.support.cross_encoder import write_cross_encoder

ITALY = "what is the capital of italy"
VECTOR = np.array([1, 0, 0, 0], np.float32)
PATIENT_S = 30.0


class Says:
    """A cross-encoder that says the same of every pair, or raises it, and remembers its calls."""

    strict: float | None = 0.9
    scripts = SCRIPTS
    languages = ("en",)

    def __init__(self, said: float | Exception) -> None:
        self.said = said
        self.calls: list[list[TextPair]] = []

    def scores(self, pairs: Sequence[TextPair]) -> list[float]:
        self.calls.append(list(pairs))
        if isinstance(self.said, Exception):
            raise self.said
        return [self.said] * len(pairs)


class Stuck(Says):
    """A cross-encoder that says nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.let_go = threading.Event()

    def scores(self, pairs: Sequence[TextPair]) -> list[float]:
        made = super().scores(pairs)
        self.let_go.wait(60)
        return made


@pytest_asyncio.fixture
async def queue_of() -> AsyncIterator[Callable[..., CrossEncoderQueue]]:
    made: list[CrossEncoderQueue] = []

    def make(scorer: TextPairScorer, **options: Any) -> CrossEncoderQueue:
        made.append(CrossEncoderQueue(scorer, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[..., CrossEncoderQueue]


async def under_way(scorer: Says, calls: int = 1) -> None:
    """Returns when the model has been called so often."""
    deadline = time.monotonic() + 20
    while len(scorer.calls) < calls:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def asks(queue: CrossEncoderQueue, *pairs: TextPair, limit_s: float = PATIENT_S) -> asyncio.Task[Checked]:
    return asyncio.create_task(queue.check(pairs, limit_s))


async def test_what_waits_at_the_same_moment_is_scored_in_one_call(queue_of: Make) -> None:
    """Up to the limit, in the order of arrival, and the same pair once."""
    stuck = Stuck()
    queue = queue_of(stuck, most_at_once=3)
    first = asks(queue, ("a", "b"))
    await under_way(stuck)
    rest = [asks(queue, ("c", "d"), ("e", "f")), asks(queue, ("c", "d")), asks(queue, ("g", "h"))]
    await asyncio.sleep(0)
    stuck.let_go.set()
    batches = [(await one).batch for one in (first, *rest)]
    assert stuck.calls == [[("a", "b")], [("c", "d")], [("e", "f")], [("g", "h")]]
    assert batches == [1, 2, 2, 1]
    assert (await rest[0]).scores == (1.0, 1.0)


async def test_no_pair_is_read_after_one_that_is_enough(queue_of: Make) -> None:
    """Those of other requests are, and those of one whose pairs are all refused; a remembered score is enough too."""
    stuck = Stuck()
    queue = queue_of(stuck, most_at_once=8)
    first = asks(queue, ("a", "b"))
    await under_way(stuck)
    stuck.said = 0.7
    enough = asyncio.create_task(queue.check([("c", "d"), ("e", "f")], PATIENT_S, 0.7))
    refused = asyncio.create_task(queue.check([("g", "h"), ("i", "j")], PATIENT_S, 0.71))
    await asyncio.sleep(0)
    stuck.let_go.set()
    assert (await first).scores == (1.0,)
    assert ((await enough).scores, (await refused).scores) == ((0.7,), (0.7, 0.7))
    assert (await enough).batch == 3
    assert stuck.calls == [[("a", "b")], [("c", "d")], [("g", "h")], [("i", "j")]]
    again = await queue.check([("a", "b"), ("k", "l")], PATIENT_S, 0.9)
    assert (again.scores, again.batch) == ((1.0,), 0)
    assert len(stuck.calls) == 4


async def test_a_pair_that_comes_again_costs_no_call(queue_of: Make) -> None:
    """Its score is remembered, also beside a pair that is new."""
    scorer = Says(0.7)
    queue = queue_of(scorer)
    assert (await queue.check([("a", "b")], PATIENT_S)).scores == (0.7,)
    again = await queue.check([("a", "b")], 0.0)
    assert (again.scores, again.batch, again.waited_s) == ((0.7,), 0, 0.0)
    assert (await queue.check([("c", "d"), ("a", "b")], PATIENT_S)).scores == (0.7, 0.7)
    assert scorer.calls == [[("a", "b")], [("c", "d")]]


async def test_a_client_that_leaves_gives_up_its_place(queue_of: Make) -> None:
    """Its pairs are never scored."""
    stuck = Stuck()
    queue = queue_of(stuck)
    first = asks(queue, ("a", "b"))
    await under_way(stuck)
    left, stays = asks(queue, ("c", "d")), asks(queue, ("e", "f"))
    await asyncio.sleep(0)
    left.cancel()
    stuck.let_go.set()
    assert (await first).scores == (await stays).scores == (1.0,)
    assert left.cancelled()
    assert stuck.calls == [[("a", "b")], [("e", "f")]]


async def test_a_full_queue_refuses_at_once(queue_of: Make) -> None:
    """Those that wait keep their place."""
    stuck = Stuck()
    queue = queue_of(stuck, most_waiting=2)
    waits = [asks(queue, ("a", "b"))]
    await under_way(stuck)
    waits.append(asks(queue, ("c", "d")))
    await asyncio.sleep(0)
    assert (await queue.check([("e", "f"), ("g", "h")], PATIENT_S)).refused == "cross_encoder_busy"
    stuck.let_go.set()
    assert [(await one).scores for one in waits] == [(1.0,), (1.0,)]


async def test_the_request_that_is_due_first_is_scored_first(queue_of: Make) -> None:
    """Whichever came first."""
    stuck = Stuck()
    queue = queue_of(stuck)
    waits = [asks(queue, ("a", "b"))]
    await under_way(stuck)
    waits += [asks(queue, (name, "b"), limit_s=limit_s) for name, limit_s in (("c", 50.0), ("d", 30.0), ("e", 40.0))]
    await asyncio.sleep(0)
    stuck.let_go.set()
    assert [(await one).scores for one in waits] == [(1.0,)] * 4
    assert [name for ((name, _),) in stuck.calls] == ["a", "d", "e", "c"]


class Slow(Says):
    """A cross-encoder that takes so many seconds for a call."""

    def __init__(self, takes_s: float) -> None:
        super().__init__(0.5)
        self.takes_s = takes_s

    def scores(self, pairs: Sequence[TextPair]) -> list[float]:
        time.sleep(self.takes_s)
        return super().scores(pairs)


async def test_a_second_pair_is_left_out_where_others_would_be_late(queue_of: Make) -> None:
    """It is scored where they have the time."""
    for limit_s, second in ((0.7, False), (PATIENT_S, True)):
        slow = Slow(0.3)
        queue = queue_of(slow)
        await queue.check([("warm", "up")], PATIENT_S)
        first = asks(queue, ("a", "b"), ("c", "d"))
        await asyncio.sleep(0.05)  # its first pair is being scored
        behind = asks(queue, ("e", "f"), limit_s=limit_s)
        assert (await first).scores == ((0.5, 0.5) if second else (0.5,))
        assert (await behind).scores == (0.5,)
        assert (("c", "d") in [pair for call in slow.calls for pair in call]) is second


async def test_what_would_be_late_is_not_scored(queue_of: Make) -> None:
    """It is refused as late, and those behind it are scored; one that waits alone is scored nevertheless."""
    slow = Slow(0.01)
    queue = queue_of(slow)
    await queue.check([("warm", "up")], PATIENT_S)
    slow.takes_s = 0.5  # slower than its pairs were, as on a machine that became busy
    first = asks(queue, ("a", "b"))
    await asyncio.sleep(0.05)
    late = asks(queue, ("c", "d"), limit_s=0.5)  # has 0.05 s left when the first is scored
    behind = asks(queue, ("e", "f"))
    assert (await late).refused == "cross_encoder_late"
    assert ((await first).scores, (await behind).scores) == ((0.5,), (0.5,))
    assert ("c", "d") not in [pair for call in slow.calls for pair in call]
    assert (await queue.check([("g", "h")], 0.01)).refused == "cross_encoder_late"
    assert (await queue.check([("i", "j")], PATIENT_S)).scores == (0.5,)


async def test_a_late_one_refuses_and_nobody_waits_behind_it(queue_of: Make) -> None:
    """Nor does a request wait that has no time left; once the late one has ended, it is asked again."""
    stuck = Stuck()
    queue = queue_of(stuck)
    assert (await queue.check([("a", "b")], 0.1)).refused == "cross_encoder_late"
    assert (await queue.check([("c", "d")], 0.1)).refused == "cross_encoder_late"
    assert len(stuck.calls) == 1
    waits = asks(queue, ("c", "d"))
    stuck.let_go.set()
    assert (await waits).scores == (1.0,)
    assert (await queue.check([("e", "f")], 0.0)).refused == "cross_encoder_late"


async def test_one_that_fails_refuses(queue_of: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and the next request is not its victim."""
    scorer = Says(ValueError("broken inside"))
    queue = queue_of(scorer)
    assert (await queue.check([("a", "b")], PATIENT_S)).refused == "cross_encoder_failed"
    assert "broken inside" in caplog.text
    scorer.said = 0.5
    assert (await queue.check([("a", "b")], PATIENT_S)).scores == (0.5,)


async def test_a_model_that_is_being_opened_is_awaited_no_longer_than_any(queue_of: Make) -> None:
    """The opening takes its time out of the request's; it is done once, soon after the start or for the first one."""
    opened: list[str] = []
    let_go = threading.Event()

    def opens() -> None:
        let_go.wait(60)
        opened.append(threading.current_thread().name)

    scorer = Says(0.7)
    queue = queue_of(scorer, opens=opens)
    queue.start()
    assert (await queue.check([("a", "b")], 0.0)).refused == "cross_encoder_late"
    began = time.monotonic()
    late = await asyncio.gather(*(asks(queue, (name, "b"), limit_s=0.1) for name in "ac"))
    assert time.monotonic() - began < 1.0
    assert [(one.refused, 0.05 < one.waited_s < 1.0) for one in late] == [("cross_encoder_late", True)] * 2
    assert (await queue.check([("a", "b")], 0.1)).waited_s < 0.05, "as behind a call that is stuck"
    assert not scorer.calls
    waits = asks(queue, ("a", "b")), asks(queue, ("c", "d"))
    await asyncio.sleep(0.4)
    let_go.set()
    assert [(await one).scores for one in waits] == [(0.7,), (0.7,)]
    assert (await queue.check([("e", "f")], 0.1)).scores == (0.7,)
    assert len(opened) == 1 and opened[0].startswith("tierline-cross-encoder")
    unasked = queue_of(Says(0.7), opens=opens)
    unasked.start()
    async with asyncio.timeout(PATIENT_S):
        while len(opened) < 2:
            await asyncio.sleep(0.01)


async def test_a_model_that_cannot_be_opened_refuses(queue_of: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Each request at once, and the log says it once."""

    def opens() -> None:
        raise CrossEncoderError("model.onnx: no such file")

    queue = queue_of(scorer := Says(CrossEncoderError("not open")), opens=opens)
    queue.start()
    for _ in range(2):
        assert (await queue.check([("a", "b")], PATIENT_S)).refused == "cross_encoder_failed"
    assert not scorer.calls
    assert caplog.text.count("ERROR") == caplog.text.count("cannot be opened") == 1
    assert "model.onnx: no such file" in caplog.text


def asking(verify: str = "default", **fields: object) -> Policy:
    """A policy whose guards and cosine let a pair through to the cross-encoder."""
    asked = {"within": "30s", **fields}
    return policy(semantic={"ttl": "6h", "verify": verify, "audit": "0%", "cross_encoder": asked})


async def looked_up(
    store: RedisStore, scorer: TextPairScorer | None, wanted: Policy, left_s: float = math.inf
) -> Lookup:
    """The lookup of a question that the guards let through to the cross-encoder."""
    name = secrets.token_hex(4)
    queue = None if scorer is None else build_pair_queue(scorer)
    bound = Audits(store, name)
    cache = ResponseCache(
        store, embedder_name=name, dimension=4, cross_encoder=queue, turn_by_turn=compares_turns(), bound=bound
    )
    await cache.start()
    try:
        tenant = secrets.token_hex(8)
        await cache.write(cache.plan(body(f"{ITALY}?"), wanted, tenant, Facts()), answer(), VECTOR)
        plan = cache.plan(body(f"please, {ITALY}"), wanted, tenant, Facts())
        return await cache.semantic(plan, VECTOR, left_s=left_s)
    finally:
        await cache.aclose()


async def test_a_lookup_asks_a_real_one_before_it_serves(store: RedisStore, tmp_path: Path) -> None:
    """What the guards leave open is served or refused by the model's score, from the policy's threshold on."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model"))
    (expected,) = model.scores([(f"{ITALY}?", f"please, {ITALY}")])
    assert 0.5 < expected < 0.9999
    hit = await looked_up(store, model, asking(min_score=0.4))
    assert (hit.outcome, hit.stage, hit.batch) == ("hit", "cross_encoder", 1)
    assert hit.score == pytest.approx(expected)
    assert hit.waited_s > 0
    refused = await looked_up(store, model, asking(min_score=0.9999))
    assert (refused.outcome, refused.reason, refused.stage) == ("miss", "similarity", "cross_encoder")
    assert refused.score == pytest.approx(expected)


async def test_the_models_own_threshold_holds_where_the_policy_names_none(store: RedisStore) -> None:
    """It is on the data sheet."""
    assert (await looked_up(store, Says(0.9), asking())).outcome == "hit"
    assert (await looked_up(store, Says(0.89), asking())).reason == "similarity"
    assert (await looked_up(store, Says(0.89), asking(min_score=0.8))).outcome == "hit"


async def test_a_lookup_fails_closed(store: RedisStore) -> None:
    """Without time for the model, or where it fails, there is no hit, and the reason is said."""
    late = await looked_up(store, Says(1.0), asking(), left_s=0.0)
    assert (late.reason, late.stage, late.score) == ("cross_encoder_late", "cross_encoder", None)
    assert (await looked_up(store, Says(ValueError("broken")), asking())).reason == "cross_encoder_failed"


async def test_a_policy_can_do_without(store: RedisStore) -> None:
    """`fast` and `none` leave the decision to what comes before; so does a deployment that has none."""
    scorer = Says(0.0)
    for verify in ("fast", "none"):
        assert (await looked_up(store, scorer, asking(verify))).stage == "guards"
    assert (await looked_up(store, None, asking())).outcome == "hit"
    assert not scorer.calls


def test_labels_belong_to_the_score_in_force(store: RedisStore) -> None:
    """Another model or another first stage begin anew; where the threshold starts makes no difference."""

    def stream(version: str, verify: str = "default", **fields: object) -> str:
        semantic = asking(verify, **fields).cache.semantic
        assert semantic is not None
        return Audits(store, "kind", cross_encoder=version).surface("chat", semantic, 0.9).stream

    kinds = [stream("a"), stream("b"), stream(""), stream("a", ask_from=0.5), stream("a", "fast")]
    assert len(set(kinds)) == 5
    assert stream("a", min_score=0.5) == kinds[0]
    assert stream("a", "fast", ask_from=0.5) == kinds[4]
