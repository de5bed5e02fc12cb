"""What backends do wrong (the rows B of the catalogue of faults), over real sockets, in front of a real gateway.

Every test has endpoints of its own (`tests.faults.lanes`); none may leave a call in flight (the fixture `rig` waits).
"""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.local.kinds.scripted.replies import completion, identity_of
from tests.faults.conftest import KEY
from tests.faults.lanes import Answer, Rig, concurrently, received
from tests.gateway.telemetry.metric_text import value_of
from tests.support.raw_upstream import RawUpstream
from tests.support.upstream import Fault, Reply, ToolCall, Upstream, error_reply
from tests.support.wait import SLOWNESS, until

STRONG = "The strong tier knows."
LONG = "one two three four five six seven eight nine ten"
SECRET = "scripted secret of the upstream"

json_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@pytest.fixture(autouse=True)
def _strong_answers(hosted_upstream: Upstream) -> None:
    hosted_upstream.default = Reply(text=STRONG)


def assert_fell_back(rig: Rig, answer: Answer, error_type: str) -> None:
    """The client got the strong tier's answer, and sees and finds in the trace why; nothing was cached."""
    assert (answer.status, answer.ended, answer.text) == (200, True, STRONG)
    lane = answer.headers["x-tierline-surface"]
    assert answer.headers["x-tierline-path"] == "fallback"
    assert answer.headers["x-tierline-tier"] == f"{lane}.strong"
    assert answer.headers["x-tierline-attempts"] == "2"
    first, second = rig.hops(answer)
    assert (first["error"], second["error"]) == (error_type, None)
    assert first["attributes"]["tierline.outcome"] == "retryable"
    assert not rig.cached(lane, **({"stream": True} if "event-stream" in answer.headers["content-type"] else {}))


def assert_failed(rig: Rig, answer: Answer, status: int, code: str, error_type: str) -> None:
    """The client got the envelope after one attempt, and the trace says what the backend did; nothing was cached."""
    assert (answer.status, answer.error["code"]) == (status, code), answer.body
    assert answer.error["type"] == ("rate_limit_error" if status == 429 else "upstream_error")
    assert SECRET not in answer.body.decode()
    assert answer.headers["x-tierline-attempts"] == "1"
    record = rig.record(answer.headers["x-request-id"])
    assert (record["ledger"]["status"], record["ledger"]["error"]) == (status, code)
    assert [hop["error"] for hop in record["hops"] if hop["name"] == "attempt"] == [error_type]
    assert SECRET not in json.dumps(record)
    assert not rig.cached(answer.headers["x-tierline-surface"])


