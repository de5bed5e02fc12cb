"""Responses in the background, over two gateways of one store: whoever asks, wherever it runs, however it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import redis

from tests.support.ask import record_at
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.response_events import check_response
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Fault, Reply, Upstream
from tests.support.wait import until

POLICY = CHAT.replace("tiers: [local, hosted]", "tiers: [local]").replace("  exact: {ttl: 1h}", "  never: [otherwise]")
SLOW = Reply(text="one two three four five six", between_s=0.4)
HUNG = Reply(text="never", before_headers_s=60)
REFUSAL = Reply(status=400, body=b'{"error":{"message":"no"}}')
Sdk = openai.OpenAI
Two = tuple[Gateway, Gateway]


@contextmanager
def two_gateways(folder: Path, store: LocalStore, upstream: Upstream, **settings: Any) -> Iterator[Two]:
    common: Any = {"store_url": store.url, "policies": {"chat": POLICY}}
    with ExitStack() as stack:
        for name in ("one", "two"):
            (folder / name).mkdir()
        one = stack.enter_context(serve(folder / "one", upstream.url, settings=settings, **common))
        two = stack.enter_context(serve(folder / "two", upstream.url, **common))
        yield one, two


@pytest.fixture(scope="module")
def _two(
    tmp_path_factory: pytest.TempPathFactory, _store: LocalStore, _upstreams: tuple[Upstream, Upstream]
) -> Iterator[Two]:
    with two_gateways(tmp_path_factory.mktemp("two"), _store, _upstreams[0]) as both:
        for one in both:
            httpx2.get(f"{one.url}/responses/resp_0", timeout=20)  # what answers this is built at the first request
        yield both


@pytest.fixture
def two(_two: Two, store: LocalStore, local_upstream: Upstream) -> Iterator[tuple[Sdk, Sdk]]:
    """Clients of the two gateways."""
    with sdk(_two[0]) as one, sdk(_two[1]) as other:
        yield one, other


def sdk(gateway: Gateway) -> Sdk:
    return openai.OpenAI(base_url=gateway.url, api_key="any", max_retries=0, timeout=20)


def ended(client: Sdk, response_id: str) -> Any:
    """The response, once it is at its end."""

    def is_ended() -> bool:
        return client.responses.retrieve(response_id).status not in ("queued", "in_progress")

    until(is_ended, 15, "the end of the response")
    return client.responses.retrieve(response_id)


def begun(client: Sdk, upstream: Upstream, **body: Any) -> str:
    """The id of a response that a backend is at work on."""
    calls = len(upstream.requests)
    made = client.responses.create(model="chat", input="Think.", background=True, **body)
    upstream.wait_for(calls + 1)
    return str(made.id)


async def test_the_reply_comes_at_once_and_the_answer_is_kept(
    two: tuple[Sdk, Sdk], store: LocalStore, local_upstream: Upstream
) -> None:
    """Any gateway shows it, running or done, and a response may follow it. It has one record, of the whole of it."""
    one, other = two
    local_upstream.queue(Reply(text="forty-two", before_headers_s=1.5))
    raw = one.responses.with_raw_response.create(model="chat", input="What is it?", background=True)
    made = raw.parse()
    assert (made.status, made.background, made.output) == ("queued", True, [])
    one.close()
    running = other.responses.retrieve(made.id)
    assert (running.status, running.output) == ("in_progress", [])
    done = ended(other, made.id)
    assert (done.status, done.output_text, done.background) == ("completed", "forty-two", True)
    check_response(done.to_dict(), "completed")
    assert done.usage is not None and done.usage.output_tokens == 1
    later = other.responses.create(model="chat", input="Why?", previous_response_id=made.id)
    assert [one["content"] for one in local_upstream.requests[-1].body["messages"]] == [
        "What is it?",
        "forty-two",
        "Why?",
    ]
    assert "background" not in local_upstream.requests[-2].body
    assert later.previous_response_id == made.id
    assert other.responses.cancel(made.id).status == "completed"
    record = await record_at(store.url, raw.headers["x-request-id"])
    told = record["ledger"]
    assert (told["status"], told["path"], told["tokens_out"], told["attempts"]) == (200, "direct", 1, 1)
    assert told["total_ms"] > 1000


def test_a_client_that_comes_back_gets_the_rest_of_the_stream(two: tuple[Sdk, Sdk], local_upstream: Upstream) -> None:
    """From the other gateway too, each event once and in order; and once more from the beginning."""
    one, other = two
    local_upstream.queue(SLOW)
    first: list[Any] = []
    with one.responses.create(model="chat", input="Count.", background=True, stream=True) as events:
        for event in events:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
    response_id = first[0].response.id
    assert other.responses.retrieve(response_id).status == "in_progress"
    last = first[-1].sequence_number
    rest: list[Any] = list(other.responses.retrieve(response_id, stream=True, starting_after=last))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == SLOW.text
    numbers = [event.sequence_number for event in (*first, *rest)]
    assert numbers == list(range(len(numbers)))
    assert other.responses.retrieve(response_id).output_text == SLOW.text
    again = list(one.responses.retrieve(response_id, stream=True))
    assert [event.sequence_number for event in again] == numbers


def test_what_is_deleted_leaves_no_events(two: tuple[Sdk, Sdk], store: LocalStore, local_upstream: Upstream) -> None:
    """The text of a response that was deleted is nowhere in the store, not as the events of its stream either."""
    made: list[Any] = list(two[0].responses.create(model="chat", input="Count.", background=True, stream=True))
    with redis.Redis.from_url(store.url) as keys:
        until(lambda: keys.keys("*:events"), 5, "the events")
        two[1].responses.delete(made[-1].response.id)
        assert not keys.keys("*:events")


def test_what_is_deleted_before_its_end_is_not_kept(two: tuple[Sdk, Sdk], local_upstream: Upstream) -> None:
    """A response that no gateway has yet is not found, and not kept when it is whole."""
    one, other = two
    local_upstream.queue(SLOW)
    with one.responses.create(model="chat", input="Count.", stream=True) as events:
        response_id = next(iter(events)).response.id  # type: ignore[union-attr]
        with pytest.raises(openai.NotFoundError):
            other.responses.delete(response_id)
        assert [event.type for event in events][-1] == "response.completed"
    later = one.responses.create(model="chat", input="Count on.")
    until(lambda: _is_kept(other, later.id), 5, "the response that was made later")
    assert not _is_kept(other, response_id) and not _is_kept(one, response_id)


def _is_kept(client: Sdk, response_id: str) -> bool:
    try:
        client.responses.retrieve(response_id)
    except openai.NotFoundError:
        return False
    return True


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", [0, 1])
def test_it_is_cancelled_from_anywhere(
    two: tuple[Sdk, Sdk], local_upstream: Upstream, where: int, stream: bool
) -> None:
    """The backend's call is ended, and the response stays cancelled."""
    local_upstream.queue(HUNG)
    events = None
    if stream:
        events = two[0].responses.create(model="chat", input="Think.", background=True, stream=True)
        response_id = next(iter(events)).response.id  # type: ignore[union-attr]
        local_upstream.wait_for(1)
    else:
        response_id = begun(two[0], local_upstream)
    assert two[where].responses.cancel(response_id).status == "cancelled"
    until(lambda: local_upstream.in_flight == 0, 5, "the end of the backend's call")
    for client in two:
        assert client.responses.retrieve(response_id).status == "cancelled"
        assert client.responses.cancel(response_id).status == "cancelled"
    if events is not None:
        assert [event.type for event in events][-1] == "response.failed"
        assert list(two[1].responses.retrieve(response_id, stream=True))[-1].type == "response.failed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply", [Reply(status=400, body=b'{"error":{"message":"no"}}'), Reply(fault=Fault.CLOSE_MID_STREAM)]
)
def test_a_run_that_fails_is_kept_as_failed(
    two: tuple[Sdk, Sdk], local_upstream: Upstream, reply: Reply, stream: bool
) -> None:
    one, other = two
    local_upstream.default = reply
    made: Any = one.responses.create(model="chat", input="Fail.", background=True, stream=stream)
    response_id = list(made)[-1].response.id if stream else made.id
    failed = ended(other, response_id)
    assert failed.status == "failed" and failed.error is not None and failed.error.message
    with pytest.raises(openai.BadRequestError) as refused:
        one.responses.create(model="chat", input="more", previous_response_id=response_id)
    assert refused.value.param == "previous_response_id"


