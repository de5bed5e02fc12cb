"""`tierline demo` as a user starts it: each kind of path stands in the ledger, the console says what is scripted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import ROOT, environment
from tests.support.wait import until


@pytest.mark.long
def test_every_kind_of_path_is_shown(tmp_path: Path) -> None:
    state, output = tmp_path / "demo", tmp_path / "output.txt"
    elsewhere = "redis://127.0.0.1:9/0"  # of the user: a demo leaves it alone
    command = [sys.executable, "-m", "gateway", "demo", "--no-browser", "--minutes", "0.5", "--rate", "10"]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--state", str(state), "--port", "0", "--console-port", "0"],
            cwd=ROOT,
            env=environment(TIERLINE_STORE_URL=elsewhere),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "The traffic has ended" in output.read_text() or process.poll() is not None, 90, "its end")
        said = output.read_text()
        assert process.poll() is None, said
        up = json.loads((state / "up.json").read_text())
        assert elsewhere not in up["store_url"]
        with urllib.request.urlopen(f"{up['console_url']}/now", timeout=30) as page:
            assert "Scripted replies" in page.read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 0, output.read_text()
    assert "is tried on some conversations of support" in said and "failed" not in said
    [sent] = [line for line in said.splitlines() if line.startswith("sent: ")]
    assert "; 0 answers rated" not in sent
    shown = said[said.index("The traffic has ended") :]
    assert all(words in shown for words in ("/requests/req_", "take it back", "/what-if?surface=support"))

    requests = query(state, "SELECT surface, path, status FROM requests")
    paths = Counter(one["path"] for one in requests)
    assert {"direct", "cache-exact", "cache-semantic", "escalated"} <= paths.keys(), paths
    assert {200, 400, 404} <= {one["status"] for one in requests}
    surfaces = {one["surface"] for one in requests} - {"", None}
    assert surfaces == {
        "agent",
        "autocomplete",
        "batch",
        "chat",
        "drafting",
        "extraction",
        "research",
        "search",
        "support",
        "voice",
    }
    assert query(state, "SELECT * FROM feedback LIMIT 1")


def query(state: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of a query of the demo's ledger."""
    command = [sys.executable, "-m", "gateway", "ledger", "query", "--json", "--state", str(state), sql]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
