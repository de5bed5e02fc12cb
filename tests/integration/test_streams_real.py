"""The real local model goes on with an answer that another model began: `tierline up`, over a scripted first tier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml

from tests.integration.test_up import starter
from tests.support.upstream import Fault, Reply, Upstream

pytestmark = [pytest.mark.real_model, pytest.mark.long]

POLICY = """
surface: chat
slo: {deadline: 60s}
tiers: [scripted, local]
route: {classifier: none, start: {scripted: otherwise}}
escalate:
  when: {confidence_below: 0.5}
  no_signal: accept
  stream: {hold_tokens: 4, hold_max: 250ms}
holdout: 0
"""


@pytest.fixture(scope="module")
def real(_upstreams: tuple[Upstream, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway's URL: a scripted tier first, the local model behind it."""
    folder = tmp_path_factory.mktemp("real")
    scripted = {"base_url": _upstreams[0].url, "model": "scripted", "capabilities": ["json"]}
    local = {"model": "smollm2-135m-instruct", "continuation": "prefill", "capabilities": ["json"]}
    local["base_url"] = "${TIERLINE_LOCAL_BASE_URL:-}"
    tiers = [{"name": "scripted", "backends": [scripted]}, {"name": "local", "backends": [local]}]
    (folder / "config.yaml").write_text(yaml.safe_dump({"tiers": tiers}))
    (folder / "policies").mkdir()
    (folder / "policies" / "chat.yaml").write_text(POLICY)
    with starter(folder) as start:
        up = start("--config", str(folder / "config.yaml"), "--policies", str(Path(folder / "policies")))
        yield f"{up.told()['url']}/v1"


def goes_on(url: str, text: str, question: str, **more: object) -> str:
    """What a stream came to whose upstream broke off after this text."""
    client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        model="chat", messages=[{"role": "user", "content": question}], stream=True, temperature=0, **more
    )
    chunks = list(stream)
    assert len({(chunk.id, chunk.model, chunk.created, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason]
    whole = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.startswith(text)
    return whole[len(text) :]


def test_the_local_model_goes_on(real: str, local_upstream: Upstream) -> None:
    """It takes up the sentence in its middle, says nothing twice, and comes to an end."""
    said = "The capital city of France is"
    local_upstream.default = Reply(text=said + " x", fault=Fault.CLOSE_MID_STREAM, fault_after=6, between_s=0.005)
    rest = goes_on(real, said, "Name the capital city of France.", max_tokens=40)
    assert rest.startswith(" Paris")
    assert said not in rest


def test_the_local_model_counts_for_itself(real: str) -> None:
    """Asked alone, it refuses what it cannot hold, and its own count reaches the client under the usual code."""
    client = openai.OpenAI(base_url=real, api_key="any", max_retries=0)
    text = "人人生而自由,在尊严和权利上一律平等。" * 240
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size \\(4096 tokens\\)") as caught:
        client.chat.completions.create(
            model="tier:local", messages=[{"role": "user", "content": text}], max_tokens=8, stream=True
        )
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_the_local_model_finishes_json(real: str, local_upstream: Upstream) -> None:
    """JSON that broke off is JSON when it has gone on: the grammar is led through the beginning."""
    tokens = ('{"country"', ": ", '"France", ', '"capital"', ': "Par')
    local_upstream.default = Reply(tokens=tokens, fault=Fault.CLOSE_MID_STREAM, fault_after=5, between_s=0.005)
    said, question = (
        "".join(tokens),
        "What is the capital of France? Answer in JSON, with the keys country and capital.",
    )
    rest = goes_on(real, said, question, max_tokens=60, response_format={"type": "json_object"})
    assert json.loads(said + rest)["capital"].startswith("Par")
