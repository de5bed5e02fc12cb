"""The supervisor's parts, with small real programs as children; `tierline up` as a whole is in tests/integration."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.launch import Launch
from gateway.config.loader import default_config
from gateway.parts.local import CannotStart
from gateway.parts.local.banner import OWN_KEY, BannerFacts, BannerRow, render
from gateway.parts.local.child import MAX_BACKOFF_S, MAX_LOG_BYTES, Child, ChildSpec, backoff_s, last_lines, rotate_log
from gateway.parts.local.family import Family
from gateway.parts.local.local_model import find_gguf
from gateway.parts.local.plan import make_plan
from gateway.parts.local.roles import Listen
from gateway.parts.local.state import Up, claimed_folder, free_port
from gateway.parts.local.store_child import store_child
from tests.support.processes import ignoring, is_alive
from tests.support.wait import eventually as auntil
from tests.support.wait import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")


def shell(folder: Path, script: str, *, name: str = "child", grace_s: float = 5.0, vital: bool = False) -> ChildSpec:
    """A child that runs `script` in sh and is ready once it has made the file `NAME.ready`."""
    ready = folder / f"{name}.ready"

    async def is_ready() -> bool:
        return ready.exists()

    argv = ("sh", "-c", script.replace("READY", f"touch {shlex.quote(str(ready))}"))
    return ChildSpec(name, argv, dict(os.environ), folder / f"{name}.log", is_ready, grace_s, vital)


@contextlib.asynccontextmanager
async def watched(spec: ChildSpec, said: list[str]) -> AsyncIterator[Child]:
    """The child and its watcher, stopped at the end."""
    child = Child(spec, said.append)
    run = asyncio.create_task(child.run())
    try:
        yield child
    finally:
        await child.stop()
        with contextlib.suppress(CannotStart):
            await run


async def test_a_killed_child_is_restarted_and_said_once_when_it_goes_and_once_when_it_is_back(tmp_path: Path) -> None:
    """Killing a child gives a new process at once, and exactly two lines."""
    said: list[str] = []
    async with watched(shell(tmp_path, "READY; sleep 60"), said) as child:
        await auntil(lambda: child.ready)
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await auntil(lambda: child.ready and child.pid not in (None, first))
        await auntil(lambda: len(said) == 2)
    assert "was killed by SIGKILL; restarting it" in said[0]
    assert "is back after" in said[1]


async def test_an_outage_of_many_tries_is_said_once(tmp_path: Path) -> None:
    """While a child fails again and again, nothing is said between the first exit and its return."""
    said: list[str] = []
    script = "echo try >> tries; if [ -e broken ]; then rm -f child.ready; exit 1; fi; READY; sleep 60"
    async with watched(shell(tmp_path, f"cd {shlex.quote(str(tmp_path))}; {script}"), said) as child:
        await auntil(lambda: child.ready)
        (tmp_path / "broken").touch()
        (tmp_path / "child.ready").unlink()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await auntil(lambda: (tmp_path / "tries").read_text().count("try") >= 4)
        (tmp_path / "broken").unlink()
        await auntil(lambda: child.ready)
    assert [line.split(";")[0].split(" after")[0] for line in said] == ["child was killed by SIGKILL", "child is back"]


async def test_a_child_that_cannot_start_is_said_with_its_last_words(tmp_path: Path) -> None:
    """After five quick failures the log's last lines are shown, and the child is still tried."""
    said: list[str] = []
    async with watched(shell(tmp_path, "echo no model here >&2; exit 1"), said) as child:
        await asyncio.wait_for(child.settled.wait(), 10)
        assert not child.ready
    assert len(said) == 1
    assert "exited with code 1, 5 times in a row" in said[0]
    assert said[0].endswith("no model here")


async def test_a_vital_child_that_says_a_person_must_act_is_not_tried_again(tmp_path: Path) -> None:
    """Exit code 2 of a vital child at its first start ends the supervisor, with the child's words."""
    spec = shell(tmp_path, "echo policies/chat.yaml:3: unknown key >&2; exit 2", vital=True)
    child = Child(spec, pytest.fail)
    with pytest.raises(CannotStart, match="unknown key"):
        await asyncio.wait_for(child.run(), 2)
    assert last_lines(spec.log, 0) == ["policies/chat.yaml:3: unknown key"]


