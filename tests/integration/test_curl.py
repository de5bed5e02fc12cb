"""Plain curl gets JSON and SSE as OpenAI sends them, byte for byte where clients look."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.support.gateway import Gateway
from tests.support.upstream import Reply, Upstream

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(url: str, *arguments: str) -> tuple[dict[str, str], str]:
    """The headers (lower case, the status under "") and the body of one call."""
    done = subprocess.run(["curl", "-sSi", "--max-time", "10", *arguments, url], capture_output=True, check=True)
    head, _, body = done.stdout.decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return {"": status.split()[1]} | {name.lower(): value for name, value in headers.items()}, body


def ask(gateway: Gateway, **body: object) -> tuple[dict[str, str], str]:
    asked = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi there"}]} | body)
    json_type = ("-H", "content-type: application/json")
    return curl(f"{gateway.url}/chat/completions", *json_type, "--data-binary", asked)


def test_json(gateway: Gateway, local_upstream: Upstream) -> None:
    """A completion is one JSON body, with its length."""
    local_upstream.default = Reply(text="one two")
    headers, body = ask(gateway)
    assert (headers[""], headers["content-type"]) == ("200", "application/json")
    assert int(headers["content-length"]) == len(body.encode())
    assert json.loads(body)["choices"][0]["message"] | {"annotations": []} == {
        "role": "assistant",
        "content": "one two",
        "refusal": None,
        "annotations": [],
    }


def test_stream(gateway: Gateway, local_upstream: Upstream) -> None:
    """A stream is `data: ` lines, an empty line after each, [DONE] last."""
    local_upstream.default = Reply(text="one two three four five")
    headers, body = ask(gateway, stream=True)
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    lines = [line for line in body.split("\n") if not line.startswith(":")]
    events = "\n".join(lines).removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event[6:]) for event in events[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == "one two three four five"
    assert all(c.get("usage") is None and len(c["choices"]) == 1 for c in chunks)


@pytest.mark.parametrize(
    ("path", "arguments", "status", "code"),
    [
        ("/v1/no-such-thing", (), "404", "unknown_url"),
        ("/v1/chat/completions", (), "405", "method_not_supported"),
        ("/v1/models/nobody", (), "404", "model_not_found"),
        ("/v1/chat/completions", ("-H", "content-type: application/json", "-d", "{"), "400", "invalid_json"),
        (
            "/v1/chat/completions",
            ("-H", "content-type: application/json", "-d", "{}"),
            "400",
            "missing_required_parameter",
        ),
        ("/v1/chat/completions", ("-H", "content-type: text/csv", "-d", "a,b"), "415", "unsupported_media_type"),
    ],
)
def test_every_error_is_the_envelope(
    gateway: Gateway, path: str, arguments: tuple[str, ...], status: str, code: str
) -> None:
    """Every error path answers with the four-key envelope, and the request id."""
    headers, body = curl(gateway.origin + path, *arguments, "-H", "x-request-id: curl-1")
    error = json.loads(body)["error"]
    assert (headers[""], error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == "curl-1"
