"""The wheels: one importable package, whatever else is installed or lies beside it, with all that they need."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import hatch_build
from gateway.parts.standard import PARTS
from tests.support.gateway import ROOT, environment, free_port
from tests.support.wait import until

PACKAGES = {"gateway", "cache"}
APART = [part.distribution for part in PARTS if part.distribution != "tierline"]
OF_PARTS = ["duckdb", "jinja2", "matplotlib", "mcp", "sklearn"]
TRIAL = ROOT / "deploy" / "trial"
PARIS = [{"role": "user", "content": "What is the capital of France?"}]
USER = """
from __future__ import annotations

from typing import reveal_type

import tierline
from tierline import RequestFailed, Tierline


async def answered(text: str) -> str:
    async with Tierline(config="tierline.yaml", policies="policies") as client:
        try:
            answer = await client.chat.completions.create(model="chat", messages=[{"role": "user", "content": text}])
        except RequestFailed as error:
            reveal_type(error.status_code)
            return str(error)
    reveal_type(answer.headers)
    reveal_type(await client.chat.completions.create(model="chat", messages=[], stream=True))
    return str(answer.choices[0].message.content)


wrong: int = tierline.Tierline(config=3)
tierline.nothing
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("from gateway.cli import main", "from tierline.gateway.cli import main"),
        ("from gateway import a; import cache as b", "from tierline.gateway import a; import tierline.cache as b"),
        ("from  \\\n  cache.text import (\n    a,\n)", "from  \\\n  tierline.cache.text import (\n    a,\n)"),
        ("import os, cache.a as a, cache.b as b", "import os, tierline.cache.a as a, tierline.cache.b as b"),
        ('é = "é"; from cache import a', 'é = "é"; from tierline.cache import a'),
        ("def f():\n    from cache import a\r\n", "def f():\n    from tierline.cache import a\r\n"),
        ("from functools import cache", None),
        ("from . import cache", None),
        ('SPAN = "cache.write"  # from cache import a', None),
        ('"""Write\n\nfrom cache import a\n"""', None),
    ],
)
def test_an_import_of_ours_is_prefixed_where_it_stands(text: str, wanted: str | None) -> None:
    """All else stays as it is: line numbers, line ends, comments, strings and imports of others."""
    assert hatch_build.rewritten(text.encode(), PACKAGES).decode() == (wanted or text)


@pytest.mark.parametrize(
    "line",
    [
        "import gateway.cli",
        "import cache",
        "import tests.support as support",
        "from tools.train import main",
        'app = "gateway.cli:main"',
        'app = "cache.write:Writer"',
        'module = "gateway.cli"',
        'module = f"gateway.cli.{name}"',
        'import_module("cache.write")',
        'files("cache")',
        'argv = [sys.executable, "-m", "gateway", "serve"]',
        'run(sys.executable, "-m", "gateway.cli")',
    ],
)
def test_a_name_that_would_be_wrong_in_the_wheel_fails_the_build(tmp_path: Path, line: str) -> None:
    """Its file and line are named, with what to write instead."""
    for name in ("gateway/cli.py", "cache/write.py", "tests/support.py", "tools/train.py", "tierline.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gateway" / "main.py").write_text(f'"""Run gateway.cli."""\n{line}\n')
    with pytest.raises(hatch_build.OldName, match=r"gateway/main\.py:2: "):
        hatch_build.write(tmp_path, PACKAGES, tmp_path / "out")


