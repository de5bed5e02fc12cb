"""Other gateways in the same rounds as ours: `python -m tests.bench.against --peers`.

LiteLLM, Portkey and TensorZero are installed from the package registries under `build/peers`, which `make clean`
removes, and each runs as one process on the gateway's core over the raw upstream. A peer that cannot be installed or
started is a line that says why.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.bench import measure
from tests.bench.load import Subject
from tests.bench.rig import Service, listens, stopped
from tests.support.gateway import ROOT, environment, free_port
from tests.support.wait import until

HOME = ROOT / "build" / "peers"
_INSTALL_S = 900
_START_S = 90
_WARM = 20


class Unavailable(Exception):
    """Why a peer is not measured, as its row says it."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a peer's process is started. Without `port` the peer chooses one, and writes its URL to its log."""

    command: Sequence[str]
    port: int | None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway of others: the package it comes in, how it is configured and started, and how it is asked.

    `configure` writes what the peer needs into the folder of its installation, for an upstream's base URL.
    """

    name: str
    installer: str
    """`pip` or `npm`."""
    packages: tuple[str, ...]
    configure: Callable[[Path, str], Start]
    model: str = "bench"
    target: str = "/v1/chat/completions"
    headers: Callable[[str], Mapping[str, str]] = lambda upstream: {}


def _litellm(folder: Path, upstream: str) -> Start:
    port = free_port()
    model = {"model": "openai/bench", "api_base": upstream, "api_key": "none"}
    settings = {"model_list": [{"model_name": "bench", "litellm_params": model}]}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    command = [str(folder / "bin" / "litellm"), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    return Start(command, port, {**local, "LITELLM_RUST": "true", "LITELLM_LOG": "ERROR"})


def _portkey(folder: Path, upstream: str) -> Start:
    port = free_port()
    script = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    return Start(["node", str(script), f"--port={port}", "--headless"], port)


_TENSORZERO = """
import signal, sys
import openai, tensorzero
client = tensorzero.patch_openai_client(openai.OpenAI(api_key="none"), config_file=sys.argv[1], async_setup=False)
print("listens on", client.base_url, flush=True)
signal.pause()
"""
"""Its Python package serves the HTTP server of this gateway from a Python process, without a container."""


def _tensorzero(folder: Path, upstream: str) -> Start:
    (folder / "tensorzero.toml").write_text(
        "[gateway]\nobservability.enabled = false\n\n"
        '[models.bench]\nrouting = ["upstream"]\n\n'
        f'[models.bench.providers.upstream]\ntype = "openai"\napi_base = "{upstream}"\n'
        'model_name = "bench"\napi_key_location = "none"\n'
    )
    command = [str(folder / "bin" / "python"), "-c", _TENSORZERO, str(folder / "tensorzero.toml")]
    return Start(command, None, {"TENSORZERO_DISABLE_PSEUDONYMOUS_USAGE_ANALYTICS": "1"})


PEERS = (
    Peer(
        "TensorZero",
        "pip",
        ("tensorzero==2026.6.0", "openai"),
        _tensorzero,
        model="tensorzero::model_name::bench",
        target="/openai/v1/chat/completions",
    ),
    Peer(
        "Portkey",
        "npm",
        ("@portkey-ai/gateway@1.15.2",),
        _portkey,
        headers=lambda upstream: {
            "authorization": "Bearer none",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": upstream,
        },
    ),
    Peer("LiteLLM", "pip", ("litellm[proxy]==1.108.4",), _litellm),
)


def install(peer: Peer, home: Path, say: measure.Say) -> Path:
    """Installs a peer, unless these packages are installed already; returns its folder."""
    folder = home / peer.name.lower()
    done = folder / ".installed"
    wanted = " ".join(peer.packages)
    if done.exists() and done.read_text() == wanted:
        return folder
    say(f"{peer.name}: installing {wanted} into {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if peer.installer == "npm":
        _install(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *peer.packages])
    else:
        _install([sys.executable, "-m", "venv", str(folder)])
        _install([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", *peer.packages])
    done.write_text(wanted)
    return folder


def _install(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as late:
        raise Unavailable(f"its installation took more than {_INSTALL_S} s") from late
    if ended.returncode:
        raise Unavailable(f"its installation failed: {_last_line(ended.stderr)}")


@contextmanager
def started(peer: Peer, folder: Path, upstream: str) -> Iterator[Subject]:
    """The peer's process over this upstream, and how it is asked; raises Unavailable when it does not start."""
    start = peer.configure(folder, upstream)
    log = folder / "log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                start.command, stdout=output, stderr=subprocess.STDOUT, env=environment(**start.env), cwd=folder
            )
        except OSError as error:
            raise Unavailable(f"it does not start: {error}") from error
    with stopped(process):

        def port() -> int | None:
            if process.poll() is not None:
                raise Unavailable(f"it ended at its start: {_last_line(log.read_text(errors='replace'))}")
            found = start.port or _port_in(log.read_text(errors="replace"))
            return found if found and listens(found) else None

        try:
            service = Service(peer.name, until(port, _START_S) or 0, process.pid)
        except AssertionError as late:
            raise Unavailable(f"it does not listen after {_START_S} s") from late
        yield Subject(peer.name, service, peer.model, target=peer.target, headers=peer.headers(upstream))


def _port_in(log: str) -> int | None:
    found = re.search(r"^listens on http://[^:/]+:(\d+)", log, re.MULTILINE)
    return int(found[1]) if found else None


def check_answer(peer: Subject, direct: Subject) -> None:
    """Raises Unavailable unless the peer returns what the upstream answers."""
    try:
        for _ in range(_WARM):
            here, there = (_content(measure.reply_to(subject)[1]) for subject in (peer, direct))
            if here != there:
                raise Unavailable(f"it answers {here!r} where the upstream answers {there!r}")
    except (OSError, ValueError, KeyError, measure.NotAsMeant) as error:
        raise Unavailable(f"it does not answer: {_last_line(str(error))}") from error


def _content(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it says nothing"


def installed(home: Path, say: measure.Say) -> tuple[dict[str, Path], dict[str, str]]:
    """Install the peers; return the folders of those that are there, and why the others are missing."""
    missing: dict[str, str] = {}
    folders: dict[str, Path] = {}
    for peer in PEERS:
        try:
            folders[peer.name] = install(peer, home, say)
        except Unavailable as why:
            missing[peer.name] = str(why)
    return folders, missing


def running(
    folders: Mapping[str, Path], direct: Subject, stack: ExitStack, missing: dict[str, str], say: measure.Say
) -> dict[str, Subject]:
    """Start the installed peers over the model server `direct`, until `stack` is closed; `missing` gets why not."""
    subjects: dict[str, Subject] = {}
    for peer in PEERS:
        if peer.name not in folders:
            continue
        say(f"{peer.name}: starting")
        try:
            upstream = f"http://127.0.0.1:{direct.service.port}/v1"
            subject = stack.enter_context(started(peer, folders[peer.name], upstream))
            check_answer(subject, direct)
            subjects[peer.name] = subject
        except Unavailable as why:
            missing[peer.name] = str(why)
    return subjects
