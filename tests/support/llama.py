"""Serve the model that ships with Tierline by llama.cpp, as `tierline up` does, beside a gateway of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from gateway.parts.local.local_model import find_gguf
from tests.support.gateway import ROOT
from tests.support.ports import free_port
from tests.support.wait import until

KEY = "key-of-the-local-model"
_START_S = 120.0


def shipped() -> Path:
    """Return the file of the model that ships."""
    return find_gguf(None)[0]


@contextmanager
def llama(folder: Path, *options: str) -> Iterator[str]:
    """Serve it with one slot and these options of `gateway.parts.local.local_tier`; provide its base URL."""
    port = free_port()
    argv = [sys.executable, "-m", "gateway.parts.local.local_tier", "--gguf", str(shipped()), "--port", str(port)]
    argv += ["--slots", "1", "--context", "1024", "--alias", "small", *options]
    with (folder / f"llama-{port}.log").open("wb") as log:
        server = subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, "LLAMA_API_KEY": KEY}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: _is_healthy(server, port), _START_S, "the local model")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()


def _is_healthy(server: subprocess.Popen[bytes], port: int) -> bool:
    if (code := server.poll()) is not None:
        raise AssertionError(f"llama.cpp ended with {code} at its start")
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200
    except httpx2.TransportError:
        return False
