"""An endpoint: for how long it rests, what it carries, who waits for it, and what it tells its siblings."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gateway.backends.base import (
    BackendError,
    BadStatus,
    BudgetSpent,
    DeadlinePassed,
    Saturated,
    TimedOut,
    Truncated,
    Unreachable,
)
from gateway.parts.fleet.reports import report_of, take_in
from gateway.tiers import Endpoint, Slot, SlotRequest, Tier
from tests.gateway.tiers.endpoints import BATCH, CHAT, Clock, endpoint_of, fail, held


def test_rests_as_long_as_it_asks(clock: Clock, endpoint: Endpoint) -> None:
    """A 429 or 503 with Retry-After rests for just that long."""
    fail(endpoint, BadStatus(429, retry_after_s=12))
    assert endpoint.unavailable() == "asking for a pause (status 429)"
    assert endpoint.pause_s() == 12
    clock.now += 11.9
    assert endpoint.unavailable()
    clock.now += 0.2
    assert endpoint.unavailable() == ""
    assert endpoint.pause_s() is None


def test_rests_for_a_minute_at_most(endpoint: Endpoint) -> None:
    """However long it asks for."""
    fail(endpoint, BadStatus(503, retry_after_s=86400))
    assert endpoint.pause_s() == 60


def test_a_429_that_asks_for_nothing_backs_off(clock: Clock, endpoint: Endpoint) -> None:
    """One second, two, four, to thirty at most, each a little off; an answer begins them anew."""
    pauses = []
    for _ in range(8):
        fail(endpoint, BadStatus(429))
        pauses.append(endpoint.pause_s() or 0)
        clock.now += 60
    for pause, nominal in zip(pauses, [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert nominal * 0.8 <= pause <= nominal * 1.2
    endpoint.take().succeeded()
    fail(endpoint, BadStatus(429))
    assert (endpoint.pause_s() or 99) <= 1.2


def test_many_429s_at_once_are_one(endpoint: Endpoint) -> None:
    """Calls that were all in flight when the pause began do not make it longer and longer."""
    fail(endpoint, *[BadStatus(429)] * 20)
    assert (endpoint.pause_s() or 99) <= 1.2


def test_a_longer_pause_prevails(endpoint: Endpoint) -> None:
    """Of two pauses asked for at once the longer one holds, whichever came first."""
    fail(endpoint, BadStatus(429, retry_after_s=30), BadStatus(429, retry_after_s=2))
    assert endpoint.pause_s() == 30
    fail(endpoint, BadStatus(429, retry_after_s=50))
    assert endpoint.pause_s() == 50


def test_a_call_from_before_does_not_end_an_ejection(clock: Clock, endpoint: Endpoint) -> None:
    """An answer to a call that began before the pause was asked for leaves the pause as it is."""
    before, stream_before = endpoint.take(), endpoint.take()
    clock.now += 1
    fail(endpoint, BadStatus(429, retry_after_s=10))
    before.succeeded()
    stream_before.began()
    assert endpoint.unavailable()
    clock.now += 11
    endpoint.take().succeeded()
    assert endpoint.unavailable() == ""


def test_five_failures_in_a_row(clock: Clock, endpoint: Endpoint) -> None:
    """Five failures in a row eject it, four and an answer do not; it is not a pause that it asked for."""
    fail(endpoint, *[Unreachable()] * 4)
    endpoint.take().succeeded()
    fail(endpoint, *[Unreachable()] * 4)
    assert endpoint.unavailable() == ""
    fail(endpoint, Truncated())
    assert endpoint.unavailable() == "failing (upstream_truncated, 5 in a row)"
    assert endpoint.pause_s() is None
    clock.now += 1.1
    assert endpoint.unavailable() == ""
    fail(endpoint, Unreachable())
    assert endpoint.unavailable()


def test_our_key_is_refused(clock: Clock, endpoint: Endpoint) -> None:
    """One refusal of our key is enough to eject it, and is no pause."""
    fail(endpoint, BadStatus(401))
    assert endpoint.unavailable() == "refusing our key (status 401)"
    assert endpoint.pause_s() is None
    clock.now += 31
    assert endpoint.unavailable() == ""


def test_a_refusal_is_told_when_it_begins_and_when_it_ends(clock: Clock, endpoint: Endpoint) -> None:
    """Once each, however often it is met; a failure of another kind meanwhile does not end it, an answer does."""
    told: list[tuple[str, str, bool]] = []
    endpoint.on_refusal = lambda config, reason, own: told.append((config.name, reason, own))
    for error in (BadStatus(401), BadStatus(401), Unreachable(), BadStatus(401)):
        fail(endpoint, error)
        clock.now += 31
    assert told == [("local-1", "refusing our key (status 401)", True)]
    fail(endpoint, BadStatus(402))
    assert told[1:] == [("local-1", "refusing our account, which is out of quota or credit (status 402)", True)]
    clock.now += 31
    assert endpoint.refused == "quota"
    endpoint.take().succeeded()
    assert told[2:] == [("local-1", "", True)]
    assert not endpoint.refused


def test_a_model_that_is_gone(clock: Clock, endpoint: Endpoint) -> None:
    """One 404 is enough to eject the endpoint; one call each 30 s tries it again, and an answer ends it."""
    fail(endpoint, BadStatus(404))
    assert endpoint.refused == "model"
    assert endpoint.unavailable() == f"without its model {endpoint.config.model}, or has another URL (status 404)"
    clock.now += 31
    probe = endpoint.take()
    assert endpoint.unavailable()
    probe.succeeded()
    assert (endpoint.refused, endpoint.unavailable()) == ("", "")


@pytest.mark.parametrize(
    "error", [BadStatus(403, b"<html>"), BadStatus(413), BadStatus(400)], ids=["page", "413", "400"]
)
def test_an_error_about_one_request_says_nothing_of_the_endpoint(endpoint: Endpoint, error: BadStatus) -> None:
    """However often it comes, others get their answers."""
    fail(endpoint, *[error] * 20)
    assert (endpoint.unavailable(), endpoint.refused) == ("", "")


def test_a_refusal_is_heard_of(clock: Clock, endpoint: Endpoint) -> None:
    """A sibling worker's endpoint knows of it too, until it hears that it is over."""
    told: list[tuple[str, bool]] = []
    sibling = endpoint_of(clock)
    sibling.on_refusal = lambda _, reason, own: told.append((reason, own))
    fail(endpoint, BadStatus(403))
    take_in(sibling, "w", report_of(endpoint, clock.now), clock.now)
    assert (sibling.refused, told) == ("key", [("refusing our key (status 403)", False)])
    assert sibling.breaker.ejection is not None and sibling.breaker.ejection.status == 403
    clock.now += 31
    endpoint.take().succeeded()
    take_in(sibling, "w", report_of(endpoint, clock.now), clock.now)
    assert (sibling.refused, told[1:]) == ("", [("", False)])


