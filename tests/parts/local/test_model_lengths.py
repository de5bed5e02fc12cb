"""What servers of open models say of their context, and what `init` writes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.config.loader import load_deployment
from gateway.parts.local.model_lengths import context_in_props, contexts_in
from tests.support.upstream import Received, Reply, Upstream

PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}


class _Server(Upstream):
    """A server with one model, which says this of itself."""

    def __init__(self, listed: dict[str, Any], props: Any = None) -> None:
        super().__init__()
        self._listed, self._props = listed, props

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.path == "/v1/models":
            return Reply(body=json.dumps({"data": [{"id": "m", **self._listed}]}).encode())
        if request.path == "/props" and self._props is not None:
            return Reply(body=json.dumps(self._props).encode())
        return super().reply_to(request)


@pytest.mark.parametrize(
    ("listed", "props", "context"),
    [
        pytest.param({"max_model_len": 2048}, None, 2048, id="vllm"),
        pytest.param({"context_length": 32768}, PROPS, 32768, id="lm-studio"),
        pytest.param({"meta": {"n_ctx_train": 8192}}, PROPS, 4096, id="llama.cpp"),
        pytest.param({"meta": {"n_ctx_train": 8192, "n_ctx": 8192}}, None, 8192, id="llama.cpp-list"),
        pytest.param({}, None, None, id="others"),
        pytest.param({"max_model_len": "long"}, [], None, id="odd"),
    ],
)
def test_init_writes_the_context_that_a_server_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: dict[str, Any], props: Any, context: int | None
) -> None:
    """So no request is sent that the server would refuse for a limit which the gateway added."""
    out = tmp_path / "tierline.yaml"
    with _Server(listed, props) as server:
        assert main(["init", "--json", "--out", str(out), "--server", server.url]) == 0
    rungs = json.loads(capsys.readouterr().out)["rungs"]
    assert [rung["context"] for rung in rungs] == [context]
    assert load_deployment(out, {}).tiers[0].backends[0].context == context


def test_what_is_no_length_is_none() -> None:
    """A length is a whole number of tokens of a likely size."""
    assert contexts_in([{"id": "a", "max_model_len": 0}, {"id": "b", "max_model_len": True}, {"id": "c"}]) == {}
    assert context_in_props({"default_generation_settings": {"n_ctx": 10**12}}) is None
    assert context_in_props("props") is None
