"""`tierline init` writes a judge where drafts tell nothing, and by what it writes a wrong answer escalates."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.cli.main import main
from gateway.parts.local.judge_choice import judge_of
from gateway.parts.local.judged_policies import with_judge
from gateway.parts.local.ladder import ModelServer, Rung
from gateway.parts.prices.model_facts import known_providers, shipped_facts
from policies.loader import SHIPPED
from policies.yaml_source import parse_yaml
from tests.support.gateway import Gateway, environment, running
from tests.support.strict_messages import StrictMessages, text
from tests.support.upstream import Received, Reply, Upstream

TAKES_S = 0.3
"""How long the judge takes: a model of 3B reads some thousand tokens, which is more than the default of 250 ms."""
WRONG, RIGHT, LARGE = "The moon is made of cheese.", "Six times seven is forty-two.", "The moon is made of rock."


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in known_providers().providers:
        for name in (provider.key_env, provider.url_env, *provider.or_env):
            monkeypatch.delenv(name or "NOT_THERE", raising=False)
    for name in [name for name in os.environ if name.startswith("TIERLINE_")]:
        monkeypatch.delenv(name)


class _Claude(StrictMessages):
    """Lists two models."""

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.path != "/v1/models":
            return super().reply_to(request)
        data = [{"type": "model", "id": name} for name in ("claude-sonnet-5-5", "claude-haiku-5-5")]
        return Reply(body=json.dumps({"data": data}).encode())


def asked_of(body: dict[str, Any]) -> Any:
    """What Anthropic's models say: the small one is wrong about the moon."""
    if "moon" not in json.dumps(body["messages"]):
        return text(RIGHT)
    return text(WRONG if "haiku" in body["model"] else LARGE)


def is_judged(request: Received) -> bool:
    """Whether a call asks for a verdict."""
    return request.body.get("max_tokens") == 1 and '"draft"' in request.prompt


def init(capsys: pytest.CaptureFixture[str], out: Path, *more: str) -> dict[str, Any]:
    """What it says with --json, having ended well."""
    code = main(["init", "--out", str(out), "--json", *more])
    printed = capsys.readouterr()
    assert code == 0, printed
    said: dict[str, Any] = json.loads(printed.out)
    return said


@pytest.fixture
def served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Gateway, Upstream, StrictMessages]]:
    """A gateway by what `init` wrote for a server of one's own, whose model judges, and for Anthropic's models."""
    with Upstream() as judge, _Claude() as claude:
        claude.say_by(asked_of)
        verdict = {"logprob": -0.05, "before_headers_s": TAKES_S}
        judge.on(lambda request: is_judged(request) and "cheese" in request.prompt).reply(text="no", **verdict)
        judge.on(lambda request: is_judged(request) and "cheese" not in request.prompt).reply(text="yes", **verdict)
        monkeypatch.setenv("ANTHROPIC_API_KEY", claude.KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url.removesuffix("/v1"))
        said = init(capsys, tmp_path / "tierline.yaml", "--server", judge.url)
        assert said["judge"]["backend"] == "local" and said["judge"]["usd_per_1000_drafts"] == 0
        assert "chat.yaml" in said["judged_policies"]
        Path(said["policies"]).rename(tmp_path / "policies")
        with running(tmp_path, environment(ANTHROPIC_API_KEY=claude.KEY)) as gateway:
            judge.requests.clear()
            yield gateway, judge, claude