def test_words_that_name_no_module_are_left_alone(tmp_path: Path) -> None:
    """A span, a key of a policy or a tier may have the name of a package."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "write.py").write_text('WORDS = "cache.write", "cache", "gateway", "cache:80"\n')
    (tmp_path / "tierline.py").touch()
    hatch_build.write(tmp_path, PACKAGES, tmp_path / "out")
    assert (tmp_path / "out" / "cache" / "write.py").read_text() == (tmp_path / "cache" / "write.py").read_text()


def test_the_checkout_gives_the_same_names() -> None:
    """What the documents import works beside this tree too, and importing it imports nothing of ours."""
    program = (
        "import sys, tierline; print(sorted(set(sys.modules) & {'gateway', 'policies', 'numpy'}));"
        "from tierline import *; print(Tierline.__module__, RequestFailed.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "gateway.parts.local.embedded gateway.parts.local.embedded"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, built from this tree, by distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder))
    _run(*build, str(ROOT), *(str(ROOT / "packages" / name) for name in APART))
    return {file.name.partition("-")[0].replace("_", "-"): file for file in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheels, PyPI's `cache` and `routing`, and this environment's libraries."""
    python = _environment_with([*wheels.values()], tmp_path_factory.mktemp("venv"))
    _run(str(python), "-m", "pip", "install", "-q", "--no-deps", "cache", "routing")
    return python


