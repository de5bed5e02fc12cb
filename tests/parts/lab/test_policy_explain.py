"""`tierline policy explain` as a user runs it: the shipped policies, the shipped classifier, real files."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry
from tests.cache.samples import doubtful_text
from tests.parts.access.keys.conftest import WHY, minted, registry, server, store
from tests.parts.ledger.recorded_requests import recorded_ledger
from tests.policies.conftest import CHAT
from tests.support.store import LocalStore

__all__ = ["registry", "server", "store"]

CAPITAL = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("TIERLINE_LOCAL_BASE_URL", "http://127.0.0.1:9/v1")
    for name in ("OPENAI_BASE_URL", "TIERLINE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)


def request(folder: Path, **changes: Any) -> str:
    file = folder / "request.json"
    file.write_text(json.dumps(CAPITAL | changes))
    return str(file)


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["policy", "explain", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def texts(found: dict[str, Any], step: str) -> str:
    return "\n".join(line["text"] for line in found["steps"] if line["step"] == step)


def test_every_step_is_shown_with_the_line_that_rules_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From what named the surface to what an escalation would look at."""
    assert main(["policy", "explain", request(tmp_path, stream=True)]) == 0
    out = capsys.readouterr().out
    steps = ["surface", "cache", "features", "classifier", "budget", "rules", "tiers", "decision", "escalation"]
    assert [line.split()[0] for line in out.splitlines() if line[:1].strip() and not line.startswith("-")] == steps
    assert "gpt-4o-mini is one of its match.models" in out
    assert "chat.yaml:" in out
    assert "effort < 0.01: yes" in out
    assert "900ms until the first token is due" in out


def test_the_classifier_that_ships_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it says decides, as on a gateway; a request that it does not know is said to be one."""
    found = explained(capsys, request(tmp_path))
    assert "kind chat" in texts(found, "classifier")
    assert "abstains" in texts(found, "classifier") and "(effort): 0.0" in texts(found, "classifier")
    assert found["start"] == "local"
    strange = request(tmp_path, messages=[{"role": "user", "content": "9-9-9 %%%"}])
    assert "(effort): missing" in texts(explained(capsys, strange), "classifier")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "semantic: looked up"),
        ({"temperature": 1.5}, "neither served from the store nor kept: never: temperature > 1"),
        ({"messages": [{"role": "user", "content": "What is the weather today?"}]}, "never: volatile"),
        ({"messages": [{"role": "user", "content": doubtful_text()}]}, "may depend on when it is asked: kept for 5m"),
        ({"messages": [{"role": "user", "content": doubtful_text()}]}, "exact: looked up, kept for 5m"),
        ({"seed": 7}, "semantic: not looked up: it sets seed"),
        ({"messages": [{"role": "user", "content": "and the second one?"}]}, "leans on what was said before"),
    ],
)
def test_the_cache_says_why_it_may_not_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    """By the rules of the policy, then by those of the semantic cache."""
    assert says in texts(explained(capsys, request(tmp_path, **changes)), "cache")


def test_the_state_of_tiers_and_headers_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a gateway: a tier that is down, one that is slow, a client's own limit, a surface by its header."""
    proof = [{"role": "user", "content": "Prove that the square root of two is irrational."}]
    body = request(tmp_path, stream=True, messages=proof)
    assert explained(capsys, body)["start"] == "hosted"
    assert explained(capsys, body, "--down", "hosted")["start"] == "local"
    assert explained(capsys, body, "-H", "x-tierline-max-tier: local")["start"] == "local"
    slow = explained(capsys, body, "--expect", "hosted=5s")
    assert "later than the 900ms left" in texts(slow, "tiers")
    found = explained(capsys, body, "--surface", "batch")
    assert found["policy"].startswith("batch@")
    assert "x-tierline-surface" in texts(found, "surface")


def test_a_body_may_come_from_stdin_and_need_not_name_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is then asked of the default surface."""
    raw = json.dumps({"messages": CAPITAL["messages"]}).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert explained(capsys, "-")["policy"].startswith("chat@")


async def test_a_key_has_its_own_tiers_models_and_surfaces(
    tmp_path: Path, server: LocalStore, registry: KeyRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a gateway: what is closed to it is passed over, its own default surface counts, the rest is refused."""

    async def explain(record: KeyRecord, **changes: Any) -> tuple[int, str, str]:
        given = [request(tmp_path, **changes), "--key", record.id, "--store", server.url]
        code = await asyncio.to_thread(main, ["policy", "explain", "--json", *given])
        return code, *capsys.readouterr()

    async def made(name: str, **fields: Any) -> KeyRecord:
        return await registry.create(minted(name=name, **fields)[1], WHY)

    hard = {"messages": [{"role": "user", "content": "Prove that there are infinitely many primes."}]}
    free, small = await made("free"), await made("small", tiers=("local",))
    code, out, _ = await explain(small, **hard)
    assert code == 0 and json.loads(out)["start"] == "local"
    assert (await explain(await made("model", models=("tier:hosted",))))[1].count('"start": "hosted"') == 1
    code, out, _ = await explain(await made("own", default_surface="batch"), model="auto")
    assert code == 0 and json.loads(out)["policy"].startswith("batch@")
    code, _, problem = await explain(await made("shut", surfaces=("batch",)))
    assert code != 0 and "may not use surface 'chat'" in problem
    assert (await explain(free))[0] == 0
    assert main(["policy", "explain", "--request", "req_1", "--key", free.id, "--store", server.url]) != 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a file with a request's body"),
        (["nowhere.json"], "nowhere.json: No such file"),
        (["FILE", "--down", "huge"], "no configured tier 'huge'"),
        (["FILE", "--expect", "local=9"], "is not a duration"),
        (["FILE", "--surface", "nothing"], "no surface or model 'nothing'"),
        (["FILE", "-H", "x-tierline-max-tier: huge"], "would refuse"),
        (["FILE", "-H", "oops"], "is not a header"),
        (["--request", "req-1", "--ledger", "nowhere"], "holds no ledger"),
    ],
)
def test_what_cannot_be_explained_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    """On stderr, with exit code 2."""
    file = request(tmp_path)
    assert main(["policy", "explain", *(file if one == "FILE" else one for one in arguments)]) == 2
    assert says in capsys.readouterr().err


async def test_a_recorded_request_is_explained_without_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the input of its decision, by the policy of then or by another one."""
    policy = tmp_path / "chat.yaml"
    policy.write_text(CHAT)
    async with recorded_ledger(tmp_path / "ledger", policy, tokens=[100, 5000]) as folder:
        ledger = ["--ledger", str(folder), "--policies", str(tmp_path)]
        found = explained(capsys, "--request", "req-1", *ledger)
        assert found["start"] == "hosted"
        assert found["steps"][0]["place"] == "chat.yaml:1"
        assert "a record holds no text" in texts(found, "cache")
        other = tmp_path / "other.yaml"
        other.write_text(CHAT.replace("3000", "9000"))
        assert explained(capsys, "--request", "req-1", *ledger, "--policy", str(other))["start"] == "local"
        assert main(["policy", "explain", "--request", "req-9", *ledger]) == 2
        assert "no request 'req-9'" in capsys.readouterr().err
