"""What clients do wrong (the rows C, and S2 and S18, of the catalogue of faults), over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.faults.conftest import KEY
from tests.faults.lanes import Answer, Rig, received
from tests.support.gateway import serve
from tests.support.store import LocalStore
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import SLOWNESS, until

PROMPT = "the-planted-prompt-0815"
USER = {"role": "user", "content": "hi"}


def head(rig: Rig, body: bytes, *more: str, length: bool = True) -> bytes:
    """A request's head; its length is the body's."""
    lines = [f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{rig.gateway.port}", *more]
    lines += ["Content-Type: application/json"] + ([f"Content-Length: {len(body)}"] if length else [])
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@contextmanager
def dialled(rig: Rig) -> Iterator[socket.socket]:
    """A bare connection to the gateway."""
    with socket.create_connection(("127.0.0.1", rig.gateway.port), 5) as connection:
        yield connection


def response_on(connection: socket.socket) -> Answer:
    """The response that comes on a bare connection."""
    response = http.client.HTTPResponse(connection, method="POST")
    response.begin()
    return received(response)


def body_of(model: str, /, **changes: Any) -> bytes:
    return json.dumps({"model": model, "messages": [USER]} | changes, separators=(",", ":")).encode()


# C1, C2: clients that leave


def leave(rig: Rig, body: bytes, upstream: Upstream, request_id: str, after: bytes, *, reset: bool) -> float:
    """Sends a request and hangs up once the upstream has it and `after` has come; how long the upstream took to see."""
    with dialled(rig) as connection:
        connection.sendall(head(rig, body, f"x-request-id: {request_id}") + body)
        upstream.wait_for(1)
        seen = b""
        while after not in seen:
            seen += (part := connection.recv(4096))
            assert part, seen
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        left = time.monotonic()
    return upstream.requests[-1].wait_gone(3) - left


def assert_gone(rig: Rig, lane: str, request_id: str) -> dict[str, Any]:
    """The books say 499, nothing was held against the endpoint and nothing was cached; the record."""
    record = rig.record(request_id)
    assert (record["ledger"]["status"], record["ledger"]["error"]) == (499, "client_gone")
    assert rig.states(lane)["weak"] == "ready"
    rig.idle()
    return record


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("kind", ["lane", "other"])
def test_c1_leaves_in_mid_stream(rig: Rig, local_upstream: Upstream, kind: str, reset: bool) -> None:
    """A client that hangs up mid-stream ends the upstream call; it is a 499, nobody's failure, booked, not cached."""
    lane = rig.take(kind)
    local_upstream.default = Reply(text="word " * 500, between_s=0.01)
    body = body_of(lane, stream=True)
    for number in range(6):
        local_upstream.requests.clear()
        took = leave(rig, body, local_upstream, f"{lane}-c1-{number}", b"word", reset=reset)
        assert took < 0.5 * SLOWNESS  # the aim is 0.1 s, on a machine that does nothing else
    record = assert_gone(rig, lane, f"{lane}-c1-5")
    attempt = next(hop for hop in record["hops"] if hop["name"] == "attempt")
    assert attempt["attributes"]["tierline.stream.end"] == "client_cancel"
    assert attempt["error"] is None
    assert record["ledger"]["tokens_out"] > 0
    assert not rig.cached(lane, stream=True)


@pytest.mark.parametrize("kind", ["lane", "other"])
def test_c1_leaves_during_the_hold(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, kind: str) -> None:
    """So does one that leaves while the first tokens are held and it has seen nothing; no other tier is asked."""
    lane = rig.take(kind)
    local_upstream.default = Reply(before_first_s=30, text="never")
    took = leave(rig, body_of(lane, stream=True), local_upstream, f"{lane}-hold", b"", reset=False)
    assert took < 0.7 * SLOWNESS
    assert_gone(rig, lane, f"{lane}-hold")
    assert not hosted_upstream.requests


