"""`tierline init`: what it finds on real sockets, what it proposes and writes, and that a gateway serves by it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.cli.main import main
from gateway.config.loader import default_config, load_deployment
from gateway.parts.local.judge_choice import verifier_advice
from gateway.parts.local.ladder import ModelServer, ladder
from gateway.parts.prices.model_facts import known_providers
from tests.support.gateway import CHAT, environment, running, write_policies
from tests.support.strict_messages import StrictMessages
from tests.support.upstream import Received, Reply, Upstream

NOBODY = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in known_providers().providers:
        for name in (provider.key_env, provider.url_env, *provider.or_env):
            monkeypatch.delenv(name or "NOT_THERE", raising=False)
    for name in [name for name in os.environ if name.startswith("TIERLINE_")]:
        monkeypatch.delenv(name)


class _Claude(StrictMessages):
    """Lists two models, to whom has the key."""

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.path != "/v1/models":
            return super().reply_to(request)
        assert request.headers["x-api-key"] == self.KEY
        data = [{"type": "model", "id": name} for name in ("claude-sonnet-5-5", "claude-haiku-5-5")]
        return Reply(body=json.dumps({"data": data}).encode())


class _Listing(Upstream):
    """Lists one model, to who has its key if it wants one."""

    def __init__(self, model: str, key: str | None = None) -> None:
        super().__init__()
        self.default = Reply(text="Hello.", logprob=-0.01)
        self._model, self._key = model, key

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if self._key is not None and request.headers.get("authorization") != f"Bearer {self._key}":
            return Reply(status=401, body=b'{"error": {"message": "Unauthorized"}}')
        if request.path == "/v1/models":
            return Reply(body=json.dumps({"data": [{"id": self._model}]}).encode())
        return super().reply_to(request)


def init(capsys: pytest.CaptureFixture[str], out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what it says with --json."""
    code = main(["init", "--out", str(out), "--json", *more])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return code, json.loads(printed.out)


def test_without_keys_and_servers_it_writes_the_shipped_ladder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is the shipped one, and a second run does not write over it unless it is told to."""
    out = tmp_path / "tierline.yaml"
    code, said = init(capsys, out, "--server", NOBODY)
    assert (code, said["rungs"], said["problems"], said["silent"]) == (0, [], [], [NOBODY])
    assert out.read_text() == default_config().read_text()
    out.write_text("mine")
    assert main(["init", "--out", str(out), "--server", NOBODY]) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert init(capsys, out, "--server", NOBODY, "--force")[0] == 0


@pytest.mark.parametrize(
    ("env", "base_url", "auth", "models"),
    [
        (
            {"AWS_PROFILE": "team", "AWS_REGION": "eu-west-1"},
            "https://bedrock-runtime.eu-west-1.amazonaws.com",
            "aws",
            ["global.anthropic.claude-haiku-5-5", "global.anthropic.claude-sonnet-5-5"],
        ),
        (
            {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere", "GOOGLE_CLOUD_PROJECT": "p"},
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global",
            "google",
            ["claude-haiku-5-5", "claude-sonnet-5-5"],
        ),
        (
            {"AZURE_CLIENT_SECRET": "s", "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com/"},
            "https://r.openai.azure.com/openai/v1",
            "entra",
            ["gpt-6-luna", "gpt-6.1-sol"],
        ),
    ],
)
def test_an_identity_of_a_cloud_makes_a_ladder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    base_url: str,
    auth: str,
    models: list[str],
) -> None:
    """Its models are proposed with their prices, and the file names the identity; that it cannot be had is told."""
    for name, value in {**env, "AWS_EC2_METADATA_DISABLED": "true", "AZURE_TOKEN_CREDENTIALS": "prod"}.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "tierline.yaml"
    code, said = init(capsys, out, "--server", NOBODY)
    assert (code, said["problems"]) == (0, [])
    assert [(rung["base_url"], rung["model"]) for rung in said["rungs"]] == [(base_url, model) for model in models]
    assert all(rung["price"] for rung in said["rungs"])
    hosted = load_deployment(out, env).tiers[1].backends[0]
    assert hosted.auth is not None and hosted.auth.kind == auth and hosted.configured
    assert any("no credentials can be had" in warning for warning in said["warnings"])


def test_without_its_region_a_cloud_is_not_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows its URL then."""
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.delenv("AWS_REGION", raising=False)
    assert init(capsys, tmp_path / "tierline.yaml", "--server", NOBODY)[1]["rungs"] == []


