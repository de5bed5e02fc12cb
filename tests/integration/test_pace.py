"""The pace of streams and the longest gap between their chunks, as the ledger of real requests has them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from tests.integration.test_path import traced
from tests.support.gateway import CHAT, Gateway, environment, running, serve, write_deployment
from tests.support.raw_upstream import Part, RawUpstream, raw_upstream
from tests.support.store import LocalStore
from tests.support.upstream import Upstream

PAUSE_S = 0.3
SLO = "slo: {deadline: 20s, tpot: {p95: 20ms, p99: 10s}, gap: {p95: 10s, p99: 100ms}}"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}
    value = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(value) + b"\n\n"


def paused(*pause: Part) -> tuple[Part, ...]:
    """A stream of six words with this pause after the third: bytes, and seconds to wait."""
    return HEAD, *map(chunk, ["one", "two", "three"]), *pause, *map(chunk, ["four", "five"]), LAST


LAST = chunk("six", "stop") + b"data: [DONE]\n\n"
MESSAGES = [{"role": "user", "content": "Count."}]
ASKED: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": MESSAGES},
    "/messages": {"messages": MESSAGES, "max_tokens": 50},
    "/responses": {"input": "Count."},
    "/completions": {"prompt": "Count."},
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream(*paused(PAUSE_S)) as server:
        yield server


@pytest.fixture(scope="module")
def paced(upstream: RawUpstream, _store: LocalStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    policy = CHAT.replace("slo: {deadline: 20s}", SLO).replace("hold_tokens: 4", "hold_tokens: 1")
    folder = tmp_path_factory.mktemp("pace")
    with serve(folder, upstream.url, store_url=_store.url, policies={"chat": policy}) as gateway:
        yield gateway


def ledger_of(paced: Gateway, store: LocalStore, path: str = "/chat/completions", **more: Any) -> dict[str, Any]:
    body = {"model": "chat", "stream": True, **ASKED[path], **more}
    answer = httpx2.post(f"{paced.url}{path}", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    ledger: dict[str, Any] = traced(store, answer)["ledger"]
    return ledger


@pytest.mark.parametrize("path", ASKED)
def test_the_longest_gap_of_a_stream_is_held_against_its_limit(
    paced: Gateway, store: LocalStore, upstream: RawUpstream, path: str
) -> None:
    """Whatever API asks: the pause is the gap, and each objective is met or missed by itself."""
    upstream.parts = paused(PAUSE_S)
    ledger = ledger_of(paced, store, path, temperature=0.9)
    assert PAUSE_S * 900 < ledger["gap_ms"] < ledger["total_ms"]
    assert ledger["tpot_ms"] > 20
    assert ledger["slo"] == {"deadline": True, "tpot_p95": False, "tpot_p99": True, "gap_p95": True, "gap_p99": False}


def test_json_has_no_gap_and_a_stored_answer_no_pace(paced: Gateway, store: LocalStore, upstream: RawUpstream) -> None:
    """JSON is held against the deadline alone, and a hit against its gaps, which are short."""
    upstream.parts = paused(0.0)
    whole = ledger_of(paced, store, stream=False, temperature=0)
    assert (whole["gap_ms"], whole["tpot_ms"], whole["slo"]) == (None, None, {"deadline": True})
    hit = ledger_of(paced, store, temperature=0)
    assert hit["path"] == "cache-exact" and hit["gap_ms"] < 100
    assert hit["slo"] == {"deadline": True, "gap_p95": True, "gap_p99": True}


def test_signs_of_life_do_not_shorten_a_gap(paced: Gateway, store: LocalStore, upstream: RawUpstream) -> None:
    """A backend that only says that it works for three seconds has paused for three seconds, in every API."""
    upstream.parts = paused(*[0.5, b": working\n\n"] * 6)
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        ledgers = [*pool.map(lambda path: ledger_of(paced, store, path, temperature=0.8), ASKED)]
    assert [2900 < one["gap_ms"] < 1000 * (time.monotonic() - began) for one in ledgers] == [True] * 4


BACKENDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "http1": {"slo_headers": True},
    "other": {"slo_headers": True, "http": {"client": "httpx2"}},
    "responses": {"slo_headers": True, "kind": "responses"},
}


@pytest.fixture(scope="module")
def llm_d(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Upstream]]:
    """A gateway of a tier for each backend, all of one upstream, which refuses what is no chat completion."""
    folder = tmp_path_factory.mktemp("llm_d")
    with Upstream() as upstream:
        tiers = [
            {"name": name, "backends": [{"base_url": upstream.url, "model": "m", **more}]}
            for name, more in BACKENDS.items()
        ]
        policy = CHAT.replace("[local, hosted]", f"[{', '.join(BACKENDS)}]").replace("local: other", "plain: other")
        policy = policy.replace("deadline: 20s", "deadline: 20s, tpot: {p99: 80ms}, ttft: {p99: 9s}")
        write_deployment(folder, {"tiers": tiers, "cross_encoder": "none"}, {"chat": policy})
        with running(folder, environment(), forked=True) as gateway:
            yield gateway, upstream


@pytest.mark.parametrize("tier", BACKENDS)
def test_backends_that_take_them_get_llm_ds_headers(llm_d: tuple[Gateway, Upstream], tier: str) -> None:
    """What is left until the first token, and the smaller limit of the pace; JSON has neither, others get none."""
    gateway, upstream = llm_d

    def received(stream: bool, **headers: str) -> tuple[int, str]:
        upstream.reset()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": f"tier:{tier}", "stream": stream, **ASKED["/chat/completions"]}
        httpx2.post(f"{gateway.url}/chat/completions", json=body, headers=sent, timeout=20)
        got = (upstream.requests + upstream.probes)[-1].headers
        return int(got.get("x-llm-d-slo-ttft-ms", -1)), got.get("x-llm-d-slo-tpot-ms", "")

    assert received(False, x_llm_d_slo_tpot_ms="50") == (-1, "")
    left_ms, pace = received(True, x_llm_d_slo_tpot_ms="50", x_llm_d_slo_ttft_ms="5000")
    assert (4000 < left_ms <= 5000, pace) == ((True, "50") if tier != "plain" else (False, ""))
    left_ms, pace = received(True, x_llm_d_slo_tpot_ms="soon")
    assert (8000 < left_ms <= 9000, pace) == ((True, "80") if tier != "plain" else (False, ""))


def test_a_tier_too_slow_for_the_pace_is_named_in_the_trace(
    tmp_path: Path, upstream: RawUpstream, store: LocalStore
) -> None:
    """After eight streams the route's hop says how slow the tier was of late; the request starts there all the same."""
    upstream.parts = paused(PAUSE_S / 3)
    policy = CHAT.replace("deadline: 20s", "deadline: 20s, tpot: {p99: 5ms}").replace(
        "cache:\n  exact: {ttl: 1h}\n", ""
    )
    policy = policy.replace("hold_tokens: 4", "hold_tokens: 1")
    with serve(tmp_path, upstream.url, store_url=store.url, policies={"chat": policy}) as gateway:
        body = {"model": "chat", "stream": True, "temperature": 1.0, **ASKED["/chat/completions"]}
        route: dict[str, Any] = {}
        for _ in range(30):  # a forecast takes some first tokens too, and is made anew four times a second
            answer = httpx2.post(f"{gateway.url}/chat/completions", json=body, timeout=20)
            route = next(hop for hop in traced(store, answer)["hops"] if hop["name"] == names.ROUTE)["attributes"]
            if detail.SLOW_PACE in route:
                break
    (slow,) = route[detail.SLOW_PACE]
    assert re.fullmatch(r"local: [\d.]+ ms", slow) and float(slow.split()[1]) > 5
    assert answer.headers["x-tierline-tier"] == "local"