async def test_an_end_is_noticed_while_a_probe_waits(tmp_path: Path) -> None:
    """A socket that the supervisor holds takes the probe's connection, which nobody answers if the child has ended."""

    async def is_ready() -> bool:
        await asyncio.sleep(60)
        return True

    spec = replace(shell(tmp_path, "echo no such model >&2; exit 2", vital=True), is_ready=is_ready)
    with pytest.raises(CannotStart, match="no such model"):
        await asyncio.wait_for(Child(spec, pytest.fail).run(), 5)


async def test_a_childs_listeners_are_opened_once_and_closed_with_it(tmp_path: Path) -> None:
    """A connection stays open while the child starts again; at the end, or where a port is taken, none is held."""
    ports = free_port(), free_port()
    address = ("127.0.0.1", ports[0])
    spec = replace(shell(tmp_path, "READY; exec sleep 60"), listens=(address,))
    with contextlib.ExitStack() as stack:
        async with watched(spec, []) as child:
            await auntil(lambda: child.ready)
            waiting = stack.enter_context(socket.create_connection(address, 2))
            first = child.pid
            os.kill(first or 0, signal.SIGKILL)
            await auntil(lambda: child.ready and child.pid not in (None, first))
            waiting.setblocking(False)
            with pytest.raises(BlockingIOError):  # neither an answer nor an end
                waiting.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 2)
        stack.enter_context(socket.create_server(("127.0.0.1", ports[1])))
        taken = replace(spec, listens=(address, ("127.0.0.1", ports[1])))
        with pytest.raises(CannotStart, match=f"port {ports[1]}: Address already in use"):
            await Child(taken, pytest.fail).run()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 2)


async def test_a_program_that_does_not_exist_is_a_failed_start(tmp_path: Path) -> None:
    """A missing program ends a vital child's run with the reason, not with a traceback."""
    spec = shell(tmp_path, "", vital=True)
    missing = ChildSpec("child", ("/nonexistent/program",), {}, spec.log, spec.is_ready, vital=True)
    with pytest.raises(CannotStart, match="No such file"):
        await asyncio.wait_for(Child(missing, pytest.fail).run(), 10)


async def test_stopping_kills_what_ignores_sigterm_and_everything_it_started(tmp_path: Path) -> None:
    """A deaf child and its own child are gone after the grace."""
    said: list[str] = []
    script = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/grandchild; READY; while true; do sleep 1; done"
    async with watched(shell(tmp_path, script, grace_s=0.2), said) as child:
        await auntil(lambda: child.ready)
        pids = [child.pid or 0, int((tmp_path / "grandchild").read_text())]
        assert all(map(is_alive, pids))
        await asyncio.wait_for(child.stop(), 3)
    await auntil(lambda: not any(map(is_alive, pids)))
    assert said == ["child did not stop within 0.2 s; killed"]


async def test_what_a_killed_child_leaves_behind_is_gone_before_the_next_start(tmp_path: Path) -> None:
    """When a child is killed, its own children do not live on to hold its port."""
    script = f"sleep 60 & echo $! >> {tmp_path}/grandchildren; READY; wait"
    async with watched(shell(tmp_path, script), []) as child:
        await auntil(lambda: child.ready)
        first = child.pid
        os.kill(first or 0, signal.SIGKILL)
        await auntil(lambda: child.ready and child.pid not in (None, first))
        orphan = int((tmp_path / "grandchildren").read_text().split()[0])
        await auntil(lambda: not is_alive(orphan))


async def test_a_child_can_be_stopped_before_it_is_ready(tmp_path: Path) -> None:
    """Stopping does not wait for a start that never ends."""
    async with watched(shell(tmp_path, "sleep 60"), []) as child:
        await auntil(lambda: child.pid is not None)
        pid = child.pid or 0
        await asyncio.wait_for(child.stop(), 3)
    assert not is_alive(pid)


