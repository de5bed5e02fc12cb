"""`python -m tests.bench.starts [--rounds N] [--only KIND ... | --core-alone REF] [--json]`: a start, and its memory.

What a user does is measured: `tierline serve` with the config and the policies that ship (both caches, classifier,
verifier, confidence head), a store, and both tiers answered by a scripted model. The start ends with the first 200 of
`POST /v1/chat/completions`; the first start, which compiles modules and reads from disk, does not count. CPU is user
and system time of the gateway until then: unlike the wall clock, it does not count the wait for a core. The raw proxy
(uvicorn and aiohttp) starts in the same rounds: a machine that is slow at the moment is slow for both.

Memory is read a second after the first reply: resident (RSS), with shared pages divided among those that share them
(PSS), and what is the gateway's alone (USS). The exit code is 1 where the static embedding misses a goal.

`--core-alone REF` compares the core of this tree, every part deleted, with the whole gateway of a commit, in turns, on
one interpreter, with one config of two tiers without a cross-encoder; memory is read after 1,000 distinct requests.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from gateway.config.loader import default_config
from gateway.parts.standard import PARTS
from tests.bench.builds import packed
from tests.bench.command import BenchFigure, bench_parser, report
from tests.bench.load import Subject, send
from tests.bench.measure import Figures, NotAsMeant, Say, ask
from tests.bench.rig import Service, choose_cores, cpu_s, memory_mb, on_core, raw_model, raw_proxy, stopped
from tests.support.gateway import ROOT, START_S, config, environment, write_deployment
from tests.support.ports import free_port
from tests.support.store import local_store
from tests.support.wait import until

_POLL_S = 0.02
"""How often a gateway that starts is asked: not so often that the asking slows the start."""
_REST_S = 1.0
REQUESTS = 1000
_JSON = {"content-type": "application/json"}
FAST = "fast"
"""Static vectors and no cross-encoder."""

GOALS = {
    "start_s": ("start to the first reply, s", 1.0),
    "cpu_s": ("start to the first reply, s of CPU", 1.0),
    "rss_mb": ("idle memory of the gateway, RSS, MB", 120.0),
}
"""What one figure of the static embedding may be at most."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds of the clock and of CPU until the first reply, then the idle gateway's memory in MB."""

    start_s: float
    cpu_s: float
    rss_mb: float
    pss_mb: float
    uss_mb: float


def kinds() -> list[str]:
    """The embeddings that can be had here, the static one with the cross-encoder and without."""
    return ["static", FAST, *(["minilm"] if importlib.util.find_spec("onnxruntime") else [])]


def starts(folder: Path, times: int, asked: Sequence[str], say: Say) -> dict[str, Figures]:
    """Medians over so many starts, by embedding; `least_` is the least, which other load on the machine moves least."""
    core = choose_cores().gateway
    runs: dict[str, list[Start]] = {kind: [] for kind in ("raw", *asked)}
    with raw_model() as model, local_store() as store:
        upstream = model.port
        for number in range(times + 1):
            for kind, each in runs.items():
                say(f"start {number} of {times}: {kind}")
                with on_core(core):
                    run = _raw_start(upstream) if kind == "raw" else _start(folder, kind, upstream, store.url)
                if number > 0:
                    each.append(run)
    return {kind: _figures(each) for kind, each in runs.items()}


def _figures(runs: Sequence[Start]) -> Figures:
    rows = [asdict(run) for run in runs]
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return medians | {f"least_{name}": min(row[name] for row in rows) for name in ("start_s", "cpu_s")}


def _raw_start(upstream: int) -> Start:
    began = time.perf_counter()
    with raw_proxy(upstream) as proxy:
        ask(Subject("raw", proxy))
        start_s, used_s = time.perf_counter() - began, cpu_s(proxy.pid)
        return Start(start_s, used_s, *memory_mb(proxy.pid))


def _start(folder: Path, kind: str, upstream: int, store_url: str) -> Start:
    return shipped(ROOT, folder, upstream, store_url, environment(), kind)


