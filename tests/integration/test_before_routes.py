"""What every request meets before a route, and what every reply says, over real sockets."""

from __future__ import annotations

import httpx2
import pytest

from tests.support.gateway import Gateway
from tests.support.upstream import Upstream

BODY = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/chat", 200),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("POST", "/healthz", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/nope", 404),
        ("POST", "/v1/chat/completions", 200),
    ],
)
def test_our_headers_are_on_every_reply(gateway: Gateway, method: str, path: str, status: int) -> None:
    """Each once: the client's request id, our own time, the calls made and what they cost."""
    sent = {"x-request-id": "mine"}
    reply = httpx2.request(method, gateway.origin + path, json=BODY if method == "POST" else None, headers=sent)
    assert reply.status_code == status
    assert reply.headers.get_list("x-request-id") == ["mine"]
    assert len(reply.headers.get_list("content-type")) == 1
    (overhead,) = reply.headers.get_list("x-tierline-overhead-ms")
    assert 0 <= float(overhead) < 60_000
    assert reply.headers.get_list("x-tierline-attempts") == ["1" if (method, status) == ("POST", 200) else "0"]
    assert reply.headers.get_list("x-tierline-cost-usd") == ["0.00000000"]


def refusal(gateway: Gateway, **headers: str) -> tuple[int, str, str | None]:
    """The status, code and parameter of a chat completion with these x-tierline-* headers."""
    sent = {f"x-tierline-{name.replace('_', '-')}": value for name, value in headers.items()}
    reply = httpx2.post(f"{gateway.url}/chat/completions", json=BODY, headers=sent)
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


def test_tiers_that_leave_none_between_them_are_refused(gateway: Gateway, local_upstream: Upstream) -> None:
    """The error names the header, and no backend is called."""
    assert refusal(gateway, min_tier="hosted", max_tier="local") == (400, "unsupported_value", "x-tierline-min-tier")
    assert not local_upstream.requests


@pytest.mark.parametrize("left", ["-1", "0", "-86400000"])
def test_a_deadline_that_has_passed_is_one(gateway: Gateway, local_upstream: Upstream, left: str) -> None:
    """A client that hands on what is left of its own time may be late already: 504, and no backend is called."""
    assert refusal(gateway, deadline_ms=left) == (504, "deadline_exceeded", None)
    assert not local_upstream.requests


@pytest.mark.parametrize("value", ["soon", "nan", "-inf", "1e400", ""])
def test_a_deadline_that_is_no_number_is_refused(gateway: Gateway, value: str) -> None:
    """The error names the header."""
    assert refusal(gateway, deadline_ms=value) == (400, "unsupported_value", "x-tierline-deadline-ms")