@pytest.mark.parametrize("kind", ["lane", "other"])
@pytest.mark.parametrize("fault", [Fault.HANG_BEFORE_HEADERS, Fault.HANG_AFTER_HEADERS])
def test_c2_leaves_while_it_waits(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, kind: str, fault: Fault
) -> None:
    """A client that gives up waiting for a whole answer ends the upstream call, and no other tier is asked."""
    lane = rig.take(kind)
    local_upstream.default = Reply(fault=fault)
    for number in range(6):
        local_upstream.requests.clear()
        took = leave(rig, body_of(lane), local_upstream, f"{lane}-c2-{number}", b"", reset=False)
        assert took < 0.7 * SLOWNESS
    record = assert_gone(rig, lane, f"{lane}-c2-5")
    assert [hop["error"] for hop in record["hops"] if hop["name"] == "attempt"] == ["client_gone"]
    assert not hosted_upstream.requests
    assert not rig.cached(lane)


def _is_refused(connection: socket.socket) -> bool:
    """Return whether the gateway has refused this connection's request: as one too many, or come to too late."""
    try:
        start = connection.recv(12, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return start in (b"HTTP/1.1 503", b"HTTP/1.1 504")


def test_c1_many_leave_at_once(rig: Rig, local_upstream: Upstream) -> None:
    """Fifty clients that leave at the same time leave no call behind, and the next one is answered."""
    lane = rig.take("lone")
    local_upstream.default = Reply(text="word " * 500, between_s=0.01)
    connections = [socket.create_connection(("127.0.0.1", rig.gateway.port), 5) for _ in range(50)]
    for seed, connection in enumerate(connections):
        body = body_of(lane, stream=True, seed=seed)  # equal ones would share one call
        connection.sendall(head(rig, body) + body)
    # On a busy machine the gateway may refuse some of them; all others must be with the model.
    until(lambda: len(local_upstream.requests) + sum(map(_is_refused, connections)) >= 50, 5, "50 model calls")
    assert len(local_upstream.requests) >= 10
    for connection in connections:
        connection.close()
    until(lambda: local_upstream.in_flight == 0, 5, "every upstream call ended")
    rig.idle()
    local_upstream.default = Reply(text="still here")
    assert rig.ask(lane).text == "still here"


# C3: clients that do not read


def unread(numbers: int) -> tuple[str, ...]:
    """Return tokens of so many numbers, some 8 bytes each, in which nothing occurs twice."""
    return tuple("".join(f"{number} " for number in range(at, at + 1400)) for at in range(0, numbers, 1400))


@pytest.fixture(scope="module")
def _impatient(_upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: Any) -> Iterator[Rig]:
    limits = {"limits": {"stall": "400ms"}}
    folder = tmp_path_factory.mktemp("impatient")
    with serve(folder, _upstreams[0].url, store_url=_store.url, settings=limits) as gateway:
        yield Rig(gateway, _store.url)


@pytest.mark.parametrize("follows", [False, True], ids=["alone", "sharing"])
def test_c3_a_client_that_does_not_read(
    _impatient: Rig, store: LocalStore, local_upstream: Upstream, follows: bool
) -> None:
    """A client that leaves a stream unread is given up for gone: its backend's call ends, nobody's failure, not cached.

    So is one that shares the answer of an equal request; the other one, which reads, gets all of it.
    """
    rig, seed = _impatient, int(follows)
    # Alone, 38 MB: the sockets in between come to hold 12 MB where the system lets their buffers grow. What is shared
    # is read to its end, and may be no larger than `max_reply`.
    # Nor does it begin before the other client had the time to come.
    tokens, before_s = unread(1_680_000 if follows else 5_040_000), 1.5 if follows else 0.0
    local_upstream.default = Reply(tokens=tokens, before_first_s=before_s, no_logprobs=True)
    body = body_of("chat", stream=True, seed=seed)
    with dialled(rig) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head(rig, body, f"x-request-id: c3-{seed}") + body)
        local_upstream.wait_for(1)
        if follows:
            other = rig.post(body)
            assert other.headers["x-tierline-coalesced"] == "1"
            assert other.events[-1] == "[DONE]"
        else:
            local_upstream.requests[0].wait_gone(20)
        record = rig.record(f"c3-{seed}")
    assert (record["ledger"]["status"], record["ledger"]["error"]) == (499, "client_gone")
    assert rig.readyz()["tiers"]["local"]["state"] == "ready"
    if not follows:
        assert not rig.cached("chat", stream=True, seed=seed)


