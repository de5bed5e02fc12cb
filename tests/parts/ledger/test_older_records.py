"""Records that the store has dropped: commands read them from the ledger's files, or say what they cover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from cache.store.base import Append, Command
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.ledger.folder import locked
from gateway.parts.ledger.keeper import Keeper, Rotation
from gateway.telemetry.ledger import TRACES, ledger_blob
from tests.gateway.telemetry.requests_made import escalated
from tests.support.store import UNHURRIED, LocalStore, local_store

COUNT, KEPT = 40, 10


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


async def _recorded(url: str, folder: Path) -> None:
    """Keep 40 requests in files, of which the store has the newest 10."""
    store = RedisStore.from_url(url, slack=UNHURRIED)
    await store.delete(TRACES)
    for number in range(COUNT):
        trace, ledger = escalated(f"req-{number}")
        await store.apply([Append(TRACES, ledger_blob(trace, ledger), 1000)])
    with locked(folder):
        await Keeper(store, folder, Rotation(after_s=1e9), lambda _: None).catch_up()
    await store.ask([Command((b"XTRIM", TRACES.encode(), b"MAXLEN", b"%d" % KEPT))], 5.0)
    await store.aclose()


def test_commands_go_on_in_the_files(server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, lists and single requests have all that is kept, not only what the store still has."""
    folder = tmp_path / "ledger"
    asyncio.run(_recorded(server.url, folder))
    where = ["--store", server.url, "--state", str(tmp_path)]
    assert main(["ledger", "--since", "6h", "--json", *where]) == 0
    assert orjson.loads(capsys.readouterr().out)["requests"] == COUNT
    assert main(["trace", "list", "-n", "99", "--since", "6h", "--json", *where]) == 0
    found = [orjson.loads(line)["ledger"]["request_id"] for line in capsys.readouterr().out.splitlines()]
    assert found == [f"req-{number}" for number in reversed(range(COUNT))]
    assert main(["trace", "show", "req-0", *where]) == 0
    assert "req-0" in capsys.readouterr().out


def test_without_files_it_is_said_what_is_covered(
    server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store's newest records do not pass for six hours."""
    asyncio.run(_recorded(server.url, tmp_path / "elsewhere"))
    where = ["--store", server.url, "--state", str(tmp_path)]
    for command in (["ledger", "--since", "6h", "--json"], ["trace", "list", "-n", "99", "--since", "6h", "--json"]):
        assert main([*command, *where]) == 0
        out, said = capsys.readouterr()
        assert out and "tierline: covers " in said and " of 6 h: the store keeps the newest" in said
