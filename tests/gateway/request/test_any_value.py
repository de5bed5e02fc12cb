"""Any JSON value in any field of a request that the gateway reads, over real sockets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.gateway import Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

POLICY = """
surface: chat
slo: {deadline: 20s}
holdout: 0%
tiers: [local, hosted]
route: {classifier: default, start: {local: tokens_in < 100, hosted: otherwise}}
escalate:
  when: {confidence_below: 0.5, invalid: [json, json_schema, tool_args], finish: [length], repetition: true}
  no_signal: accept
cache:
  exact: {ttl: 1h}
  semantic: {ttl: 1h}
  never: [temperature > 1.5, top_p < 0.1, n > 100, seed > 1000000, logprobs, turns > 20, tokens_in > 5000]
output: {max_tokens: 64, stop: [END]}
"""
"""A policy with a rule about everything that a policy can have a rule about."""

FIELDS = (
    *("model", "messages", "temperature", "top_p", "n", "seed", "logprobs", "top_logprobs", "max_tokens"),
    *("max_completion_tokens", "stop", "stream", "stream_options", "response_format", "tools", "tool_choice"),
    *("functions", "function_call", "metadata", "user", "prompt_cache_key", "prompt_cache_retention", "store"),
)
INNER: dict[str, Any] = {
    "role": lambda value: {"messages": [{"role": value, "content": "hi"}]},
    "content": lambda value: {"messages": [{"role": "user", "content": value}]},
    "part": lambda value: {"messages": [{"role": "user", "content": [value]}]},
    "part.type": lambda value: {"messages": [{"role": "user", "content": [{"type": value, "text": "hi"}]}]},
    "part.text": lambda value: {"messages": [{"role": "user", "content": [{"type": "text", "text": value}]}]},
    "assistant": lambda value: {"messages": [{"role": "assistant", "content": None, "tool_calls": value}]},
    "include_usage": lambda value: {"stream": True, "stream_options": {"include_usage": value}},
    "response_format.type": lambda value: {"response_format": {"type": value}},
    "json_schema": lambda value: {"response_format": {"type": "json_schema", "json_schema": value}},
    "schema": lambda value: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}},
    "json_object.schema": lambda value: {"response_format": {"type": "json_object", "schema": value}},
    "tool": lambda value: {"tools": [value]},
    "tool.function": lambda value: {"tools": [{"type": "function", "function": value}]},
    "tool.name": lambda value: {"tools": [{"type": "function", "function": {"name": value}}]},
    "tool.parameters": lambda value: {"tools": [{"type": "function", "function": {"name": "f", "parameters": value}}]},
    "function": lambda value: {"functions": [value]},
    "stop": lambda value: {"stop": [value]},
}
CASES = {name: (lambda value, name=name: {name: value}) for name in FIELDS} | INNER

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "text", "json_object", "json_schema", "user", "image_url", "chat", "tier:local", "\0\n"])
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "text", "name", "function", "$ref", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def gateway(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose policy reads every field that one can read; its models answer JSON and call a tool."""
    local, hosted = _upstreams
    folder = tmp_path_factory.mktemp("fields")
    with serve(folder, local.url, hosted.url, store_url=_store.url, policies={"chat": POLICY}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def connection(gateway: Gateway) -> Iterator[http.client.HTTPConnection]:
    """One connection to it, for all that is asked."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    yield connection
    connection.close()


@settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(CASES)), value=VALUES)
@example(name="temperature", value="0.5")
@example(name="temperature", value=[])
@example(name="top_p", value="x")
@example(name="seed", value={})
@example(name="model", value="")
def test_no_value_of_any_field_is_a_bug_of_ours(
    connection: http.client.HTTPConnection, local_upstream: Upstream, name: str, value: Any
) -> None:
    """The reply is an answer, or a 4xx in the envelope that names the parameter; never a 5xx or a lost connection."""
    local_upstream.default = Reply(text='{"answer": 1}')
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]} | CASES[name](value)
    connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status == 200:
        return
    assert 400 <= response.status < 500, (response.status, text)
    error = json.loads(text)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    assert error["param"], error
