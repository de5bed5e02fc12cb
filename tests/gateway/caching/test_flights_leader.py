"""A leader makes an answer that others read too: what lands, when, and who is left to read it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import pytest

from cache.flights import Flight, Landing
from cache.write import PendingWrite
from gateway.caching.flights import Follower, Leader
from gateway.errors import UpstreamFailed
from gateway.parts.access.admission import OutOfBudget
from gateway.request.context import AnswerEnd, Client, Reply, RequestContext
from tests.support.context import streamed_request

CHUNKS = [b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number for number in range(4)]


class Backend:
    """A stream of some events, which ends well unless it is told to wait after them."""

    def __init__(self, events: Sequence[bytes] = CHUNKS, *, waits: bool = False) -> None:
        self.end = "client_cancel"
        self.closed = False
        self._events, self._waits = events, waits

    async def events(self) -> AsyncGenerator[bytes]:
        """The events."""
        for event in self._events:
            yield event
        if self._waits:
            await asyncio.Event().wait()
        self.end = "done"

    def close(self) -> None:
        """Ends the call."""
        self.closed = True


class Led:
    """One flight, its leader, and what it left for the store."""

    def __init__(self) -> None:
        self.flight = Flight("key", time.monotonic() + 10, full_deadline=True)
        self.request: RequestContext = streamed_request(Client(None, 60.0))
        self.landed: list[tuple[PendingWrite | None, AnswerEnd]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.leader = Leader(self.request, self.flight, self._landed, self.tasks.append)

    def _landed(self, _: Flight, write: PendingWrite | None, end: AnswerEnd) -> None:
        self.landed.append((write, end))
        end.end(write)

    def follower(self) -> Follower:
        """Another reader of the flight."""
        request = streamed_request(Client(None, 60.0))
        return Follower(request, self.flight.subscribe(request.deadline), follows=True, last=True)

    def publish(self, backend: Backend) -> Reply:
        """The reply for the leader's own client."""
        with self.leader as shared:
            return shared.publish(Reply(events=backend.events(), stream=backend))


async def test_what_a_leader_owes_concerns_no_follower() -> None:
    """Followers of a request that is refused for its owner's budget try again; of any other failure, they get it."""
    for of_owner, end in ((True, "lost"), (False, "failed")):
        led, refused = Led(), OutOfBudget("Key k_1 has spent all.")
        refused.of_owner = of_owner
        with pytest.raises(OutOfBudget), led.leader:
            raise refused
        assert led.flight.landing is not None and led.flight.landing.end == end


async def test_a_body_lands_at_once() -> None:
    """Its followers have it, and it is over for the store, before the leader's client has read a byte."""
    led = Led()
    reader = led.follower()
    with led.leader as shared:
        assert shared.reply is None, "it is to make the answer"
        reply = shared.publish(Reply(body=b'{"choices": []}'))
    assert led.flight.landing == Landing("done")
    assert len(led.landed) == 1 and led.landed[0][1] is reply.shared_end
    assert await reader.answer() is not None
    reader.close()


@pytest.mark.parametrize(
    ("error", "end"), [(UpstreamFailed("gone"), "failed"), (asyncio.CancelledError(), "abandoned")]
)
async def test_a_block_that_fails_lands_the_flight_without_an_answer(error: BaseException, end: str) -> None:
    """Its followers get the error, or try again where the leader's client has only left."""
    led = Led()
    with pytest.raises(type(error)), led.leader:
        raise error
    assert led.flight.landing is not None and led.flight.landing.end == end
    assert [write for write, _ in led.landed] == [None]
    assert led.request.client.on_left is None


async def test_a_stream_is_read_from_the_flight_by_all_alike() -> None:
    """The leader's client is a reader as the others are, and a fast one does not wait for a slow one."""
    led, backend = Led(), Backend()
    reader = led.follower()
    reply = led.publish(backend)
    assert reply.events is not None and reply.stream is not None
    theirs = await reader.answer()
    assert isinstance(theirs, Reply) and theirs.events is not None
    assert [event async for event in theirs.events][: len(CHUNKS)] == CHUNKS
    assert [event async for event in reply.events] == CHUNKS
    assert (reply.stream.end, backend.closed, led.flight.landing) == ("done", True, Landing("done"))
    reply.stream.close()
    reader.close()


async def test_a_client_that_leaves_leaves_the_answer_to_the_others() -> None:
    """The producer goes on; with no other reader it ends, and the backend with it."""
    led, backend = Led(), Backend(waits=True)
    reader = led.follower()
    reply = led.publish(backend)
    assert reply.stream is not None
    theirs = await reader.answer()
    assert isinstance(theirs, Reply) and theirs.events is not None
    assert await anext(theirs.events) == CHUNKS[0]
    reply.stream.close()
    assert not led.landed, "another still reads"
    await theirs.events.aclose()
    reader.close()
    await asyncio.wait(led.tasks, timeout=5)
    assert backend.closed and led.flight.landing is not None
    assert (led.flight.landing.end, len(led.landed)) == ("broken", 1)


async def test_a_client_that_leaves_before_there_is_an_answer() -> None:
    """The leader's task goes on as long as others read; the last of them that leaves ends it too."""
    led = Led()
    reader = led.follower()
    led.request.client.watch()
    with pytest.raises(asyncio.CancelledError), led.leader:
        led.request.client.drop()
        assert led.request.client.absent and not led.request.client.gone
        reader.close()
        assert led.request.client.gone
        await asyncio.sleep(5)
    task = asyncio.current_task()
    assert task is not None and task.uncancel() == 0
    assert led.flight.landing == Landing("abandoned")


async def test_a_lone_client_that_leaves_is_gone() -> None:
    """There is nobody to go on for."""
    led = Led()
    led.request.client.drop()
    assert led.request.client.gone and not led.request.client.absent
    with led.leader as shared:
        shared.publish(Reply(body=b"{}"))