@pytest.fixture(scope="module")
def base(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel of `tierline` alone, which finds no library that only parts need."""
    return _environment_with([wheels["tierline"]], tmp_path_factory.mktemp("base"), without=OF_PARTS)


def _environment_with(wheels: list[Path], folder: Path, without: Sequence[str] = ()) -> Path:
    _run(sys.executable, "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    _run(str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", *map(str, wheels))
    [site] = folder.glob("lib/python*/site-packages")
    # A .pth file of a folder named in a .pth file is not read, so this checkout is not seen.
    lines = [sysconfig.get_path("purelib"), f"import sys; sys.modules.update(dict.fromkeys({without!r}))"]
    (site / "zz_libraries.pth").write_text("\n".join(lines) + "\n")
    return python


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder, whose own files have the names of our folders."""
    for name in ("gateway", "cache", "routing", "policies", "tools"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user was taken for ours')\n")
    return tmp_path


@pytest.mark.long
def test_they_carry_every_file_in_one_package(wheels: dict[str, Path]) -> None:
    """Line for line: a stack trace names the lines of the checkout. Nothing is at the top but `tierline`."""
    carried: dict[str, bytes] = {}
    for distribution, file in wheels.items():
        with zipfile.ZipFile(file) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
            assert len(files) == len([name for name in archive.namelist() if ".dist-info/" not in name])
        assert not files.keys() & carried.keys()
        for part in PARTS:
            mine = {name for name in files if name.startswith(f"tierline/gateway/parts/{part.name}/")}
            assert bool(mine) == (part.distribution == distribution)
            assert distribution == "tierline" or not mine or mine == files.keys()
        carried |= files
    assert {name.split("/")[0] for name in carried} == {"tierline"}
    tracked = _run("git", "-C", str(ROOT), "ls-files", *_packages()).splitlines()
    wrong = []
    for name in tracked:
        text, ours = carried.get(f"tierline/{name}"), (ROOT / name).read_bytes()
        lines = ours.count(b"\n") if name.endswith(".py") else None
        if text is None or (text != ours if lines is None else text.count(b"\n") != lines):
            wrong.append(name)
    assert not wrong and len(tracked) > 600
    assert {"tierline/py.typed", "tierline/gateway/defaults/tierline.yaml"} <= carried.keys()
    for name, text in carried.items():
        if name.endswith(".py"):
            named = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
            assert not {str(module).split(".")[0] for module in named} & set(_packages()), name


@pytest.mark.long
def test_they_need_each_other_at_one_version(wheels: dict[str, Path]) -> None:
    """A part needs its base, and what its commands do not run without; `all`, and the extra of its name, bring it."""
    needed: dict[str, list[Requirement]] = {}
    versions = set()
    for distribution, file in wheels.items():
        with zipfile.ZipFile(file) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = Parser().parsestr(archive.read(name).decode())
            assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
        needed[distribution] = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
        versions.add(metadata["Version"])
    [version] = versions
    base = needed["tierline"]
    assert not {need.name for need in base if need.marker is None} & {*OF_PARTS, *APART, "scikit-learn"}
    ours = [need for several in needed.values() for need in several if need.name.startswith("tierline")]
    assert {str(need.specifier) for need in ours} == {f"=={version}"}
    by_extra = {
        name: {need.name for need in base if need.marker and need.marker.evaluate({"extra": name})}
        for name in ("all", "train", "mcp", *(part.name for part in PARTS if part.distribution in APART))
    }
    assert by_extra == {
        "all": set(APART),
        "train": {"tierline-fit"},
        "mcp": {"mcp", "tierline-console"},
        **{part.name: {part.distribution} for part in PARTS if part.distribution in APART},
    }
    assert {name: sorted(need.name for need in needed[name]) for name in APART} == {
        "tierline-console": ["jinja2", "tierline", "tierline-lab", "tierline-ledger"],
        "tierline-fit": ["matplotlib", "scikit-learn", "tierline", "tierline-ledger"],
        "tierline-lab": ["tierline", "tierline-ledger"],
        "tierline-ledger": ["duckdb", "tierline"],
    }


@pytest.mark.long
def test_the_base_alone_answers_and_says_what_a_part_is_installed_as(base: Path, user: Path) -> None:
    """`tierline up` starts what there is; a command of a part is one line, and so is the shipped config's check."""

    def said(*command: str) -> tuple[int, str, str]:
        run = subprocess.run(command, cwd=user, env=_environment(), capture_output=True, text=True, check=False)
        return run.returncode, run.stdout, run.stderr

    command, state = str(base.with_name("tierline")), user / "state"
    places = ("--config", str(TRIAL / "tierline.yaml"), "--policies", str(TRIAL / "policies"))
    with _up(user, command, "up", *places, "--state", str(state), "--port", "0") as up:
        reply = json.loads(_fetch(f"{up['url']}/v1/chat/completions", {"model": "chat", "messages": PARIS}))
        assert reply["choices"][0]["message"]["content"] == "The capital of France is Paris."
        assert "openapi.json" in _fetch(f"{up['url']}/docs").decode()
        until(lambda: "  direct  " in said(command, "trace", "list", "--state", str(state))[1], 20, "its record")
    for argv in (["check"], ["policy", "lint"]):
        assert _run(command, *argv, cwd=user)
    for argv, part in ((["usage"], "ledger"), (["policy", "test"], "lab"), (["fit"], "fit"), (["top"], "console")):
        lacks = f"needs the part {part}, which is not installed: pip install tierline-{part}"
        assert said(command, *argv) == (2, "", f"tierline: {' '.join(argv)} {lacks}\n")


@pytest.mark.long
def test_others_keep_their_names(installed: Path, user: Path) -> None:
    """`cache` and `routing` of PyPI are what they were; importing `tierline` takes no module of anybody's."""
    program = """
import importlib.util, sys
before = set(sys.modules)
import tierline
print(set(sys.modules) - before)
sys.path.remove("")
import cache
print(hasattr(cache, "Cache"), importlib.util.find_spec("routing").origin)
from tierline import Tierline
print(Tierline.__module__, {name.split(".")[0] for name in sys.modules} & {"gateway", "policies", "routing"})
"""
    lines = _run(str(installed), "-c", program, cwd=user).splitlines()
    site = next(installed.parents[1].glob("lib/python*/site-packages"))
    assert lines == ["{'tierline'}", f"True {site}/routing/__init__.py", "tierline.gateway.parts.local.embedded set()"]


@pytest.mark.long
def test_a_user_has_types(installed: Path, user: Path) -> None:
    """mypy --strict reads the wheel's own types, and finds the mistakes."""
    (user / "program.py").write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed), "program.py"],
        cwd=user,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = [line.partition("program.py:")[2] for line in done.stdout.splitlines() if line.startswith("program.py:")]
    assert [re.sub(r"^\d+: ", "", line) for line in told] == [
        'note: Revealed type is "int"',
        'note: Revealed type is "typing.Mapping[str, str]"',
        'note: Revealed type is "tierline.gateway.parts.local.embedded.AnswerStream"',
        'error: Incompatible types in assignment (expression has type "Tierline", variable has type "int")'
        "  [assignment]",
        'error: Argument "config" to "Tierline" has incompatible type "int"; expected "str | Path | None"  [arg-type]',
        'error: Module has no attribute "nothing"  [attr-defined]',
    ], done.stdout


