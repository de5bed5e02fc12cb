"""`/v1/embeddings` over real sockets with the official SDK: the gateway's own encoder, a service, and the store."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from routing.embedder import StaticEmbedder
from tests.integration.endpoints import EndpointsSetup
from tests.support.account import Account
from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.wait import until


@pytest.fixture
def client(running: EndpointsSetup) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=running.gateway.url, api_key="any", max_retries=0, timeout=30) as client:
        yield client


def post(running: EndpointsSetup, body: Any, **headers: str) -> httpx2.Response:
    return httpx2.post(
        f"{running.gateway.url}/embeddings", json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


@pytest.fixture(scope="module")
def encoder() -> StaticEmbedder:
    return StaticEmbedder.load()


@pytest.mark.parametrize("model", ["auto", "chat", "gpt-4o-mini", "wordllama-256"])
def test_the_gateways_own_encoder_answers_the_sdk(client: openai.OpenAI, encoder: StaticEmbedder, model: str) -> None:
    """By the surface, an alias, or the encoder's own name; the SDK asks for base64 by itself."""
    texts = ["the first text", "another one"]
    got = client.embeddings.create(model=model, input=texts)
    assert [one.index for one in got.data] == [0, 1]
    assert np.array_equal(np.array([one.embedding for one in got.data], np.float32), encoder.embed(texts))
    assert got.model == "wordllama-256"
    assert got.usage.prompt_tokens == got.usage.total_tokens == sum(encoder.count_tokens(one) or 0 for one in texts)


def test_the_reply_says_how_it_came_about(running: EndpointsSetup) -> None:
    reply = post(running, {"model": "auto", "input": "hello there"}, x_request_id="embed-1")
    headers = reply.headers
    assert headers["x-tierline-surface"] == "chat"
    assert headers["x-tierline-tier"] == "encoder"
    assert headers["x-tierline-model"] == "wordllama-256"
    assert headers["x-tierline-path"] == "direct"
    assert headers["x-tierline-attempts"] == "0"
    assert float(headers["x-tierline-cost-usd"]) == 0
    assert headers["x-request-id"] == "embed-1"
    record = running.record("embed-1")
    assert record["ledger"]["surface"] == "chat/embeddings"
    assert record["ledger"]["slo"] is None
    assert [hop["name"] for hop in record["hops"]] == ["request", "cache.exact", "embed"]
    embedded = record["hops"][2]["attributes"]
    assert embedded["tierline.embedder"] == "wordllama-256"
    assert "gen_ai.operation.name" not in embedded, "a table of word vectors is no model"


def test_floats_and_base64_are_the_same_numbers(running: EndpointsSetup) -> None:
    """Little-endian float32, and numbers that give it back exactly."""
    body = {"model": "chat", "input": "numbers"}
    floats = post(running, body | {"encoding_format": "float"}).json()["data"][0]["embedding"]
    coded = base64.b64decode(post(running, body | {"encoding_format": "base64"}).json()["data"][0]["embedding"])
    assert [struct.unpack("<f", struct.pack("<f", one))[0] for one in floats] == list(struct.unpack("<256f", coded))
    assert post(running, body).json()["data"][0]["embedding"] == floats, "without encoding_format: numbers"


def test_a_shorter_vector_is_the_beginning_made_a_unit_vector(client: openai.OpenAI) -> None:
    whole = np.array(client.embeddings.create(model="chat", input="cut me").data[0].embedding)
    short = np.array(client.embeddings.create(model="chat", input="cut me", dimensions=64).data[0].embedding)
    assert len(short) == 64 and math.isclose(float(np.linalg.norm(short)), 1, abs_tol=1e-6)
    assert np.allclose(short, whole[:64] / np.linalg.norm(whole[:64]), atol=1e-6)


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"dimensions": 100}, "dimensions", "unsupported_value"),
        ({"dimensions": "64"}, "dimensions", "invalid_type"),
        ({"input": [1, 2, 3]}, "input", "unsupported_value"),
        ({"input": [[1, 2], [3]]}, "input[0]", "unsupported_value"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "unsupported_value"),
        ({"input": ["a", ""]}, "input[1]", "unsupported_value"),
        ({"input": ["a", 1]}, "input[1]", "invalid_type"),
        ({"input": {"a": 1}}, "input", "invalid_type"),
        ({"input": ["a"] * 2049}, "input", "unsupported_value"),
        ({"input": ["fine", "x" * 8193]}, "input[1]", "context_length_exceeded"),
        ({"encoding_format": "int8"}, "encoding_format", "unsupported_value"),
        ({"user": 1}, "user", "invalid_type"),
        ({"model": 1}, "model", "invalid_type"),
        ({"model": "a\r\nb"}, "model", "invalid_type"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    running: EndpointsSetup, more: dict[str, Any], param: str, code: str
) -> None:
    reply = post(running, {"model": "chat", "input": "text"} | more)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_a_model_that_is_not_there_is_not_found(running: EndpointsSetup) -> None:
    """Its vectors would not be those that the caller has stored."""
    reply = post(running, {"model": "text-embedding-3-small", "input": "text"})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert "endpoints.embeddings.service" in reply.json()["error"]["message"]


