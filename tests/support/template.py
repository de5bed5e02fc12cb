"""Start gateways as forks of one process that has every library imported: a start takes a third of the CPU time.

`Template.start` gives a `Forked`, which is to a test what `subprocess.Popen` is. The fork takes the arguments, the
environment and the descriptors that it would have been started with, and runs the command line. Some modules draw ids,
or seed what draws them, when they are imported; a fork draws these anew, as no two gateways may have the same.

Started as a module, this is the process that is forked: it reads requests from its stdin, which is a socket.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_LAZY = (
    "gateway.cli.main",
    "gateway.server.http_protocol",
    "httptools",
    "httpx2",
    "orjson",
    "safetensors.numpy",
    "scipy.special",
    "tokenizers",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvloop",
)
"""Modules that a gateway imports while it starts, not with those of its command."""
_REQUEST_BYTES = 1 << 20


class Forked:
    """A process that is a fork of the template: what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, args: Sequence[str], said: socket.socket) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._said = said

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; minus a signal's number if that ended it."""
        if self.returncode is None:
            ready, _, _ = select.select([self._said], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._said.recv(64))
            self._said.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that is forked, with the environment `env`; it ends when this one does."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-m", __name__], cwd=_ROOT, env=dict(env), stdin=theirs)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends it; the forks go on."""
        self._socket.close()
        self._process.wait(10)

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int | None = None,
        folder: Path = _ROOT,
    ) -> Forked:
        """Start `python -m gateway` with these arguments and this environment, in `folder`.

        Its stdout is the descriptor `output`, its stderr `errors`, or `output` too.
        """
        said, theirs = socket.socketpair()
        with theirs:
            request = json.dumps([list(arguments), dict(env), str(folder)]).encode()
            descriptors = [output, output if errors is None else errors, theirs.fileno()]
            socket.send_fds(self._socket, [len(request).to_bytes(4, "big")], descriptors)
            self._socket.sendall(request)
        return Forked(int(said.recv(64)), ("python", "-m", "gateway", *arguments), said)


@functools.cache
def template() -> Template:
    """The one of this test process, started when the first gateway is."""
    from tests.support.gateway import environment

    return Template(environment())


def run_command(
    *arguments: str, env: Mapping[str, str], folder: Path = _ROOT, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run `tierline` with these arguments as a fork, to its end; return what `subprocess.run` of it would."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        forked = template().start(arguments, env, output.fileno(), errors.fileno(), folder)
        try:
            code = forked.wait(timeout_s)
        except subprocess.TimeoutExpired:
            forked.kill()
            raise
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (output, errors)]
    return subprocess.CompletedProcess(forked.args, code, *texts)


def _serve_forks() -> None:
    """Fork at each request, until nobody is left to ask; returns in a fork, with its arguments as `sys.argv`."""
    with socket.socket(fileno=os.dup(0)) as asked:
        while True:
            size, descriptors, _, _ = socket.recv_fds(asked, 4, 3)
            if not size:
                os._exit(0)
            request = asked.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
            arguments, env, folder = json.loads(request)
            if _fork(*descriptors):
                break
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["tierline", *arguments]


def _fork(output: int, errors: int, answers: int) -> bool:
    """Whether this is the new gateway. A process between us and it reports its pid, and later its exit code."""
    if os.fork():
        for descriptor in (output, errors, answers):
            os.close(descriptor)
        return False
    if pid := os.fork():
        os.write(answers, str(pid).encode())
        os.closerange(0, answers)
        _, status = os.waitpid(pid, 0)
        os.write(answers, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in (nothing, output, errors, answers):
        os.close(descriptor)
    return True


def _import_gateway() -> None:
    """Import what a gateway imports before it serves."""
    import gc
    from importlib import import_module

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("gateway.cli.commands.serve", "gateway.server.server", *_LAZY):
        import_module(name)
    _read_what_is_shipped()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lack the other threads"


def _read_what_is_shipped() -> None:
    """Have built what is built once in a process, and the shipped models: half the time that a start takes.

    Those are the validators of the config and the policies, tokenizers, lexicons, lists of words and the version.
    """
    from cache.semantic.verifier import Verifier, shipped_verifier
    from cache.text.languages import foreign_languages
    from gateway.config.launch import Launch
    from gateway.version import version
    from routing.difficulty.model import DifficultyModel, shipped_artefact
    from routing.embedder import StaticEmbedder

    launch = Launch()
    deployment = launch.deployment({})
    launch.policy_source(deployment).load()
    if (foreign := foreign_languages()) is not None:
        foreign.load()
    version()
    kind = deployment.embedding.kind
    _keep(StaticEmbedder)
    _keep(DifficultyModel, shipped_artefact(kind), StaticEmbedder.load())
    _keep(Verifier, shipped_verifier(kind))


def _keep(model: Any, *arguments: Any) -> None:
    """Load a model; have `load` return it for these arguments, and load whatever else it is asked for."""
    name, load = "load", model.load
    loaded = load(*arguments)
    setattr(model, name, lambda *others, **named: load(*others, **named) if named or others != arguments else loaded)


def _draw_ids() -> None:
    """Draw anew what the template's modules drew when they were imported."""
    from cache import flights

    flights.WORKER = secrets.token_hex(6)  # type: ignore[misc]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("gateway", "cache", "routing")]:
        for value in vars(sys.modules[name]).values():
            if isinstance(value, random.Random):
                value.seed()


def _leave() -> None:
    """End a fork whose command has returned: freeing all that it has would take as long as starting it did."""
    if _code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_code)


_code: int | None = None

if __name__ == "__main__":
    if "coverage" not in sys.modules:  # what is registered first is called last, but for what measures
        atexit.register(_leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_gateway()
    _serve_forks()
    _draw_ids()
    from gateway.cli.main import main

    _code = int(main())
    raise SystemExit(_code)
