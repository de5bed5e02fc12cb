"""`tierline audit` as a user runs it: listed, filtered, exported, and verified."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.access.audit.entries import KEYS, REST, TrailEntry
from gateway.parts.access.audit.trail import AuditTrail
from tests.parts.access.audit.test_trail import of_key
from tests.parts.rollout.registry.conftest import server, store
from tests.support.store import UNHURRIED, LocalStore

__all__ = ["server", "store"]


async def changed(store: RedisStore) -> None:
    """Append a sign-in of eve, whose name is a formula, and two changes of keys by ada."""
    await AuditTrail(store).append(TrailEntry(5.0, "=eve()", "login", "eve\n\x1b[2J", "sign-in", how="console"))
    await asyncio.sleep(0.005)
    await of_key(store, "k_1", "disable", 6.0)
    await of_key(store, "k_2", "disable", 7.0)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["audit", *arguments])
    return code, capsys.readouterr().out


async def test_entries_are_listed_newest_first(
    store: RedisStore, server: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line each, that no text in it can break; filters and forms take the same entries."""
    assert await asyncio.to_thread(said, capsys, "--store", server.url) == (0, "no entries\n")
    await changed(store)
    _, text = await asyncio.to_thread(said, capsys, "--store", server.url)
    lines = text.splitlines()
    assert [line.split()[4] for line in lines[:2]] == ["k_2", "k_1"] and len(lines) == 3
    assert lines[0].endswith("ada by admin  why; state: active -> disabled")
    assert "\x1b" not in text
    _, listed = await asyncio.to_thread(said, capsys, "--store", server.url, "--kind", "key", "--by", "ada", "--json")
    assert [one["subject"] for one in json.loads(listed)["entries"]] == ["k_2", "k_1"]
    _, last = await asyncio.to_thread(said, capsys, "--store", server.url, "--subject", "k_", "--last", "1")
    assert "k_2" in last and len(last.splitlines()) == 1
    _, table = await asyncio.to_thread(said, capsys, "--store", server.url, "--csv")
    rows = list(csv.DictReader(table.splitlines(keepends=True)))
    assert [row["subject"] for row in rows][:2] == ["k_2", "k_1"] and json.loads(rows[0]["after"])
    assert rows[2]["by"] == "'=eve()" and "'" not in {cell for row in rows for cell in row.values()}
    assert await asyncio.to_thread(said, capsys, "--store", server.url, "--since", "1h") == (0, "no entries\n")


async def test_a_trail_is_verified_against_itself_and_an_export(
    store: RedisStore, server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 for a stream that was cut, and for one that was written anew, which only the export shows."""
    await changed(store)
    file = tmp_path / "audit.jsonl"
    of_store, export = ("--store", server.url), ("--export", str(file))
    code, text = await asyncio.to_thread(said, capsys, "export", str(file), *of_store)
    assert code == 0 and text.startswith("3 entries written")
    heads = [one.head for one in await AuditTrail(store).checked()]
    code, text = await asyncio.to_thread(said, capsys, "verify", *of_store, *export, "--head", heads[0])
    assert code == 0 and f"{KEYS}: whole, 2 entries" in text and "all in the store" in text
    first = json.loads(file.read_bytes().splitlines()[0])["id"]
    await store.ask([Command((b"XDEL", KEYS.encode(), first.encode()))])
    code, text = await asyncio.to_thread(said, capsys, "verify", *of_store)
    assert code == 1 and f"{KEYS}: BROKEN" in text and f"{REST}: whole" in text
    await store.ask([Command((b"DEL", KEYS.encode()))])
    code, text = await asyncio.to_thread(said, capsys, "verify", *of_store)
    assert code == 1 and "2 of 2 entries were removed" in text, "a stream that is gone is missed"
    await store.ask([Command((b"DEL", f"{KEYS}:head".encode()))])
    await of_key(store, "k_1", "create")
    assert (await asyncio.to_thread(said, capsys, "verify", *of_store))[0] == 0
    code, text = await asyncio.to_thread(said, capsys, "verify", *of_store, *export, "--json")
    assert code == 1 and len(json.loads(text)["missing"]) == 2
    code, text = await asyncio.to_thread(said, capsys, "verify", *of_store, "--head", heads[0], "--head", heads[1])
    assert code == 1 and text.splitlines()[-2:] == [
        "0 exported entries and 2 hashes: 1 are not in the store",
        f"  {heads[0]}",
    ]
    file.write_text(file.read_text().replace("active", "revoked"))
    code = await asyncio.to_thread(main, ["audit", "verify", *of_store, *export])
    assert code == 2 and "was altered" in capsys.readouterr().err


async def test_entries_are_printed_as_they_come(store: RedisStore, server: LocalStore) -> None:
    await changed(store)
    command = [sys.executable, "-m", "gateway", "audit", "--follow", "--kind", "key", "--json", "--store", server.url]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert [json.loads(await process.stdout.readline())["subject"] for _ in range(2)] == ["k_1", "k_2"]
            opened = RedisStore.from_url(server.url, slack=UNHURRIED)
            await of_key(opened, "k_3", "create")
            await opened.aclose()
            assert json.loads(await process.stdout.readline())["subject"] == "k_3"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
    finally:
        if process.returncode is None:
            process.kill()