def test_unknown_fields_are_named_where_nobody_reads_them(running: EndpointsSetup) -> None:
    reply = post(running, {"model": "chat", "input": "text", "truncate": "END", "user": "u1"})
    assert reply.status_code == 200
    assert reply.headers["x-tierline-dropped"] == "truncate, user"


def test_each_text_is_stored_by_itself(running: EndpointsSetup) -> None:
    """A second request embeds only what is new, and gets the same numbers."""
    first = post(running, {"model": "remote", "input": ["a", "bb"]})
    until(lambda: post(running, {"model": "remote", "input": "bb"}, x_tierline_cache="only-if-cached").is_success, 5)
    second = post(running, {"model": "remote", "input": ["bb", "ccc", "a"]})
    assert [call.value["input"] for call in running.account.calls] == [["a", "bb"], ["ccc"]]
    vectors = [one["embedding"] for one in second.json()["data"]]
    assert vectors == [first.json()["data"][1]["embedding"], [3.0, 0.5, -0.25], first.json()["data"][0]["embedding"]]
    assert second.headers["x-tierline-path"] == "direct"
    assert second.json()["usage"]["prompt_tokens"] == 6
    third = post(running, {"model": "remote", "input": ["a", "bb"]})
    assert third.headers["x-tierline-path"] == "cache-exact"
    assert third.headers["x-tierline-cost-usd"] == "0.00000000"
    fresh = post(running, {"model": "remote", "input": "a"}, x_tierline_cache="no-cache")
    assert fresh.headers["x-tierline-path"] == "direct" and len(running.account.calls) == 3


def test_settings_make_other_vectors(running: EndpointsSetup) -> None:
    """What is part of the request for a vector is part of its key."""
    for body in ({}, {"dimensions": 2}, {"input_type": "query"}, {"model": "other"}, {"input": [1, 2]}):
        reply = post(running, {"model": "remote", "input": "same"} | body, x_tierline_surface="remote")
        assert reply.headers["x-tierline-path"] == "direct", body
    assert len(running.account.calls) == 5


def test_a_service_gets_the_request_with_its_own_key(running: EndpointsSetup, client: openai.OpenAI) -> None:
    """Unknown fields and the user go along; the client's key does not; the cost is that of the tokens."""
    raw = client.embeddings.with_raw_response.create(
        model="remote", input=["a", "bb"], dimensions=2, user="u1", extra_body={"input_type": "query"}
    )
    (call,) = running.account.calls
    expected = {"model": "text-embedding-3-small", "input": ["a", "bb"], "dimensions": 2, "user": "u1"}
    assert call.value == expected | {"input_type": "query"}
    assert call.headers["authorization"] == "Bearer sk-scripted"
    assert call.headers["traceparent"].startswith("00-")
    assert raw.headers["x-tierline-tier"] == "account"
    assert raw.headers["x-tierline-model"] == raw.parse().model == "text-embedding-3-small"
    assert raw.headers["x-tierline-attempts"] == "1"
    assert float(raw.headers["x-tierline-cost-usd"]) == pytest.approx(4 * 20 / 1e6)
    assert [one.embedding for one in raw.parse().data] == [[1.0, 0.5], [2.0, 0.5]]
    ledger = running.record(raw.headers["x-request-id"])["ledger"]
    assert (ledger["tokens_in"], ledger["attempts"], ledger["calls"][0]["backend"]) == (4, 1, "account")


def test_an_unknown_price_is_not_stated_as_nothing(running: EndpointsSetup) -> None:
    reply = post(running, {"model": "own-model", "input": "a"}, x_tierline_surface="remote")
    assert running.account.calls[0].value["model"] == "own-model"
    assert reply.headers["x-tierline-cost-usd"] == "unknown"