@pytest.mark.long
@pytest.mark.real_model
def test_everything_starts_from_it(installed: Path, user: Path) -> None:
    """`tierline up` starts its children, a request is answered, and the console has its pages and files."""
    command, state = str(installed.with_name("tierline")), user / "state"
    with _up(user, command, "up", "--state", str(state), "--port", "0", "--console-port", "0") as up:
        body = {"model": "chat", "max_tokens": 8, "messages": [{"role": "user", "content": "Name a colour."}]}
        assert json.loads(_fetch(f"{up['url']}/v1/chat/completions", body))["choices"][0]["message"]["content"]
        page = _fetch(f"{up['console_url']}/now").decode()
        assert "chat" in page
        for asset in set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page)):
            assert _fetch(up["console_url"] + asset)
        assert str(ROOT) not in (user / "output.txt").read_text()


@contextmanager
def _up(folder: Path, *command: str) -> Iterator[dict[str, Any]]:
    """Run `tierline up` in a folder with its state in `state`; yield what it wrote of itself; end it with Ctrl-C."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=_environment(), stdout=file, stderr=subprocess.STDOUT)
    try:
        until(lambda: "Ctrl-C" in output.read_text() or process.poll() is not None, 90, "its banner")
        assert process.poll() is None, output.read_text()
        yield json.loads((folder / "state" / "up.json").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 0, output.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [["--version"], ["check"], ["policy", "test"], ["policy", "lint"], ["--help"]], ids=" ".join
)
def test_commands_run_from_it(installed: Path, user: Path, arguments: list[str]) -> None:
    """As `tierline` and as `python -m tierline`, in a folder with files of our names."""
    said = _run(str(installed.with_name("tierline")), *arguments, cwd=user)
    assert said
    if arguments[0].startswith("--"):
        assert _run(str(installed), "-m", "tierline", *arguments, cwd=user) == said


@pytest.mark.long
def test_workers_are_spawned_from_it(installed: Path, user: Path) -> None:
    """`tierline serve --workers 2` gives its processes the name of what they run, and they answer."""
    places = ("--config", str(TRIAL / "tierline.yaml"), "--policies", str(TRIAL / "policies"))
    port = free_port()
    command = [str(installed.with_name("tierline")), "serve", *places, "--port", str(port), "--workers", "2"]
    with (user / "output.txt").open("wb") as file:
        process = subprocess.Popen(command, cwd=user, env=_environment(), stdout=file, stderr=subprocess.STDOUT)

    def answers() -> bool:
        try:
            return bool(_fetch(f"http://127.0.0.1:{port}/healthz"))
        except OSError:
            return process.poll() is not None

    try:
        until(answers, 90, "the gateway")
        reply = json.loads(_fetch(f"http://127.0.0.1:{port}/v1/chat/completions", {"model": "chat", "messages": PARIS}))
        assert reply["choices"][0]["message"]["content"] == "The capital of France is Paris."
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 0, (user / "output.txt").read_text()


@pytest.mark.long
def test_a_program_asks_without_a_server(installed: Path, user: Path) -> None:
    """As gateway/README.md has it; the traceback of a mistake names the line of the checkout."""
    (user / "program.py").write_text(f"""
import asyncio, traceback
from tierline import RequestFailed, Tierline

async def main():
    async with Tierline({str(TRIAL / "tierline.yaml")!r}, {str(TRIAL / "policies")!r}) as tierline:
        answer = await tierline.chat.completions.create(model="chat", messages={PARIS!r})
        print(answer.choices[0].message.content)
        try:
            await tierline.chat.completions.create(model="nowhere", messages={PARIS!r})
        except RequestFailed as error:
            print(error.status_code, traceback.extract_tb(error.__traceback__)[-1].lineno)

asyncio.run(main())
""")
    answer, failed = _run(str(installed), "program.py", cwd=user).splitlines()
    status, line = failed.split()
    assert (answer, status) == ("The capital of France is Paris.", "404")
    lines = (ROOT / "gateway" / "parts" / "local" / "embedded.py").read_text().splitlines()
    assert lines[int(line) - 1].strip().startswith("raise RequestFailed(")


@pytest.fixture(scope="module")
def guarded(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel of `tierline` and that of a part of another maker."""
    folder = tmp_path_factory.mktemp("guarded")
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder))
    _run(*build, str(ROOT / "tests" / "parts" / "stranger" / "guardrail"))
    return _environment_with([wheels["tierline"], *folder.glob("*.whl")], folder / "venv")


