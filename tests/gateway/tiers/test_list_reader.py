"""A running gateway reads how long a context is from the server's list of models, off the path of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.config.schema import BackendConfig
from gateway.tiers import Endpoint
from gateway.tiers.list_reader import ListReader
from tests.gateway.tiers.endpoints import BACKEND
from tests.support.app import in_process
from tests.support.upstream import Received, Reply, Upstream
from tests.support.wait import eventually

SECRET = "key-of-the-server-itself"
ONE = {"data": [{"id": "m", "max_model_len": 2048}]}


class _Listing(Upstream):
    """A server that answers GETs by `answers`, by their path; 404 for others, and the status where it is a number."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__()
        self.answers = answers

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.method != "GET":
            return super().reply_to(request)
        self.probes.append(request)
        answer = self.answers.get(request.path, 404)
        return Reply(status=answer, body=b"{}") if isinstance(answer, int) else Reply(body=json.dumps(answer).encode())


def _endpoint(url: str, **config: Any) -> Endpoint:
    return Endpoint(BackendConfig.model_validate({"name": "open", "base_url": url, "model": "m", **config}), BACKEND)


@asynccontextmanager
async def _reading(*endpoints: Endpoint) -> AsyncIterator[None]:
    reader = ListReader(endpoints, soon_s=0.02)
    reader.start()
    try:
        yield
    finally:
        await reader.aclose()


@pytest.mark.parametrize(
    ("answers", "context", "asked"),
    [
        pytest.param({"/v1/models": ONE}, 2048, 1, id="vllm"),
        pytest.param({"/v1/models": {"data": [{"id": "a.gguf", "meta": {"n_ctx": 4096}}]}}, 4096, 1, id="gguf"),
        pytest.param(
            {"/v1/models": {"data": [{"id": "m"}]}, "/props": {"default_generation_settings": {"n_ctx": 512}}},
            512, 2, id="props",
        ),
        pytest.param(
            {"/v1/models": {"data": [{"id": "m", "max_model_len": 1024}, {"id": "n", "max_model_len": 9000}]}},
            1024, 1, id="several",
        ),
        pytest.param({"/v1/models": {"data": [{"id": "a", "max_model_len": 512}, {"id": "b"}]}}, None, 1, id="not-it"),
        pytest.param({"/v1/models": {"data": [7, None]}}, None, 2, id="no-list"),
        pytest.param({"/v1/models": [], "/props": "x"}, None, 2, id="odd"),
        pytest.param({}, None, 2, id="without"),
    ],
)  # fmt: skip
async def test_the_context_is_read_once(answers: dict[str, Any], context: int | None, asked: int) -> None:
    """With the backend's own key, and not again while it stands; a server without a list is left alone."""
    with _Listing(answers) as server:
        config = _endpoint(server.url).config.model_copy(update={"key": SecretStr(SECRET)})
        read = Endpoint(config, BACKEND)
        async with _reading(read):
            await eventually(lambda: len(server.probes) >= asked, what="the server is asked")
            await eventually(lambda: read.lengths.context == context, what="its figure is taken")
            await asyncio.sleep(0.1)
        assert (len(server.probes), server.requests) == (asked, [])
        assert {probe.headers["authorization"] for probe in server.probes} == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    "config",
    [
        {"context": 8192},
        {"kind": "anthropic"},
        {"http": {"client": "httpx2", "proxy": "http://127.0.0.1:9"}},
    ],
)
async def test_others_are_not_asked(config: dict[str, Any]) -> None:
    """Where the config states the length, or the server is another maker's, nothing is sent."""
    with _Listing({"/v1/models": ONE}) as server:
        endpoint = _endpoint(server.url, **config)
        hosted = Endpoint(_endpoint(server.url).config.model_copy(update={"provider": "openai"}), BACKEND)
        asked = _endpoint(server.url)
        async with _reading(endpoint, hosted, asked):
            await eventually(lambda: asked.lengths.context == 2048, what="the open server is asked")
            await asyncio.sleep(0.1)
        assert len(server.probes) == 1
        assert (endpoint.lengths.context, hosted.lengths.context) == (config.get("context"), None)


async def test_a_server_of_several_backends_is_asked_once() -> None:
    """Each of its models has its own figure; one that the list does not name has none."""
    listed = [{"id": "m", "max_model_len": 2048}, {"id": "n", "max_model_len": 4096}]
    with _Listing({"/v1/models": {"data": listed}}) as server:
        endpoints = [_endpoint(server.url, model=model) for model in ("m", "n", "o")]
        async with _reading(*endpoints):
            await eventually(lambda: endpoints[1].lengths.context == 4096, what="the server is asked")
        assert [endpoint.lengths.context for endpoint in endpoints] == [2048, 4096, None]
        assert len(server.probes) == 1


@pytest.mark.parametrize("status", [503, "down"])
async def test_a_server_that_is_not_ready_is_asked_again(status: int | str) -> None:
    """A model takes minutes to load, and a gateway starts beside it."""
    with _Listing({"/v1/models": 503}) as server:
        if status == "down":
            server.refuse()
        endpoint = _endpoint(server.url)
        async with _reading(endpoint):
            await asyncio.sleep(0.1)
            assert endpoint.lengths.context is None
            server.answers["/v1/models"] = ONE
            server.accept()
            await eventually(lambda: endpoint.lengths.context == 2048, 10, "it is asked again")


async def test_a_refusal_that_names_less_counts_and_what_was_read_comes_back() -> None:
    """A list may name what the model could hold, and the server hold less."""
    endpoint = _endpoint("http://127.0.0.1:9/v1")
    endpoint.lengths.state(2048)
    assert endpoint.lengths.known
    endpoint.lengths.learn(context=1024)
    assert endpoint.lengths.context == 1024
    endpoint.lengths.state(2048)
    assert endpoint.lengths.context == 1024, "the same list again says nothing new"
    endpoint.lengths.forget()
    assert endpoint.lengths.context == 2048
    endpoint.lengths.state(4096)
    assert endpoint.lengths.context == 4096


async def test_a_running_gateway_keeps_what_would_not_fit_from_the_server(tmp_path: Path) -> None:
    """It shows the length in /readyz, and sends a longer prompt to the next tier at once: no request is refused."""
    with _Listing({"/v1/models": {"data": [{"id": "small", "max_model_len": 512}]}}) as local, Upstream() as hosted:
        async with in_process(tmp_path, local=local.url, hosted=hosted.url) as app:

            async def context() -> int | None:
                tiers = (await app.get("/readyz")).json()["tiers"]
                return next(iter(tiers["local"]["backends"].values()))["context"]

            await eventually(lambda: bool(local.probes), what="the server is asked")
            while await context() != 512:
                await asyncio.sleep(0.1)
            answer = await app.ask("word " * 2000)
            assert (answer.status_code, answer.headers["x-tierline-tier"]) == (200, "hosted")
            assert (len(local.requests), len(hosted.requests)) == (0, 1)