def test_a_field_that_changes_no_vector_is_left_out(running: EndpointsSetup) -> None:
    """Once more without it, told, and not sent again; what makes another vector is the client's error."""
    running.account.reset()
    running.account.unknown = "user"
    for number, calls in enumerate((2, 1)):
        running.account.calls.clear()
        reply = post(running, {"model": "remote", "input": f"left out {number}", "user": "u1"})
        assert (reply.status_code, reply.headers["x-tierline-dropped"]) == (200, "user")
        assert len(running.account.calls) == calls and "user" not in running.account.calls[-1].value
    running.account.unknown = "input_type"
    reply = post(running, {"model": "remote", "input": "left out 2", "input_type": "query"})
    assert reply.status_code == 422
    running.account.reset()


def test_a_length_that_a_service_ignores_is_told(running: EndpointsSetup) -> None:
    """Servers of models with one length take `dimensions` and send the whole vector; from the store, too."""
    vector = b'{"data":[{"index":0,"embedding":[0.5,0.25,0.125]}],"usage":{"prompt_tokens":2,"total_tokens":2}}'
    running.account.reset()
    running.account.refusal = (200, vector, {})
    body = {"model": "remote", "input": "ignored", "dimensions": 2}
    made = post(running, body)
    assert (made.headers["x-tierline-path"], made.headers["x-tierline-dropped"]) == ("direct", "dimensions")
    until(lambda: post(running, body, x_tierline_cache="only-if-cached").is_success, 30)
    stored = post(running, body)
    assert (stored.headers["x-tierline-path"], stored.headers["x-tierline-dropped"]) == ("cache-exact", "dimensions")
    reply = post(running, {"model": "remote", "input": "kept", "dimensions": 3})
    assert "x-tierline-dropped" not in reply.headers
    running.account.reset()


def test_errors_of_a_service_are_our_errors(running: EndpointsSetup, client: openai.OpenAI) -> None:
    account = running.account
    account.refusal = (400, b'{"error":{"message":"too long","type":"x","param":"input","code":"y"}}', {})
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="remote", input="a")
    assert (refused.value.param, refused.value.code) == ("input", "y")
    account.refusal = (401, b'{"error":{"message":"bad key sk-scripted"}}', {})
    reply = post(running, {"model": "remote", "input": "a"})
    assert reply.status_code == 502 and "sk-scripted" not in reply.text
    account.refusal = (429, b"{}", {"retry-after": "7"})
    reply = post(running, {"model": "remote", "input": "a"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
    account.refusal = (200, b'{"data":[]}', {})
    assert post(running, {"model": "remote", "input": "a"}).json()["error"]["code"] == "upstream_invalid_response"


def test_only_post_is_a_method(running: EndpointsSetup) -> None:
    reply = httpx2.get(f"{running.gateway.url}/embeddings")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


async def test_another_call_is_made_where_one_fails(tmp_path: Path) -> None:
    """At the fallback for whatever is not the client's fault; without one, at the same service where that may help."""
    policy = CHAT + "endpoints: {embeddings: {service: one, model: m, ttl: 0s}}\n"
    with Account() as one, Account() as two:
        services = {"one": {"base_url": one.url}, "two": {"base_url": two.url}}
        safe = policy.replace("service: one", "service: one, fallback: two").replace("surface: chat", "surface: safe")
        policies = {"chat": policy, "safe": safe.replace("[chat, gpt-4o-mini]", "[]")}
        async with in_process(
            tmp_path, "http://127.0.0.1:9/v1", policies=policies, settings={"services": services}
        ) as app:
            cases = (
                (500, 2, 502),
                (503, 2, 502),
                (429, 1, 429),
                (401, 1, 502),
                (404, 1, 502),
                (413, 1, 413),
                (400, 1, 400),
            )
            for status, calls, ended in cases:
                one.reset()
                one.refusal = (status, b"{}", {})
                reply = await app.client.post("/v1/embeddings", json={"model": "chat", "input": "a"})
                assert (len(one.calls), reply.status_code) == (calls, ended)
                assert reply.headers["x-tierline-attempts"] == str(calls)
                two.reset()
                reply = await app.client.post("/v1/embeddings", json={"model": "safe", "input": "a"})
                assert (len(two.calls), reply.status_code) == ((0, 400) if status == 400 else (1, 200)), status
                if reply.is_success:
                    assert reply.headers["x-tierline-tier"] == "two"
                    assert two.calls[0].value == one.calls[-1].value