def test_one_call_tries_a_rested_endpoint(clock: Clock, endpoint: Endpoint) -> None:
    """After its ejection one call at a time tries it, until one succeeds; other calls' ends change nothing."""
    before = endpoint.take()
    fail(endpoint, BadStatus(429, retry_after_s=1))
    clock.now += 2
    probe = endpoint.take()
    assert endpoint.unavailable()
    before.free()
    assert endpoint.unavailable()
    probe.free()
    assert endpoint.unavailable() == ""
    endpoint.take().succeeded()
    endpoint.take()
    assert endpoint.unavailable() == ""


def test_a_stream_that_has_begun_lets_others_in(clock: Clock, endpoint: Endpoint) -> None:
    """A long stream is proof enough for others to call, while its own failures still count until it ends well."""
    fail(endpoint, *[Truncated()] * 5)
    clock.now += 6
    stream = endpoint.take()
    stream.began()
    assert endpoint.unavailable() == ""
    stream.failed(Truncated())
    assert endpoint.unavailable() == "failing (upstream_truncated, 6 in a row)"


def test_no_order_of_ends_makes_it_rest_for_ever(clock: Clock, endpoint: Endpoint) -> None:
    """A probing stream, overtaken by an older call's pause, leaves an endpoint that can be called again."""
    old = endpoint.take()
    fail(endpoint, *[Unreachable()] * 5)
    clock.now += 6
    probe = endpoint.take()
    old.failed(BadStatus(429, retry_after_s=20))
    probe.began()
    clock.now += 1
    probe.succeeded()
    assert (endpoint.in_flight, bool(endpoint.unavailable())) == (0, True)
    clock.now += 30
    assert endpoint.unavailable() == ""


