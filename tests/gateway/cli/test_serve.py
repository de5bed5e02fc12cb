"""`tierline serve` that cannot: one clear line, an exit code, and no worker tried again and again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.config.loader import default_config
from tests.support.gateway import environment
from tests.support.template import run_command

SECRET = "PW-canary-2718281828"


def refused(*arguments: str, **env: str) -> tuple[int, list[str]]:
    """The exit code and what was said, of a start that must fail."""
    done = run_command("serve", "--port", "0", *arguments, env=environment(**env))
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("url", [f"http://u:{SECRET}@h", f"redis://u:{SECRET}@h:notaport", f"redis://h/0?{SECRET}=1"])
def test_a_bad_store_url_is_one_line_without_it(url: str, workers: str) -> None:
    """Whatever the number of workers, the start is refused and the password stays where it was."""
    code, (line,) = refused("--workers", workers, TIERLINE_STORE_URL=url)
    assert code == 2
    assert "store.url: the store's URL must be redis://" in line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_only_shows_when_it_is_put_together_is_said_too(tmp_path: Path, workers: str) -> None:
    """A part that refuses what it is given ends the start; no worker is tried again."""
    (tmp_path / "classifier").mkdir()
    config = tmp_path / "tierline.yaml"
    config.write_text(default_config().read_text() + "classifier: classifier\n")
    code, lines = refused("--workers", workers, "--config", str(config))
    assert code == 2
    assert lines[0].startswith(f"tierline: {tmp_path}/classifier/difficulty.json cannot be read")
    assert "Traceback" not in "".join(lines)


def test_a_broken_cross_encoder_is_one_line(tmp_path: Path) -> None:
    """It names the folder and what is missing there."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "sheet.json").write_text("{}")
    config = tmp_path / "tierline.yaml"
    config.write_text(default_config().read_text() + "cross_encoder: model\n")
    code, lines = refused("--config", str(config))
    assert code == 2
    assert lines[0].startswith(f"tierline: {tmp_path}/model: neither onnx/model.onnx nor model.onnx is there")
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_one_line(workers: str) -> None:
    """It names the address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = refused("--port", str(port), "--workers", workers)
    assert (code, lines) == (2, [f"tierline: cannot listen on 127.0.0.1:{port}: Address already in use"])


def test_a_metrics_folder_that_cannot_be_had_is_one_line() -> None:
    """It names the folder and the variable."""
    code, (line,) = refused("--workers", "2", PROMETHEUS_MULTIPROC_DIR="/dev/null/metrics")
    assert code == 2
    assert "cannot share metrics through /dev/null/metrics (PROMETHEUS_MULTIPROC_DIR)" in line
