"""What if: other numbers in a policy, tried on the latest requests, with the figures of `tierline policy replay`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.config.launch import Launch
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console import kept_figures
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.ledger.live import LiveArchive
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import TIERS
from tests.support.ledger_files import write_ledger
from tests.support.scripted_world import World, policy

__all__ = ["server", "store"]

N = 3000
FILE = """surface: chat
slo: {ttft: {p99: 1500ms}, total: {p99: 20s}, deadline: 60s}
tiers: [local, hosted]
route:
  start:
    local: easiest 40% of its kind and tokens_in < 3000   # the rule
    hosted: otherwise
escalate:
  when: {confidence_below: 0.62}
  max_attempts: 3
cache:
  exact: {ttl: 24h}
  semantic: {ttl: 6h}
holdout: 2%
"""
TRIES = (
    {"escalate.when.confidence_below": "0.8"},
    {"route.start.local.0": "25"},
    {"route.start.local.1": "400", "escalate.max_attempts": "1"},
    {"cache.exact.ttl": "0.05", "cache.semantic.ttl": "0.05"},
    {"cache.semantic.min_similarity": "0.8"},
    {"slo.total.p99": "2", "slo.ttft.p99": "300"},
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ledger of what the policy served, in segments, with feedback on every tenth request."""
    folder = tmp_path_factory.mktemp("ledger")
    world = World(N, seed=3)
    rows = list(world.live(policy()))
    for number, row in enumerate(one for one in rows if one["path"] == "cache-semantic"):
        row["similarity"] = 0.7 + number % 5 * 0.05
    same = ("entry_ms", "entry_seq", "ordinal", "request_id", "tenant", "surface")
    rated = [
        {**{name: row[name] for name in same}, "score": float(row["tier"] == "hosted"), "comment": None,
         "given_at": row["started"]}
        for row in rows[::10]
    ]  # fmt: skip
    write_ledger(folder, rows, [world.basis(policy())], rated)
    yield folder


@contextlib.asynccontextmanager
async def what_if(ledger: Path, store: RedisStore, folder: Path, text: str = FILE) -> AsyncIterator[httpx2.AsyncClient]:
    """A console over the ledger, with this policy in force from a file."""
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "chat.yaml").write_text(text)
    config = folder / "tierline.yaml"
    config.write_text(f"tiers: {TIERS}\n")
    launch = Launch(config=config, policies=policies)
    deployment = launch.deployment()
    places = PolicyPlaces(deployment, launch.policy_source(deployment), ledger, config, f"redis://{store}")
    archive = LiveArchive(ledger, store)
    try:
        app = ConsoleApp(archive, store, places, ConsoleAccess({})).asgi()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8790") as client:
            yield client
    finally:
        await archive.aclose()


def replayed(capsys: pytest.CaptureFixture[str], file: Path, ledger: Path, *words: str) -> dict[str, Any]:
    assert main(["policy", "replay", str(file), "--ledger", str(ledger), "--verify", "0", "--json", *words]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


async def test_a_try_says_what_policy_replay_says_of_the_same_edit(
    ledger: Path, store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every figure is the same, however many tries came before on the requests that are kept in memory."""
    async with what_if(ledger, store, tmp_path) as client:
        for values in ({}, *TRIES):
            data = (await client.get("/what-if.json", params={"surface": "chat", **values})).json()
            file = tmp_path / "edited.yaml"
            file.write_text(data["edited"])
            told = replayed(capsys, file, ledger, "--last", "100000")
            tried = data["tried"]
            for name in ("figures", "quality", "moves", "slices", "examples", "notes", "changed", "lost_hits",
                         "estimated", "no_evidence", "exact", "redecided", "candidate", "requests"):  # fmt: skip
                mine, theirs = tried[name], told[name]
                if name == "figures":
                    mine = {key: {part: one[part] for part in theirs[key]} for key, one in mine.items()}
                assert mine == theirs, (values, name)
            assert bool(values) == bool(tried["changed"] or tried["figures"]["goodput"]["difference"]), values


async def test_the_page_names_who_goes_where_and_links_to_them(ledger: Path, store: RedisStore, tmp_path: Path) -> None:
    async with what_if(ledger, store, tmp_path) as client:
        page = (await client.get("/what-if?surface=chat&escalate.when.confidence_below=0.8")).text
        assert 'name="escalate.when.confidence_below" type="number"' in page and 'value="0.8"' in page
        assert "take another course" in page and "direct · local to escalated · hosted" in page
        assert 'href="/requests/req_' in page and 'name="to" value="3000"' in page
        assert "style=" not in page and "confidence_below: 0.8}" in page
        same = await client.get("/what-if?surface=chat&to=3000")
        assert "As in force, nothing changes" in same.text
        first = (await client.get("/what-if.json?surface=chat&to=1000")).json()
        assert first["tried"]["requests"] == 1000 and first["to"] == "1000"
        stricter = (await client.get("/what-if.json?surface=chat&escalate.when.confidence_below=0.8")).json()
        edit = {"text": stricter["edited"], "do": "check", "base": stricter["version"]}
        assert "confidence_below: 0.8}" in (await client.post("/policies/chat", data=edit)).text


async def test_a_page_does_not_wait_for_requests_that_are_being_read(
    ledger: Path, store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the numbers, says so, and asks for the rest, which is made once."""
    monkeypatch.setattr(kept_figures, "_PATIENCE_S", 0.0)
    query = "/what-if?surface=chat&escalate.when.confidence_below=0.8"
    async with what_if(ledger, store, tmp_path) as client:
        page = (await client.get(query)).text
        assert "These figures are being made" in page and 'name="escalate.when.confidence_below" type="number"' in page
        assert 'hx-get="/what-if?surface=chat&amp;escalate.when.confidence_below=0.8" hx-trigger="load"' in page
        rest = await client.get(query, headers={"hx-request": "true"})  # which htmx sends
        assert "take another course" in rest.text
        assert "take another course" in (await client.get(query)).text


async def test_what_cannot_be_tried_is_said(ledger: Path, store: RedisStore, tmp_path: Path) -> None:
    async with what_if(ledger, store, tmp_path) as client:
        unknown = await client.get("/what-if?surface=chat&route.start.local.7=1")
        assert unknown.status_code == 400 and "route.start.local.0" in unknown.text
        assert (await client.get("/what-if?surface=chat&route.start.local.0=x")).status_code == 400
        assert (await client.get("/what-if?surface=chat&to=x")).status_code == 400
        assert (await client.get("/what-if?surface=nosuch")).status_code == 404
        wrong = await client.get("/what-if?surface=chat&escalate.when.confidence_below=7")
        assert wrong.status_code == 200 and "This would be no policy" in wrong.text
    async with what_if(tmp_path / "none", store, tmp_path) as client:
        empty = await client.get("/what-if?surface=chat")
        assert empty.status_code == 200 and "There is nothing to try this on" in empty.text