def test_backoff_begins_at_once_doubles_and_has_an_end() -> None:
    """The first restart is immediate; later ones wait longer and longer, up to the limit."""
    waits = [backoff_s(failures) for failures in range(1, 2000)]
    assert waits[:4] == [0.0, 0.25, 0.5, 1.0]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_BACKOFF_S


DRIVER = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.parts.local.child import ChildSpec
from gateway.parts.local.family import Family
folder = Path(sys.argv[1])
def spec(name, script, grace):
    async def ready(): return (folder / f"{name}.ready").exists()
    begin = f"cd {folder}; echo $$ > {name}.pid; "
    return ChildSpec(name, ("sh", "-c", begin + script), dict(os.environ), folder / f"{name}.log", ready, grace)
def polite(name): return f"trap 'echo {name} >> order; exit 0' TERM; touch {name}.ready; while :; do sleep 0.05; done"
def deaf(name): return f"trap '' TERM; touch {name}.ready; while :; do sleep 0.05; done"
async def ready(children): (folder / "up").touch()
# A test run under nohup hands on that SIGHUP is ignored.
if "SIGHUP" not in sys.argv[3:]: signal.signal(signal.SIGHUP, signal.SIG_DFL)
kind = deaf if sys.argv[2] == "deaf" else polite
family = Family([spec(n, kind(n), 30.0) for n in ("store", "model", "gateway")], lambda line: None, ready)
sys.exit(asyncio.run(family.run()))
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., tuple[subprocess.Popen[bytes], list[int]]]:
    """Starts a supervisor of three small children in a process of its own; gives it and the children's pids."""

    def start(kind: str, *ignored: signal.Signals) -> tuple[subprocess.Popen[bytes], list[int]]:
        command = [sys.executable, "-c", DRIVER, str(tmp_path), kind, *(number.name for number in ignored)]
        process = subprocess.Popen(ignoring(ignored, command))
        until((tmp_path / "up").exists)
        return process, [int((tmp_path / f"{name}.pid").read_text()) for name in ("store", "model", "gateway")]

    return start


