"""`tierline up` as a user starts it: one process with its family of children, on temporary state folders and ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.local.local_model import find_gguf
from tests.support.gateway import CHAT, ROOT, environment, free_port
from tests.support.processes import children_of, command_line, descendants, is_alive
from tests.support.template import run_command
from tests.support.wait import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

START_S = 60.0
"""How long a start may take before it is a failure; the aim is a few seconds, on a machine that does nothing else."""
NO_MODEL = {"TIERLINE_LOCAL_BASE_URL": "http://127.0.0.1:9/v1"}
"""Puts another server in the local model's place, so that none is started. Nobody listens there."""


@dataclass(frozen=True)
class Up:
    """A `tierline up` that runs, or ran."""

    process: subprocess.Popen[bytes]
    state: Path
    output: Path

    def said(self) -> str:
        """Its terminal, so far."""
        return self.output.read_text()

    def told(self) -> dict[str, Any]:
        """Its `up.json`, once it is there."""
        until(lambda: (self.state / "up.json").exists() or self.process.poll() is not None, START_S, "up.json")
        assert self.process.poll() is None, self.said()
        return json.loads((self.state / "up.json").read_text())

    def get(self, path: str) -> tuple[int, Any]:
        """GET from the gateway: status and JSON; (0, None) while nobody answers."""
        try:
            status, _, reply = exchange(self.told()["url"].removeprefix("http://"), "GET", path)
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        return status, reply

    def family(self) -> dict[int, str]:
        """Every process it has started, directly or not, with its command line."""
        return {pid: command_line(pid) for pid in descendants(self.process.pid)}

    def child(self, word: str) -> int | None:
        """The pid of its own child with this word in the command line, None while there is none."""
        return next((pid for pid in children_of(self.process.pid) if word in command_line(pid)), None)


def all_gone(pids: dict[int, str]) -> bool:
    """Whether none of these runs any more; a zombie has no command line."""
    return not any(command and command_line(pid) == command for pid, command in pids.items())


Start = Callable[..., Up]