# C4: bodies over the limit, which is 64 KiB here


def test_c4_a_length_over_the_limit(rig: Rig) -> None:
    """A length over the limit is a 413 before a byte of the body is read, and the connection is closed."""
    with dialled(rig) as connection:
        connection.sendall(head(rig, b"", "Content-Length: 10000000", length=False))
        answer = response_on(connection)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert answer.error["type"] == "invalid_request_error"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-request-id"]
        assert connection.recv(1) == b""


def test_c4_a_chunked_body_over_the_limit(rig: Rig) -> None:
    """So is a chunked body, as soon as it passes the limit."""
    with dialled(rig) as connection:
        connection.sendall(head(rig, b"", "Transfer-Encoding: chunked", length=False))
        for _ in range(5):
            connection.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        answer = response_on(connection)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert answer.headers["connection"] == "close"


def test_c4_the_limit_itself_passes(rig: Rig) -> None:
    """A body of exactly the limit is read."""
    lane = rig.take("lane")
    empty = len(body_of(lane, messages=[USER | {"content": ""}]))
    exact = body_of(lane, messages=[USER | {"content": "x" * ((64 << 10) - empty)}])
    assert rig.post(exact).status == 200
    assert rig.post(exact + b" ").status == 413


# C6 to C10, C12, C13: bodies that are wrong


def message(**changes: Any) -> bytes:
    return body_of("lane-0", messages=[USER | changes])