def test_a_slot_ends_once(endpoint: Endpoint) -> None:
    """Whatever is said after the first verdict, the place is given back once."""
    slot = endpoint.take()
    slot.succeeded()
    slot.failed(Unreachable())
    slot.free()
    assert endpoint.in_flight == 0


@pytest.mark.parametrize(
    "error", [BudgetSpent(2.0), DeadlinePassed("x"), Saturated("x"), BadStatus(400), BadStatus(422)], ids=repr
)
def test_what_is_not_its_fault_makes_no_endpoint_rest(endpoint: Endpoint, error: BackendError) -> None:
    """A hurried request, a full tier and a caller's mistake are nobody's failures."""
    fail(endpoint, *[error] * 20)
    assert endpoint.unavailable() == ""


def test_silence_for_longer_than_its_patience_is_its_fault(endpoint: Endpoint) -> None:
    """However it came about, an endpoint that was given ample time and said nothing has failed."""
    fail(endpoint, *[BudgetSpent(10.0)] * 5)
    assert "5 in a row" in endpoint.unavailable()


def test_a_503_lowers_its_weight_and_is_no_trip(clock: Clock, endpoint: Endpoint) -> None:
    """An overloaded endpoint gets less for ten seconds, and goes on."""
    fail(endpoint, BadStatus(503))
    assert (endpoint.unavailable(), endpoint.weight) == ("", 0.5)
    fail(endpoint, BadStatus(529))
    assert endpoint.weight == 0.25
    clock.now += 10.1
    assert endpoint.weight == 1.0


def test_alone_it_rests_for_seconds_with_siblings_for_longer(clock: Clock) -> None:
    """Recovery must not wait for us where nobody can stand in; where somebody can, a flapping backend is kept away."""
    alone = endpoint_of(clock)
    fail(alone, *[Unreachable()] * 5)
    clock.now += 1.1
    assert not alone.unavailable()
    a, b = endpoint_of(clock, "a"), endpoint_of(clock, "b")
    Tier("pair", [a, b], clock)
    fail(a, *[Unreachable()] * 5)
    clock.now += 29
    assert a.unavailable()
    clock.now += 2
    assert not a.unavailable()


def test_when_the_last_one_fails_the_others_need_not_rest_for_long(clock: Clock) -> None:
    """An outage of all of them is over for all of them within seconds of its end."""
    a, b = endpoint_of(clock, "a"), endpoint_of(clock, "b")
    Tier("pair", [a, b], clock)
    fail(a, *[Unreachable()] * 5)
    fail(b, *[Unreachable()] * 5)
    clock.now += 1.1
    assert (a.unavailable(), b.unavailable()) == ("", "")


def test_overload_shrinks_what_it_carries(clock: Clock) -> None:
    """A 429, a 503 and a timeout that is its fault lower its limit, unless the config wants it fixed."""
    for error in (BadStatus(429), BadStatus(503), TimedOut("x"), BudgetSpent(10.0)):
        endpoint = endpoint_of(clock, max_in_flight=20)
        fail(endpoint, error)
        assert endpoint.capacity < 20
    fixed = endpoint_of(clock, max_in_flight=20, adaptive=False)
    fail(fixed, BadStatus(503))
    assert fixed.capacity == 20


def test_slowing_down_shrinks_what_it_carries(clock: Clock) -> None:
    """A backend whose first tokens take longer the more it carries is given less until they do not."""
    endpoint = endpoint_of(clock, max_in_flight=20)

    def called(seconds: float) -> None:
        slot = endpoint.take(CHAT)
        slot.called_at = clock.now - seconds
        clock.now += 0.05
        slot.began()
        slot.succeeded()

    for _ in range(400):
        called(0.2)
    assert endpoint.capacity == 20
    for _ in range(400):
        called(0.2 * max(1.0, endpoint.capacity / 4))
    assert endpoint.capacity <= 12


async def test_waits_for_a_place(clock: Clock, endpoint: Endpoint) -> None:
    """A request waits while all places are taken; its wait is told apart from the call's own time."""
    slots = [endpoint.take(CHAT), endpoint.take(CHAT)]
    waiting = asyncio.create_task(endpoint.wait(CHAT))
    await asyncio.sleep(0)
    clock.now += 0.7
    slots[0].free()
    slot = await waiting
    assert slot.queued_s == pytest.approx(0.7)
    assert slot.called_at == clock.now
    assert endpoint.in_flight == 2