def shipped(
    tree: Path, folder: Path, upstream: int, store_url: str, env: Mapping[str, str], kind: str = "static"
) -> Start:
    """Start the gateway of a tree with the config and the policies that ship in it, over one scripted model."""
    url, file = f"http://127.0.0.1:{upstream}/v1", folder / f"{kind}.yaml"
    text = (tree / default_config().relative_to(ROOT)).read_text()
    file.write_text(f"{text}\ncross_encoder: none\n" if kind == FAST else text.replace("kind: static", f"kind: {kind}"))
    own = {"TIERLINE_LOCAL_BASE_URL": url, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-bench"}
    own |= {"TIERLINE_STORE_URL": store_url, "TIERLINE_STATE": str(ROOT / ".state")}
    with _started(tree, ["--config", str(file)], {**env, **own}, folder / "start.log") as (_, begun):
        return begun()


@contextmanager
def _started(
    tree: Path, arguments: Sequence[str], env: Mapping[str, str], log: Path
) -> Iterator[tuple[int, Callable[[], Start]]]:
    """Run `serve` of a tree until its first 200; yield its port, and what reads its memory after a rest."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "gateway", "serve", *arguments, "--port", str(port)]
    own = {"PYTHONPATH": str(tree), **env}
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules
    with log.open("wb") as output:
        began = time.perf_counter()
        gateway = subprocess.Popen(command, cwd=tree, env=own, stdout=output, stderr=output)
    with stopped(gateway):
        until(partial(_answers, gateway, port, log), START_S, "the first reply", _POLL_S)
        start_s, used_s = time.perf_counter() - began, cpu_s(gateway.pid)

        def read() -> Start:
            time.sleep(_REST_S)
            return Start(start_s, used_s, *memory_mb(gateway.pid))

        yield port, read


def core_alone(folder: Path, ref: str, times: int, say: Say) -> dict[str, Figures]:
    """Return medians of the core alone and of the gateway at `ref`, and the core's divided by those (`ratio`)."""
    trees = {"core": packed(folder, "core", "HEAD").tree, ref: packed(folder, "ref", ref).tree}
    for part in PARTS:
        shutil.rmtree(trees["core"] / "gateway" / "parts" / part.name)
    core = choose_cores().gateway
    runs: dict[str, list[Start]] = {name: [] for name in trees}
    with raw_model() as model, local_store() as store:
        url = f"http://127.0.0.1:{model.port}/v1"
        write_deployment(folder, config(url, url, store.url))
        arguments = ["--config", str(folder / "tierline.yaml"), "--policies", str(folder / "policies")]
        env = environment(HOSTED_KEY="sk-bench")
        for number in range(times + 1):
            for name, tree in trees.items():
                say(f"start {number} of {times}: {name}")
                with on_core(core), _started(tree, arguments, env, folder / "start.log") as (port, begun):
                    subject = Subject(name, Service(name, port, 0), "chat")
                    send(port, (subject.request(f"How do I bake bread no. {n}?") for n in range(REQUESTS)), 1)
                    run = begun()
                if number > 0:
                    runs[name].append(run)
    figures = {name: _figures(each) for name, each in runs.items()}
    return figures | {"ratio": {name: value / figures[ref][name] for name, value in figures["core"].items()}}


def _answers(gateway: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Return whether the gateway listens already; its first reply must be a 200."""
    if gateway.poll() is not None:
        raise NotAsMeant(f"the gateway ended with {gateway.returncode} at its start: {log.read_text()[-500:]}")
    body = json.dumps(
        {"model": "chat", "messages": [{"role": "user", "content": "How do I bake bread?"}], "seed": port}
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
    with contextlib.closing(connection):
        try:
            connection.request("POST", "/v1/chat/completions", body, _JSON)
        except ConnectionRefusedError:
            return False
        reply = connection.getresponse()
        text = reply.read()
    if reply.status != 200:
        raise NotAsMeant(f"the first reply was {reply.status}: {text[:500].decode(errors='replace')}")
    return True


def _as_table(figures: Mapping[str, Figures]) -> str:
    names = [*next(iter(figures.values()))]
    rows = [("", *names), *((row, *(f"{each[name]:.2f}" for name in names)) for row, each in figures.items())]
    return "\n".join("".join(f"{cell:>14}" for cell in cells) for cells in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table and the goals; 1 where one is missed."""
    parser = bench_parser("starts", __doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how many starts of each kind (default 5)")
    parser.add_argument("--only", nargs="+", choices=kinds(), default=kinds(), help="these only")
    parser.add_argument("--core-alone", metavar="REF", help="compare the core of HEAD with the gateway of this commit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tierline-starts-") as name:
        folder, say = Path(name), partial(print, file=sys.stderr, flush=True)
        if asked.core_alone:
            figures = core_alone(folder, asked.core_alone, asked.rounds, say)
            print(json.dumps(figures, indent=2) if asked.json else _as_table(figures))
            return 0
        found = starts(folder, asked.rounds, asked.only, say)
    goals = GOALS.items() if "static" in found else ()
    figures = [BenchFigure(what, found["static"][name], most) for name, (what, most) in goals]
    if asked.json:
        print(json.dumps(found, indent=2))
        return 0 if all(figure.met for figure in figures) else 1
    print(_as_table(found))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
