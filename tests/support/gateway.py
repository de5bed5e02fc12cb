"""The real gateway as the process a user would start, in front of scripted upstreams.

    with serve(folder, local=local.url, hosted=hosted.url) as gateway:
        openai.OpenAI(base_url=gateway.url, api_key="any")

`folder` gets the config and the policies; their texts can be given, or read and edited there while it runs.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port
from tests.support.template import Forked, template
from tests.support.wait import until

ROOT = Path(__file__).parents[2]
_POLL_S = 0.02
"""How often a gateway that starts is asked: not so often that the asking slows the start."""
START_S = 60.0
"""How long a start may take before it is a failure; two seconds are the aim, on a machine that does nothing else."""

_OF_FORKS = re.compile("TIERLINE_|AWS_|GOOGLE_|[A-Z_]*KEY(_[A-Z]+)?$|PYTHONUNBUFFERED$")
"""Variables that a fork of the template may have: ours and keys are read when the gateway starts, the clouds' libraries
are imported when they are first needed, and the template has the last."""

CHAT = """
surface: chat
match: {models: [chat, gpt-4o-mini]}
slo: {deadline: 20s}
holdout: 0%  # chance has no place in a test
tiers: [local, hosted]
route:
  classifier: none
  start: {local: otherwise}
escalate:
  when: {confidence_below: 0.5, invalid: [json, tool_args]}
  no_signal: accept
  stream: {hold_tokens: 4, hold_max: 250ms}
cache:
  exact: {ttl: 1h}
"""
"""A policy that starts every request on the local tier, lets it escalate, and caches equal requests."""


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs. `log()` is what it wrote to stdout and stderr so far."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | Forked

    @property
    def url(self) -> str:
        """The base URL, as an OpenAI client wants it."""
        return f"{self.origin}/v1"

    @property
    def origin(self) -> str:
        """The URL without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def policies(self) -> Path:
        """The folder of its policies, to edit while it runs."""
        return self.folder / "policies"

    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "gateway.log").read_text()

    def stop(self) -> int:
        """Ends it as Ctrl-C does, and gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


def config(local: str, hosted: str | None, store_url: str | None = None, **more: Any) -> dict[str, Any]:
    """A deployment of two tiers, at these base URLs; `more` are further top-level keys. No `hosted`: no key for it.

    It has no cross-encoder unless `more` names one: what most tests are about needs none, and it takes time to open.
    """
    local_backend = {"base_url": local, "model": "small", "capabilities": ["tools", "json"]}
    hosted_backend = {
        "base_url": hosted or "http://127.0.0.1:9/v1",
        "model": "large",
        "key_env": "HOSTED_KEY",
        "price": {"input": 2.5, "output": 10},
        "capabilities": ["tools", "json", "vision"],
    }
    tiers = [{"name": "local", "backends": [local_backend]}, {"name": "hosted", "backends": [hosted_backend]}]
    return {"tiers": tiers, "cross_encoder": "none"} | ({"store": {"url": store_url}} if store_url else {}) | more


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would change a gateway, and with `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "TIERLINE_", "OTEL_", "HOSTED_KEY"))}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


@contextmanager
def serve(
    folder: Path,
    local: str,
    hosted: str | None = None,
    *,
    store_url: str | None = None,
    policies: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    output: int | None = None,
) -> Iterator[Gateway]:
    """A gateway over these tiers, alive from the first line of the block to its end; see `running`."""
    write_deployment(folder, config(local, hosted, store_url, **(settings or {})), policies)
    with running(folder, environment(**secrets_of(hosted, env)), output=output, forked=True) as gateway:
        yield gateway


def write_deployment(folder: Path, deployment: Mapping[str, Any], policies: Mapping[str, str] | None = None) -> None:
    """Write `tierline.yaml` and the policies, by default CHAT, into `folder`."""
    write_policies(folder / "policies", policies or {"chat": CHAT})
    (folder / "tierline.yaml").write_text(yaml.safe_dump(dict(deployment), sort_keys=False))


def secrets_of(hosted: str | None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment's part of a deployment: the hosted tier's key where there is one, and `env`."""
    return ({"HOSTED_KEY": "sk-scripted"} if hosted else {}) | dict(env or {})


@contextmanager
def running(
    folder: Path,
    env: Mapping[str, str],
    *arguments: str,
    output: int | None = None,
    launcher: Sequence[str] = ("-m", "gateway"),
    forked: bool = False,
) -> Iterator[Gateway]:
    """`python -m gateway serve` on the config and the policies in `folder`; stopped at the end, killed if need be.

    What it says goes to the descriptor `output`, if there is one, and not to its `log()`. `launcher` stands for
    `-m gateway` where another module is to run it.

    `forked`: as a fork of `tests.support.template`, which costs a third, unless `env` has variables that a library may
    read when it is imported. What is measured is not forked: it would share memory, and cores, with the template.
    """
    port = free_port()
    command = ["serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--config", str(folder / "tierline.yaml"), "--policies", str(folder / "policies"), *arguments]
    changed = {name for name, value in env.items() if not _OF_FORKS.match(name) and value != os.environ.get(name)}
    process: subprocess.Popen[bytes] | Forked
    with (folder / "gateway.log").open("wb") as log:
        said = log.fileno() if output is None else output
        if forked and not changed:
            process = template().start(command, env, said)
        else:
            command = [sys.executable, *launcher, *command]
            process = subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=said, stderr=subprocess.STDOUT)
    gateway = Gateway(port, folder, process)
    try:
        until(lambda: _answers(gateway), START_S, "the gateway's /healthz", _POLL_S)
        yield gateway
        gateway.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def write_policies(folder: Path, policies: Mapping[str, str]) -> None:
    """One YAML file a policy, named by its surface."""
    folder.mkdir(parents=True, exist_ok=True)
    for surface, text in policies.items():
        (folder / f"{surface}.yaml").write_text(text)


def _answers(gateway: Gateway) -> bool:
    code = gateway.process.poll()
    if code is not None:
        raise AssertionError(f"the gateway ended with {code} at its start:\n{gateway.log()}")
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=1)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
