"""curl: chat completions, responses and messages; streams with -N, its own time limit, its own retries."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from scenarios import FLAKY, MODEL, NOBODY, ORIGIN, REFUSED, WEATHER, run, user

_TIMED_OUT = 28
"""curl's exit code where --max-time is over."""


class CurlError(Exception):
    """curl ended with another exit code than 0. `status_code` is the reply's, if there was one."""

    def __init__(self, exit_code: int, status_code: int | None, body: str) -> None:
        super().__init__(f"curl: {exit_code}, {body}")
        self.status_code = status_code


class CurlTimeout(CurlError):
    """--max-time was over."""


def command(path: str, body: dict[str, Any], *options: str) -> list[str]:
    sent = ["-H", "content-type: application/json", "--data-binary", json.dumps(body)]
    fail = "--fail" if "--retry" in options else "--fail-with-body"  # the bodies of replies that are asked for again
    return ["curl", "-sS", "-N", fail, "-w", "\n%{http_code}", *options, *sent, ORIGIN + path]


def curl(path: str, body: dict[str, Any], *options: str) -> str:
    """Return the body of the reply. Raises CurlError."""
    done = subprocess.run(command(path, body, *options), check=False, capture_output=True, text=True)
    got, _, status = done.stdout.rpartition("\n")
    if done.returncode == _TIMED_OUT:
        raise CurlTimeout(_TIMED_OUT, None, got)
    if done.returncode:
        raise CurlError(done.returncode, int(status), got)
    return got


def asked(name: str, *options: str, model: str = MODEL, **more: Any) -> str:
    return curl("/v1/chat/completions", {"model": model, "messages": user(name), **more}, *options)


def events(got: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in got.split("\n") if line.startswith("data: {")]


def text(name: str, *options: str, **more: Any) -> Any:
    got = json.loads(asked(name, *options, **more))
    return {"text": got["choices"][0]["message"]["content"]}


def plain() -> Any:
    got = json.loads(asked("plain"))
    return {"text": got["choices"][0]["message"]["content"], "out": got["usage"]["completion_tokens"]}


def again() -> Any:
    return plain()


def stream() -> Any:
    got = asked("stream", stream=True, stream_options={"include_usage": True})
    assert got.rstrip().endswith("data: [DONE]"), got[-200:]
    *chunks, last = events(got)
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    return {"text": said, "out": last["usage"]["completion_tokens"]}


def hard() -> Any:
    chunks = events(asked("hard", stream=True))
    return {"text": "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)}


def tools() -> Any:
    messages = user("tools")
    body = {"model": MODEL, "messages": messages, "tools": [WEATHER]}
    called = json.loads(curl("/v1/chat/completions", body))["choices"][0]["message"]
    (call,) = called["tool_calls"]
    body["messages"] = [*messages, called, {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    got = json.loads(curl("/v1/chat/completions", body))
    function = call["function"]
    return {
        "calls": [[function["name"], json.loads(function["arguments"])]],
        "text": got["choices"][0]["message"]["content"],
    }


def responses_stream() -> Any:
    (prompt,) = user("responses_stream")
    got = events(curl("/v1/responses", {"model": MODEL, "input": prompt["content"], "stream": True}))
    assert (got[0]["type"], got[-1]["type"]) == ("response.created", "response.completed")
    said = "".join(event["delta"] for event in got if event["type"] == "response.output_text.delta")
    return {"text": said, "out": got[-1]["response"]["usage"]["output_tokens"]}


def messages() -> Any:
    got = json.loads(curl("/v1/messages", {"model": MODEL, "max_tokens": 200, "messages": user("messages")}))
    return {"text": got["content"][0]["text"], "out": got["usage"]["output_tokens"]}


def busy() -> Any:
    return text("busy", "--retry", "2", model=FLAKY)


def limited() -> Any:
    return text("limited", "--retry", "2", model=FLAKY)


def overloaded() -> Any:
    return text("overloaded", "--retry", "2", model=FLAKY)


def unknown_model() -> Any:
    asked("unknown_model", model=NOBODY)


def bad_request() -> Any:
    curl("/v1/chat/completions", {"model": MODEL, "messages": "no list"})


def refused() -> Any:
    asked("refused", model=REFUSED)


def refused_stream() -> Any:
    asked("refused_stream", model=REFUSED, stream=True)


def slow() -> Any:
    asked("slow", "--max-time", "1")


def leave_by_time() -> Any:
    asked("leave_by_time", "--max-time", "1", stream=True)


def leave() -> Any:
    """Hang up when the first word has come."""
    body = {"model": MODEL, "messages": user("leave"), "stream": True}
    with subprocess.Popen(command("/v1/chat/completions", body), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("data: {") and (said := events(line)[0]["choices"][0]["delta"].get("content")):
                running.terminate()
                return {"text": said}
    raise AssertionError("the stream ended without a word")


run(
    plain, again, stream, hard, tools, responses_stream, messages, busy, limited, overloaded, unknown_model,
    bad_request, refused, refused_stream, slow, leave_by_time, leave,
)  # fmt: skip