async def test_a_wait_has_an_end(endpoint: Endpoint) -> None:
    """Who has waited for as long as it may is turned away, told when to come again, and takes no place later."""
    slots = [endpoint.take(CHAT), endpoint.take(CHAT)]
    with pytest.raises(Saturated, match="within the wait") as caught:
        await endpoint.wait(SlotRequest("chat", "interactive", 0.01, 10))
    assert caught.value.retry_after_s is not None
    slots[0].free()
    assert endpoint.in_flight == 1


async def test_a_hopeless_wait_is_refused_at_once(clock: Clock, endpoint: Endpoint) -> None:
    """When those ahead will take longer than the request may wait, nobody is kept waiting for nothing."""
    held(clock, endpoint, 1.0)
    endpoint.take(CHAT)
    endpoint.take(CHAT)
    waiting = [asyncio.create_task(endpoint.wait(CHAT)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Saturated, match="2000 ms") as caught:
        await endpoint.wait(SlotRequest("chat", "interactive", 1.9, 1000))
    assert caught.value.retry_after_s == pytest.approx(2.5)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert (endpoint.queue.size, endpoint.in_flight) == (0, 2)


async def test_a_wait_is_bounded_by_the_backends_own_queue(endpoint: Endpoint) -> None:
    """`queue.wait` of the config holds whatever a surface would allow, where it is written; a wait of 0 s is none."""
    endpoint.take(CHAT)
    endpoint.take(CHAT)
    with pytest.raises(Saturated):
        await endpoint.wait(SlotRequest("chat", "interactive", 0.0, 10))
    assert (endpoint.config.queue.wait, endpoint.config.queue.length) == (None, None)
    waiters = [asyncio.create_task(endpoint.wait(CHAT)) for _ in range(CHAT.max_waiting)]
    await asyncio.sleep(0)
    assert endpoint.queue.size == CHAT.max_waiting, "without a cap the surface's own bound is the only one"
    with pytest.raises(Saturated, match="1000 requests of chat wait already"):
        await endpoint.wait(CHAT)
    for waiter in waiters:
        waiter.cancel()
    hurried = endpoint_of(Clock(), queue={"wait": "10ms"}, max_in_flight=1)
    hurried.take(CHAT)
    with pytest.raises(Saturated):
        await asyncio.wait_for(hurried.wait(CHAT), 5)


@pytest.mark.parametrize("pause_s", [0.6, 600.0])
async def test_a_burst_of_batch_is_let_in_whatever_there_was_before(pause_s: float) -> None:
    """That no batch request got a place while none waited says nothing of how long the next ones wait."""
    clock = Clock()
    endpoint = endpoint_of(clock, max_in_flight=16, adaptive=False)
    patient = BATCH._replace(wait_s=30.0)
    held(clock, endpoint, 0.5)
    for _ in range(2):
        slots = [endpoint.take(patient) for _ in range(16)]
        waiters = [asyncio.create_task(endpoint.wait(patient)) for _ in range(284)]
        await asyncio.sleep(0)
        assert [waiter for waiter in waiters if waiter.done()] == [], "9 s of waiting are less than 30"
        while slots:
            clock.now += 0.5
            for slot in slots:
                slot.free()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            slots, waiters = [w.result() for w in waiters if w.done()], [w for w in waiters if not w.done()]
        assert waiters == []
        clock.now += pause_s


async def test_a_rest_turns_those_in_line_away(endpoint: Endpoint) -> None:
    """They learn at once that they must go elsewhere."""
    slot, _ = endpoint.take(CHAT), endpoint.take(CHAT)
    waiting = asyncio.create_task(endpoint.wait(CHAT))
    await asyncio.sleep(0)
    slot.failed(BadStatus(429, retry_after_s=7))
    with pytest.raises(Saturated, match="asking for a pause") as caught:
        await waiting
    assert caught.value.retry_after_s == pytest.approx(7)
    assert (endpoint.queue.size, endpoint.in_flight) == (0, 1)


async def test_no_place_is_lost_to_those_who_leave() -> None:
    """After ten thousand calls that were cancelled at random moments every place is free, and nobody is counted."""
    chance = random.Random(7)
    waiting: Counter[str] = Counter()
    endpoint = endpoint_of(Clock(), waiting=waiting, max_in_flight=4, queue={"length": 64})
    most = 0

    async def call(ask: SlotRequest) -> None:
        nonlocal most
        slot = endpoint.take(ask) if endpoint.has_room(batch=ask.priority == "batch", now=endpoint.now()) else None
        try:
            slot = slot or await endpoint.wait(ask)
        except Saturated:
            return
        most = max(most, endpoint.in_flight)
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            slot.free()

    tasks: list[asyncio.Task[None]] = []
    for _ in range(10_000):
        tasks.append(asyncio.create_task(call(chance.choice((CHAT, BATCH)))))
        if chance.random() < 0.7:
            await asyncio.sleep(0)
        if chance.random() < 0.6:
            chance.choice(tasks[-20:]).cancel()
    await asyncio.wait(tasks)
    assert most == 4
    assert (endpoint.in_flight, endpoint.batch_in_flight, endpoint.queue.size, +waiting) == (0, 0, 0, Counter())
    assert endpoint.has_room(batch=True, now=endpoint.now())


async def test_batch_leaves_room_for_the_next_wave(clock: Clock) -> None:
    """Where interactive calls were in flight lately, batch calls leave their places free, all but one in twenty."""
    endpoint = endpoint_of(clock, max_in_flight=40)
    for slot in [endpoint.take(CHAT) for _ in range(30)]:
        slot.free()
    taken = []
    while endpoint.has_room(batch=True, now=clock.now):
        taken.append(endpoint.take(BATCH))
    assert len(taken) == 10
    assert endpoint.has_room(batch=False, now=clock.now)
    clock.now += 16
    assert endpoint.has_room(batch=True, now=clock.now)


async def test_batch_keeps_its_floor(clock: Clock) -> None:
    """However many interactive requests wait, every twentieth place that becomes free goes to a batch one."""
    endpoint = endpoint_of(clock, max_in_flight=1, queue={"length": 1000})
    slot: Slot = endpoint.take(CHAT)
    batch = [asyncio.create_task(endpoint.wait(BATCH)) for _ in range(5)]
    chats = [asyncio.create_task(endpoint.wait(CHAT)) for _ in range(100)]
    await asyncio.sleep(0)
    served = []
    for _ in range(100):
        slot.free()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = next(task for task in [*batch, *chats] if task.done() and task.result() not in served)
        slot = done.result()
        served.append(slot)
    assert [served.index(task.result()) for task in batch] == [19, 39, 59, 79, 99]
    for task in chats:
        task.cancel()
    await asyncio.wait(chats)


def test_a_siblings_rest_counts_like_our_own(clock: Clock, endpoint: Endpoint) -> None:
    """What one worker finds out the next one knows, until the first finds the endpoint well; it does not echo."""
    sibling = endpoint_of(clock)
    fail(sibling, BadStatus(429, retry_after_s=20))
    take_in(endpoint, "w2", report_of(sibling, clock.now), clock.now)
    assert (endpoint.pause_s(), bool(endpoint.unavailable())) == (20, True)
    assert report_of(endpoint, clock.now)["ejection"] is None
    clock.now += 21
    sibling.take().succeeded()
    take_in(endpoint, "w2", report_of(sibling, clock.now), clock.now)
    assert endpoint.breaker.state(clock.now) == "closed"


def test_a_siblings_latencies_are_heard(clock: Clock, endpoint: Endpoint) -> None:
    """A worker that has made no call knows how fast the backend is from those that have."""
    sibling = endpoint_of(clock)
    for _ in range(50):
        slot = sibling.take(CHAT)
        clock.now += 0.3
        slot.began()
        slot.succeeded()
    take_in(endpoint, "w2", report_of(sibling, clock.now), clock.now)
    assert endpoint.forecast(100, batch=False, now=clock.now).ttft_s == pytest.approx(0.3, rel=0.06)


def test_a_report_that_makes_no_sense_changes_nothing(clock: Clock, endpoint: Endpoint) -> None:
    """Siblings of another version are no danger."""
    nonsense = {"in_flight": "x", "ejection": {"cause": "y", "left_s": -1}, "idle_s": None, "latency": {"n": [None]}}
    take_in(endpoint, "w2", nonsense, clock.now)
    take_in(endpoint, "w3", {}, clock.now)
    assert (endpoint.unavailable(), endpoint.capacity) == ("", 2)
