from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc

import orjson
import pytest

from cache.store.base import Append, StoreState, StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.parts.measures import reader
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.parts.records import part as record_writer
from gateway.telemetry import names, sink
from gateway.telemetry.ledger import TRACES, Ledger, ledger_blob
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.metric_text import value_of
from tests.gateway.telemetry.requests_made import escalated, failed
from tests.gateway.telemetry.waiting import eventually
from tests.support.store import local_store


def _telemetry(store: RedisStore, keep: int = 1000) -> Telemetry:
    return Telemetry(store, keep=keep, exporter=None, metrics=PrometheusMetrics())


async def test_a_request_is_kept_as_it_was(store: RedisStore) -> None:
    """The record in the store holds the ledger and every hop with its time, in microseconds, and its attributes."""
    telemetry = _telemetry(store)
    telemetry.start()
    trace, ledger = escalated()
    telemetry.record(trace, ledger)
    found = await eventually(lambda: reader.latest(store, 5))
    await telemetry.aclose()
    record = orjson.loads(found[0])
    assert record["trace_id"] == f"{0xABC:032x}" and record["parent_id"] == f"{0xDEF:016x}"
    assert record["started"] == pytest.approx(time.time(), abs=60)
    assert record["ledger"]["request_id"] == "req-1" and record["ledger"]["wasted_usd"] == 0.0001
    assert [hop["name"] for hop in record["hops"]] == [hop.name for hop in trace.hops]
    for hop, kept in zip(trace.hops, record["hops"], strict=True):
        assert kept["duration_us"] == (hop.end_ns - hop.start_ns) // 1000
        assert kept["start_us"] == (hop.start_ns - trace.root.start_ns) // 1000
        assert kept["span_id"] == f"{trace.span_id(hop):016x}" and kept["attributes"] == hop.attributes
    assert record["hops"][0]["start_us"] == 0