def test_the_gateway_is_told_the_context_of_the_local_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands once in the config, and is what the model's slots and the backend's limit are made of."""
    for name in ("TIERLINE_LOCAL_BASE_URL", "TIERLINE_LOCAL_CONTEXT", "TIERLINE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "tierline.yaml"
    config.write_text(default_config().read_text() + "local_model: {context: 1536}\n")
    with claimed_folder(tmp_path / "state") as state:
        plan = make_plan(Launch(config=config, port=free_port()), state)
    backend = plan.deployment.tiers[0].backends[0]
    assert (backend.context, backend.configured) == (1536, True)
    argv = next(spec.argv for spec in plan.specs if "gateway.parts.local.local_tier" in spec.argv)
    assert argv[argv.index("--context") + 1] == "1536"
    assert plan.specs[-1].env["TIERLINE_LOCAL_CONTEXT"] == "1536"


def test_the_local_model_requires_a_key_that_only_the_gateway_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start makes another; it is in no command line and no file, and a key that the config names gives way."""
    for name in ("TIERLINE_LOCAL_BASE_URL", "TIERLINE_LOCAL_KEY", "TIERLINE_STORE_URL", "MY_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    config = tmp_path / "tierline.yaml"
    config.write_text(
        "tiers: [{name: local, backends: [{base_url: '${TIERLINE_LOCAL_BASE_URL:-}', model: m, key_env: MY_KEY}]}]\n"
        "services: {vectors: {base_url: '${TIERLINE_LOCAL_BASE_URL:-}'}}\n"
        "local_model: {gguf: mine.gguf}\n"
    )
    keys = set()
    for _ in range(2):
        with claimed_folder(tmp_path / "state") as state:
            plan = make_plan(Launch(config=config, port=free_port()), state)
            state.announce(plan.up)
            texts = [file.read_text() for file in state.path.rglob("*") if file.is_file()]
        specs = {spec.name: spec for spec in plan.specs}
        key = specs["local tier"].env["LLAMA_API_KEY"]
        keys.add(key)
        assert len(key) >= 32
        assert {name for name, spec in specs.items() if key in spec.env.values()} == {"gateway", "local tier"}
        assert not [text for text in (*texts, *(str(spec.argv) for spec in plan.specs)) if key in text]
        gateway = Launch(config=config).deployment(specs["gateway"].env)
        for server in (gateway.tiers[0].backends[0], gateway.services["vectors"]):
            assert server.key is not None
            assert server.key.get_secret_value() == key
        for child in ("console", "ledger"):
            assert Launch(config=config).deployment(specs[child].env).tiers[0].configured
    assert len(keys) == 2


def test_a_model_of_the_users_own_is_sent_no_key_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TIERLINE_LOCAL_BASE_URL no model is started, and the config alone says which key it gets."""
    monkeypatch.setenv("TIERLINE_LOCAL_BASE_URL", "http://127.0.0.1:9/v1")
    for name in ("TIERLINE_LOCAL_KEY", "TIERLINE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    with claimed_folder(tmp_path / "state") as state:
        plan = make_plan(Launch(port=free_port()), state)
    gateway = next(spec for spec in plan.specs if spec.name == "gateway")
    assert "TIERLINE_LOCAL_KEY" not in gateway.env
    assert plan.deployment.tiers[0].backends[0].key is None


def test_the_consoles_port_may_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tierline up --console-port` comes before the config."""
    monkeypatch.delenv("TIERLINE_STORE_URL", raising=False)
    config, port = tmp_path / "tierline.yaml", free_port()
    backend = "{kind: scripted, script: [{reply: {text: hi}}]}"
    config.write_text(f"console: {{port: 1}}\ntiers: [{{name: local, backends: [{backend}]}}]\n")
    with claimed_folder(tmp_path / "state") as state:
        plan = make_plan(Launch(config=config, port=free_port()), state, port)
    assert plan.up.console_url == f"http://127.0.0.1:{port}"
    assert plan.specs[-1].argv[plan.specs[-1].argv.index("--port") + 1] == str(port)


def test_children_get_the_keys_that_they_need_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console and the ledger load the same deployment, with a text in place of each key that the gateway has."""
    monkeypatch.delenv("TIERLINE_STORE_URL", raising=False)
    config = tmp_path / "tierline.yaml"
    config.write_text(
        "tiers:\n"
        "  - {name: local, backends: [{base_url: 'http://127.0.0.1:9/v1', model: '${MY_MODEL}', key_env: ONE}]}\n"
        "  - {name: hosted, backends: [{base_url: 'https://x.example/v1', model: m, key_env: TWO}]}\n"
        "  - {name: third, backends: [{base_url: 'https://y.example/v1', model: m, key_env: UNSET}]}\n"
        "services: {judge: {base_url: 'https://z.example/v1', key_env: THREE}}\n"
        "tenants: {a: {key_env: FOUR}, b: {key_env: [FIVE, PLAY]}}\n"
        "admin: {key_env: SIX}\n"
        "console: {key_env: EDIT, viewer_key_env: VIEW, gateway_key_env: PLAY}\n"
    )
    config_names = ("ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "EDIT", "VIEW", "PLAY")
    names = (*config_names, "AWS_SECRET_ACCESS_KEY", "LLAMA_API_KEY", "TIERLINE_LOCAL_KEY", "TIERLINE_KEY_SECRET")
    keys = {name: f"sk-real-key-of-{name}" for name in names}
    for name, key in (*keys.items(), ("MY_MODEL", "the-model")):
        monkeypatch.setenv(name, key)
    with claimed_folder(tmp_path / "state") as state:
        plan = make_plan(Launch(config=config, port=free_port()), state)
    env = {spec.name: spec.env for spec in plan.specs}
    assert {name for name, key in keys.items() if key in env["gateway"].values()} == set(keys)
    assert {name for name, key in keys.items() if key in env["console"].values()} == {
        "EDIT", "VIEW", "PLAY", "TIERLINE_KEY_SECRET",
    }  # fmt: skip
    for child in ("store", "ledger"):
        assert not {key for key in keys.values() if key in env[child].values()}, child
    for child in ("console", "ledger"):
        deployment = Launch(config=config).deployment(env[child])
        assert [tier.configured for tier in deployment.tiers] == [True, True, False]
        assert deployment.tiers[0].backends[0].model == "the-model"
        assert deployment.store.url == plan.up.store_url


@pytest.mark.parametrize("source", ["files", "store"])
def test_candidates_are_judged_where_policies_come_from_the_store(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that starts before the gateway, and stops after it, on the same store and ledger."""
    monkeypatch.delenv("TIERLINE_STORE_URL", raising=False)
    config = tmp_path / "tierline.yaml"
    backend = "{kind: scripted, script: [{reply: {text: hi}}]}"
    config.write_text(f"policies: {{source: {source}}}\ntiers: [{{name: local, backends: [{backend}]}}]\n")
    with claimed_folder(tmp_path / "state") as state:
        plan = make_plan(Launch(config=config, port=free_port()), state)
    names = [spec.name for spec in plan.specs]
    assert names == ["store", "ledger", *(["judge"] if source == "store" else []), "gateway", "console"]
    assert plan.specs[-1].argv[plan.specs[-1].argv.index("--gateway") + 1] == plan.up.url
    if source == "store":
        judge = plan.specs[2]
        assert judge.argv[-4:] == ("--dir", str(state.path / "ledger"), "--state", str(state.path))
        assert judge.env["TIERLINE_STORE_URL"] == plan.up.store_url


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_the_children_in_order(tmp_path: Path, supervise: Callable, number: signal.Signals) -> None:
    """The gateway stops first, then the model, then the store, and the exit code is 0."""
    process, pids = supervise("polite")
    process.send_signal(number)
    assert process.wait(30) == 0
    assert (tmp_path / "order").read_text().split() == ["gateway", "model", "store"]
    assert not any(map(is_alive, pids))


def test_a_supervisor_in_the_background_is_stopped_by_sigint(supervise: Callable) -> None:
    """A shell starts background jobs with SIGINT ignored."""
    process, pids = supervise("polite", signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert not any(map(is_alive, pids))


def test_a_supervisor_under_nohup_outlives_its_terminal(supervise: Callable) -> None:
    """nohup starts it with SIGHUP ignored, and means it."""
    process, pids = supervise("polite", signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    assert all(map(is_alive, pids))
    process.terminate()
    assert process.wait(30) == 0


def test_a_second_signal_ends_everything_at_once(supervise: Callable) -> None:
    """Children that take their time are killed by the second Ctrl-C, and the exit code says so."""
    process, pids = supervise("deaf")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130
    assert not any(map(is_alive, pids))


@linux
@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_killing_the_supervisor_leaves_no_child_running(supervise: Callable, kind: str) -> None:
    """After kill -9 of the supervisor the kernel ends its children, deaf ones too."""
    process, pids = supervise(kind)
    process.kill()
    process.wait()
    until(lambda: not any(map(is_alive, pids)))


async def test_a_vital_child_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    """The family ends with the reason, and nothing is left running."""
    store = shell(tmp_path, f"echo $$ > {tmp_path}/pid; READY; sleep 60", name="store")
    gateway = shell(tmp_path, f"while ! [ -s {tmp_path}/pid ]; do sleep 0.01; done; exit 2", name="gateway", vital=True)

    async def never(children: object) -> None:
        pytest.fail("it never was up")

    with pytest.raises(CannotStart, match="gateway exited with code 2"):
        await Family([store, gateway], lambda line: None, never).run()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_state_folder_has_one_supervisor(tmp_path: Path) -> None:
    """A second claim says who holds the folder; after the first one ended it succeeds."""
    with claimed_folder(tmp_path / "state") as state:
        state.announce(Up("http://127.0.0.1:1", "redis://x", None, 42))
        with (
            pytest.raises(CannotStart, match=r"already up .*pid 42, http://127.0.0.1:1"),
            claimed_folder(tmp_path / "state"),
        ):
            pass
    with claimed_folder(tmp_path / "state"):
        pass


def test_up_json_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    """The file with the store's password is its owner's alone, and lives as long as the supervisor."""
    file = tmp_path / "up.json"
    with claimed_folder(tmp_path) as state:
        state.announce(Up("http://h:1", "redis://:secret@127.0.0.1:2/0", "http://127.0.0.1:3/v1", 7))
        assert file.stat().st_mode & 0o777 == 0o600
        assert json.loads(file.read_text())["store_url"] == "redis://:secret@127.0.0.1:2/0"
    assert not file.exists()


def test_a_state_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    """The line names the folder and the reason."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(CannotStart, match=r"cannot write to the state folder .*Not a directory"),
        claimed_folder(tmp_path / "file" / "state"),
    ):
        pass


def test_ports_are_kept_between_runs_until_somebody_else_takes_them(tmp_path: Path) -> None:
    """The same port comes back while it is free, another one when it is not."""
    with claimed_folder(tmp_path) as state:
        port = state.port("store")
        assert state.port("local") != port
    with claimed_folder(tmp_path) as state:
        assert state.port("store") == port
        with socket.create_server(("127.0.0.1", port)):
            assert state.port("store") != port


def test_a_log_that_has_grown_too_long_is_set_aside_while_it_is_written_to(tmp_path: Path) -> None:
    """The writer keeps its open file, the old text is in NAME.1, and nothing is lost between the two."""
    log = tmp_path / "child.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * (MAX_LOG_BYTES // 4 + 1))
        assert rotate_log(log) == 0
        writer.write(b"new\n")
    assert last_lines(log, 0) == ["new"]
    assert log.stat().st_size == 4
    assert last_lines(tmp_path / "child.log.1", 0)[-1] == "old"


@pytest.mark.parametrize(("given", "name"), [(None, "mine"), ("other", "other")])
def test_the_local_tier_goes_by_the_name_of_the_model_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, name: str
) -> None:
    """Another file is another model, whose answers are its own, unless somebody names it."""
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    config = tmp_path / "tierline.yaml"
    backend = "{base_url: '${TIERLINE_LOCAL_BASE_URL:-}', model: '${TIERLINE_LOCAL_MODEL:-shipped}'}"
    config.write_text(f"tiers: [{{name: local, backends: [{backend}]}}]\nlocal_model: {{gguf: mine.gguf}}\n")
    monkeypatch.setenv("TIERLINE_LOCAL_MODEL", given or "")
    with claimed_folder(tmp_path / "state") as state:
        plan = make_plan(Launch(config=config, port=free_port()), state)
    assert [backend.model for backend in plan.deployment.tiers[0].backends] == [name]


@linux
def test_a_log_that_cannot_be_emptied_is_left_alone(tmp_path: Path) -> None:
    """Whatever is wrong with a log, nobody is stopped for it."""
    sealed = os.memfd_create("log", os.MFD_ALLOW_SEALING)
    os.truncate(sealed, MAX_LOG_BYTES + 1)
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    try:
        assert rotate_log(Path(f"/proc/self/fd/{sealed}")) == MAX_LOG_BYTES + 1
        assert rotate_log(tmp_path / "none.log") == 0
    finally:
        os.close(sealed)


async def test_a_child_whose_log_cannot_be_written_runs_all_the_same(tmp_path: Path) -> None:
    """What it says is lost, which is said; a child whose log is on a full disk is not stopped by that either."""
    said: list[str] = []
    (tmp_path / "child.log").mkdir()
    async with watched(shell(tmp_path, "echo lost; READY; sleep 60"), said) as child:
        await auntil(lambda: child.ready)
    assert said == [f"child runs without a log: cannot write {tmp_path}/child.log (Is a directory)"]


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), (b"not a model", "not a GGUF file")])
def test_a_wrong_gguf_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    """A missing or a wrong model file is said with its path before anything starts."""
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CannotStart, match=f"model.gguf.*{words}"):
        find_gguf(file)


def test_the_url_for_a_wildcard_address_is_one_a_client_can_use() -> None:
    """A gateway on all addresses is told as this machine's; IPv6 has its brackets."""
    assert Listen("0.0.0.0", 80, 1).url == "http://127.0.0.1:80"
    assert Listen("::", 80, 1).url == "http://[::1]:80"


def test_the_curl_line_can_be_pasted(tmp_path: Path) -> None:
    """A shell reads the line as curl, the URL, and a body that is JSON."""
    facts = BannerFacts(
        "http://h:1", [BannerRow("local", "ready")], "ready", ["chat"], "chat", ".state", key_env="MY_KEY"
    )
    line = render(facts).partition("Try it:")[2].partition("Ctrl-C")[0]
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://h:1/v1/chat/completions"]
    assert "authorization: Bearer $MY_KEY" in words
    assert json.loads(words[words.index("-d") + 1])["model"] == "chat"


def redis_says(url: str, *commands: str) -> list[str]:
    """The first line of the reply to each command, on one connection, after authenticating as the URL says."""
    password, _, address = url.removeprefix("redis://:").partition("@")
    with socket.create_connection(("127.0.0.1", int(address.partition(":")[2].partition("/")[0])), 2) as connection:
        replies = connection.makefile("rb")
        said = []
        for command in (f"AUTH {password}", *commands):
            connection.sendall(f"{command}\r\n".encode())
            said.append(replies.readline().decode().strip())
    return said[1:]


async def test_the_embedded_store_keeps_its_data_through_kill_9(tmp_path: Path) -> None:
    """What was acknowledged is there after the server was killed and restarted."""
    with claimed_folder(tmp_path / "state") as state:
        spec, url = store_child(state, 256 << 20)
        async with watched(spec, []) as child:
            await auntil(lambda: child.ready)
            assert redis_says(url, "SET answer 42") == ["+OK"]
            first = child.pid
            os.kill(first or 0, signal.SIGKILL)
            await auntil(lambda: child.ready and child.pid not in (None, first))
            assert redis_says(url, "STRLEN answer") == [":2"]
        async with watched(store_child(state, 256 << 20)[0], []) as child:
            await auntil(lambda: child.ready)
            assert redis_says(url, "STRLEN answer") == [":2"]


async def test_the_embedded_store_is_for_its_owner_only(tmp_path: Path) -> None:
    """Without the password nothing is answered, and no other address is listened on."""
    with claimed_folder(tmp_path / "state") as state:
        spec, url = store_child(state, 256 << 20)
        async with watched(spec, []) as child:
            await auntil(lambda: child.ready)
            port = int(url.rpartition(":")[2].partition("/")[0])
            with socket.create_connection(("127.0.0.1", port), 2) as connection:
                connection.sendall(b"GET answer\r\n")
                assert connection.recv(100).startswith(b"-NOAUTH")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), 2)


async def test_a_full_embedded_store_gives_up_cache_entries_and_keeps_streams(tmp_path: Path) -> None:
    """When memory runs out, keys that expire go and the stream stays, and writes go on."""
    with claimed_folder(tmp_path / "state") as state:
        spec, url = store_child(state, 256 << 20)
        async with watched(spec, []) as child:
            await auntil(lambda: child.ready)
            assert redis_says(url, "XADD trace 1-1 request one")[0].startswith("$")
            redis_says(url, "CONFIG SET maxmemory 3mb")
            value = "x" * 60_000
            assert set(redis_says(url, *(f"SET key{n} {value} EX 600" for n in range(100)))) == {"+OK"}
            assert redis_says(url, "XLEN trace") == [":1"]
            assert int(redis_says(url, "DBSIZE")[0][1:]) < 100


def test_a_free_port_can_be_listened_on() -> None:
    """The port that was found free is free."""
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_the_curl_line_has_a_key_where_one_is_required() -> None:
    """Of a tenant's variable, or of the caller's own, which has to be made first."""
    rows = [BannerRow("local", "ready")]
    facts = BannerFacts("http://127.0.0.1:1", rows, "ready", ["chat"], "chat", ".state")
    assert "authorization" not in render(facts)
    own, named = render(replace(facts, key_env=OWN_KEY)), render(replace(facts, key_env="ACME_KEY"))
    assert '"authorization: Bearer $TIERLINE_KEY"' in own and "`tierline keys create --name me` makes one" in own
    assert '"authorization: Bearer $ACME_KEY"' in named and "keys create" not in named