@contextlib.contextmanager
def starter(folder: Path) -> Iterator[Start]:
    """Gives a function that starts `tierline up`; whatever it started is killed at the end."""
    started: list[Up] = []

    def start(*arguments: str, env: dict[str, str] | None = None, port: int = 0) -> Up:
        output = folder / f"up-{len(started)}.txt"
        command = [sys.executable, "-m", "gateway", "up", "--state", str(folder / "state"), "--port", str(port)]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, *arguments], cwd=ROOT, env=environment(**(env or {})), stdout=file, stderr=subprocess.STDOUT
            )
        started.append(Up(process, folder / "state", output))
        return started[-1]

    try:
        yield start
    finally:
        for up in started:
            up.process.kill()
            up.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `tierline up` on this test's own state folder."""
    with starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Everything at its defaults: the embedded store, the real local model, the gateway."""
    with starter(tmp_path_factory.mktemp("up")) as start:
        up = start()
        up.told()
        until(lambda: "Ctrl-C" in up.said())
        yield up


@pytest.mark.real_model
def test_it_says_what_runs_and_how_to_use_it(whole: Up) -> None:
    """The terminal names the URL, each tier and its state, the store and the surfaces."""
    said = whole.said()
    assert f"Tierline is up: {whole.told()['url']}/v1" in said
    assert re.search(r"local +ready: smollm2-135m-instruct", said)
    assert re.search(r"hosted +unconfigured: OPENAI_API_KEY is not set", said)
    assert re.search(r"store +ready: embedded Valkey", said)
    assert re.search(
        r"surfaces +agent, autocomplete, batch, chat, drafting, extraction, research, search, support, voice ", said
    )


@pytest.mark.real_model
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_line_to_paste_is_answered_by_the_local_model(whole: Up) -> None:
    """The curl line of the banner, pasted into a shell, gives a chat completion."""
    line = whole.said().partition("Try it:")[2].partition("Ctrl-C")[0]
    reply = json.loads(subprocess.run(line, shell=True, capture_output=True, timeout=60, check=True).stdout)
    assert reply["choices"][0]["message"]["content"], reply


@pytest.mark.real_model
@pytest.mark.long
@pytest.mark.parametrize("word", ["valkey", "local_tier", "tierline serve"])
def test_a_killed_child_comes_back(whole: Up, word: str) -> None:
    """After kill -9 of any child another one runs in its place, and the gateway gets answers from the local model."""
    first = whole.child(word)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: whole.child(word) not in (None, first), START_S, f"another {word}")
    until(lambda: whole.said().count("is back after") == whole.said().count("restarting it"), START_S, whole.said())
    until(lambda: whole.get("/healthz")[0] == 200, START_S, "/healthz")
    address = whole.told()["url"].removeprefix("http://")
    ask = {"model": "chat", "max_tokens": 3, "messages": [{"role": "user", "content": f"Hi, {word}"}]}
    answer = {}

    def answered() -> bool:
        status, headers, _ = exchange(address, "POST", "/v1/chat/completions", ask)
        answer.update({**headers, "status": status})
        return status == 200

    until(answered, START_S, "an answer")
    assert answer["x-tierline-tier"] == "local"


@pytest.mark.real_model
@pytest.mark.long
def test_a_second_one_on_the_same_folder_is_refused(whole: Up) -> None:
    """It names the one that runs, exits with 2, and leaves the first one alone."""
    with starter(whole.state.parent / "second") as start:
        whole.state.parent.joinpath("second").mkdir()
        second = start("--state", str(whole.state))
        assert second.process.wait(START_S) == 2
    assert f"tierline is already up on the state folder {whole.state} (pid {whole.process.pid}" in second.said()
    assert whole.get("/healthz")[0] == 200


@pytest.mark.real_model
@pytest.mark.long
def test_the_local_model_gives_what_the_cascade_needs_and_shows_nothing_else(whole: Up) -> None:
    """Its replies have log-probabilities; it serves no web page and no slots, and nobody without the key."""
    address = whole.told()["local_base_url"].removeprefix("http://").removesuffix("/v1")
    ask = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "logprobs": True}
    model = whole.child("local_tier")
    assert model is not None
    environ = dict(line.partition("=")[::2] for line in Path(f"/proc/{model}/environ").read_text().split("\0"))
    key = {"authorization": f"Bearer {environ['LLAMA_API_KEY']}"}
    status, headers, reply = exchange(address, "POST", "/v1/chat/completions", ask, origin="http://example.com", **key)
    assert status == 200
    assert reply["choices"][0]["logprobs"]["content"][0]["logprob"] <= 0
    assert not headers["access-control-allow-origin"]
    assert exchange(address, "GET", "/")[0] == 404
    assert exchange(address, "GET", "/slots", **key)[0] == 501
    assert exchange(address, "GET", "/health")[0] == 200
    for path in ("/v1/chat/completions", "/completion", "/v1/messages", "/tokenize", "/lora-adapters"):
        assert exchange(address, "POST", path, ask)[0] == 401, path
        assert exchange(address, "POST", path, ask, authorization="Bearer guessed")[0] == 401, path
    for path in ("/v1/models", "/props", "/metrics", "/slots"):
        assert exchange(address, "GET", path)[0] == 401, path
    assert environ["LLAMA_API_KEY"] not in " ".join(whole.family().values())


@pytest.mark.real_model
@pytest.mark.long
def test_the_local_model_ends_with_its_parent() -> None:
    """Started by anything at all, it does not outlive what started it."""
    tier = f"{sys.executable} -m gateway.parts.local.local_tier --parent $$"
    model = f"{tier} --gguf {find_gguf(None)[0]} --port {free_port()}"
    pipe = subprocess.PIPE
    script = f"LLAMA_API_KEY=a-key {model} 2>/dev/null & echo $! ; wait"
    with subprocess.Popen(["sh", "-c", script], cwd=ROOT, stdout=pipe) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: "local_tier" in command_line(pid))
        parent.kill()
    until(lambda: not command_line(pid), START_S, "the end of the local tier")


@pytest.mark.real_model
@pytest.mark.long
def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    """SIGINT ends the store, the model and the gateway; the exit code is 0 and up.json is gone."""
    with starter(tmp_path) as start:
        up = start()
        up.told()
        family = up.family()
        assert len(family) >= 3
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(START_S) == 0, up.said()
    assert all_gone(family)
    assert not (up.state / "up.json").exists()


@pytest.mark.long
def test_what_is_cached_survives_a_restart(start: Start) -> None:
    """The store comes back on the same address with the data it had."""
    first = start(env=NO_MODEL)
    url = first.told()["store_url"]
    assert redis(url, "SET kept 1") == "+OK"
    first.process.terminate()
    assert first.process.wait(START_S) == 0
    second = start(env=NO_MODEL)
    assert second.told()["store_url"] == url
    assert redis(url, "STRLEN kept") == ":1"


def test_killing_the_supervisor_leaves_nothing_running(start: Start) -> None:
    """After kill -9 of the supervisor the store, the gateway and its two workers end too."""
    up = start("--workers", "2", env=NO_MODEL)
    up.told()
    family = up.family()
    assert sum("tierline serve" in command or "spawn" in command for command in family.values()) >= 3, family
    up.process.kill()
    until(lambda: all_gone(family), START_S, f"the end of {family}")


def test_it_can_be_stopped_while_it_starts(start: Start) -> None:
    """A signal right after the start ends everything, whatever state the children are in."""
    up = start(env=NO_MODEL)
    until(lambda: up.child("tierline serve"), START_S)
    family = up.family()
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(START_S) == 0, up.said()
    assert all_gone(family)


def test_a_store_of_the_users_own_is_checked_and_not_started(start: Start) -> None:
    """With TIERLINE_STORE_URL no store is started; one that does not answer is said, and the gateway runs."""
    up = start(env={**NO_MODEL, "TIERLINE_STORE_URL": "redis://127.0.0.1:9/0"})
    assert up.told()["store_url"] == "redis://127.0.0.1:9/0"
    until(lambda: "Ctrl-C" in up.said())
    assert re.search(r"store +degraded: 127\.0\.0\.1:9 \(refused", up.said())
    assert up.child("valkey") is None
    assert up.get("/healthz")[0] == 200


SCRIPTED = """
tiers:
  - name: local
    backends: [{kind: scripted, script: [{reply: {text: one two three four five six seven eight nine, tpot: 400ms}}]}]
  - {name: hosted, backends: [{kind: scripted, script: [{reply: {text: hi}}]}]}