WRONG: list[tuple[str, bytes, int, str, str | None]] = [
    ("C6-empty", b"", 400, "invalid_json", None),
    ("C6-half", b'{"model":', 400, "invalid_json", None),
    ("C6-bom", b"\xef\xbb\xbf" + body_of("lane-0"), 400, "invalid_json", None),
    ("C6-utf16", body_of("lane-0").decode().encode("utf-16"), 400, "invalid_json", None),
    ("C6-trailing", body_of("lane-0") + b"x", 400, "invalid_json", None),
    ("C6-nan", body_of("lane-0", temperature=float("nan")), 400, "invalid_json", None),
    ("C6-huge-float", body_of("lane-0")[:-1] + b',"seed":1e999}', 400, "invalid_json", None),
    ("C6-huge-int", body_of("lane-0")[:-1] + b',"seed":' + b"1" * 5000 + b"}", 400, "invalid_json", None),
    ("C7-nesting", body_of("lane-0")[:-1] + b',"x":' + b"[" * 101 + b"]" * 101 + b"}", 400, "invalid_json", None),
    ("C7-deep-nesting", b"[" * 30_000, 400, "invalid_json", None),
    ("C8-bytes", body_of("lane-0").replace(b"hi", b"\xff\xfe"), 400, "invalid_utf8", None),
    ("C8-surrogate", body_of("lane-0").replace(b"hi", b"\\ud800"), 400, "invalid_utf8", None),
    ("C9-duplicate", b'{"model":"a",' + body_of("lane-0")[1:], 400, "unsupported_value", "model"),
    ("C9-inner", message().replace(b'"role"', b'"role":"system","role"'), 400, "unsupported_value", "role"),
    ("C10-array", b"[]", 400, "invalid_type", None),
    ("C10-model", body_of("lane-0", model=1), 400, "invalid_type", "model"),
    ("C10-messages", body_of("lane-0", messages="x"), 400, "invalid_type", "messages"),
    ("C10-no-messages", body_of("lane-0", messages=[]), 400, "invalid_type", "messages"),
    ("C10-message", body_of("lane-0", messages=[1]), 400, "invalid_type", "messages[0]"),
    ("C10-empty-message", body_of("lane-0", messages=[{}]), 400, "missing_required_parameter", "messages[0].role"),
    ("C10-role", message(role=9), 400, "invalid_type", "messages[0].role"),
    ("C10-content", message(content=5), 400, "invalid_type", "messages[0].content"),
    ("C10-part", message(content=[5]), 400, "invalid_type", "messages[0].content[0]"),
    ("C10-stream", body_of("lane-0", stream="yes"), 400, "invalid_type", "stream"),
    ("C10-n", body_of("lane-0", n="2"), 400, "invalid_type", "n"),
    ("C10-format", body_of("lane-0", response_format="json"), 400, "invalid_type", "response_format"),
    ("C10-format-type", body_of("lane-0", response_format={"type": []}), 400, "invalid_type", "response_format.type"),
    ("C10-tools", body_of("lane-0", tools={"a": 1}), 400, "invalid_type", "tools"),
    ("C11-n", body_of("lane-0", n=10**9), 400, "unsupported_value", "n"),
    ("C11-max-tokens", body_of("lane-0", max_tokens=-1), 400, "unsupported_value", "max_tokens"),
    ("C11-stops", body_of("lane-0", stop=["x"] * 65), 400, "unsupported_value", "stop"),
    ("C11-tools", body_of("lane-0", tools=[{}] * 513), 400, "unsupported_value", "tools"),
    ("C12-unknown", body_of("no-such-model"), 404, "model_not_found", "model"),
    ("C12-unknown-tier", body_of("tier:no-such-tier"), 404, "model_not_found", "model"),
    ("C13-messages", b'{"model":"lane-0"}', 400, "missing_required_parameter", "messages"),
    ("C13-model", b'{"messages":[{"role":"user","content":"hi"}]}', 400, "missing_required_parameter", "model"),
    ("C14-model-crlf", body_of("lane-0\r\nx-evil: 1"), 400, "unsupported_value", "model"),
    ("C14-model-nul", body_of("lane-0\0"), 400, "unsupported_value", "model"),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_wrong_bodies(
    rig: Rig, local_upstream: Upstream, body: bytes, status: int, code: str, param: str | None
) -> None:
    """A body that is wrong is told in the envelope with its code and parameter, reaches no backend, and is recorded."""
    answer = rig.post(body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param), answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert not local_upstream.requests
    assert answer.headers["x-tierline-attempts"] == "0"
    assert float(answer.headers["x-tierline-overhead-ms"]) < 1000
    record = rig.record(answer.headers["x-request-id"])
    assert (record["ledger"]["status"], record["ledger"]["error"]) == (status, code)


def test_c12_an_unknown_model_lists_no_others(rig: Rig) -> None:
    """The reply to an unknown model does not say which ones there are."""
    assert "lane" not in rig.ask("no-such-model").error["message"]


FIELDS = (
    *("messages", "model", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "stop"),
    *("max_tokens", "max_completion_tokens", "n", "seed", "temperature", "top_p", "response_format", "tools", "user"),
    *("tool_choice", "parallel_tool_calls", "functions", "function_call", "stream", "stream_options", "modalities"),
    *("audio", "prediction", "reasoning_effort", "verbosity", "web_search_options", "service_tier", "store", "top_k"),
)
PARTS = ("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal")
VALUES: list[Any] = [None, True, 0, -1, 1.5, "x", "", [], {}, [[]], [{}], [None], {"type": []}, {"type": "json_object"}]
VALUES += [[{"type": "text"}], [{"type": "image_url", "image_url": 5}], 2**53, "\u2028", [{"function": 5}]]


def test_c10_no_type_of_any_field_is_a_bug_of_ours(rig: Rig, local_upstream: Upstream) -> None:
    """Whatever is in whichever field, the reply is an answer or a 400, never a 500 and never a lost connection."""
    lane = rig.take("lane")
    bodies = [body_of(lane, **{field: value}) for field in FIELDS for value in VALUES]
    bodies += [body_of(lane, messages=[USER | {part: value}, USER]) for part in PARTS for value in VALUES]
    connection = rig.connect()
    for body in bodies:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = received(connection.getresponse())
        assert answer.ended
        assert answer.status in (200, 400, 404), (body, answer.body)
        assert answer.status == 200 or answer.error
    connection.close()


# C14, C16, C17, C19, C20: heads that are wrong


def test_c14_only_our_own_headers_go_out(rig: Rig, local_upstream: Upstream) -> None:
    """Neither the client's headers reach a backend nor a backend's the client, but for those that are ours to send."""
    local_upstream.default = Reply(headers={"set-cookie": "a=b", "x-evil": "1", "server": "evil"})
    sent = {"cookie": "a=b", "x-evil": "1", "authorization": "Bearer client-key", "x-forwarded-for": "1.2.3.4"}
    answer = rig.ask(rig.take("lane"), sent)
    assert not {"set-cookie", "x-evil", "server"} & answer.headers.keys()
    ours = {"host", "content-type", "content-length", "authorization", "accept-encoding", "user-agent", "traceparent"}
    assert local_upstream.requests[0].headers.keys() <= ours | {"accept"}
    assert local_upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"content-encoding": "gzip"}, id="C16-gzip"),
        pytest.param({"content-encoding": "br"}, id="C16-brotli"),
        pytest.param({"content-type": "text/plain"}, id="C17-text"),
        pytest.param({"content-type": "multipart/form-data; boundary=x"}, id="C17-multipart"),
        pytest.param({"content-type": "application/x-www-form-urlencoded"}, id="C17-form"),
    ],
)
def test_unsupported_bodies(rig: Rig, local_upstream: Upstream, headers: dict[str, str]) -> None:
    """A body that is encoded, or not JSON by its own account, is a 415."""
    answer = rig.post(body_of("lane-0"), headers)
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert not local_upstream.requests


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_c17_json_by_any_name(rig: Rig, content_type: str) -> None:
    """JSON is taken with parameters and in any case."""
    headers = {"content-type": content_type}
    assert rig.request("POST", "/v1/chat/completions", body_of(rig.take("lane")), headers).status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_c19_other_methods(rig: Rig, method: str) -> None:
    """Another method than POST is a 405 that names POST; HEAD gets the same without a body."""
    answer = rig.request(method, "/v1/chat/completions")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.headers["x-request-id"]
    if method == "HEAD":
        assert answer.body == b""
    else:
        assert (answer.error["code"], answer.error["type"]) == ("method_not_supported", "invalid_request_error")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/readyz", "/metrics"])
