"""A stream on its way through: held, judged, committed, ended, against a scripted upstream on a real socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson
import pytest

from gateway.backends.base import BackendError, DeadlinePassed, TimedOut, Truncated
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.openai import OpenAIBackend
from gateway.cascade.attempt import AttemptResult, AttemptRun
from gateway.cascade.protocols import StreamSuccessor
from gateway.cascade.streaming import LiveStream, Watchdog
from gateway.config.backends import BackendConfig
from gateway.request.context import Client, RequestContext
from gateway.request.options import RequestOptions
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop, Trace
from gateway.tiers import Endpoint, Tier
from policies.model import Policy
from routing.cascade import Attempt
from routing.features import features_of
from tests.support.raw_upstream import raw_upstream
from tests.support.upstream import Fault, Reply, ToolCall, Upstream
from tests.support.wait import eventually

LONG = "one two three four five six seven eight"
RULES: dict[str, Any] = {
    "surface": "chat",
    "version": "0123456789",
    "slo": {"deadline": "10s"},
    "tiers": ["local", "hosted"],
    "route": {"start": {"local": "otherwise"}},
    "escalate": {
        "when": {
            "confidence_below": 0.9,
            "uncalibrated_below": 0.5,
            "invalid": ["json", "tool_args"],
            "finish": ["length"],
        },
        "no_signal": "accept",
        "stream": {"hold_tokens": 4, "hold_max": "300ms", "on_break": "error"},
    },
}


class Run:
    """One stream through one endpoint, from `open` to `close`."""

    def __init__(
        self,
        url: str,
        body: dict[str, Any],
        deadline_s: float,
        idle: str,
        policy: Mapping[str, Any] = RULES,
        **config_options: Any,
    ) -> None:
        options = {"idle_timeout": idle, "price": {"output": 1e6}, **config_options}
        config = BackendConfig.model_validate({"name": "local", "base_url": url, "model": "small", **options})
        transport = Http1Transport(f"{url}/chat/completions", max_in_flight=2, connect_timeout_s=1, max_reply=1 << 20)
        self.endpoint = Endpoint(config, OpenAIBackend(transport, model="small", key=None))
        self.request = RequestContext(
            request_id="r",
            tenant="t",
            policy=Policy.model_validate(policy),
            body=body,
            features=features_of(body),
            options=RequestOptions(),
            clamp=None,
            own_limit=False,
            deadline=time.monotonic() + deadline_s,
            trace=Trace(names.REQUEST),
            ledger=Ledger("r"),
            client=Client(None, stall_s=60),
        )

    @property
    def hop(self) -> Hop:
        """The hop of the latest attempt."""
        return self.request.trace.hops[-1]

    async def open(
        self,
        *,
        judged: bool = True,
        ttft_s: float = 2.0,
        tiers: Mapping[str, Tier] | None = None,
        successor: StreamSuccessor | None = None,
    ) -> AttemptResult:
        """Opens, holds and judges the stream, as an attempt with a stronger tier behind it. Raises its BackendError."""
        attempt = Attempt(1, "local", 5.0, ttft_s, judged=judged, final=not judged)
        tiers = tiers or {"local": Tier("local", [self.endpoint])}
        result = await AttemptRun(self.request, tiers, attempt, lambda _: True, successor=successor).run()
        if result.error is not None:
            raise result.error
        return result

    async def committed(self, **options: Any) -> LiveStream:
        """The stream, which must be committed."""
        opened = await self.open(**options)
        assert isinstance(opened.answer, LiveStream), opened
        return opened.answer


async def _never() -> Any:
    await asyncio.Event().wait()


async def written(stream: LiveStream) -> list[bytes]:
    """Every write of a stream; then it is closed."""
    try:
        return [data async for data in stream.events()]
    finally:
        stream.close()
        stream.close()


def chunks(writes: list[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(data[6:]) for data in writes if data.startswith(b"data: {")]


def text(writes: list[bytes]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks(writes) if c.get("choices"))


Begin = Callable[..., Run]


@pytest.fixture
async def begin(upstream: Upstream) -> AsyncIterator[Begin]:
    """Makes runs, against `upstream` unless told otherwise."""
    made: list[Run] = []

    def run(url: str = "", deadline_s: float = 10.0, idle: str = "5s", **body: Any) -> Run:
        base = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        made.append(Run(url or upstream.url, base | body, deadline_s, idle))
        return made[-1]

    yield run
    for one in made:
        assert one.endpoint.in_flight == 0
        await one.endpoint.aclose()


async def test_a_good_stream_goes_out_whole(begin: Begin, upstream: Upstream) -> None:
    """What was held and what follows come in order, one event a write, with [DONE] in the last."""
    upstream.default = Reply(text=LONG, between_s=0.005)
    run = begin()
    stream = await run.committed()
    assert run.hop.attributes[names.CONFIDENCE] == pytest.approx(0.951, abs=1e-3)
    writes = await written(stream)
    assert text(writes) == LONG
    assert all(data.count(b"\n\n") == 1 for data in writes)
    assert writes[-1].endswith(b"data: [DONE]\n\n")
    assert writes[-1].startswith(b": x-tierline-cost-usd=8.00000000 x-tierline-attempts=1\n")
    assert stream.end == "done"
    assert run.hop.attributes[names.TOKENS_JUDGED] >= 4
    assert run.request.ledger.tokens_out == 8


@pytest.mark.parametrize("slow", [False, True])
async def test_text_is_passed_on_without_its_reader(begin: Begin, upstream: Upstream, slow: bool) -> None:
    """Text goes out as it comes; the beginning, the end, and what follows a write that filled the socket, by events."""
    upstream.default = Reply(text=LONG + " word" * 60, between_s=0.003)
    stream = await begin().committed()
    writes: list[bytes] = []
    passed = 0

    def send(data: bytes) -> bool:
        nonlocal passed
        passed += 1
        writes.append(data)
        return not slow

    stream.pass_on(send)
    async for data in stream.events():
        writes.append(data)  # noqa: PERF401  (`send` appends meanwhile)
    stream.close()
    by_events = len(writes) - passed
    assert text(writes) == LONG + " word" * 60
    assert writes[-1].endswith(b"data: [DONE]\n\n")
    assert stream.end == "done"
    assert passed > (20 if slow else 40)
    assert by_events > (20 if slow else 4)


async def test_a_bad_draft_is_cancelled(begin: Begin, upstream: Upstream) -> None:
    """First tokens that are not good enough end the upstream call at once, and cost what they cost."""
    upstream.default = Reply(text=LONG + " word" * 500, logprob=-3.0, between_s=0.01)
    run = begin()
    rejected = await run.open()
    assert rejected.answer is None
    assert rejected.outcome.detail == "confidence 0.050 < 0.5 (logprob)"
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)
    assert run.request.ledger.tokens_out >= 4


async def test_the_hold_ends_by_time(begin: Begin, upstream: Upstream) -> None:
    """With too few tokens for too long since the first one, the hold ends, and those few are judged."""
    upstream.default = Reply(text=LONG, between_s=0.13)
    run = begin()
    began = time.monotonic()
    stream = await run.committed()
    assert 0.25 < time.monotonic() - began < 1.5
    assert 1 <= run.hop.attributes[names.TOKENS_JUDGED] < 4
    assert text(await written(stream)) == LONG


async def test_no_first_token_in_time(begin: Begin, upstream: Upstream) -> None:
    """A role without a word is no token: the time for the first one runs out, and the call is cancelled."""
    upstream.default = Reply(fault=Fault.HANG_MID_STREAM, fault_after=0)
    with pytest.raises(TimedOut):
        await begin().open(ttft_s=0.1)
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)


async def test_cancelled_during_the_hold(begin: Begin, upstream: Upstream) -> None:
    """When the client leaves during the hold, the upstream call ends with it."""
    upstream.default = Reply(before_first_s=30)
    task = asyncio.create_task(begin().open(ttft_s=30))
    await asyncio.to_thread(upstream.wait_for, 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)


async def test_cancelled_while_it_is_judged(begin: Begin, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the client leaves while a verdict is awaited, the upstream call ends too, and its tokens are booked."""
    judging = asyncio.Event()

    async def never(*_: object) -> None:
        judging.set()
        await _never()

    monkeypatch.setattr("gateway.cascade.attempt.AttemptRun._judge_held", never)
    upstream.default = Reply(text=LONG, fault=Fault.HANG_MID_STREAM, fault_after=8)
    run = begin()
    task = asyncio.create_task(run.open())
    await asyncio.wait_for(judging.wait(), 5)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)
    assert run.request.ledger.tokens_out > 0