limits: {drain: 200ms}
console: {enabled: false}
"""


def test_connections_wait_while_a_killed_gateway_starts_again(start: Start, tmp_path: Path) -> None:
    """None is refused after kill -9 of the only worker, nor at the admin API: all are answered by the next one."""
    admin = free_port()
    (tmp_path / "up.yaml").write_text(f"{SCRIPTED}admin: {{key_env: ADMIN_KEY, port: {admin}}}\n")
    env = {"ADMIN_KEY": "the-admins-key"}
    up = start("--config", str(tmp_path / "up.yaml"), "--policies", str(policies(tmp_path)), env=env)
    address = up.told()["url"].removeprefix("http://")
    killed = up.child("tierline serve")
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_alive(killed))
    with ThreadPoolExecutor(max_workers=64) as pool:
        managed = pool.submit(exchange, f"127.0.0.1:{admin}", "GET", "/admin/cache/stats")
        asked = [pool.submit(exchange, address, "GET", "/healthz")]
        while not asked[0].done():
            time.sleep(0.05)
            asked.append(pool.submit(exchange, address, "GET", "/healthz"))
        assert {reply.result()[0] for reply in asked} == {200}
        assert managed.result()[0] == 401
    assert len(asked) > 2, "it was killed and nobody noticed"
    until(lambda: "gateway is back after" in up.said())


def test_a_stop_refuses_connections_while_answers_are_finished(start: Start, tmp_path: Path) -> None:
    """Once the gateway takes no more connections the supervisor holds none either; what it answers is finished."""
    (tmp_path / "up.yaml").write_text(SCRIPTED)
    up = start("--config", str(tmp_path / "up.yaml"), "--policies", str(policies(tmp_path)))
    host, _, port = up.told()["url"].removeprefix("http://").partition(":")
    gateway = up.child("tierline serve")
    assert gateway is not None
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = json.dumps({"model": "chat", "stream": True, "messages": [{"role": "user", "content": "Count."}]})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    with contextlib.closing(connection), connection.getresponse() as answer:
        assert answer.status == 200
        up.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(host, int(port)))
        assert is_alive(gateway)
        assert b"[DONE]" in answer.read()
    assert up.process.wait(START_S) == 0, up.said()


def policies(folder: Path) -> Path:
    """A folder with one policy for the two scripted tiers."""
    (folder / "policies").mkdir()
    (folder / "policies" / "chat.yaml").write_text(CHAT)
    return folder / "policies"


def refuses(host: str, port: int) -> bool:
    """Whether a new connection is refused."""
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


@dataclass(frozen=True)
class Mistake:
    """A way to start it wrongly, and the words and the exit code that it gives."""

    arguments: tuple[str, ...]
    says: str
    code: int


MISTAKES = {
    "config": Mistake(("--config", "{folder}/bad.yaml"), r"bad\.yaml:2:1: .*teirs", 2),
    "no config": Mistake(("--config", "{folder}/none.yaml"), r"none\.yaml", 2),
    "policies": Mistake(("--policies", "{folder}"), r"bad\.yaml", 2),
    "model": Mistake(("--config", "{folder}/model.yaml"), r"model\.yaml:\d+:\d+: local_model\.gguf: no such file", 2),
    "state": Mistake(("--state", "{folder}/bad.yaml/state"), "cannot write to the state folder", 2),
    "address": Mistake(("--host", "192.0.2.1", "--config", "{folder}/open.yaml"), r"cannot listen on 192\.0\.2\.1", 2),
    "no keys": Mistake(
        ("--host", "192.0.2.1"), r"tierline\.yaml:\d+:\d+: host: 192\.0\.2\.1 can be reached from other", 2
    ),
    "port": Mistake(("--port", "{port}"), r"cannot listen on 127\.0\.0\.1 port {port}: Address already in use", 2),
    "admin port": Mistake(
        ("--config", "{folder}/admin.yaml"), r"cannot listen on 127\.0\.0\.1 port {port}: Address already in use", 2
    ),
    "flag": Mistake(("--workers", "none"), "--workers", 2),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_clear_line_and_nothing_is_started(tmp_path: Path, mistake: Mistake) -> None:
    """The line says what to change; the exit code is not 0; no traceback, no child."""
    tier = "tiers: [{name: local, backends: [{base_url: '${TIERLINE_LOCAL_BASE_URL:-}', model: m}]}]\n"
    (tmp_path / "bad.yaml").write_text(tier + "teirs: 1\n")
    (tmp_path / "open.yaml").write_text(tier.replace("tiers", "access: {keyless: true}\ntiers"))
    (tmp_path / "model.yaml").write_text(tier + "local_model: {gguf: nowhere.gguf}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (tmp_path / "admin.yaml").write_text(f"{tier}admin: {{key_env: ADMIN_KEY, port: {port}}}\n")
        fill = {"folder": str(tmp_path), "port": port}
        given = ("--state", str(tmp_path / "state"), "--port", "0")
        told = (argument.format(**fill) for argument in mistake.arguments)
        done = run_command("up", *given, *told, env=environment(ADMIN_KEY="the-admins-key"))
    assert done.returncode == mistake.code
    said = done.stdout + done.stderr
    assert re.search(mistake.says.replace("{port}", port), said), said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("state/logs/*"))


def exchange(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and JSON of one request."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        headers["content-type"] = "application/json"
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read())
    finally:
        connection.close()


def redis(url: str, command: str) -> str:
    """The first line of the reply to one command."""
    password, _, address = url.removeprefix("redis://:").partition("@")
    with socket.create_connection(("127.0.0.1", int(address.partition(":")[2].partition("/")[0])), 2) as connection:
        connection.sendall(f"AUTH {password}\r\n{command}\r\n".encode())
        replies = connection.makefile("rb")
        return [replies.readline().decode().strip() for _ in range(2)][1]