async def test_a_full_batch_is_written_at_once(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load no more than a batch of finished requests is in memory; fewer wait for others."""
    monkeypatch.setattr(sink, "_INTERVAL_S", 600.0)
    telemetry = _telemetry(store)
    telemetry.start()
    for number in range(sink._BATCH + 1):
        telemetry.record(*escalated(f"full-{number}"))
        await asyncio.sleep(0)
    assert len(await eventually(lambda: reader.latest(store, 1000))) == sink._BATCH
    await telemetry.aclose()
    assert len(await reader.latest(store, 1000)) == sink._BATCH + 1


def test_a_record_takes_the_memory_of_its_text() -> None:
    """Records wait while the store is gone: one has no room to grow, as the encoder's results have."""
    traced = escalated()
    ledger_blob(*traced)
    tracemalloc.start()
    records = [ledger_blob(*traced) for _ in range(8)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1.5 * sum(map(len, records))


async def test_what_is_queued_at_the_end_is_written(store: RedisStore) -> None:
    """Closing right after a burst loses nothing."""
    telemetry = _telemetry(store)
    telemetry.start()
    for number in range(100):
        telemetry.record(*escalated(f"burst-{number}"))
    await telemetry.aclose()
    kept = [orjson.loads(blob)["ledger"]["request_id"] for blob in await reader.latest(store, 1000)]
    assert kept == [f"burst-{number}" for number in reversed(range(100))]


async def test_about_the_latest_are_kept(store: RedisStore) -> None:
    """The stream is trimmed to about `keep`, the newest staying."""
    telemetry = _telemetry(store, keep=100)
    telemetry.start()
    for number in range(500):
        telemetry.record(*escalated(f"r{number}"))
    await telemetry.aclose()
    kept = await reader.latest(store, 1000)
    assert 100 <= len(kept) <= 250
    assert orjson.loads(kept[0])["ledger"]["request_id"] == "r499"


async def test_keeping_none_writes_none(store: RedisStore) -> None:
    """`keep: 0` leaves the store alone, and the metrics still count."""
    telemetry = _telemetry(store, keep=0)
    telemetry.start()
    telemetry.record(*escalated())
    await telemetry.aclose()
    assert await reader.latest(store, 10) == []
    assert value_of(telemetry.metrics.render(), "tierline_attempts_total", outcome="accepted") == 1


async def test_a_store_that_is_gone_costs_no_record_once_it_is_back() -> None:
    """What it did not take meanwhile it gets in order, each record once; metrics and `failing` say how it stands."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        telemetry = _telemetry(store)
        telemetry.start()
        telemetry.record(*escalated("first"))
        await eventually(lambda: reader.latest(store, 1))
        server.freeze()  # what is sent to it now it may read later: its replies come too late
        for number in range(100):
            telemetry.record(*escalated(f"late-{number}"))
        await eventually(lambda: telemetry.failing)
        server.thaw()

        async def there() -> list[str]:
            found = await reader.latest(store, 1000)
            return [orjson.loads(blob)["ledger"]["request_id"] for blob in reversed(found)]

        wanted = ["first", *(f"late-{number}" for number in range(100))]
        while True:  # the store may be given a rest, so that even reading takes more than one try
            with contextlib.suppress(StoreUnavailable):
                if len(found := await there()) >= len(wanted):
                    break
            await asyncio.sleep(0.05)
        await telemetry.aclose()
        assert found == await there() == wanted
        assert telemetry.failing == ""
        assert value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total") == 0
        await store.aclose()


async def test_a_store_that_dies_costs_traces_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more than may be kept for it is dropped and counted, the rest when the worker ends, which is quick."""
    monkeypatch.setattr(record_writer, "_MOST", 150)
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        telemetry = _telemetry(store)
        telemetry.start()
        telemetry.record(*escalated())
        await eventually(lambda: reader.latest(store, 1))
        server.stop()
        for number in range(200):
            telemetry.record(*escalated(f"lost-{number}"))
        dropped = "tierline_telemetry_dropped_total"
        await eventually(lambda: 50 <= value_of(telemetry.metrics.render(), dropped) < 100)

        async def degraded() -> bool:
            with contextlib.suppress(StoreUnavailable):
                await reader.latest(store, 1)
            return store.state().status == "degraded"

        await eventually(degraded)
        began = time.monotonic()
        await telemetry.aclose()
        assert time.monotonic() - began < 3
        text = telemetry.metrics.render()
        assert value_of(text, dropped) == 200
        assert value_of(text, "tierline_requests_total") == 201
        await store.aclose()


class _StuckStore:
    """A store whose writes never return."""

    async def apply(self, operations: object) -> None:
        await asyncio.Event().wait()

    def state(self) -> StoreState:
        return StoreState("ok")


class _SlowExporter:
    """An exporter that blocks the loop for a while at each request, and counts them."""

    def __init__(self) -> None:
        self.taken = 0

    def export(self, trace: object, ledger: object) -> None:
        time.sleep(0.02)
        self.taken += 1

    async def aclose(self) -> None: ...


async def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`record` never waits: what the queue cannot hold is dropped and counted, and closing gives up in time."""
    monkeypatch.setattr(sink, "_QUEUE", 50)
    telemetry = Telemetry(_StuckStore(), keep=10, exporter=None, metrics=PrometheusMetrics())  # type: ignore[arg-type]
    telemetry.start()
    for _ in range(80):
        telemetry.record(*escalated())
    assert value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total", reason="queue_full") == 30
    began = time.monotonic()
    await telemetry.aclose()
    assert time.monotonic() - began < 4
    assert value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total", reason="shutdown") == 50


async def test_the_end_of_the_time_to_close_loses_only_what_is_still_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing kept in the store, the requests that the exporter has got already are not counted as lost."""
    monkeypatch.setattr(sink, "_CLOSE_S", 0.05)
    exporter = _SlowExporter()
    telemetry = Telemetry(_StuckStore(), keep=0, exporter=exporter, metrics=PrometheusMetrics())  # type: ignore[arg-type]
    for _ in range(16):
        telemetry.record(*escalated())
    telemetry.start()
    await telemetry.aclose()
    assert 0 < exporter.taken < 16
    dropped = value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total", reason="shutdown")
    assert dropped == 16 - exporter.taken


async def test_a_trace_that_cannot_be_written_does_not_stop_the_next(store: RedisStore) -> None:
    """One record JSON cannot hold is dropped and counted; the others arrive."""
    telemetry = _telemetry(store)
    telemetry.start()
    trace, ledger = escalated("odd")
    trace.hops[1].attributes["tierline.odd"] = object()
    telemetry.record(trace, ledger)
    telemetry.record(*failed("even"))
    await telemetry.aclose()
    kept = [orjson.loads(blob)["ledger"]["request_id"] for blob in await reader.latest(store, 10)]
    assert kept == ["even"]
    assert value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total", reason="unserialisable") == 1


async def test_an_attribute_of_a_wrong_type_never_reaches_the_caller(store: RedisStore) -> None:
    """`record` raises nothing, whatever a hop holds."""
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    trace.hops[1].attributes[names.CACHE_OUTCOME] = ["not", "hashable"]
    telemetry.record(trace, ledger)
    assert value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total", reason="uncountable") == 1


async def test_metrics_that_are_shown_have_the_requests_that_wait(store: RedisStore) -> None:
    """A request is counted once, by the background task or before the metrics are shown, whichever comes first."""
    metrics = PrometheusMetrics()
    telemetry = Telemetry(store, keep=10, exporter=None, metrics=metrics)
    telemetry.record(*escalated("first", status=200))
    telemetry.record(*escalated("shadow", status=200), counted=False)
    assert _requests(metrics.render().decode()) == 1
    telemetry.record(*escalated("second", status=200))
    telemetry.start()
    await eventually(lambda: reader.latest(store, 5))
    assert _requests(metrics.render().decode()) == 2
    await telemetry.aclose()
    assert _requests(metrics.render().decode()) == 2


def _requests(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith("tierline_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_what_a_request_cost_is_settled_once_and_before_it_is_counted(store: RedisStore) -> None:
    """A request whose cost is known already is not settled again."""
    settled: list[str] = []

    def settle(trace: Trace, ledger: Ledger) -> None:
        trace.settled = True
        settled.append(ledger.request_id)
        ledger.surface = f"of {ledger.request_id}"

    metrics = PrometheusMetrics()
    telemetry = Telemetry(store, keep=10, exporter=None, metrics=metrics)
    telemetry.settle = settle
    known, ledger = escalated("known", status=200)
    known.settled = True
    telemetry.record(known, ledger)
    telemetry.record(*escalated("unknown", status=200))
    assert 'surface="of unknown"' in metrics.render().decode()
    telemetry.start()
    await telemetry.aclose()
    assert settled == ["unknown"]


async def test_a_hop_left_open_ends_with_the_request(store: RedisStore) -> None:
    """A hop nobody ended, and the root itself, are closed by the end of the request."""
    telemetry = _telemetry(store)
    telemetry.start()
    trace, ledger = failed()
    trace.root.end_ns = 0
    trace.begin(names.ROUTE)
    telemetry.record(trace, ledger)
    await telemetry.aclose()
    hops = orjson.loads((await reader.latest(store, 1))[0])["hops"]
    assert hops[-1]["start_us"] + hops[-1]["duration_us"] == pytest.approx(hops[0]["duration_us"], abs=1)


async def test_the_newest_of_equal_ids_is_found(store: RedisStore) -> None:
    """A request id a client has used twice finds the later request, over many pages."""
    telemetry = _telemetry(store)
    telemetry.start()
    telemetry.record(*escalated("same", status=200))
    telemetry.record(*failed("same"))
    for number in range(130):
        telemetry.record(*escalated(f"other-{number}"))
    await telemetry.aclose()
    found = await reader.find(store, "same")
    assert found is not None and orjson.loads(found)["ledger"]["status"] == 502
    assert await reader.find(store, "oth") is None


async def test_reading_says_when_the_store_is_gone() -> None:
    """A reader of a store nobody runs gets StoreUnavailable, after a few tries."""
    store = RedisStore.from_url("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        await reader.latest(store, 1)
    await store.aclose()


async def test_a_foreign_entry_is_passed_over(store: RedisStore) -> None:
    """What is not a record in the stream is skipped."""
    await store.apply([Append(TRACES, b"not json", 10)])
    telemetry = _telemetry(store)
    telemetry.start()
    telemetry.record(*escalated())
    await telemetry.aclose()
    await store.apply([Append(TRACES, b'{"v":99}', 10)])
    assert len(await reader.latest(store, 10)) == 1