def test_c19_other_methods_elsewhere(rig: Rig, method: str, path: str) -> None:
    """So it is on every other URL, with what it takes in Allow."""
    answer = rig.request(method, path, b"{}")
    assert (answer.status, answer.error["code"], answer.headers["allow"]) == (405, "method_not_supported", "GET, HEAD")
    assert answer.headers["x-request-id"]


UNKNOWN = (
    *(
        "/v1",
        "/v1/",
        "//v1/chat/completions",
        "/v2/chat/completions",
        "/v1/chat",
        "/v1/chat/completions/more",
    ),
    *("/openapi.yaml", "/redoc", "/v1/chat/completions%00", "/..%2f..%2fetc/passwd", "/v1/chat/compl%C3%A9"),
)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", UNKNOWN)
def test_c19_unknown_urls(rig: Rig, local_upstream: Upstream, method: str, path: str) -> None:
    """An unknown URL is a 404 envelope, never a redirect and never a 500."""
    answer = rig.request(method, path, body_of("lane-0"))
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert "location" not in answer.headers
    assert answer.headers["x-request-id"]
    assert not local_upstream.requests


def test_c19_without_v1(rig: Rig) -> None:
    """`/chat/completions` without /v1 is an alias."""
    body = body_of(rig.take("lane"))
    assert rig.request("POST", "/chat/completions", body, {"content-type": "application/json"}).status == 200


def test_c20_a_deadline_that_has_passed(rig: Rig, local_upstream: Upstream) -> None:
    """A request whose time is over when it comes is a 504 at once, and reaches no backend."""
    answer = rig.ask(rig.take("lane"), {"x-tierline-deadline-ms": "0"})
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert not local_upstream.requests


# C15, C18, C22: what is not HTTP, or too much of it

