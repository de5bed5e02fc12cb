"""What is passed on to a service, over real sockets: uploads, binary and streamed replies, errors, lost clients."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson
import pytest

from gateway.backends import http1_transport
from gateway.backends.base import BadStatus, Unreachable
from gateway.parts.apis import service
from gateway.parts.apis.service import ServiceClient
from gateway.parts.services import passthrough
from tests.integration.endpoints import EndpointsSetup
from tests.integration.passed_on import run
from tests.support.account import Account
from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.tls import self_signed_server
from tests.support.wait import until

SURFACE = {"x-tierline-surface": "remote"}


@pytest.fixture
def client(running: EndpointsSetup) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=running.gateway.url, api_key="any", max_retries=0, timeout=30, default_headers=SURFACE
    ) as client:
        yield client


def test_json_goes_through_with_our_own_key(running: EndpointsSetup, client: openai.OpenAI) -> None:
    """And without what is the client's: its key, its cookies, its organisation."""
    raw = client.moderations.with_raw_response.create(
        model="omni",
        input="text",
        extra_headers={"OpenAI-Organization": "theirs", "Cookie": "a=b", "x-request-id": "m1"},
    )
    assert raw.parse().results[0].flagged is False
    (call,) = running.account.calls
    assert (call.method, call.path, call.value) == ("POST", "/v1/moderations", {"model": "omni", "input": "text"})
    assert call.headers["authorization"] == "Bearer sk-scripted"
    assert call.headers.keys().isdisjoint({"cookie", "openai-organization", "x-request-id", "x-tierline-surface"})
    assert raw.headers["x-tierline-surface"] == "remote" and raw.headers["x-tierline-tier"] == "account"
    assert raw.headers["x-tierline-path"] == "passthrough" and raw.headers["x-tierline-attempts"] == "1"
    assert raw.headers["x-tierline-cost-usd"] == "unknown"
    assert raw.headers.keys().isdisjoint({"x-tierline-model", "set-cookie"})
    record = running.record("m1")
    assert record["ledger"]["surface"] == "remote/moderations"
    (attempt,) = (hop for hop in record["hops"] if hop["name"] == "attempt")
    assert attempt["attributes"]["gen_ai.operation.name"] == "moderations"
    assert attempt["attributes"]["tierline.outcome"] == "answered"
    assert call.headers["traceparent"] == f"00-{record['trace_id']}-{attempt['span_id']}-01"


def test_a_model_is_renamed_where_the_config_says_so(running: EndpointsSetup) -> None:
    """Otherwise the body is the client's, byte by byte."""
    url = f"{running.gateway.url}/moderations"
    for model, sent in (("tts", b'{"x": 1.0, "model":"tts-1-hd"}'), ("other", None)):
        body = b'{"x": 1.0, "model": "%b"}' % model.encode()
        httpx2.post(url, content=body, headers=SURFACE | {"content-type": "application/json"})
        got = running.account.calls[-1].body
        assert orjson.loads(got) == orjson.loads(sent) if sent else got == body


def test_binary_replies_are_streamed(running: EndpointsSetup, client: openai.OpenAI) -> None:
    """The first part arrives before the service has sent the rest."""
    with client.audio.speech.with_streaming_response.create(model="tts", voice="alloy", input="hi") as reply:
        parts = reply.iter_bytes()
        assert next(parts) == b"\xff\xfb first"
        running.account.release.set()
        assert b"".join(parts) == b" second"
        assert reply.headers["content-type"] == "audio/mpeg"


@pytest.mark.parametrize(("method", "tokens"), [("POST", 7), ("GET", 0)])
def test_tokens_are_of_who_makes_something(running: EndpointsSetup, method: str, tokens: int) -> None:
    """What is only looked at, such as a batch, was paid for by the request that made it; span and ledger agree."""
    body = b'{"id": "batch_1", "usage": {"input_tokens": 7, "output_tokens": 0}}'
    running.account.refusal = (200, body, {"content-type": "application/json"})
    headers = SURFACE | {"x-request-id": f"tokens-{method}"}
    path = "/batches" if method == "POST" else "/batches/batch_1"
    reply = httpx2.request(method, f"{running.gateway.url}{path}", headers=headers, content=b"{}", timeout=30)
    assert reply.status_code == 200
    record = running.record(f"tokens-{method}")
    [call] = record["ledger"]["calls"]
    assert (record["ledger"]["tokens_in"], call["tokens_in"]) == (tokens, tokens)


def test_a_reply_that_breaks_off_is_no_whole_reply(running: EndpointsSetup) -> None:
    """The connection is closed, and the record says why."""
    headers = SURFACE | {"x-request-id": "broken-1"}
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.post(f"{running.gateway.url}/audio/translations", content=b"x", headers=headers)
    ledger = running.record("broken-1")["ledger"]
    assert (ledger["error"], ledger["calls"][0]["outcome"]) == ("upstream_invalid_response", "upstream_truncated")


