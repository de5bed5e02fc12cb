"""By which paths, from which pages and over which HTTP the gateway is reached, over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.gateway import Gateway, serve
from tests.support.upstream import Upstream

MESSAGES = [{"role": "user", "content": "hello"}]
POSTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": MESSAGES},
    "completions": {"prompt": "hello"},
    "embeddings": {"input": "hello"},
    "messages": {"messages": MESSAGES, "max_tokens": 9},
    "messages/count_tokens": {"messages": MESSAGES},
    "responses": {"input": "hello"},
    "responses/input_tokens": {"input": "hello"},
}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("spelling", ["/v1/{}", "/{}", "/v1/{}/", "/{}/", "/v1/v1/{}"])
def test_a_base_url_may_lack_the_version_or_have_it_twice(gateway: Gateway, path: str, spelling: str) -> None:
    """Clients join their own path to what they were given, with a slash too many or without a version."""
    reply = httpx2.post(gateway.origin + spelling.format(path), json={"model": "chat", **POSTS[path]}, timeout=20)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "path", ["/v1/models", "/models", "/models/", "/v1/models/chat", "/models/chat", "/", "/docs/"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_clients_ask_before_they_begin(gateway: Gateway, path: str, method: str) -> None:
    """The models, and whether anybody answers at the base URL."""
    reply = httpx2.request(method, gateway.origin + path, timeout=20)
    assert reply.status_code == 200
    assert bool(reply.content) is (method == "GET")


def test_what_is_not_served_is_not_found(gateway: Gateway) -> None:
    """By no spelling of it; and another method than POST is refused by all of a path's spellings."""
    for path in ("/v1/nope", "/v1", "/v2/models", "/models/chat/more", "/v1/v1"):
        assert httpx2.get(gateway.origin + path, timeout=20).status_code == 404, path
    assert httpx2.get(f"{gateway.origin}/messages/", timeout=20).status_code == 405
    passed_on = httpx2.get(f"{gateway.origin}/files", timeout=20)
    assert (passed_on.status_code, passed_on.json()["error"]["code"]) == (
        httpx2.get(f"{gateway.url}/files", timeout=20).status_code,
        httpx2.get(f"{gateway.url}/files", timeout=20).json()["error"]["code"],
    )


@pytest.mark.parametrize("target", ["*", "//", "/v1//models", "http://localhost/nope"])
def test_a_target_that_is_no_path_of_ours_is_no_bug(gateway: Gateway, target: str) -> None:
    """`OPTIONS *` is about the server as a whole."""
    head, _ = exchange(gateway, f"OPTIONS {target} HTTP/1.1\r\nConnection: close")
    assert head.split()[1] in (b"404", b"405"), head


def test_errors_at_shared_paths_are_in_the_clients_envelope(gateway: Gateway) -> None:
    """A client that sends `anthropic-version` gets Anthropic's, of models and of paths that are not there."""
    for path in ("/v1/models/nope", "/v1/nope"):
        reply = httpx2.get(gateway.origin + path, headers={"anthropic-version": "2023-06-01"}, timeout=20)
        body = reply.json()
        assert (reply.status_code, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")
        assert httpx2.get(gateway.origin + path, timeout=20).json()["error"]["type"] == "invalid_request_error"


# --- HTTP/1.0 ---------------------------------------------------------------------------------------------------------


def exchange(gateway: Gateway, head: str, body: bytes = b"") -> tuple[bytes, bytes]:
    """The head and the body of a reply, read until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        connection.sendall(f"{head}\r\n{fields}\r\n\r\n".encode() + body)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    head_bytes, _, rest = data.partition(b"\r\n\r\n")
    return head_bytes.lower(), rest


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "completions"])
def test_a_stream_over_http_1_0_ends_with_its_connection(gateway: Gateway, path: str) -> None:
    """RFC 9112 forbids it to be chunked: such a client reads until the end."""
    body = json.dumps({"model": "chat", "stream": True, **POSTS[path]}).encode()
    head, rest = exchange(gateway, f"POST /v1/{path} HTTP/1.0\r\nConnection: keep-alive", body)
    assert head.startswith(b"http/1.1 200") and b"connection: close" in head
    assert b"transfer-encoding" not in head and b"content-length" not in head
    assert rest.startswith((b"data: ", b"event: ")) and rest.endswith(b"\n\n")


def test_what_has_a_length_is_as_ever_over_http_1_0(gateway: Gateway) -> None:
    """Whole answers, and what is asked without a body."""
    body = json.dumps({"model": "chat", **POSTS["chat/completions"]}).encode()
    for head in ("GET /v1/models HTTP/1.0", "POST /v1/chat/completions HTTP/1.0"):
        told, rest = exchange(gateway, head, body if head.startswith("POST") else b"")
        assert f"content-length: {len(rest)}".encode() in told
        assert json.loads(rest)


# --- pages and desktop applications -----------------------------------------------------------------------------------

PAGE = "https://chat.example.com"


@pytest.fixture(scope="module")
def open_to_pages(_upstreams: tuple[Upstream, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that two origins, and every page of an editor's, may ask."""
    local, hosted = _upstreams
    settings = {"access": {"cors": [PAGE, "app://obsidian.md", "vscode-webview://*"]}}
    with serve(tmp_path_factory.mktemp("pages"), local.url, hosted.url, settings=settings) as gateway:
        yield gateway


def preflight(gateway: Gateway, origin: str, path: str = "/v1/chat/completions") -> httpx2.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return httpx2.options(gateway.origin + path, headers=headers, timeout=20)


@pytest.mark.parametrize("origin", [PAGE, "app://obsidian.md", "vscode-webview://0a1b2c"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_origin_of_the_config_may_ask_from_a_page(open_to_pages: Gateway, origin: str, stream: bool) -> None:
    """The browser asks first, sends the request, and lets the page read the reply and its headers: no credentials."""
    for path in ("/v1/chat/completions", "/v1/models", "/responses", "/v1/messages/"):
        allowed = preflight(open_to_pages, origin, path)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, origin)
        assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
        assert "POST" in allowed.headers["access-control-allow-methods"]
    body = {"model": "chat", "messages": MESSAGES, "stream": stream}
    reply = httpx2.post(f"{open_to_pages.url}/chat/completions", json=body, headers={"origin": origin}, timeout=20)
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, origin)
    assert "x-tierline-tier" in reply.headers["access-control-expose-headers"].split(", ")
    assert reply.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in reply.headers
    refused = httpx2.post(f"{open_to_pages.url}/chat/completions", json={}, headers={"origin": origin}, timeout=20)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, origin)


@pytest.mark.parametrize(
    "origin", ["https://evil.example.com", "https://chat.example.com.evil.org", "http://chat.example.com", "null"]
)
def test_no_other_origin_may(open_to_pages: Gateway, gateway: Gateway, origin: str) -> None:
    """Nor any where the config names none."""
    for one in (open_to_pages, gateway):
        assert "access-control-allow-origin" not in preflight(one, origin).headers
        body = {"model": "chat", "messages": MESSAGES}
        reply = httpx2.post(f"{one.url}/chat/completions", json=body, headers={"origin": origin}, timeout=20)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in reply.headers