POST = "POST /v1/chat/completions HTTP/1.1"
CHUNKED = "Transfer-Encoding: chunked"
BROKEN: list[tuple[str, tuple[str, ...], bytes, int, str]] = [
    ("C15-not-http", ("\x16\x03\x01 hello",), b"", 400, "invalid_http"),
    ("C15-http-2", ("PRI * HTTP/2.0",), b"SM\r\n\r\n", 400, "invalid_http"),
    ("C15-two-hosts", (POST, "Host: a", "Host: b", "Content-Length: 0"), b"", 400, "invalid_http"),
    ("C15-two-keys", (POST, "Authorization: a", "Authorization: b", "Content-Length: 0"), b"", 400, "invalid_http"),
    ("C15-two-api-keys", (POST, "X-Api-Key: a", "x-api-key: a", "Content-Length: 0"), b"", 400, "invalid_http"),
    ("C15-two-proxy-keys", (POST, *["Proxy-Authorization: a"] * 2, "Content-Length: 0"), b"", 400, "invalid_http"),
    ("C15-two-lengths", (POST, "Content-Length: 2", "Content-Length: 3"), b"{}x", 400, "invalid_http"),
    ("C15-same-lengths", (POST, "Content-Length: 2", "Content-Length: 2"), b"{}", 400, "invalid_http"),
    ("C15-negative-length", (POST, "Content-Length: -1"), b"", 400, "invalid_http"),
    ("C15-length-and-chunks", (POST, "Content-Length: 5", CHUNKED), b"0\r\n\r\n", 400, "invalid_http"),
    ("C15-chunks-and-length", (POST, CHUNKED, "Content-Length: 5"), b"0\r\n\r\n", 400, "invalid_http"),
    ("C15-chunks-twice", (POST, CHUNKED, CHUNKED), b"0\r\n\r\n", 400, "invalid_http"),
    ("C15-gzip-and-chunks", (POST, "Transfer-Encoding: gzip, chunked"), b"0\r\n\r\n", 400, "invalid_http"),
    ("C15-chunks-and-chunks", (POST, "Transfer-Encoding: chunked, chunked"), b"0\r\n\r\n", 400, "invalid_http"),
    (
        "C15-version-2",
        ("POST /v1/chat/completions HTTP/2.0", "Content-Length: 2"),
        b"{}",
        505,
        "http_version_not_supported",
    ),
    ("C15-version-0", ("GET /healthz HTTP/0.9",), b"", 505, "http_version_not_supported"),
    ("C15-odd-encoding", (POST, "Transfer-Encoding: xchunked"), b"0\r\n\r\n", 400, "invalid_http"),
    ("C15-fold", (POST, "X-A: a", " b", "Content-Length: 0"), b"", 400, "invalid_http"),
    ("C15-space-before-colon", (POST, "Content-Length : 0"), b"", 400, "invalid_http"),
    ("C15-bare-lf-in-head", (POST, "X-A: a\nContent-Length: 0"), b"", 400, "invalid_http"),
    ("C15-bare-lf-chunk", (POST, CHUNKED), b"2\n{}\r\n0\r\n\r\n", 400, "invalid_http"),
    ("C15-bad-chunk-size", (POST, CHUNKED), b"zz\r\n{}\r\n0\r\n\r\n", 400, "invalid_http"),
    ("C15-nul-in-value", (POST, "X-A: a\0b", "Content-Length: 0"), b"", 400, "invalid_http"),
    ("C18-url", (f"GET /{'x' * (9 << 10)} HTTP/1.1",), b"", 414, "url_too_long"),
    ("C18-64k-url", (f"GET /{'x' * (64 << 10)} HTTP/1.1",), b"", 414, "url_too_long"),
    ("C18-1m-url", (f"GET /{'x' * (1 << 20)} HTTP/1.1",), b"", 414, "url_too_long"),
    ("C18-200k-header", (POST, f"X-A: {'x' * 200_000}"), b"", 431, "headers_too_large"),
    ("C18-4m-header", (POST, f"X-A: {'x' * (4 << 20)}"), b"", 431, "headers_too_large"),
    ("C18-200-headers", (POST, *(f"X-{n}: x" for n in range(200))), b"", 431, "headers_too_large"),
    ("C18-10k-headers", (POST, *(f"X-{n}: x" for n in range(10_000))), b"", 431, "headers_too_large"),
]