def test_a_server_and_a_key_make_a_ladder_that_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The written config passes the check, each rung answers one request, and a gateway answers by it."""
    out = tmp_path / "tierline.yaml"
    with Upstream() as local, _Claude() as claude:
        monkeypatch.setenv("ANTHROPIC_API_KEY", claude.KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url.removesuffix("/v1"))
        local.default = Reply(text="Hello.", logprob=-0.01)
        code, said = init(capsys, out, "--server", local.url, "--try")
        models = {rung["tier"]: rung["model"] for rung in said["rungs"]}
        assert models == {"local": "scripted", "hosted": "claude-haiku-5-5", "large": "claude-sonnet-5-5"}
        assert said["problems"] == []
        assert (code, set(said["tried"].values())) == (0, {"answers"})
        assert claude.KEY not in out.read_text()
        assert main(["check", "--config", str(out)]) == 0
        capsys.readouterr()
        write_policies(tmp_path / "policies", {"chat": CHAT})
        env = environment(ANTHROPIC_API_KEY=claude.KEY)
        with running(tmp_path, env) as gateway:
            client = openai.OpenAI(base_url=gateway.url, api_key="any", max_retries=0)
            answer = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hi!"}])
        assert answer.choices[0].message.content == "Hello."


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_servers_without_any_key_make_a_config_that_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], servers: int
) -> None:
    """Each server that was named has a place, and every tier that the shipped policies name is there."""
    out = tmp_path / "tierline.yaml"
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(_Listing(f"model-{number}")).url for number in range(servers)]
        code, said = init(capsys, out, *(word for url in urls for word in ("--server", url)))
    assert (code, said["problems"], said["written"]) == (0, [], True)
    names = ["local", "hosted", "large", "local-2"][:servers]
    assert {rung["tier"]: rung["base_url"] for rung in said["rungs"]} == dict(zip(names, urls, strict=True))
    assert main(["check", "--config", str(out)]) == 0
    assert {tier.name for tier in load_deployment(out, {}).tiers} >= {"local", "hosted", "large"}


def test_two_servers_with_one_model_are_backends_of_one_tier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tierline.yaml"
    with _Listing("same") as one, _Listing("same") as other:
        code, said = init(capsys, out, "--server", one.url, "--server", other.url)
        assert code == 0 and [rung["also_at"] for rung in said["rungs"]] == [[other.url]]
        backends = load_deployment(out, {}).tiers[0].backends
    assert [backend.base_url for backend in backends] == [one.url, other.url]


def test_a_server_that_wants_a_key_gets_it_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one it is said to want it; the file names the variable, and holds no key."""
    out = tmp_path / "tierline.yaml"
    with _Listing("mine", key="sk-of-my-server") as server:
        assert main(["init", "--out", str(out), "--server", server.url]) == 0
        assert "wants a key: name its variable with --key-env" in " ".join(capsys.readouterr().out.split())
        monkeypatch.setenv("MY_KEY", "sk-of-my-server")
        code, said = init(capsys, out, "--server", server.url, "--key-env", "MY_KEY", "--force", "--try")
        assert (code, said["tried"]) == (0, {"local": "answers"})
    assert "key_env: MY_KEY" in out.read_text() and "sk-of-my-server" not in out.read_text()