@contextmanager
def _webhook(port: int) -> Iterator[list[dict[str, Any]]]:
    """Serve a webhook that refuses texts with "forbidden"; yield the bodies that it gets."""
    asked: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            allowed = "forbidden" not in asked[-1]["text"]
            body = json.dumps({"allowed": allowed, **({} if allowed else {"reason": "Not about that."})}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Webhook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
def test_a_strangers_part_refuses_before_any_call(guarded: Path, user: Path) -> None:
    """Found by its entry point, with a section of the config; its hop is in the trace, and no model is asked."""
    command, state, webhook = str(guarded.with_name("tierline")), user / "state", free_port()
    (user / "tierline.yaml").write_text(
        (TRIAL / "tierline.yaml").read_text() + f"guardrail: {{url: 'http://127.0.0.1:{webhook}/', within: 2s}}\n"
    )
    places = ("--config", "tierline.yaml", "--policies", str(TRIAL / "policies"))

    def refusal(text: str) -> tuple[int, dict[str, Any]]:
        body = {"model": "chat", "messages": [{"role": "user", "content": text}]}
        with pytest.raises(urllib.error.HTTPError) as refused:
            _fetch(f"{up['url']}/v1/chat/completions", body)
        return refused.value.code, json.loads(refused.value.read())["error"]

    with _up(user, command, "up", *places, "--state", str(state), "--port", "0") as up:
        with _webhook(webhook) as asked:
            reply = json.loads(_fetch(f"{up['url']}/v1/chat/completions", {"model": "chat", "messages": PARIS}))
            assert reply["choices"][0]["message"]["content"] == "The capital of France is Paris."
            assert asked == [{"tenant": "default", "surface": "chat", "text": PARIS[0]["content"]}]
            status, error = refusal("a forbidden capital")
            assert (status, error["code"], error["message"]) == (403, "refused_by_guardrail", "Not about that.")
        assert refusal("What is a fuse?")[0] == 503

        def hops() -> list[list[str]]:
            told = _run(command, "trace", "list", "--json", "--state", str(state)).splitlines()
            return [[hop["name"] for hop in json.loads(line)["hops"]] for line in told]

        until(lambda: len(hops()) == 3, 20, "the records")
        answered = [names for names in hops() if any(name.startswith("attempt") for name in names)]
        assert len(answered) == 1 and all("guardrail" in names for names in hops())


@pytest.mark.long
def test_a_strangers_part_is_checked_as_ours_are(guarded: Path, user: Path) -> None:
    """A mistake in its section names file, line and key; a part that cannot be loaded is a line, not a traceback."""
    command = str(guarded.with_name("tierline"))
    (user / "tierline.yaml").write_text((TRIAL / "tierline.yaml").read_text() + "guardrail: {uri: x}\n")
    checked = [command, "check", "--config", "tierline.yaml", "--policies", str(TRIAL / "policies")]

    def told() -> str:
        done = subprocess.run(checked, cwd=user, env=_environment(), capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert re.search(r"tierline\.yaml:\d+:\d+: guardrail\.uri: .*did you mean 'url'", told())
    [module] = guarded.parents[1].glob("lib/python*/site-packages/tierline_guardrail.py")
    text = module.read_text()
    module.write_text("import nothing_of_this_name\n")
    try:
        assert told() == (
            "tierline: the part guardrail (tierline_guardrail of tierline-guardrail) cannot be loaded: "
            "ModuleNotFoundError: No module named 'nothing_of_this_name'\n"
        )
    finally:
        module.write_text(text)


def _packages() -> list[str]:
    return re.findall(r'"(\w+)"', re.findall(r"^packages = (.*)", (ROOT / "pyproject.toml").read_text(), re.M)[0])


def _environment() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name != "PYTHONPATH"}


def _run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _fetch(url: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes(reply.read())