def bodies(question: str, *, stream: bool) -> dict[str, dict[str, Any]]:
    """One question in the three APIs, by path."""
    messages = [{"role": "user", "content": question}]
    return {
        "chat/completions": {"model": "chat", "messages": messages, "stream": stream},
        "messages": {"model": "chat", "max_tokens": 200, "messages": messages, "stream": stream},
        "responses": {"model": "chat", "input": question, "stream": stream},
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_wrong_answer_escalates_and_a_right_one_is_served(
    served: tuple[Gateway, Upstream, StrictMessages], stream: bool
) -> None:
    """From `init` to the reply, in three APIs: drafts without log-probabilities are judged, one question each."""
    gateway, judge, claude = served
    hard = "Prove step by step, and defend against every objection, what {} and derive all that follows from it."
    for question, model, tier in (
        (" the moon is made of", "sonnet", "large"),
        (" six times seven is", "haiku", "hosted"),
    ):
        for path, body in bodies(hard.format(question), stream=stream).items():
            judge.requests.clear()
            headers = {"x-tierline-cache": "no-store", "x-tierline-debug": "1"}
            answer = httpx2.post(f"{gateway.url}/{path}", json=body, headers=headers, timeout=30)
            assert answer.status_code == 200, answer.text
            reason = answer.headers.get("x-tierline-reason", "")
            assert answer.headers["x-tierline-tier"] == tier, (path, reason, claude.refusals)
            assert model in claude.requests[-1].body["model"]
            assert len([one for one in judge.requests if is_judged(one)]) == 1, (path, reason)
            assert "cheese" not in answer.text


def test_policies_are_written_where_they_are_needed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are as shipped, the judge and its cost stand in a comment, and nothing is written over."""
    out = tmp_path / "tierline.yaml"
    with Upstream() as judge, _Claude() as claude:
        monkeypatch.setenv("ANTHROPIC_API_KEY", claude.KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url.removesuffix("/v1"))
        said = init(capsys, out, "--server", judge.url)
        folder = Path(said["policies"])
        assert {"chat.yaml", "support.yaml"} <= set(said["judged_policies"]) and "voice.yaml" not in said[
            "judged_policies"
        ]
        for file in (file for file in SHIPPED.glob("*.yaml") if not file.name.endswith(".test.yaml")):
            text = (folder / file.name).read_text()
            judged = file.name in said["judged_policies"]
            assert (text != file.read_text()) == judged
            words = " ".join(text.replace("\n# ", " ").split())
            for said_of_it in ("judge: {backend: local, within: 800ms}", "1,000 judged drafts of chat cost nothing"):
                assert not judged or said_of_it in words
        assert main(["check", "--config", str(out), "--policies", str(folder)]) == 0
        assert "T709" not in capsys.readouterr().out
        (folder / "chat.yaml").write_text("mine")
        out.unlink()
        assert main(["init", "--out", str(out), "--server", judge.url]) == 2
    assert "--force" in capsys.readouterr().err and (folder / "chat.yaml").read_text() == "mine"


@pytest.mark.parametrize("key", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
def test_where_drafts_tell_or_nobody_can_judge_no_policies_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("gateway.parts.local.ladder.FAR_S", 0.0)
    monkeypatch.setenv(key, "sk-one")
    said = init(capsys, tmp_path / "tierline.yaml", "--server", "http://127.0.0.1:9/v1")
    assert (said["policies"], said["judged_policies"]) == (None, [])
    assert [file.name for file in tmp_path.iterdir()] == ["tierline.yaml"]


def test_a_judge_gets_the_time_of_a_call_and_streams_are_held_for_it() -> None:
    """By the defaults of 250 ms its verdicts would nearly all come too late."""
    [openai] = [one for one in known_providers().providers if one.name == "OpenAI"]
    place = ModelServer("OpenAI", openai.base_url, None, openai)
    rung = Rung("hosted", "gpt-6-luna", place, shipped_facts().find(openai.base_url, "gpt-6-luna"))
    choice = judge_of(
        [Rung("first", "m", replace(place, provider=openai.model_copy(update={"logprobs": False}))), rung]
    )
    assert choice is not None
    written = with_judge((SHIPPED / "chat.yaml").read_text(), choice)
    escalate = parse_yaml(written, Path("chat.yaml")).value["escalate"]
    assert (escalate["judge"], escalate["stream"]["hold_max"]) == ({"backend": "hosted", "within": "800ms"}, "800ms")
    assert f"cost about ${choice.usd:.2f}" in " ".join(written.replace("\n# ", " ").split())
