"""Peers are configured for the upstream, and one that is missing is a row."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.bench import peers
from tests.bench.peers import PEERS, Peer, Start, Unavailable

UPSTREAM = "http://127.0.0.1:18999/v1"


def test_each_peer_is_pointed_at_the_upstream(tmp_path: Path) -> None:
    """LiteLLM and TensorZero by their file, Portkey by the headers of each request."""
    starts = {peer.name: peer.configure(tmp_path, UPSTREAM) for peer in PEERS}
    model = yaml.safe_load((tmp_path / "config.yaml").read_text())["model_list"][0]
    assert model["litellm_params"]["api_base"] == UPSTREAM
    assert str(tmp_path / "config.yaml") in starts["LiteLLM"].command
    provider = tomllib.loads((tmp_path / "tensorzero.toml").read_text())["models"]["bench"]["providers"]["upstream"]
    assert provider["api_base"] == UPSTREAM
    assert starts["TensorZero"].port is None
    portkey = next(peer for peer in PEERS if peer.name == "Portkey")
    assert portkey.headers(UPSTREAM)["x-portkey-custom-host"] == UPSTREAM


def test_a_peer_that_says_its_port_is_found() -> None:
    """The line is found among others; a log without it has no port yet."""
    assert peers._port_in("INFO x\nlistens on http://127.0.0.1:41297/openai/v1/\n") == 41297
    assert peers._port_in("see http://127.0.0.1:1/\n") is None


def test_an_installation_is_kept_and_a_missing_installer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed already is not installed again; without npm the reason says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    portkey = next(peer for peer in PEERS if peer.installer == "npm")
    with pytest.raises(Unavailable, match="npm is not installed"):
        peers.install(portkey, tmp_path, lambda line: None)
    folder = tmp_path / "portkey"
    (folder / ".installed").write_text(" ".join(portkey.packages))
    assert peers.install(portkey, tmp_path, pytest.fail) == folder


def test_a_peer_that_ends_at_its_start_says_why(tmp_path: Path) -> None:
    """The reason is the last line that it wrote."""
    command = [sys.executable, "-c", "print('hello'); raise SystemExit('a licence is needed')"]
    peer = Peer("Broken", "pip", (), lambda folder, upstream: Start(command, 1))
    ended = pytest.raises(Unavailable, match="ended at its start: a licence is needed")
    with ended, peers.started(peer, tmp_path, UPSTREAM):
        pass
    absent = Peer("Absent", "pip", (), lambda folder, upstream: Start([str(tmp_path / "none")], 1))
    with pytest.raises(Unavailable, match="does not start"), peers.started(absent, tmp_path, UPSTREAM):
        pass