def test_while_it_runs_it_is_not_deleted_or_followed(two: tuple[Sdk, Sdk], local_upstream: Upstream) -> None:
    one, other = two
    local_upstream.queue(HUNG)
    response_id = begun(one, local_upstream)
    refusals: list[Callable[[], Any]] = [
        lambda: other.responses.delete(response_id),
        lambda: other.responses.create(model="chat", input="more", previous_response_id=response_id),
        lambda: list(other.responses.retrieve(response_id, stream=True)),
        lambda: one.responses.create(model="chat", input="a", background=True, store=False),
    ]
    for refusal in refusals:
        with pytest.raises(openai.BadRequestError):
            refusal()
    one.responses.cancel(response_id)
    other.responses.delete(response_id)
    with pytest.raises(openai.NotFoundError):
        one.responses.retrieve(response_id)


def test_a_worker_that_dies_or_stops_leaves_failed_responses(
    tmp_path: Path, store: LocalStore, local_upstream: Upstream
) -> None:
    """What is left of a killed one is failed once its lease has ended; one that stops says so itself."""
    limits = {"drain": "0s", "finish": "500ms"}
    with two_gateways(tmp_path, store, local_upstream, limits=limits, responses={"background": 2}) as (one, two):
        local_upstream.default = HUNG
        with sdk(one) as client, sdk(two) as other:
            stopped = begun(client, local_upstream)
            with client.responses.create(model="chat", input="a", background=True, stream=True) as events:
                streamed = next(iter(events)).response.id  # type: ignore[union-attr]
            with pytest.raises(openai.RateLimitError) as full:
                client.responses.create(model="chat", input="Think.", background=True)
            assert full.value.code == "too_many_background_responses"
            assert one.stop() == 0
            for response_id in (stopped, streamed):
                failed = other.responses.retrieve(response_id)
                assert failed.status == "failed" and failed.error is not None
                assert "stopping" in failed.error.message
            lost = begun(other, local_upstream)
        two.process.send_signal(signal.SIGKILL)
        two.process.wait(10)
    with serve(tmp_path / "one", local_upstream.url, store_url=store.url) as third, sdk(third) as client:
        assert client.responses.retrieve(lost).status == "in_progress"
        with redis.Redis.from_url(store.url) as values:
            (lease,) = values.scan_iter("tierline:r3:*:lease")
            assert 0 < values.pttl(lease) <= 15_000
            values.delete(lease)
        failed = client.responses.retrieve(lost)
        assert failed.status == "failed" and failed.error is not None
        assert "has ended before it was done" in failed.error.message
        assert client.responses.cancel(lost).status == "failed"