HTTP_ERROR = ("upstream_http_error", 502, "upstream_http_error")
INVALID = ("upstream_invalid_response", 502, "upstream_invalid_response")
UNREACHABLE = ("upstream_unreachable", 502, "upstream_unreachable")
TRUNCATED = ("upstream_truncated", 502, "upstream_invalid_response")
TIMEOUT = ("upstream_timeout", 504, "deadline_exceeded")
BEFORE_THE_ANSWER: list[tuple[str, Reply, tuple[str, int, str], tuple[str, int, str]]] = [
    ("B6-500", error_reply(500, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B6-502", error_reply(502, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B7-503", error_reply(503, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B7-529", error_reply(529, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B8-401", error_reply(401, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B8-403", error_reply(403, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B10-408", error_reply(408, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B10-409", error_reply(409, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B10-425", error_reply(425, SECRET), HTTP_ERROR, HTTP_ERROR),
    ("B11-hang-before-headers", Reply(fault=Fault.HANG_BEFORE_HEADERS), TIMEOUT, TIMEOUT),
    ("B12-hang-after-headers", Reply(fault=Fault.HANG_AFTER_HEADERS), TIMEOUT, TIMEOUT),
    ("B22-html", Reply(fault=Fault.HTML), INVALID, INVALID),
    ("B24-empty-choices", Reply(fault=Fault.EMPTY_CHOICES), INVALID, TRUNCATED),
    ("B24-null-choices", Reply(fault=Fault.NULL_CHOICES), INVALID, TRUNCATED),
    ("B24-no-choices", Reply(fault=Fault.NO_CHOICES), INVALID, TRUNCATED),
    ("B27-close-after-headers", Reply(fault=Fault.CLOSE_AFTER_HEADERS), UNREACHABLE, TRUNCATED),
    ("B27-close-before-headers", Reply(fault=Fault.CLOSE_BEFORE_HEADERS), UNREACHABLE, UNREACHABLE),
    ("B29-redirect", Reply(fault=Fault.REDIRECT), HTTP_ERROR, HTTP_ERROR),
    ("B30-gzip", Reply(headers={"content-encoding": "gzip"}), INVALID, INVALID),
    ("B31-error-in-200", Reply(fault=Fault.ERROR_IN_200), INVALID, INVALID),
]
JSON_ONLY: list[tuple[str, Reply, tuple[str, int, str], tuple[str, int, str]]] = [
    ("B15-malformed-json", Reply(fault=Fault.MALFORMED_JSON), INVALID, INVALID),
    ("B20-reset", Reply(text="word " * 99, fault=Fault.RESET_MID_STREAM), UNREACHABLE, UNREACHABLE),
    ("B20-close", Reply(text="word " * 99, fault=Fault.CLOSE_MID_STREAM), UNREACHABLE, UNREACHABLE),
    ("B21-giant", Reply(fault=Fault.GIANT), INVALID, INVALID),
]
CASES = [
    pytest.param(reply, stream, *(kinds[stream]), id=f"{row}-{'stream' if stream else 'json'}")
    for stream in (False, True)
    for row, reply, *kinds in (BEFORE_THE_ANSWER if stream else BEFORE_THE_ANSWER + JSON_ONLY)
]


@pytest.mark.parametrize(("reply", "stream", "error_type", "status", "code"), CASES)
def test_before_the_answer_the_next_tier_takes_over(
    rig: Rig,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
    reply: Reply,
    stream: bool,
    error_type: str,
    status: int,
    code: str,
) -> None:
    """While the client has seen nothing, a fault costs one attempt, and the next tier answers."""
    local_upstream.default = reply
    assert_fell_back(rig, rig.ask(rig.take("lane"), stream=stream), error_type)
    assert (len(local_upstream.requests), len(hosted_upstream.requests)) == (1, 1)


@pytest.mark.parametrize(("reply", "stream", "error_type", "status", "code"), CASES)
def test_with_no_other_tier_the_client_is_told(
    rig: Rig, local_upstream: Upstream, reply: Reply, stream: bool, error_type: str, status: int, code: str
) -> None:
    """With nobody to take over, the client gets an envelope of ours, for a stream too, and nothing is retried."""
    local_upstream.default = reply
    assert_failed(rig, rig.ask(rig.take("lone"), stream=stream), status, code, error_type)
    assert len(local_upstream.requests) == 1
    assert not local_upstream.probes


@json_and_stream
def test_b1_connection_refused(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """A refused connection hands over to the next tier; with none, it is 502 upstream_unreachable."""
    local_upstream.refuse()
    assert_fell_back(rig, rig.ask(rig.take("lane"), stream=stream), "upstream_unreachable")
    assert_failed(rig, rig.ask(rig.take("lone"), stream=stream), 502, "upstream_unreachable", "upstream_unreachable")


def test_b1_an_endpoint_that_keeps_failing_rests(rig: Rig, local_upstream: Upstream) -> None:
    """After five failures in a row an endpoint is left alone for a while, and the next tier answers in its place."""
    lane = rig.take("lane")
    local_upstream.refuse()
    for number in range(5):
        assert rig.ask(lane, seed=number).headers["x-tierline-attempts"] == "2"
    answer = rig.ask(lane, seed=9)
    assert (answer.text, answer.headers["x-tierline-attempts"]) == (STRONG, "1")
    assert rig.states(lane)["weak"].startswith("failing")


def test_b34_the_last_endpoint_is_never_ruled_out(rig: Rig, local_upstream: Upstream) -> None:
    """An endpoint that nothing can stand in for is asked though it fails, and answers as soon as it can."""
    lane = rig.take("lone")
    local_upstream.refuse()
    for number in range(6):
        answer = rig.ask(lane, seed=number)
        assert (answer.status, answer.error["code"]) == (502, "upstream_unreachable")
        assert answer.headers["x-tierline-attempts"] == "1"
        assert "retry-after" not in answer.headers
    local_upstream.accept()
    assert rig.ask(lane, seed=9).status == 200
    assert rig.states(lane)["weak"] == "ready"


def test_b34_one_request_at_a_time_tries_it(rig: Rig, local_upstream: Upstream) -> None:
    """After its pause one request tries an endpoint, the others go elsewhere; if it fails the next pause is longer."""
    lane = rig.take("lane")
    seeds = itertools.count()
    local_upstream.default = error_reply(500)
    until(lambda: rig.ask(lane, seed=next(seeds)) and rig.states(lane)["weak"] != "ready", 10, "a pause")
    failed = local_upstream.requests[-1]
    local_upstream.requests.clear()

    def tried(times: int) -> bool:
        """Ten requests at once, of which none or one tries it."""
        before = len(local_upstream.requests)
        answers = concurrently(10, lambda: rig.served(lane, seed=next(seeds)))
        tries = len(local_upstream.requests) - before
        assert tries <= 1, "two at once"
        well = tries * (local_upstream.default.text == LONG)
        texts = sorted((answer.text for answer in answers), key=STRONG.__eq__)
        assert texts == [LONG] * well + [STRONG] * (10 - well)
        return before + tries == times

    local_upstream.default = Reply(status=500, body=b"{}", before_headers_s=0.7)
    until(lambda: tried(1), 15, "a first try", poll_s=0.1)
    local_upstream.default = Reply(text=LONG, before_headers_s=0.7)
    until(lambda: tried(2), 15, "a second try", poll_s=0.1)
    first, second = local_upstream.requests
    assert first.at - failed.at >= 0.8, "a second"
    assert second.at - (first.done_at or first.gone_at or second.at) >= 1.8, "two"
    assert rig.states(lane)["weak"] == "ready"


def test_b2_connect_hangs(rig: Rig) -> None:
    """A connection that hangs is given up after its own timeout, not after the read's or the deadline."""
    began = time.monotonic()
    assert_fell_back(rig, rig.ask(rig.take("deaf")), "upstream_timeout")
    answer = rig.ask(rig.take("mute"))
    assert_failed(rig, answer, 504, "upstream_timeout", "upstream_timeout")
    assert rig.hops(answer)[0]["duration_us"] < 1_000_000 * SLOWNESS
    assert time.monotonic() - began < 4 * SLOWNESS


@pytest.mark.parametrize("headers", [{"Retry-After": "30"}, {"retry-after-ms": "30000"}], ids=["s", "ms"])
def test_b4_a_pause_that_was_asked_for(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, headers: dict[str, str]
) -> None:
    """A 429 with Retry-After is not asked again before its time; the next tier answers, first as its stand-in."""
    lane = rig.take("lane")
    local_upstream.default = error_reply(429, headers=headers)
    assert_fell_back(rig, rig.ask(lane), "upstream_http_error")
    assert rig.states(lane) == {"weak": "asking for a pause (status 429)", "strong": "ready"}
    second = rig.ask(lane, seed=1)
    assert (second.text, second.headers["x-tierline-path"]) == (STRONG, "fallback")
    assert second.headers["x-tierline-attempts"] == "1"
    assert len(local_upstream.requests) == 1
    metrics, weak = rig.request("GET", "/metrics").body, f"{lane}.weak"
    for outcome in ("refused", "skipped"):
        assert value_of(metrics, "tierline_rate_limited_total", surface=lane, tier=weak, outcome=outcome) == 1
    assert value_of(metrics, "tierline_rate_limited_seconds_total", surface=lane, tier=weak) > 0


def test_b4_the_pause_ends_when_it_was_to_end(rig: Rig, local_upstream: Upstream) -> None:
    """Once its pause is over an endpoint is asked again, and answers as before."""
    lane = rig.take("lone")
    local_upstream.queue(error_reply(429, headers={"retry-after-ms": "400"}))
    began = time.monotonic()
    assert rig.ask(lane).status == 429
    until(lambda: rig.states(lane)["weak"] == "ready", 3, "the end of the pause")
    assert 0.35 < time.monotonic() - began < 2 * SLOWNESS
    assert rig.ask(lane).status == 200


def test_b4_all_ask_for_a_pause(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """When every tier asks for a pause so do we: 429 with the shortest, on the first request and the next."""
    lane = rig.take("lane")
    local_upstream.default = error_reply(429, SECRET, headers={"Retry-After": "7"})
    hosted_upstream.default = error_reply(429, SECRET, headers={"Retry-After": "20"})
    for attempts in ("2", "0"):
        answer = rig.ask(lane)
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        assert answer.error["type"] == "rate_limit_error"
        assert SECRET not in answer.body.decode()
        assert 6 <= int(answer.headers["retry-after"]) <= 7
        assert answer.headers["x-tierline-attempts"] == attempts
    assert not rig.cached(lane)


def test_b4_a_pause_is_never_told_longer_than_a_minute(rig: Rig, local_upstream: Upstream) -> None:
    """SDKs do not take more than 60 s at its word."""
    lane = rig.take("lone")
    local_upstream.default = error_reply(429, headers={"Retry-After": "86400"})
    assert [rig.ask(lane).headers["retry-after"] for _ in range(2)] == ["60", "60"]


def test_b5_a_429_that_asks_for_nothing(rig: Rig, local_upstream: Upstream) -> None:
    """Without Retry-After an endpoint rests for about a second, it alone, and the client hears one second."""
    lane = rig.take("pair")
    local_upstream.queue(error_reply(429))
    assert rig.ask(lane).status == 200
    backends = rig.readyz()["tiers"][f"{lane}.pair"]["backends"]
    assert sorted(one["state"] for one in backends.values()) == ["asking for a pause (status 429)", "ready"]
    local_upstream.queue(error_reply(429))
    alone = rig.ask(rig.take("lone"))
    assert (alone.status, alone.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("status", [500, 502, 503, 408, 409, 425, 429])
def test_b6_another_endpoint_of_the_tier_goes_first(rig: Rig, local_upstream: Upstream, status: int) -> None:
    """What may be retried is retried at the tier's other endpoint, once; the trace keeps the upstream's status."""
    lane = rig.take("pair")
    local_upstream.queue(error_reply(status))
    answer = rig.ask(lane)
    assert (answer.status, answer.headers["x-tierline-attempts"]) == (200, "2")
    first, second = rig.hops(answer)
    assert first["attributes"]["tierline.upstream.status_code"] == status
    assert first["attributes"]["tierline.backend"] != second["attributes"]["tierline.backend"]


def test_b6_elsewhere_though_it_is_busier(rig: Rig, local_upstream: Upstream) -> None:
    """An endpoint that fails fast is the least loaded; the retry goes to the other one all the same."""
    lane = rig.take("pair")
    local_upstream.queue(Reply(before_headers_s=0.5), error_reply(500))
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(rig.ask, lane, seed=1)
        local_upstream.wait_for(1)
        answer = rig.ask(lane)
        assert busy.result().status == 200
    failed, answered = rig.hops(answer)
    assert failed["attributes"]["tierline.backend"] != answered["attributes"]["tierline.backend"]


def test_b7_a_503_with_retry_after_is_a_pause(rig: Rig, local_upstream: Upstream) -> None:
    """A 503 that names a time is left alone for that time; one that does not is not a reason to rest yet."""
    lane, other = rig.take("lane"), rig.take("lane")
    local_upstream.queue(error_reply(503, headers={"Retry-After": "30"}), error_reply(503))
    rig.ask(lane)
    rig.ask(other)
    assert rig.states(lane)["weak"] == "asking for a pause (status 503)"
    assert rig.states(other)["weak"] == "ready"


@pytest.mark.parametrize("status", [503, 529])
def test_b7_a_pause_reaches_every_client(rig: Rig, local_upstream: Upstream, status: int) -> None:
    """The client whose call began the pause and those that come during it are told the same: 503, and when to come."""
    lane = rig.take("lone")
    local_upstream.default = error_reply(status, SECRET, headers={"Retry-After": "7"})
    for attempts in ("1", "0"):
        answer = rig.ask(lane)
        assert (answer.status, answer.error["code"]) == (503, "server_is_overloaded")
        assert answer.error["type"] == "service_unavailable_error"
        assert 6 <= int(answer.headers["retry-after"]) <= 7
        assert "x-should-retry" not in answer.headers
        assert answer.headers["x-tierline-attempts"] == attempts
        assert SECRET not in answer.body.decode()


def test_b7_the_shortest_pause_of_all_tiers(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """With every tier overloaded the shortest of their pauses counts, a minute at most."""
    lane, alone = rig.take("lane"), rig.take("lone")
    local_upstream.default = error_reply(503, headers={"Retry-After": "7200"})
    hosted_upstream.default = error_reply(503, headers={"Retry-After": "20"})
    for _ in range(2):
        assert 19 <= int(rig.ask(lane).headers["retry-after"]) <= 20
        assert rig.ask(alone).headers["retry-after"] == "60"


OUT_OF_QUOTA = [
    error_reply(429, SECRET, "insufficient_quota", "insufficient_quota", {"Retry-After": "1"}),
    error_reply(429, SECRET, "invalid_request_error", "billing_not_active"),
    error_reply(429, SECRET, "exceeded_current_quota_error"),
]


@pytest.mark.parametrize("reply", OUT_OF_QUOTA, ids=["openai", "billing", "by-type"])
def test_b4_out_of_quota_is_no_pause(rig: Rig, local_upstream: Upstream, reply: Reply) -> None:
    """An account that is out of quota is not tried again by the SDK: no Retry-After, and a word against it."""
    lane = rig.take("lone")
    local_upstream.default = reply
    for attempts in ("1", "0"):
        answer = rig.ask(lane)
        assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        assert answer.headers["x-tierline-attempts"] == attempts
        assert SECRET not in answer.body.decode()
    assert f"backend {lane}.weak: our account is out of quota or credit" in rig.readyz()["degraded"]


@pytest.mark.parametrize(
    "reply", [*OUT_OF_QUOTA, error_reply(400, SECRET, "invalid_request_error", "blocked_api_access")]
)
def test_b4_out_of_quota_is_the_next_tiers_turn(rig: Rig, local_upstream: Upstream, reply: Reply) -> None:
    """Whatever status an empty account is told by, it is no fault of the caller's."""
    local_upstream.default = reply
    assert_fell_back(rig, rig.ask(rig.take("lane")), "upstream_http_error")


def test_b4_out_of_quota_beside_a_passing_fault(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """Where another tier failed for once, trying again may help, and nothing is said against it."""
    local_upstream.default = error_reply(500)
    hosted_upstream.default = OUT_OF_QUOTA[0]
    answer = rig.ask(rig.take("lane"))
    assert (answer.status, answer.error["code"]) == (502, "upstream_http_error")
    assert "x-should-retry" not in answer.headers


def test_b8_a_refused_key_is_an_alarm(rig: Rig, local_upstream: Upstream) -> None:
    """The log names backend and variable once, never the key; /readyz and a metric say so while it lasts."""
    lane = rig.take("pair")
    local_upstream.on(lambda request: True).reply(error_reply(401, f"Incorrect API key: {KEY}"))
    for number in range(4):
        assert rig.ask(lane, seed=number).status == 502
    degraded = rig.readyz()["degraded"]
    alarms = [line for line in rig.gateway.log().splitlines() if f"{lane}.pair" in line]
    metrics = rig.request("GET", "/metrics").body
    for name in (f"{lane}.pair-1", f"{lane}.pair-2"):
        (alarm,) = (line for line in alarms if f"backend {name} " in line)
        assert "ERROR" in alarm and "refusing our key (status 401)" in alarm and "HOSTED_KEY" in alarm
        assert f"backend {name}: it refuses our key" in degraded
        assert value_of(metrics, "tierline_backend_refuses", backend=name) == 1
    assert len(alarms) == 2
    assert value_of(metrics, "tierline_backend_refuses", backend="lone-0.weak") == 0
    assert KEY not in rig.gateway.log()


@pytest.mark.parametrize("status", [401, 403])
def test_b8_our_key_is_refused(rig: Rig, local_upstream: Upstream, status: int) -> None:
    """A key of ours that is refused is a 502, with no retry by the SDK either, and the endpoint is left alone."""
    lane = rig.take("lone")
    local_upstream.default = error_reply(status, SECRET)
    for attempts in ("1", "0"):
        answer = rig.ask(lane)
        assert (answer.status, answer.error["code"]) == (502, "upstream_http_error")
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-tierline-attempts"] == attempts
        assert SECRET not in answer.body.decode()
    assert rig.states(lane)["weak"] == f"refusing our key (status {status})"


@json_and_stream
@pytest.mark.parametrize("status", [401, 402, 403])
def test_b8_the_next_tier_takes_over(rig: Rig, local_upstream: Upstream, status: int, stream: bool) -> None:
    """Neither our refused key nor our empty account is the caller's fault: the next tier answers."""
    local_upstream.default = error_reply(status, SECRET)
    assert_fell_back(rig, rig.ask(rig.take("lane"), stream=stream), "upstream_http_error")


@json_and_stream
@pytest.mark.parametrize("status", [400, 422])
def test_b9_the_callers_own_fault(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, status: int, stream: bool
) -> None:
    """A backend's 4xx is passed on in our envelope, asked of nobody else, and held against no endpoint."""
    lane = rig.take("lane")
    local_upstream.default = error_reply(status, "no such field", "invalid_request_error", "unknown_field")
    for _ in range(6):
        answer = rig.ask(lane, stream=stream)
        assert answer.status == status
        assert answer.error == {
            "message": "no such field",
            "type": "invalid_request_error",
            "param": None,
            "code": "unknown_field",
        }
        assert answer.headers["x-tierline-attempts"] == "1"
    assert rig.states(lane)["weak"] == "ready"
    assert not hosted_upstream.requests
    assert rig.hops(answer)[0]["attributes"]["tierline.outcome"] == "caller_fault"
    assert not rig.cached(lane)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail":"plain words"}', b'{"error":"plain words"}'])
def test_b9_in_whatever_form(rig: Rig, local_upstream: Upstream, body: bytes, path: str) -> None:
    """Whatever the backend's error looks like, the client gets its API's envelope, with the words that there are."""
    local_upstream.default = Reply(status=400, body=body)
    asked = {"model": rig.take("lone"), "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    if path == "/v1/responses":
        asked = {"model": asked["model"], "input": "hi"}
    answer = rig.request("POST", path, json.dumps(asked).encode(), {"content-type": "application/json"})
    message = answer.json["error"]["message"]
    assert (answer.status, "plain words" in message, bool(message)) == (400, b"plain" in body, True)


FLAGGED = {"error": {"message": "The input was flagged", "code": 403, "metadata": {"reasons": ["violence"]}}}
FILTERED = {
    "error": {"message": "The response was filtered", "code": "content_filter", "type": None, "param": "prompt"}
}


@json_and_stream
@pytest.mark.parametrize(("status", "told"), [(403, FLAGGED), (400, FILTERED)])
def test_b36_what_one_prompt_says(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, status: int, told: dict[str, Any], stream: bool
) -> None:
    """A prompt that a provider's filter refuses is refused, in the provider's words, and takes the tier from nobody."""
    lane = rig.take("lane")
    local_upstream.default = Reply(text="fine")
    local_upstream.on("poison").reply(Reply(status=status, body=json.dumps(told).encode()))
    poison = [{"role": "user", "content": "poison"}]
    for _ in range(6):
        answer = rig.ask(lane, stream=stream, messages=poison)
        assert answer.status == 400
        assert answer.error["code"] == "content_filter"
        assert answer.error["message"] == told["error"]["message"]
    assert not hosted_upstream.requests
    assert rig.states(lane)["weak"] == "ready"
    assert rig.ask(lane, stream=stream).text == "fine"
    assert not any(lane in line for line in rig.readyz()["degraded"])


CLOUDFLARE = Reply(status=403, body=b"<!DOCTYPE html><title>Attention Required! | Cloudflare</title>")
ABROAD = error_reply(
    403, "Country, region, or territory not supported", "request_forbidden", "unsupported_country_region_territory"
)
TOO_MANY = "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000"


@json_and_stream
@pytest.mark.parametrize(
    ("reply", "status"),
    [
        pytest.param(CLOUDFLARE, 502, id="B36-a-firewalls-page"),
        pytest.param(ABROAD, 502, id="B36-a-country"),
        pytest.param(error_reply(413, TOO_MANY, "tokens", "rate_limit_exceeded"), 413, id="B38-413-of-a-minute"),
        pytest.param(error_reply(429, TOO_MANY, "tokens", "rate_limit_exceeded"), 429, id="B38-429-of-a-minute"),
    ],
)
def test_b36_b38_a_request_that_an_endpoint_does_not_take(
    rig: Rig, local_upstream: Upstream, reply: Reply, status: int, stream: bool
) -> None:
    """The next tier answers it; the endpoint goes on, as nothing is known of other requests."""
    lane, lone = rig.take("lane"), rig.take("lone")
    local_upstream.default = reply
    for _ in range(6):
        answer = rig.ask(lane, stream=stream)
        assert (answer.status, answer.text, answer.headers["x-tierline-attempts"]) == (200, STRONG, "2")
    assert rig.states(lane)["weak"] == "ready"
    alone = rig.ask(lone, stream=stream)
    assert alone.status == status
    assert alone.headers.get("x-should-retry") == (None if status == 413 else "false")
    assert "<" not in alone.error["message"]
    assert rig.states(lone)["weak"] == "ready"


GONE = [
    error_reply(404, "model 'weak' not found", "api_error", None),
    error_reply(404, "The model `weak` does not exist or you do not have access to it.", "x", "model_not_found"),
    Reply(status=404, body=b"<html>404 Not Found</html>"),
    Reply(status=405, body=b"Method Not Allowed"),
    Reply(status=410, body=b'{"error":{"message":"This model is retired."}}'),
    error_reply(400, "The model has been decommissioned", "invalid_request_error", "model_decommissioned"),
]


@json_and_stream
@pytest.mark.parametrize("reply", GONE, ids=["ollama", "openai", "a-url", "a-method", "retired", "groq"])
def test_b37_the_model_is_gone(rig: Rig, local_upstream: Upstream, reply: Reply, stream: bool) -> None:
    """The next tier answers, /readyz and the log name backend and model, and an answer of the model ends it."""
    lane, lone = rig.take("lane"), rig.take("lone")
    local_upstream.default = reply
    answer = rig.ask(lane, stream=stream)
    assert (answer.status, answer.text, answer.headers["x-tierline-path"]) == (200, STRONG, "fallback")
    assert rig.hops(answer)[0]["attributes"]["tierline.upstream.blame"] == "model"
    assert rig.states(lane)["weak"].startswith("without its model weak")
    (told,) = (line for line in rig.readyz()["degraded"] if line.startswith(f"backend {lane}.weak"))
    assert "no model weak" in told
    assert f"backend {lane}.weak is without its model weak" in rig.gateway.log()
    for attempts in ("1", "0"):
        alone = rig.ask(lone, stream=stream)
        assert (alone.status, alone.headers["x-should-retry"]) == (502, "false")
        assert alone.headers["x-tierline-attempts"] == attempts


@json_and_stream
def test_b38_no_capacity_is_the_servers(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """A 498, which says that there is no capacity now, goes to the next tier."""
    local_upstream.default = error_reply(498, SECRET)
    assert_fell_back(rig, rig.ask(rig.take("lane"), stream=stream), "upstream_http_error")


def test_b31_an_error_with_a_status_in_the_first_event(rig: Rig, local_upstream: Upstream) -> None:
    """An error in a stream counts as one of the status that it names: here our account is at its limit."""
    lane = rig.take("lane")
    event = b'data: {"error": {"code": 429, "message": "slow down"}}\n\n'
    local_upstream.default = Reply(body=event, headers={"content-type": "text/event-stream"})
    assert_fell_back(rig, rig.stream(lane), "upstream_http_error")
    assert rig.states(lane)["weak"] == "asking for a pause (status 429)"


def test_b11_the_slot_is_free_at_once(rig: Rig, local_upstream: Upstream) -> None:
    """An endpoint that hangs is left, and sees us leave, as soon as the next one takes over."""
    local_upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    rig.ask(rig.take("lane"))
    assert rig.in_flight() == 0
    local_upstream.requests[0].wait_gone(1)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(Fault.HANG_MID_STREAM, "upstream_timeout", id="B13-hang"),
        pytest.param(Fault.MALFORMED_EVENT, "upstream_invalid_response", id="B16-malformed-event"),
        pytest.param(Fault.EOF_MID_STREAM, "upstream_truncated", id="B17-clean-eof"),
        pytest.param(Fault.DONE_WITHOUT_FINISH, "upstream_truncated", id="B19-done-without-finish"),
        pytest.param(Fault.RESET_MID_STREAM, "upstream_truncated", id="B20-reset"),
        pytest.param(Fault.CLOSE_MID_STREAM, "upstream_truncated", id="B20-close"),
        pytest.param(Fault.ERROR_MID_STREAM, "upstream_invalid_response", id="B31-error-event"),
    ],
)
@pytest.mark.parametrize("kind", ["lone", "lane", "other"])
def test_after_the_commit_a_break_is_told(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, fault: Fault, code: str, kind: str
) -> None:
    """A stream that breaks once the client has part of it ends in one error event, retried by nobody."""
    lane = rig.take(kind)
    local_upstream.default = Reply(text=LONG, fault=fault, fault_after=7, between_s=0.005)
    answer = rig.stream(lane)
    assert answer.broken["code"] == code
    assert "scripted error" not in json.dumps(answer.broken)
    assert answer.text.startswith("one two three four five six seven")
    assert all("choices" in event for event in answer.events[:-1])
    assert (len(local_upstream.requests), len(hosted_upstream.requests)) == (1, 0)
    record = rig.record(answer.headers["x-request-id"])
    attempt = next(hop for hop in record["hops"] if hop["name"] == "attempt")
    assert (attempt["error"], attempt["attributes"]["tierline.stream.end"]) == (code, code)
    assert record["ledger"]["error"] == code
    assert record["ledger"]["tokens_out"] >= 7
    assert not rig.cached(lane, stream=True)


def test_b20_the_connection_of_a_broken_stream_goes_on(rig: Rig, local_upstream: Upstream) -> None:
    """After the error event the body has its end, so that the client's next request takes the same connection."""
    lane = rig.take("lone")
    local_upstream.queue(Reply(text=LONG, fault=Fault.RESET_MID_STREAM, fault_after=7, between_s=0.005), Reply())
    body = {"model": lane, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    connection = rig.connect()
    answers = []
    for _ in range(2):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answers.append(received(connection.getresponse()))
        assert connection.sock is not None, "the gateway has closed the connection"
    connection.close()
    assert answers[0].broken["message"] == "The answer broke off: the connection was reset."
    assert answers[1].events[-1] == "[DONE]"


@pytest.mark.parametrize(
    "fault", [Fault.MALFORMED_EVENT, Fault.EOF_MID_STREAM, Fault.RESET_MID_STREAM, Fault.ERROR_MID_STREAM]
)
def test_b16_b17_b20_during_the_hold(rig: Rig, local_upstream: Upstream, fault: Fault) -> None:
    """The same breaks, while the first tokens are still held, are one attempt that the client never sees."""
    local_upstream.default = Reply(text=LONG, fault=fault, fault_after=2)
    answer = rig.stream(rig.take("lane"))
    kind = "upstream_truncated" if fault in (Fault.EOF_MID_STREAM, Fault.RESET_MID_STREAM) else INVALID[0]
    assert_fell_back(rig, answer, kind)
    assert "one" not in answer.body.decode()


def test_b14_a_stream_ends_at_its_deadline(rig: Rig, local_upstream: Upstream) -> None:
    """A stream that never stops coming is ended at the request's deadline, which is no fault of the endpoint's."""
    lane = rig.take("lone")
    local_upstream.default = Reply(text="word " * 200, between_s=0.05)
    answer = rig.stream(lane, {"x-tierline-deadline-ms": "600"})
    assert answer.broken["code"] == "deadline_exceeded"
    assert answer.text
    local_upstream.requests[0].wait_gone(1)
    for _ in range(5):
        rig.stream(lane, {"x-tierline-deadline-ms": "150"}, seed=1)
    assert rig.states(lane)["weak"] == "ready"


def trickle(step_s: float, times: int) -> list[bytes | float]:
    """A stream that begins well, and then sends the bytes of one more event so far apart; the event never ends."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    begun = b"".join(b"data: " + PART.encode() + b"\n\n" for _ in range(6))
    return [head + begun, *(part for _ in range(times) for part in (step_s, b"d"))]


def test_b14_bytes_alone_are_no_progress(rig: Rig, raw: RawUpstream) -> None:
    """A stream that goes on a byte at a time, without an event in its idle timeout, has fallen silent."""
    lane = rig.take("raw")
    raw.parts = trickle(0.05, 60)
    answer = rig.stream(lane)
    assert answer.broken["code"] == "upstream_timeout"
    assert answer.text == "word" * 6
    attempt = rig.hops(answer)[0]
    assert attempt["attributes"]["tierline.stream.end"] == "upstream_timeout"
    assert not rig.cached(lane, stream=True)


def test_b40_comments_are_life(rig: Rig, raw: RawUpstream) -> None:
    """A stream that sends comments alone, for longer than its idle timeout, goes on until the server ends it."""
    raw.parts = [trickle(0, 0)[0], *(part for _ in range(60) for part in (0.05, b": ping\n\n"))]
    assert rig.stream(rig.take("raw")).broken["code"] == "upstream_truncated"


def test_b14_a_byte_at_a_time_does_not_outlive_the_deadline(rig: Rig, raw: RawUpstream) -> None:
    """Whatever trickles in, the request is over when its deadline is."""
    raw.parts = trickle(0.02, 200)
    answer = rig.stream(rig.take("raw"), {"x-tierline-deadline-ms": "250"})
    assert answer.broken["code"] == "deadline_exceeded"


@json_and_stream
def test_b14_a_byte_at_a_time_from_the_start(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """Before the client has anything, the next tier takes over when the first one's time is over."""
    local_upstream.default = Reply(text=LONG, fault=Fault.SLOW_LORIS, between_s=0.05)
    answer = rig.ask(rig.take("lane"), stream=stream)
    assert_fell_back(rig, answer, "upstream_timeout")
    local_upstream.requests[0].wait_gone(1)


def test_b17_streams_that_break_off_make_an_endpoint_rest(rig: Rig, local_upstream: Upstream) -> None:
    """Beginning well does not make up for breaking off: five times in a row, and the endpoint rests."""
    lane = rig.take("lone")
    local_upstream.default = Reply(text=LONG, fault=Fault.EOF_MID_STREAM, fault_after=7)
    for _ in range(5):
        assert rig.stream(lane).broken["code"] == "upstream_truncated"
    assert rig.states(lane)["weak"].startswith("failing (upstream_truncated")


@pytest.mark.parametrize("kind", ["lone", "lane"])
def test_b18_a_missing_done_is_made_up_for(rig: Rig, local_upstream: Upstream, kind: str) -> None:
    """A stream whose answer is finished is complete without its [DONE], which the client gets from us; cached too."""
    lane = rig.take(kind)
    local_upstream.default = Reply(text=LONG, fault=Fault.NO_DONE)
    answer = rig.stream(lane)
    assert answer.ended
    assert answer.events[-1] == "[DONE]"
    assert answer.text == LONG
    attempt = rig.hops(answer)[0]
    assert attempt["error"] is None
    assert attempt["attributes"]["tierline.stream.end"] == "done"
    assert attempt["attributes"]["tierline.stream.done_synthesised"] is True
    assert rig.cached(lane, stream=True)


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4


@json_and_stream
def test_b21_a_giant_reply(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """A gigabyte is cut off at the backend's limit, here 2 MiB, and costs the gateway's memory no more than that."""
    lane = rig.take("lane")
    rig.ask(lane, seed=1)
    before = resident_kib(rig.gateway.process.pid)
    local_upstream.reset()
    local_upstream.default = Reply(fault=Fault.GIANT)
    assert_fell_back(rig, rig.ask(lane, stream=stream), "upstream_invalid_response")
    assert resident_kib(rig.gateway.process.pid) - before < 16 << 10
    local_upstream.requests[0].wait_gone(2)
    assert local_upstream.requests[0].sent_bytes < 64 << 20


@json_and_stream
def test_b23_the_other_kind_is_converted(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """JSON where a stream was asked for becomes a stream, and the other way round."""
    lane = rig.take("lane")
    local_upstream.default = Reply(text=LONG, fault=Fault.OTHER_KIND)
    answer = rig.ask(lane, stream=stream)
    assert (answer.status, answer.ended, answer.text) == (200, True, LONG)
    assert answer.headers["x-tierline-attempts"] == "1"
    if stream:
        assert answer.events[-1] == "[DONE]"
        assert all(event["choices"] for event in answer.events[:-1])
    rig.record(answer.headers["x-request-id"])
    assert rig.cached(lane, **({"stream": True} if stream else {}))


def sse(*data: str) -> bytes:
    body = "".join(f"data: {one}\n\n" for one in data).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


PART = '{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word"}}]}'
LAST = '{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'


@pytest.mark.parametrize("wanted", [False, True], ids=["not asked", "asked"])
@pytest.mark.parametrize(
    "end",
    [
        pytest.param((LAST, "{" + USAGE), id="B25-no-choices"),
        pytest.param((LAST, '{"choices":null,' + USAGE), id="B25-null-choices"),
        pytest.param((LAST[:-1] + "," + USAGE,), id="in-the-finish"),
        pytest.param((LAST, '{"choices":[],' + USAGE, '{"choices":[],' + USAGE), id="twice"),
    ],
)
def test_b25_totals_in_every_form(rig: Rig, raw: RawUpstream, end: tuple[str, ...], wanted: bool) -> None:
    """However a backend tells its totals, the client gets them once, with empty choices, if it asked, else never."""
    raw.parts = [sse(PART, *end, "[DONE]")]
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if wanted else {}
    answer = rig.stream(rig.take("raw"), **options)
    assert answer.ended
    assert answer.text == "word"
    assert answer.events[-1] == "[DONE]"
    told = [event for event in answer.events[:-1] if event.get("usage")]
    assert [event["choices"] for event in told] == ([[]] if wanted else [])
    if wanted:
        assert answer.events[-2] == told[0]
    ledger = rig.record(answer.headers["x-request-id"])["ledger"]
    assert (ledger["tokens_in"], ledger["tokens_out"], ledger["usage_estimated"]) == (1, 1, False)


@pytest.mark.parametrize("kind", ["none", "null", "spaced"])
def test_b25_null_usage_until_the_totals(rig: Rig, local_upstream: Upstream, kind: str) -> None:
    """Who asked for totals sees `usage` in every chunk, null in all but the last, live and from the cache; nobody else
    sees more of it than the backend sends.
    """
    member = {"none": "", "null": ',"usage":null', "spaced": ', "usage": null '}[kind]
    part = PART.replace("word", "usage")[:-1] + member + "}"
    events = (part, LAST[:-1] + member + "}", '{"choices":[],' + USAGE)
    body = "".join(f"data: {one}\n\n" for one in [*events, "[DONE]"]).encode()
    local_upstream.default = Reply(body=body, headers={"Content-Type": "text/event-stream"})
    lane = rig.take("lone")
    for path in ("direct", "cache-exact"):
        asked = rig.stream(lane, stream_options={"include_usage": True})
        assert (asked.headers["x-tierline-path"], asked.text) == (path, "usage")
        *parts, totals, done = asked.events
        assert [chunk["usage"] for chunk in parts] == [None] * len(parts)
        assert (totals["choices"], totals["usage"]["total_tokens"], done) == ([], 2, "[DONE]")
        until(lambda: rig.cached(lane, stream=True), 15, "the answer in the cache")
    assert not any(event.get("usage") for event in rig.stream(lane, seed=1).events[:-1])
    assert any("usage" in event for event in rig.stream(lane, seed=2).events[:-1]) is (kind != "none")


@json_and_stream
def test_b24_an_answer_without_a_finish_is_none(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """A JSON reply that does not say that it is finished is the next tier's turn, and with none a 502."""
    body = completion(Reply(text=LONG), {"model": "weak"}, identity_of({}))
    body["choices"][0]["finish_reason"] = None
    local_upstream.default = Reply(body=json.dumps(body).encode())
    assert_fell_back(rig, rig.ask(rig.take("lane"), stream=stream), "upstream_invalid_response")
    assert_failed(rig, rig.ask(rig.take("lone"), stream=stream), *INVALID[1:], INVALID[0])


@json_and_stream
def test_b28_a_stale_connection_is_no_attempt(rig: Rig, raw: RawUpstream, stream: bool) -> None:
    """An endpoint whose connections end before ours do costs nobody an answer, an attempt or an endpoint's rest."""
    lane = rig.take("raw")
    body = completion(Reply(text=STRONG), {"model": "raw"}, identity_of({}))
    reply = json.dumps(body).encode()
    raw.parts = [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(reply), reply]
    raw.keep_open, raw.answers = True, 1
    for seed in range(4):
        answer = rig.ask(lane, stream=stream, seed=seed)
        assert (answer.status, answer.text) == (200, STRONG)
        assert (answer.headers["x-tierline-path"], answer.headers["x-tierline-tier"]) == ("direct", f"{lane}.raw")
        assert [hop["error"] for hop in rig.hops(answer)] == [None]
    assert raw.requests == 7  # each but the first meets the end of the connection before it, and is sent once more
    assert rig.states(lane)["raw"] == "ready"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", id="two-lengths"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
            id="bad-chunk-size",
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="only-1xx"),
    ],
)
def test_b32_broken_framing(rig: Rig, raw: RawUpstream, reply: bytes) -> None:
    """A reply whose framing is broken is no answer, and its connection is not used again."""
    raw.parts = [reply]
    lane = rig.take("raw")
    answer = rig.ask(lane)
    assert (answer.status, answer.text, answer.headers["x-tierline-path"]) == (200, STRONG, "fallback")
    connections = raw.connections
    rig.ask(lane, seed=1)
    assert raw.connections == connections + 1


def test_b33_usage_is_never_made_up_in_silence(rig: Rig, local_upstream: Upstream) -> None:
    """A stream without totals has some only for a client that asked, and flagged; the ledger flags them always."""
    local_upstream.default = Reply(text=LONG, usage=None)
    lane = rig.take("lane")
    silent = rig.stream(lane)
    assert not any(event.get("usage") for event in silent.events[:-1])
    asked = rig.stream(lane, stream_options={"include_usage": True}, seed=1)
    assert asked.events[-2]["choices"] == []
    assert asked.events[-2]["usage"]["estimated"] is True
    assert asked.events[-2]["usage"]["completion_tokens"] > 0
    whole = rig.ask(lane, seed=2)  # the first answer has been kept by now
    assert "usage" not in whole.json
    for answer in (silent, asked, whole):
        assert rig.record(answer.headers["x-request-id"])["ledger"]["usage_estimated"] is True


@json_and_stream
def test_b33_negative_usage(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """Counts below zero reach neither the client nor the books."""
    local_upstream.default = Reply(usage={"prompt_tokens": -987654, "completion_tokens": 3, "total_tokens": -987651})
    answer = rig.ask(rig.take("lane"), stream=stream)
    assert answer.status == 200
    assert b"-98765" not in answer.body
    ledger = rig.record(answer.headers["x-request-id"])["ledger"]
    assert ledger["tokens_in"] >= 0
    assert ledger["usage_estimated"] is True


@json_and_stream
@pytest.mark.parametrize(
    ("reply", "changes", "reason"),
    [
        (Reply(tool_calls=(ToolCall("search_web", "{}"),)), {}, "call of a tool that was not offered"),
        (Reply(text="It is sunny."), {"tool_choice": "required"}, "no call where tool_choice requires one"),
        (Reply(tool_calls=(ToolCall("tell", "{}"),)), {"tool_choice": "none"}, "call where tool_choice forbids it"),
        (
            Reply(tool_calls=(ToolCall("tell", "{}"), ToolCall("tell", "{}"))),
            {"parallel_tool_calls": False},
            "several calls where parallel_tool_calls is false",
        ),
        (Reply(text='[TOOL_CALLS][{"name": "tell", "arguments": {}}]'), {}, "call written as text"),
    ],
    ids=["not-offered", "required", "none", "parallel", "text"],
)
def test_b43_a_call_that_cannot_be(
    rig: Rig,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
    reply: Reply,
    changes: dict[str, Any],
    reason: str,
    stream: bool,
) -> None:
    """The draft is rejected and named so, the next tier answers, and the endpoint is not to blame."""
    local_upstream.default = reply
    if changes.get("tool_choice") == "required":
        hosted_upstream.default = Reply(tool_calls=(ToolCall("tell", "{}"),))
    lane = rig.take("lane")
    tools = [{"type": "function", "function": {"name": "tell"}}]
    answer = rig.ask(lane, stream=stream, tools=tools, **changes)
    assert (answer.status, answer.headers["x-tierline-path"]) == (200, "escalated")
    assert answer.headers["x-tierline-tier"] == f"{lane}.strong"
    first, second = rig.hops(answer)
    assert (first["error"], first["attributes"]["tierline.outcome"]) == (None, "unfit")
    assert first["attributes"]["tierline.reason"] == reason
    assert second["attributes"]["tierline.outcome"] == "accepted"


def test_three_attempts_at_most(rig: Rig, local_upstream: Upstream) -> None:
    """A tier of four endpoints that all fail is tried three times."""
    local_upstream.default = error_reply(500)
    answer = rig.ask(rig.take("quad"))
    assert (answer.status, answer.headers["x-tierline-attempts"]) == (502, "3")
    assert len(local_upstream.requests) == 3
    assert [hop["attributes"]["tierline.attempt"] for hop in rig.hops(answer)] == [1, 2, 3]


@json_and_stream
def test_one_deadline_for_all_attempts(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    """Attempts share the request's deadline: two tiers that hang take no longer than it, together."""
    local_upstream.default = hosted_upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    lane = rig.take("lane")
    headers = {"x-tierline-deadline-ms": f"{700 * SLOWNESS:.0f}"}
    began = time.monotonic()
    answer = rig.stream(lane, headers) if stream else rig.ask(lane, headers)
    assert time.monotonic() - began < 3 * SLOWNESS
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert [hop["error"] for hop in rig.hops(answer)] == ["upstream_timeout", "upstream_timeout"]
    for upstream in (local_upstream, hosted_upstream):
        upstream.requests[0].wait_gone(1)


@json_and_stream
def test_an_impatient_client_harms_no_endpoint(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """A client that gives less time than its surface does cannot make an endpoint rest for everybody."""
    lane = rig.take("lone")
    local_upstream.default = Reply(before_headers_s=0.3)
    headers = {"x-tierline-deadline-ms": "40"}
    for _ in range(6):
        assert (rig.stream(lane, headers) if stream else rig.ask(lane, headers)).status == 504
    assert rig.states(lane)["weak"] == "ready"
    assert rig.ask(lane).status == 200