def test_a_text_completion_that_breaks_off_is_no_whole_reply(running: EndpointsSetup) -> None:
    """Though the route has read the body before it knows that the request is passed on."""
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.post(f"{running.gateway.url}/completions", json={"model": "remote", "prompt": "broken"}, timeout=30)


def test_a_deadline_ends_the_wait_for_a_reply(running: EndpointsSetup) -> None:
    headers = SURFACE | {"x-tierline-deadline-ms": "100"}
    reply = httpx2.post(f"{running.gateway.url}/audio/translations", content=b"slow", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert running.account.calls[0].gone.wait(5)


def test_a_client_that_leaves_ends_the_call(running: EndpointsSetup, client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts", voice="alloy", input="hi", extra_headers={"x-request-id": "gone-1"}
    ) as reply:
        next(reply.iter_bytes())
    (call,) = running.account.calls
    assert call.gone.wait(5)
    record = running.record("gone-1")
    assert record["ledger"]["status"] == 499, record


def test_uploads_are_streamed(running: EndpointsSetup, client: openai.OpenAI) -> None:
    """Multipart as the SDK writes it, more of it than any buffer here holds."""
    content = bytes(range(256)) * (20 << 12)  # 20 MiB
    got = client.files.create(file=("large.bin", content), purpose="batch")
    (call,) = running.account.calls
    assert call.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert int(call.headers["content-length"]) == call.size == got.bytes > len(content)


def test_an_upload_goes_on_before_it_is_whole(running: EndpointsSetup) -> None:
    """In chunks where the client gives no length."""

    def parts() -> Iterator[bytes]:
        yield b"a" * 1000
        until(lambda: bool(running.account.calls) and running.account.calls[0].size == 1000, 5, "the first part")
        yield b"b" * 500

    reply = httpx2.post(f"{running.gateway.url}/files", content=parts(), headers=SURFACE, timeout=30)
    assert reply.json()["bytes"] == 1500
    assert reply.json()["filename"] == hashlib.sha256(b"a" * 1000 + b"b" * 500).hexdigest()
    assert running.account.calls[0].headers["transfer-encoding"] == "chunked"


def test_a_client_that_leaves_in_its_upload_ends_the_call(running: EndpointsSetup) -> None:
    with socket.create_connection(("127.0.0.1", running.gateway.port)) as connection:
        head = (
            "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nx-tierline-surface: remote\r\ncontent-length: 100000\r\n\r\n"
        )
        connection.sendall(head.encode() + b"x" * 1000)
        until(lambda: bool(running.account.calls) and running.account.calls[0].size == 1000, 5, "the first part")
    assert running.account.calls[0].gone.wait(5)


async def test_a_client_that_stalls_in_its_upload_is_at_fault_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a 408, and others have the service meanwhile, which may be called once at a time here."""
    monkeypatch.setattr(service, "_PAUSE_S", 0.01)
    goes_on = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        yield b"a" * 1000
        await goes_on.wait()
        yield b"b" * 500

    with Account() as account:
        one = {"base_url": account.url, "max_in_flight": 1, "idle_timeout": "100ms"}
        policy = CHAT + "endpoints: {files: account}\n"
        async with in_process(
            tmp_path, "http://127.0.0.1:9/v1", policies={"chat": policy}, settings={"services": {"account": one}}
        ) as app:
            upload = asyncio.create_task(app.client.post("/v1/files", content=stalls()))
            while not account.calls or account.calls[0].size < 1000:
                await asyncio.sleep(0.005)
            others = [await app.client.get("/v1/files/x") for _ in range(3)]
            assert [reply.status_code for reply in others] == [200, 200, 200]
            await asyncio.sleep(0.15)  # longer than the service itself may be silent
            goes_on.set()
            assert (await upload).json()["bytes"] == 1500

            goes_on.clear()
            monkeypatch.setattr(passthrough, "_STALL_S", 0.1)
            reply = await app.client.post("/v1/files", content=stalls())
            assert (reply.status_code, reply.json()["error"]["code"]) == (408, "request_timeout")
            assert await asyncio.to_thread(account.calls[-1].gone.wait, 5)
            assert (await app.client.get("/v1/files/x")).status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_an_upload_over_the_limit_is_refused(running: EndpointsSetup, announced: bool) -> None:
    body = b"x" * ((32 << 20) + 1)
    content: Any = body if announced else iter([body[: 1 << 20]] * 33)
    reply = httpx2.post(f"{running.gateway.url}/files", content=content, headers=SURFACE, timeout=30)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


def test_event_streams_go_through(running: EndpointsSetup) -> None:
    reply = httpx2.post(
        f"{running.gateway.url}/images/generations", json={"prompt": "x", "stream": True}, headers=SURFACE
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text == 'event: image_generation.completed\ndata: {"b64_json":"AAAA"}\n\n'


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files?limit=2&after=f%20x"),
        ("DELETE", "/v1/files/file-1"),
        ("GET", "/v1/batches/b-1"),
        ("POST", "/v1/batches/b-1/cancel"),
        ("POST", "/v1/uploads/u-1/parts"),
    ],
)
def test_methods_and_paths_go_through(running: EndpointsSetup, method: str, path: str) -> None:
    reply = httpx2.request(method, running.gateway.origin + path, headers=SURFACE)
    assert reply.json()["path"] == path
    assert running.account.calls[0].method == method


def test_a_file_comes_back_as_it_is(client: openai.OpenAI) -> None:
    assert client.files.content("file-1").content == bytes(range(256)) * 512


def test_text_completions_go_to_a_service_that_has_them(running: EndpointsSetup) -> None:
    """As they are, tokens too; the surface may be named by the model."""
    reply = httpx2.post(f"{running.gateway.url}/completions", json={"model": "remote", "prompt": [1, 2]})
    assert reply.headers["x-tierline-path"] == "passthrough"
    assert running.account.calls[0].value == {"model": "remote", "prompt": [1, 2]}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/../models",
        "/v1/files/%2e%2e/x",
        "/v1/files/a%2Fb",
        "/v1/files//x",
        "/v1/files/a%00",
        "/v1/audio/%C3%A9",
    ],
)
def test_paths_that_could_lead_elsewhere_are_refused(running: EndpointsSetup, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.gateway.port, timeout=30)
    connection.putrequest("GET", path.encode().decode("latin-1"), skip_host=False)
    connection.putheader("x-tierline-surface", "remote")
    connection.endheaders()
    reply = connection.getresponse()
    assert reply.status in (400, 404) and b'"error"' in reply.read()
    assert not running.account.calls
    connection.close()


def test_what_no_service_is_named_for_is_not_found(running: EndpointsSetup) -> None:
    """The message names the key to set."""
    reply = httpx2.post(f"{running.gateway.url}/audio/speech", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")
    assert "endpoints.audio" in reply.json()["error"]["message"]


def test_other_methods_are_refused(running: EndpointsSetup) -> None:
    reply = httpx2.put(f"{running.gateway.url}/files", headers=SURFACE)
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET, POST, DELETE")


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        ((404, b'{"error":{"message":"no such file","code":"nope"}}', {}), 404, "nope"),
        ((404, b"<html>", {}), 404, None),
        ((410, b"gone", {}), 410, None),
        ((403, b'{"error":{"message":"This input was flagged"}}', {}), 400, "content_filter"),
        ((401, b'{"error":{"message":"bad key sk-scripted"}}', {}), 502, "upstream_http_error"),
        ((429, b"{}", {"retry-after": "9"}), 429, "rate_limit_exceeded"),
        ((500, b"<html>", {}), 502, "upstream_http_error"),
        ((302, b"", {"location": "http://169.254.169.254/"}), 502, "upstream_http_error"),
        ((200, b"xx", {"content-encoding": "gzip"}), 502, "upstream_invalid_response"),
    ],
)
def test_errors_of_a_service_are_our_errors(
    running: EndpointsSetup, refusal: tuple[int, bytes, dict[str, str]], status: int, code: str | None
) -> None:
    running.account.refusal = refusal
    reply = httpx2.get(f"{running.gateway.url}/files/x", headers=SURFACE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert "sk-scripted" not in reply.text and len(running.account.calls) == 1


async def test_a_service_without_its_key_or_its_server(tmp_path: Path) -> None:
    """A 502 that says which variable is missing, or that nobody answers."""
    services = {
        "unset": {"base_url": "http://127.0.0.1:9/v1", "key_env": "NO_SUCH_KEY"},
        "nobody": {"base_url": "http://127.0.0.1:9/v1"},
    }
    policy = CHAT + "endpoints: {audio: unset, images: nobody}\n"
    async with in_process(
        tmp_path, "http://127.0.0.1:9/v1", policies={"chat": policy}, settings={"services": services}
    ) as app:
        reply = await app.client.post("/v1/audio/speech", json={})
        assert reply.status_code == 502 and "NO_SUCH_KEY is not set" in reply.json()["error"]["message"]
        reply = await app.client.post("/v1/images/generations", json={})
        assert reply.json()["error"]["code"] == "upstream_unreachable"


async def test_tenants_do_not_share_files_unless_they_are_allowed_to(tmp_path: Path) -> None:
    """What one has put there the other could list."""
    keys = {name: {"key_file": str(tmp_path / name)} for name in ("one", "two")}
    for name in keys:
        (tmp_path / name).write_text(f"key-of-{name}")
        (tmp_path / name).chmod(0o600)
    policy = CHAT + "endpoints: {files: account, batches: account, moderations: account}\n"
    headers = {"authorization": "Bearer key-of-one"}
    with Account() as account:
        for shared, status in ((False, 403), (True, 200)):
            service = {"base_url": account.url, "share_files": shared}
            settings = {"services": {"account": service}, "tenants": keys}
            async with in_process(tmp_path, account.url, policies={"chat": policy}, settings=settings) as app:
                for path in ("/v1/files", "/v1/batches", "/v1/uploads/u"):
                    reply = await app.get(path, headers)
                    assert reply.status_code == status
                    assert shared or reply.json()["error"]["code"] == "files_not_shared"
                asked = await app.client.post("/v1/moderations", json={"model": "m"}, headers=headers)
                assert asked.status_code == 200
                assert (await app.get("/v1/files")).status_code == 401


async def test_a_key_of_one_tenant_is_not_anothers(tmp_path: Path) -> None:
    """The service would give the second tenant the reply that the first one's request with that key has had."""
    tenants = {name: {"key_file": str(tmp_path / name)} for name in ("one", "two")}
    for name in tenants:
        (tmp_path / name).write_text(f"key-of-{name}-0123456789")
        (tmp_path / name).chmod(0o600)
    policy = CHAT + "endpoints: {moderations: account}\n"
    with Account() as account:
        settings = {"services": {"account": {"base_url": account.url}}, "tenants": tenants}
        async with in_process(tmp_path, account.url, policies={"chat": policy}, settings=settings) as app:
            for name in ("one", "one", "two"):
                headers = {"authorization": f"Bearer key-of-{name}-0123456789", "idempotency-key": "retry-1"}
                reply = await app.client.post("/v1/moderations", json={"model": "m"}, headers=headers)
                assert reply.status_code == 200, reply.text
        one, again, two = (call.headers["idempotency-key"] for call in account.calls)
    assert one == again != two
    assert "retry-1" not in (one, two)


async def test_a_full_service_is_waited_for_and_then_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is free again is used."""
    monkeypatch.setattr("gateway.parts.apis.service._WAIT_S", 0.05)
    with Account() as account:
        client = ServiceClient(
            account.url, None, max_in_flight=1, max_reply=1 << 20, connect_timeout_s=2, idle_timeout_s=5
        )
        first = await client.send("GET", "/files/x", {})
        with pytest.raises(Exception, match="1 calls in flight"):
            await client.send("GET", "/files/x", {})
        assert await first.read()
        first.close()
        (await client.send("GET", "/files/x", {})).close()
        await client.aclose()


async def test_random_exchanges_arrive_as_they_were_sent(running: EndpointsSetup, times: float, seed: int) -> None:
    """Sixty of them, in both directions, byte for byte; `--times 167` sends ten thousand."""
    count = round(60 * times)
    assert await run(running.gateway.origin, range(seed, seed + count)) == []
    assert len(running.account.calls) == count


def client_at(url: str) -> ServiceClient:
    """A client of a service."""
    return ServiceClient(url, "sk-service", max_in_flight=2, max_reply=1 << 20, connect_timeout_s=2, idle_timeout_s=5)


async def test_a_service_that_redirects_is_not_followed() -> None:
    """Neither our key nor the client's body goes anywhere that the config does not name."""
    with Account() as account, Account() as elsewhere:
        account.refusal = (307, b"", {"location": f"{elsewhere.url}/moderations"})
        client = client_at(account.url)
        try:
            with pytest.raises(BadStatus) as refused:
                await client.send("POST", "/moderations", {}, b"{}")
        finally:
            await client.aclose()
        assert refused.value.status == 307
        assert (len(account.calls), elsewhere.calls) == (1, [])


async def test_a_service_is_called_without_the_environments_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the environment does not say who may read our key."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Account() as account:
        client = client_at(account.url)
        try:
            (await client.send("GET", "/files/x", {})).close()
        finally:
            await client.aclose()
        assert len(account.calls) == 1


async def test_a_service_with_the_certificate_of_another_host(tmp_path: Path) -> None:
    """Is not called, though its certificate is trusted."""
    async with self_signed_server(tmp_path) as server:
        http1_transport.verifying_context.cache_clear()
        http1_transport.verifying_context().load_verify_locations(server.certificate)
        for url, named in ((server.url, True), (server.url.replace("localhost", "127.0.0.1"), False)):
            client = client_at(url)
            try:
                (await client.send("GET", "/files/x", {})).close()
                assert named
            except Unreachable as error:
                assert not named and "certificate" in str(error)
            finally:
                await client.aclose()
        assert len(server.received) == 1