@pytest.mark.parametrize(("lines", "body", "status", "code"), [pytest.param(*case[1:], id=case[0]) for case in BROKEN])
def test_what_is_no_request(
    rig: Rig, local_upstream: Upstream, lines: tuple[str, ...], body: bytes, status: int, code: str
) -> None:
    """What two parsers could read in two ways, or is too much to hold, is refused in the envelope, and is the last."""
    with dialled(rig) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        answer = response_on(connection)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.error["type"] == "invalid_request_error"
        assert answer.headers["x-request-id"]
        assert answer.headers["openai-processing-ms"] == "0"
        assert answer.headers["connection"] == "close"
        assert connection.recv(1) == b""
    assert not local_upstream.requests


def test_c18_large_heads_within_the_limits(rig: Rig) -> None:
    """A head of many and long headers, in however many parts it comes, is taken up to the limit."""
    body = body_of(rig.take("lane"))
    sent = head(rig, body, *(f"X-{n}: {'x' * 600}" for n in range(96))) + body
    with dialled(rig) as connection:
        for start in range(0, len(sent), 6000):
            connection.sendall(sent[start : start + 6000])
            time.sleep(0.001)
        assert response_on(connection).status == 200


def test_c15_what_follows_a_stream_never_gets_into_it(rig: Rig, local_upstream: Upstream) -> None:
    """Bytes that are no request, sent while an answer streams, break the answer off: no second one gets between."""
    local_upstream.default = Reply(text="word " * 500, between_s=0.01)
    body = body_of(rig.take("lone"), stream=True)
    with dialled(rig) as connection:
        connection.sendall(head(rig, body) + body)
        seen = b""
        while b"word" not in seen:
            seen += connection.recv(4096)
        connection.sendall(b"GARBAGE\r\n\r\n")
        while part := connection.recv(4096):
            seen += part
    assert seen.count(b"HTTP/1.1") == 1
    assert b"[DONE]" not in seen
    local_upstream.requests[0].wait_gone(3)


def whole(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    seen = b""
    while part := connection.recv(65536):
        seen += part
    return seen


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before_s", [0, 0.3])
def test_c22_a_client_that_has_said_all_gets_its_reply(
    rig: Rig, local_upstream: Upstream, stream: bool, before_s: float
) -> None:
    """One that shuts its writing side after the request (`nc -N`) is answered whole, and then it is closed."""
    local_upstream.default = Reply(text="one two three", before_first_s=before_s, between_s=0.01)
    body = body_of(rig.take("lone"), stream=stream)
    with dialled(rig) as connection:
        connection.sendall(head(rig, body) + body)
        connection.shutdown(socket.SHUT_WR)
        answer = response_on(connection)
        assert (answer.status, answer.text, answer.ended) == (200, "one two three", True)
        if before_s:  # else the head may be sent before the end is seen
            assert answer.headers["connection"] == "close"
        assert connection.recv(1) == b""


def test_c22_every_pipelined_request_of_such_a_client_is_answered(rig: Rig) -> None:
    """Not only the first; the last reply ends the connection."""
    lane = rig.take("lane")
    bodies = [body_of(lane, seed=number) for number in range(3)]
    with dialled(rig) as connection:
        connection.sendall(b"".join(head(rig, body) + body for body in bodies))
        connection.shutdown(socket.SHUT_WR)
        assert whole(connection).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/ch", f"{POST}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode()]
)
def test_c22_half_a_request_and_no_more_is_an_end(rig: Rig, sent: bytes) -> None:
    """Nothing is waited for that cannot come."""
    with dialled(rig) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(2)
        assert whole(connection) == b""


def test_c22_pipelined_requests(rig: Rig) -> None:
    """Requests sent at once on one connection are answered one after the other."""
    lane = rig.take("lane")
    bodies = [body_of(lane, messages=[USER | {"content": f"number {n}"}]) for n in range(3)]
    with dialled(rig) as connection:
        connection.sendall(b"".join(head(rig, body) + body for body in bodies))
        seen = b""
        while seen.count(b'"finish_reason"') < 3:
            seen += (part := connection.recv(65536))
            assert part, seen
    assert seen.count(b"HTTP/1.1 200") == 3


# Headers on every reply, S18, S2