@pytest.mark.parametrize(
    ("reply", "reason", "body"),
    [
        (Reply(tokens=()), "empty", {}),
        (Reply(text="no"), "", {}),
        (Reply(text="no"), "invalid JSON", {"response_format": {"type": "json_object"}}),
        (Reply(text="{}"), "", {"response_format": {"type": "json_object"}}),
        (Reply(tool_calls=(ToolCall("f", '{"a'),)), "invalid tool arguments", {}),
        (Reply(tool_calls=(ToolCall("f", "{}"),)), "", {}),
        (Reply(text=LONG), "cut off", {"max_tokens": 2}),
    ],
)
async def test_a_stream_that_ends_during_the_hold(
    begin: Begin, upstream: Upstream, reply: Reply, reason: str, body: dict[str, Any]
) -> None:
    """A short answer is judged as the whole that it is, structure and all."""
    upstream.default = reply
    opened = await begin(**body).open()
    if reason:
        assert opened.answer is None
        assert (opened.outcome.kind, opened.outcome.detail, opened.outcome.kept) == ("unfit", reason, False)
    else:
        assert isinstance(opened.answer, LiveStream)
        assert (await written(opened.answer))[-1].endswith(b"[DONE]\n\n")
        assert opened.answer.end == "done"


async def test_an_unjudged_stream_is_not_held(begin: Begin, upstream: Upstream) -> None:
    """Where no tier would take over, the first event goes out as soon as it is there, whatever its tokens are worth."""
    upstream.default = Reply(text=LONG, logprob=-9.0, between_s=1.0)
    began = time.monotonic()
    stream = await begin().committed(judged=False)
    assert time.monotonic() - began < 0.8
    stream.close()
    assert "logprobs" not in upstream.requests[0].body