def test_an_answer_outlives_a_store_that_is_away(tmp_path: Path, local_upstream: Upstream) -> None:
    """What was paid for is kept once the store answers again: of a run, and of a conversation's turn."""
    local_upstream.queue(Reply(text="forty-two", before_headers_s=1.5), Reply(text="a turn", before_headers_s=1.5))
    with local_store() as own, serve(tmp_path, local_upstream.url, store_url=own.url, policies={"chat": POLICY}) as one:
        client = sdk(one)
        talk = client.conversations.create().id
        response_id = begun(client, local_upstream)
        later: list[Any] = []
        ask: Any = {"model": "chat", "input": "Talk.", "conversation": talk}
        thread = threading.Thread(target=lambda: later.append(client.responses.create(**ask)))
        thread.start()
        local_upstream.wait_for(2)
        own.freeze()
        until(lambda: local_upstream.in_flight == 0, 10, "the answers")
        thread.join(20)
        time.sleep(1)
        own.thaw()
        until(lambda: _is_there(client, response_id), 20, "the response")
        until(lambda: len(list(client.conversations.items.list(talk))) == 2, 20, "the turn")
    assert later[0].output_text == "a turn"


def _is_there(client: Sdk, response_id: str) -> bool:
    try:
        return client.responses.retrieve(response_id).output_text == "forty-two"
    except openai.InternalServerError:  # the store does not answer yet
        return False


def test_without_a_store_there_is_no_background(gateway: Gateway) -> None:
    reply = httpx2.post(
        f"{gateway.url}/responses", json={"model": "chat", "input": "a", "background": True}, timeout=20
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "background")