def test_an_unmeasured_tier_is_not_in_time_where_its_model_cannot_be(
    tmp_path: Path, upstream: RawUpstream, store: LocalStore
) -> None:
    """A model that thinks for 25 s does not start where 5 s are left, and the trace says that this is a prior."""
    upstream.parts = paused(0.0)
    priced = {"price": {"input": 0.1, "output": 0.4}}
    facts = {"dated": "2026-11-26", "hosts": {"127.0.0.1": "mine"}, "models": {"mine": {"quick": priced}}}
    (tmp_path / "facts.json").write_bytes(orjson.dumps(facts))
    high = {"base_url": upstream.url, "model": "quick", "set": {"reasoning_effort": "high"}}
    tiers = [
        {"name": "thinking", "backends": [high]},
        {"name": "quick", "backends": [{"base_url": upstream.url, "model": "quick"}]},
    ]
    policy = CHAT.replace("[local, hosted]", "[thinking, quick]").replace("local: other", "thinking: other")
    policy = policy.replace("slo: {deadline: 20s}", "slo: {deadline: 20s, ttft: {p99: 5s}}")
    deployment = {
        "tiers": tiers,
        "cross_encoder": "none",
        "prices": {"file": "facts.json"},
        "store": {"url": store.url},
    }
    write_deployment(tmp_path, deployment, {"chat": policy})
    with running(tmp_path, environment(), forked=True) as gateway:
        body = {"model": "chat", "stream": True, "temperature": 0.9, **ASKED["/chat/completions"]}
        answer = httpx2.post(f"{gateway.url}/chat/completions", json=body, timeout=20)
        route = next(hop["attributes"] for hop in traced(store, answer)["hops"] if hop["name"] == "route")
    assert answer.headers["x-tierline-tier"] == "quick"
    assert re.search(r"thinking is slow, by what is known of its model: 2\d{4} ms expected", route[names.REASON])
    assert route[detail.PRIOR] == ["thinking", "quick"]
    assert route[detail.OTHER_LATE] == [True]


def test_each_stage_of_a_real_request_is_held_against_its_limit(
    tmp_path: Path, upstream: RawUpstream, store: LocalStore
) -> None:
    """The backend's first word is late, and that is where the time went; metrics count the objective."""
    upstream.parts = (HEAD, PAUSE_S, chunk("one"), LAST)
    slo = (
        "slo: {deadline: 20s, stages: {cache: {p99: 15s}, prefill: {p99: 100ms}, queue: {p95: 15s}, decode: {p50: 9s}}}"
    )
    policy = CHAT.replace("slo: {deadline: 20s}", slo)
    with serve(tmp_path, upstream.url, store_url=store.url, policies={"chat": policy}) as gateway:
        ledger = ledger_of(gateway, store, temperature=0)
        metrics = httpx2.get(f"{gateway.url.removesuffix('/v1')}/metrics").text
    stages = ledger["stages"]
    assert set(stages) == {"cache", "route", "queue", "drafts", "prefill", "verdict", "decode"} or "embed" in stages
    assert PAUSE_S * 900 < stages["prefill"] < sum(stages.values()) <= ledger["total_ms"] + 1
    wanted = {
        "stages_cache_p99": True,
        "stages_prefill_p99": False,
        "stages_queue_p95": True,
        "stages_decode_p50": True,
    }
    assert ledger["slo"] == {"deadline": True, **wanted}
    assert 'tierline_slo_misses_total{objective="stages_prefill_p99",surface="chat"} 1' in metrics
    assert 'tierline_slo_limit_seconds{objective="stages_prefill_p99",surface="chat"} 0.1' in metrics