def test_our_headers_on_every_reply(rig: Rig, local_upstream: Upstream) -> None:
    """Answers, streams and errors alike say their request id, surface, policy, path, attempts and our own time."""
    lane = rig.take("lone")
    local_upstream.queue(Reply(), Reply(), error_reply(500))
    answers = [rig.ask(lane), rig.stream(lane, seed=2)]
    rig.record(answers[0].headers["x-request-id"])
    answers += [rig.ask(lane), rig.ask(lane, seed=1)]
    assert [answer.status for answer in answers] == [200, 200, 200, 502]
    for answer in answers:
        assert answer.headers["x-tierline-surface"] == lane
        assert answer.headers["x-tierline-policy"].startswith(f"{lane}@")
        assert float(answer.headers["x-tierline-overhead-ms"]) >= 0
        assert answer.headers["x-tierline-attempts"] in ("0", "1")
        assert 0 <= int(answer.headers["openai-processing-ms"]) < 5_000
        assert "cache.exact" in answer.headers["server-timing"]
    assert [answer.headers.get("x-tierline-path") for answer in answers[:3]] == ["direct", "direct", "cache-exact"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/healthz", "/nowhere"])
@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("mine-1", True),
        ("!~" * 64, True),
        ("x" * 129, False),
        ("with space", False),
        ("tab\there", False),
        ("caf\xe9", False),
        ("", False),
    ],
)
def test_s18_request_ids(rig: Rig, path: str, sent: str, echoed: bool) -> None:
    """A request id of up to 128 visible ASCII characters comes back; any other is replaced by one of ours."""
    answer = rig.request("GET", path, headers={"x-request-id": sent})
    assert answer.headers["openai-processing-ms"].isdigit()
    found = answer.headers["x-request-id"]
    assert (found == sent) is echoed
    assert found.startswith("req_") is not echoed
    assert len(found) <= 128


def test_s18_traceparents(rig: Rig, local_upstream: Upstream) -> None:
    """A valid traceparent goes on to the backend with its trace id; a forged one is replaced."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    lane = rig.take("lane")
    rig.ask(lane, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-tierline-cache": "no-store"})
    for forged in ("garbage", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{trace}-short-01", "x" * 4000):
        rig.ask(lane, {"traceparent": forged, "x-tierline-cache": "no-store"})
    sent = [request.headers["traceparent"].split("-")[1] for request in local_upstream.requests]
    assert sent[0] == trace
    assert len(sent) == 5
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") and one != trace for one in sent[1:])


def test_s2_neither_keys_nor_prompts_leak(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """A backend's key is at the backend alone; a prompt is in no error of ours, no log, trace, metric or store key."""
    echo = f"bad key {KEY} for {PROMPT}"
    messages = [{"role": "user", "content": PROMPT}]
    replies = [error_reply(status, echo, echo, echo) for status in (400, 401, 422, 429, 500)]
    replies += [
        Reply(),
        Reply(status=400, body=echo.encode()),
        Reply(body=json.dumps({"error": {"message": echo, "type": echo, "code": echo}}).encode()),
        Reply(body=echo.encode(), headers={"content-type": echo}),
        Reply(text=f"{echo} " * 9, fault=Fault.MALFORMED_EVENT, fault_after=20, between_s=0.001),
        Reply(text="fine", headers={"content-encoding": "gzip"}),
    ]
    answers = []
    for reply in replies:
        for stream in (False, True):
            local_upstream.default = reply
            answers.append(rig.ask(rig.take("lone"), messages=messages, stream=stream))
    answers.append(rig.post(b'{"messages": "' + PROMPT.encode()))
    answers.append(rig.ask("lane-0", messages=PROMPT))
    for answer in answers:
        told = f"{answer.headers} {answer.body.decode() if answer.status != 200 else ''}"
        assert KEY not in told
        assert PROMPT not in told or answer.status in (400, 422)  # the backend's own words to its own caller
    records = json.dumps([rig.record(answer.headers["x-request-id"]) for answer in answers])
    with redis.Redis.from_url(rig.store_url) as client:
        keys = b" ".join(client.keys("*")).decode("latin-1")
    metrics = rig.request("GET", "/metrics").body.decode()
    for place in (records, keys, metrics, rig.gateway.log(), json.dumps(rig.readyz())):
        assert KEY not in place
        assert PROMPT not in place