def test_a_config_that_would_be_refused_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problems name the file that would have been written, and what was there stays."""
    monkeypatch.setattr("gateway.parts.local.ladder.FAR_S", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", "a key with spaces")
    out = tmp_path / "tierline.yaml"
    out.write_text("mine")
    code, said = init(capsys, out, "--server", NOBODY, "--force")
    assert (code, said["written"], out.read_text()) == (1, False, "mine")
    assert said["problems"] and all(str(out) in one for one in said["problems"])
    assert [file.name for file in tmp_path.iterdir()] == ["tierline.yaml"]


def test_a_price_that_is_not_known_is_no_infinite_one() -> None:
    known = {one.name: one for one in known_providers().providers}
    own = known["Azure"].model_copy(update={"small": "my-own-deployment", "large": "another"})
    for rung in ladder([*places_of("OpenAI"), ModelServer("Azure", "https://a.example/openai/v1", None, own)]):
        assert "inf" not in rung.why, rung.why
    (hosted, _) = ladder([ModelServer("Azure", "https://a.example/v1", None, own), ModelServer("B", NOBODY, None, own)])
    assert "its price is not known" in hosted.why and "$" not in hosted.why


def test_people_are_told_what_it_costs_and_who_judges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices of the shipped facts, the cost of each surface, and a verifier for the rung without log-probabilities."""
    monkeypatch.setattr("gateway.parts.local.ladder.FAR_S", 0.0)  # no network is asked
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-of-a-test")
    out = tmp_path / "tierline.yaml"
    assert main(["init", "--out", str(out), "--server", NOBODY]) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    assert "claude-haiku-5-5 (Anthropic): $0.1 in, $0.5 out per million tokens, no log-probabilities" in said
    assert "hosted large tokens in, out" in said and "chat 0.23 4.60 800, 300" in said
    assert max(map(len, printed.replace(str(out), "").splitlines())) <= 80
    assert "agreement: {samples: 1}" in said and "none can judge" in said
    written = out.read_text()
    assert "# answers of hosted have no log-probabilities" in written and "agreement: {samples: 1}" in written
    assert "sk-canary" not in said + out.read_text()
    tiers = load_deployment(out, {"ANTHROPIC_API_KEY": "sk-canary-of-a-test"}).tiers
    assert [tier.name for tier in tiers] == ["local", "hosted", "large"]
    assert [tier.backends[0].model for tier in tiers[1:]] == ["claude-haiku-5-5", "claude-sonnet-5-5"]


def test_a_model_that_is_not_listed_or_retires_is_not_proposed() -> None:
    """Another listed one takes its place, the nearest in price; none does where none is near."""
    provider = known_providers().providers[0]
    listed = ("gpt-4o-mini", "gpt-5-nano", "gpt-5.6-luna", "gpt-6-sol", "text-embedding-3-small")
    rungs = ladder([ModelServer("OpenAI", provider.base_url, listed, provider)])
    assert [rung.model for rung in rungs] == ["gpt-5.6-luna", "gpt-6-sol"]
    assert ladder([ModelServer("OpenAI", provider.base_url, ("gpt-5-nano", "o1-pro"), provider)]) == []


def places_of(*names: str) -> list[ModelServer]:
    """Providers with a key that list no models, in the order of the file."""
    known = known_providers().providers
    return [ModelServer(one.name, one.base_url, None, one) for one in known if one.name in names]


@pytest.mark.parametrize(
    ("keys", "hosted", "large"),
    [
        (("OpenAI",), "gpt-6-luna", "gpt-6.1-sol"),
        # Both cost the same: the one that tells how sure it is, and a second provider for the hard questions.
        (("OpenAI", "Anthropic"), "gpt-6-luna", "claude-sonnet-5-5"),
        # Groq's is cheaper, and sees no pictures.
        (("Anthropic", "Groq"), "claude-haiku-5-5", "claude-sonnet-5-5"),
        (("Groq", "DeepSeek"), "openai/gpt-oss-20b", "deepseek-v4-pro"),
    ],
)
def test_rungs_are_of_the_providers_that_suit_them(keys: tuple[str, ...], hosted: str, large: str) -> None:
    rungs = ladder(places_of(*keys))
    assert [(rung.tier, rung.model) for rung in rungs] == [("hosted", hosted), ("large", large)]
    assert all(bool(rung.why) == (len(keys) > 1) for rung in rungs)


def test_people_are_told_why_a_rung_is_whose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal of 80 columns, and each rung's key is named in the file."""
    monkeypatch.setattr("gateway.parts.local.ladder.FAR_S", 0.0)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-one")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-two")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--server", NOBODY]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    said = " ".join(printed.split())
    assert "with log-probabilities, $0.23 per 1,000 chats; others: claude-haiku-5-5 $0.23" in said
    assert "nearest $2 per million tokens in, and it is of another provider: an outage of OpenAI leaves it up" in said
    text = Path("tierline.yaml").read_text()
    assert "key_env: OPENAI_API_KEY" in text and "key_env: ANTHROPIC_API_KEY" in text


def test_the_local_tier_judges_where_there_is_one() -> None:
    """A server on this machine costs nothing to ask, so it is the judge of a hosted rung that tells nothing."""
    anthropic = next(one for one in known_providers().providers if one.kind == "anthropic")
    places = [
        ModelServer("Ollama", NOBODY, ("llama3.2:3b",)),
        ModelServer("Anthropic", anthropic.base_url, None, anthropic),
    ]
    assert "judge: {backend: local}" in verifier_advice(ladder(places))