async def test_logprobs_are_ours_alone(begin: Begin, upstream: Upstream) -> None:
    """Log-probabilities that only we asked for are in no chunk, nor in what is kept for the cache."""
    upstream.default = Reply(text=LONG)
    stream = await begin().committed()
    remembered = stream.remember()
    assert b'"logprob"' not in b"".join(await written(stream))
    whole = remembered()
    assert whole is not None
    assert whole["choices"][0].get("logprobs") is None


async def test_logprobs_that_the_client_asked_for(begin: Begin, upstream: Upstream) -> None:
    """Those that the client asked for are judged too, and pass as they came."""
    upstream.default = Reply(text=LONG, logprob=-0.25)
    run = begin(logprobs=True, top_logprobs=2)
    stream = await run.committed()
    writes = await written(stream)
    assert upstream.requests[0].body["top_logprobs"] == 2
    assert run.hop.attributes[names.CONFIDENCE] == pytest.approx(0.779, abs=1e-3)
    told = [c["choices"][0]["logprobs"] for c in chunks(writes) if c["choices"][0].get("logprobs")]
    assert len(told) == 8


async def test_one_id_and_model_in_all(begin: Begin, upstream: Upstream) -> None:
    """All chunks, the totals included, have one id, one model and one time."""
    upstream.default = Reply(text=LONG, usage=None)
    writes = await written(await begin(stream_options={"include_usage": True}).committed())
    assert len({(c["id"], c["model"], c["created"], c["object"]) for c in chunks(writes)}) == 1
    assert chunks(writes)[-1]["usage"]["estimated"] is True


async def test_a_shared_stream_ends_with_its_totals(begin: Begin, upstream: Upstream) -> None:
    """Any reader of a shared stream may want the totals, so they go out though this client did not ask for them."""
    upstream.default = Reply(text=LONG)
    stream = await begin().committed()
    stream.share()
    totals = chunks(await written(stream))[-1]
    assert totals["choices"] == []
    assert totals["usage"]["completion_tokens"] == 8


async def test_a_stream_that_does_not_say_who_it_is(begin: Begin) -> None:
    """One without id, kind, model or time gets them, the same in all its chunks and in what is kept of it."""
    events = ['{"choices":[{"index":0,"delta":{"content":"a"}}]}', '{"choices":[{"index":0,"finish_reason":"stop"}]}']
    with raw_upstream(sse(*events, "[DONE]")) as server:
        stream = await begin(server.url, stream_options={"include_usage": True}).committed(judged=False)
        remembered = stream.remember()
        seen = {(c["id"], c["model"], c["created"], c["object"]) for c in chunks(await written(stream))}
    ((ident, model, created, kind),) = seen
    assert ident.startswith("chatcmpl-")
    assert (model, type(created), kind) == ("small", int, "chat.completion.chunk")
    whole = remembered()
    assert whole is not None and (whole["id"], whole["model"], whole["created"]) == (ident, model, created)


async def test_chunks_add_up(begin: Begin, upstream: Upstream) -> None:
    """What is kept of a finished stream is the completion that it spelled out, usage included, asked for or not."""
    upstream.default = Reply(text=LONG)
    stream = await begin().committed()
    remembered = stream.remember()
    writes = await written(stream)
    assert b'"completion_tokens"' not in b"".join(writes)
    whole = remembered()
    assert whole is not None
    assert whole["choices"][0]["message"]["content"] == LONG
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 8


def sse(*data: str) -> bytes:
    body = "".join(f"data: {one}\n\n" for one in data).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def part(index: int, content: str) -> str:
    return '{"id":"x","choices":[{"index":%d,"delta":{"content":"%s"}}]}' % (index, content)  # noqa: UP031


def finish(index: int) -> str:
    return '{"id":"x","choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}' % index  # noqa: UP031


@pytest.mark.parametrize("both", [False, True])
async def test_every_choice_must_finish(begin: Begin, both: bool) -> None:
    """With several choices a stream is whole when each that it began has finished, and not before."""
    events = [part(0, "a"), part(1, "b"), finish(0), *([finish(1)] if both else []), "[DONE]"]
    with raw_upstream(sse(*events)) as server:
        stream = await begin(server.url, n=2).committed(judged=False)
        writes = await written(stream)
    assert stream.end == ("done" if both else "upstream_truncated")
    assert writes[-1].endswith(b"[DONE]\n\n") is both


async def test_events_without_an_answer_are_no_commit(begin: Begin) -> None:
    """An unjudged stream is committed by its first choice: chunks without one do not count, so it can still fail."""
    with raw_upstream(sse('{"id":"x","choices":[]}')) as server, pytest.raises(Truncated):
        await begin(server.url).open(judged=False)


async def test_silence_ends_a_stream(begin: Begin, upstream: Upstream) -> None:
    """After the idle time an error event goes out, no [DONE], and the endpoint is held to it."""
    upstream.default = Reply(text=LONG, fault=Fault.HANG_MID_STREAM, fault_after=6)
    began = time.monotonic()
    run = begin(idle="100ms")
    writes = await written(await run.committed())
    assert orjson.loads(writes[-1][6:])["error"]["code"] == "upstream_timeout"
    assert not any(b"[DONE]" in data for data in writes)
    assert run.hop.error == "upstream_timeout"
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)
    assert time.monotonic() - began < 5, "the deadline, ten seconds away, must not be what ended it"


async def test_silence_after_the_finish_is_no_loss(begin: Begin) -> None:
    """An upstream that goes silent once the answer is whole has given it: the end is made up for."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = f"data: {part(0, 'a')}\n\ndata: {finish(0)}\n\n".encode()
    with raw_upstream(head + b"%x\r\n%b\r\n" % (len(event), event), 2.0) as server:
        run = begin(server.url, idle="100ms")
        writes = await written(await run.committed(judged=False))
    assert writes[-1].endswith(b"[DONE]\n\n")
    assert run.hop.error is None
    assert run.hop.attributes[names.DONE_SYNTHESISED] is True


async def test_the_deadline_ends_a_stream(begin: Begin, upstream: Upstream) -> None:
    """At the request's deadline the stream ends in an error event, however well it was going."""
    upstream.default = Reply(text="word " * 200, between_s=0.02)
    run = begin(deadline_s=0.3)
    writes = await written(await run.committed())
    assert orjson.loads(writes[-1][6:])["error"]["code"] == "deadline_exceeded"
    assert text(writes[:-1])
    assert run.hop.attributes[names.STREAM_END] == "deadline_exceeded"
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)


async def test_the_deadline_is_named_where_it_passed_first() -> None:
    """An event loop that was held up until both limits were over names the one that was over first."""
    ends: list[BackendError] = []
    now = time.monotonic()
    watchdog = Watchdog(now + 0.02, 0.03, 60.0, ends.append, lambda: None)
    watchdog.since, watchdog.reading = now, True
    time.sleep(0.06)
    await eventually(lambda: bool(ends), 5, "an end")
    watchdog.stop()
    assert isinstance(ends[0], DeadlinePassed)


async def test_a_busy_event_loop_is_no_silence() -> None:
    """What came while the event loop was held up counts, though the loop reads it after the idle limit."""
    ends: list[BackendError] = []
    watchdog = Watchdog(time.monotonic() + 60, 0.03, 60.0, ends.append, lambda: None)
    watchdog.reading = True

    def read_late() -> None:
        watchdog.since = time.monotonic()

    loop = asyncio.get_running_loop()
    loop.call_soon(time.sleep, 0.06)
    loop.call_later(0.031, read_late)
    await asyncio.sleep(0.005)
    assert not ends
    await eventually(lambda: bool(ends), 5, "the silence after it")
    watchdog.stop()
    assert isinstance(ends[0], TimedOut)


async def test_a_client_that_leaves(begin: Begin, upstream: Upstream) -> None:
    """A stream that is closed in the middle ends the upstream call, is booked as far as it went, and blames nobody."""
    upstream.default = Reply(text="word " * 500, between_s=0.01)
    run = begin()
    stream = await run.committed()
    events = stream.events()
    for _ in range(6):
        await anext(events)
    await events.aclose()
    stream.close()
    assert (stream.end, run.hop.error) == ("client_cancel", None)
    assert run.request.ledger.usage_estimated
    assert run.request.ledger.tokens_out >= 4
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)


async def test_a_loop_ends_a_stream(begin: Begin, upstream: Upstream) -> None:
    """A text that goes round in circles for long ends the upstream call; it is held against no endpoint."""
    upstream.default = Reply(text="All is well. " + "I said so and I say so. " * 200, between_s=0.001)
    run = begin()
    writes = await written(await run.committed())
    assert orjson.loads(writes[-1][6:])["error"]["code"] == "repetition"
    assert len(text(writes[:-1]).split()) < 200
    assert run.hop.attributes[names.STREAM_END] == "repetition"
    assert not run.endpoint.unavailable()
    await asyncio.to_thread(upstream.requests[0].wait_gone, 1)


@pytest.mark.parametrize(
    "said",
    [
        "| - | - | - | - | - | - | - | - |\n" + "".join(f"| {n} | {n * n} | {n**3} | x | y |\n" for n in range(40)),
        " ".join(f"{n} is not {n + 1} and" for n in range(60)),
        "0 " * 40 + " ".join(map(str, range(200))),
    ],
)
async def test_what_only_looks_like_a_loop_goes_on(begin: Begin, upstream: Upstream, said: str) -> None:
    """A row of a table, a list, a line of zeros: what repeats itself for a while is no loop."""
    upstream.default = Reply(text=said)
    stream = await begin().committed(judged=False)
    assert text(await written(stream)) == said
    assert stream.end == "done"


async def test_a_loop_that_the_policy_allows(begin: Begin, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the policy does not look for repetition, nobody does."""
    monkeypatch.setitem(RULES["escalate"]["when"], "repetition", False)
    upstream.default = Reply(text="word " * 300)
    assert text(await written(await begin().committed())) == "word " * 300


@pytest.mark.parametrize(
    "named",
    [
        ['"id":"a","created":1,"model":"m"', '"id":"b","created":2,"model":"n"'],
        ['"id":"","created":0,"model":""', '"id":"a","created":1,"model":"m"'],
        ['"id":"a","created":1,"model":"m"', '"created":1'],
    ],
)
async def test_the_identity_never_changes(begin: Begin, named: list[str]) -> None:
    """Whatever the upstream says of its id, model and time later, every chunk has the first ones."""
    first, later = named
    events = ["{%s,%s" % (first, part(0, "a")[len('{"id":"x",') :])]  # noqa: UP031
    events += ["{%s,%s" % (later, one[len('{"id":"x",') :]) for one in (part(0, "b"), finish(0))]  # noqa: UP031
    with raw_upstream(sse(*events, "[DONE]")) as server:
        stream = await begin(server.url).committed(judged=False)
        kept = stream.remember()
        writes = await written(stream)
    assert {(c["id"], c["created"], c["model"]) for c in chunks(writes)} == {("a", 1, "m")}
    assert text(writes) == "ab"
    assert (kept() or {})["id"] == "a"


async def test_an_unchanged_chunk_is_passed_byte_for_byte(begin: Begin) -> None:
    """What needs no change is sent as it came, its odd spacing and all."""
    named = '"object" : "chat.completion.chunk", "created":1,  "model":"m"'
    odd = '{"id" : "x", %s, "choices": [{"index":0, "delta":{"content":"a"}}]}' % named  # noqa: UP031
    with raw_upstream(sse(odd, finish(0), "[DONE]")) as server:
        writes = await written(await begin(server.url).committed(judged=False))
    assert writes[0] == f"data: {odd}\n\n".encode()


async def test_a_client_that_does_not_read_holds_no_slot(begin: Begin, upstream: Upstream) -> None:
    """The call ends with the stall limit, whatever becomes of the task that sends the stream."""
    upstream.default = Reply(text=LONG)
    run = begin()
    run.request.client.stall_s = 0.05
    stream = await run.committed()
    events = stream.events()
    await anext(events)
    async with asyncio.timeout(5):
        while run.endpoint.in_flight:
            await asyncio.sleep(0.01)
    assert run.request.client.gone
    assert run.hop.attributes[names.STREAM_END] == "client_cancel"
    await events.aclose()
    stream.close()


async def test_a_client_that_does_not_read_the_error_event_is_dropped(begin: Begin, upstream: Upstream) -> None:
    """The stall limit holds after a stream has broken off, too: its last event may be the one that is not read."""
    upstream.default = Reply(text=LONG, fault=Fault.HANG_MID_STREAM, fault_after=5)
    run = begin(idle="50ms")
    run.request.client.stall_s = 0.2
    stream = await run.committed(judged=False)
    async for data in stream.events():
        if data.startswith(b'data: {"error"'):
            await eventually(lambda: run.request.client.gone, 5, "the drop")
    assert run.request.client.gone
    stream.close()
