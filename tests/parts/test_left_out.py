"""A copy of the tree without a part: the gateway serves, the core's commands run, the part's own say what they lack.

One copy serves all tests: a part's folders are moved out of it and back. Python compiles none of it anew.
Its files are links to those of the tree, so a file in it is replaced, and never written to.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from gateway.cli.commands import help_texts
from gateway.cli.main import COMMANDS
from gateway.parts.standard import PARTS, StandardPart
from tests.support.ask import ask, chat_body, read_stream, record_at, text_of
from tests.support.gateway import CHAT, ROOT, Gateway, config, environment, running, write_deployment
from tests.support.ports import free_port
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import SLOWNESS, until

_TOPS = ("gateway", "routing", "cache", "policies")
_ELSEWHERE = """
import contextlib, io, json, sys
from gateway.cli.main import main

def elsewhere(root):
    ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in {tops!r}]
    return [file for module in ours if (file := module.__file__) and not file.startswith(root)]
""".replace("{tops!r}", repr(_TOPS))
_SERVE = f"""{_ELSEWHERE}
code = main(sys.argv[2:])
print("elsewhere:", elsewhere(sys.argv[1]))
sys.exit(code)
"""
_RUN = f"""{_ELSEWHERE}
def run(argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as stop:
            code = stop.code
    return [int(code), out.getvalue(), err.getvalue()]

print(json.dumps([[run(argv) for argv in json.loads(sys.argv[2])], elsewhere(sys.argv[1])]))
"""
_PLAN = """
import sys
from pathlib import Path
from gateway.parts.local.plan import make_plan
from gateway.parts.local.state import StateFolder
from gateway.config.launch import Launch

folder = Path(sys.argv[1])
print(*(spec.name for spec in make_plan(Launch(config=folder / "tierline.yaml"), StateFolder(folder)).specs))
"""
_TAKE_BACK = """
import asyncio, sys
from pathlib import Path
from cache.store.redis_store import RedisStore
from gateway.parts.console.wrong_hits import WrongHits
from gateway.parts.measures.feedback import ServedHit
from gateway.parts.console import app, standing
from gateway.parts.console.views.caching import CacheView
from gateway.parts.ledger.live import LiveArchive

async def take_back():
    store = RedisStore.from_url(sys.argv[1])
    hit = ServedHit("0123456789ab", None, 0.9)
    done = await WrongHits(store, {}, keep=10).take_back(hit, surface="chat", tenant="acme", request_id="req_1")
    archive = LiveArchive(Path(sys.argv[2]), store)
    archive.start()
    shown = await CacheView(archive, store).data()
    await archive.aclose()
    print(done.entry, done.risk, shown["risks"], shown["measures"])
    await store.aclose()

asyncio.run(take_back())
"""
MEANING = CHAT.replace("surface: chat", "surface: meaning").replace("[chat, gpt-4o-mini]", "[meaning]") + (
    "  semantic: {ttl: 1h, max_error: 2%}\n"
)
_COMMAND_S = 60.0
"""Longest time of a process that runs commands, in seconds of a machine that does nothing else."""


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Copy:
    """A copy of the tree."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """An environment whose Python finds the copy first; with `-P` there is no folder before it."""
        return environment(PYTHONPATH=str(self.root), COLUMNS="122")

    def run(self, commands: Sequence[Sequence[str]]) -> list[Ran]:
        """Run commands one after the other in one process of its own, which loads nothing from elsewhere."""
        done = self.process("-P", "-c", _RUN, str(self.root), json.dumps(commands))
        assert done.returncode == 0, done.stderr
        ran, elsewhere = json.loads(done.stdout)
        assert elsewhere == []
        return [Ran(*each) for each in ran]

    def process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy's folder."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S * SLOWNESS,
            check=False,
        )

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Leave parts, and files of parts, out of the copy, within the block."""
        kept = self.root / "left_out"
        kept.mkdir()
        for name in names:
            (self.root / "gateway" / "parts" / name).rename(kept / name.replace("/", "."))
        try:
            yield
        finally:
            for name in names:
                (kept / name.replace("/", ".")).rename(self.root / "gateway" / "parts" / name)
            kept.rmdir()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    root = tmp_path_factory.mktemp("tree")
    for name in _TOPS:
        shutil.copytree(ROOT / name, root / name, copy_function=_link)
    _link(str(ROOT / "tierline.py"), str(root / "tierline.py"))
    return Copy(root)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the two are on different file systems
        shutil.copy2(source, target)


def recognised(gateway: Gateway, question: str) -> httpx2.Response | None:
    """Return the reply where the answer to another wording is found; where it is not yet, no model is asked."""
    reply = ask(gateway, question, model="meaning", headers={"x-tierline-cache": "only-if-cached"})
    return reply if reply.headers.get("x-tierline-path") == "cache-semantic" else None


_EXAMPLES = {"up", "serve", "check", "trace"}
"""Commands of which `tierline --help` has an example."""
_OFTEN = ("access", "apis", "measures", "servers")
"""Parts that most others are tied to. `.ci/run` leaves out each of the others too, which takes two minutes."""
_EACH = [pytest.param((part,), id=part.name, marks=() if part.name in _OFTEN else pytest.mark.long) for part in PARTS]


def _gone(parts: Sequence[StandardPart]) -> list[str]:
    """Return the commands, and actions of commands, that do not run without these parts."""
    return [name for name in help_texts() if any(name in part.commands + part.needed_by for part in parts)]


@pytest.mark.parametrize("parts", [*_EACH, pytest.param(PARTS, id="all")])
def test_a_gateway_without_a_part_serves_and_its_commands_run(
    parts: tuple[StandardPart, ...], copy: Copy, upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """A chat is answered whole and streamed; help lists what is there; what is not there is one clear error."""
    left_out = {part.name for part in parts}
    names = {*left_out}
    for _ in PARTS:  # what requires a part that is lost is lost
        names |= {part.name for part in PARTS if names & {*part.requires}}
    lost = [part for part in PARTS if part.name in names]
    gone, unbound = _gone(lost), "hit_audits" in names
    acts = any(name.startswith("policy ") and name not in gone for name in help_texts())
    left = [name for name in COMMANDS if name not in gone and (acts or name != "policy")]
    write_deployment(tmp_path, config(upstream.url, None, store.url), {"chat": CHAT, "meaning": MEANING})
    files = ["--config", str(tmp_path / "tierline.yaml"), "--policies", str(tmp_path / "policies")]
    at_store = ["--store", store.url, "--state", str(tmp_path / "state")]
    with copy.without(*(part.name for part in parts)):
        launcher = ("-P", "-c", _SERVE, str(copy.root))
        with running(tmp_path, copy.environment, launcher=launcher) as gateway:
            upstream.default = Reply(text="the answer")
            reply = ask(gateway, "whole")
            assert (reply.status_code, text_of(reply.content)) == (200, "the answer")
            stream = read_stream(gateway, chat_body("streamed"))
            assert (stream.status, stream.done, text_of(stream.body)) == (200, True, "the answer")
            request_id = reply.headers["x-request-id"]
            recorded = "records" not in names
            if recorded:
                asyncio.run(record_at(store.url, request_id))
            ask(gateway, "How do I reset my password?", model="meaning")
            hit = until(lambda: recognised(gateway, "how can I reset my password"), 10 * SLOWNESS, "a semantic hit")
            assert text_of(hit.content) == "the answer"
            hit_id = hit.headers["x-request-id"]
            if recorded:
                asyncio.run(record_at(store.url, hit_id))
            rating = {"request_id": hit_id, "correct": False}
            rated = httpx2.post(f"{gateway.url}/feedback", json=rating, timeout=20)
            if lacking := [name for name in ("measures", "routes") if name in names]:
                assert f"/v1/feedback needs the part {lacking[0]}, which is not installed" in rated.text
            elif not recorded:
                assert rated.status_code == 404
            else:
                assert len(rated.json().get("cache_entry_removed", "")) == (0 if "cache_admin" in names else 12)
            page = httpx2.get(f"{gateway.origin}/docs", timeout=20)
            lacking_docs = "routes" if "routes" in names else "openapi"
            lacks_it = f"/docs needs the part {lacking_docs}, which is not installed"
            assert (lacks_it in page.text) == ("openapi" in names)
            assert page.status_code == (404 if "openapi" in names else 200)
            models = httpx2.get(f"{gateway.url}/models", timeout=20)
            lacks_it = "/v1/models needs the part routes, which is not installed: pip install tierline."
            assert (lacks_it in models.text, models.status_code) == ((True, 404) if "routes" in names else (False, 200))
            readiness = httpx2.get(f"{gateway.origin}/readyz", timeout=20).json()
            if "readiness" in names:
                assert readiness == {"status": "ready"}
            else:
                assert list(readiness["semantic_thresholds"]) == ([] if unbound else ["meaning"])
            requires = {part.name: part.requires for part in PARTS}
            for path, needed in (("responses", "apis"), ("messages", "apis"), ("embeddings", "services")):
                gone_path = httpx2.post(f"{gateway.url}/{path}", json={"model": "chat", "input": "hi"}, timeout=20)
                lacking = next(name for name in (*requires[needed], needed) if name in names or name == needed)
                lacks_it = f"/v1/{path} needs the part {lacking}, which is not installed: pip install tierline."
                assert (lacks_it in gone_path.text) == (needed in names), gone_path.text
            counted = httpx2.get(f"{gateway.origin}/metrics", timeout=20)
            if "metrics" in names:
                lacking = next(name for name in (*requires["metrics"], "metrics") if name in names)
                lacks_it = f"/metrics needs the part {lacking}, which is not installed: pip install tierline."
                assert (counted.status_code, counted.json()["error"]["message"]) == (404, lacks_it)
            else:
                assert "tierline_cache_" in counted.text
        assert gateway.log().splitlines()[-1] == "elsewhere: []"

        works = [
            ["--help"],
            *([] if "trace" in names else [["trace", "show", request_id, *at_store]]),
            *([] if "cache_admin" in names else [["cache", "stats", *at_store]]),
            *([name, "--help"] for name in left),
        ]
        if "lint" not in names:
            works += [["policy", "lint", str(tmp_path / "policies")], ["policy", "schema"], ["check", *files]]
            works.append(["check", *files[:2]])  # of the shipped policies, those that need a part are left out with it
        (tmp_path / "of-part").mkdir()
        sections = {name: part.name for part in PARTS for name in part.sections}
        for section in sections:
            own = config(upstream.url, None, store.url, **{section: {}})
            (tmp_path / "of-part" / f"{section}.yaml").write_text(json.dumps(own))
        asked: dict[str, tuple[str, object]] = {kind: ("fleet", {kind: {}}) for kind in ("auth", "http")}
        asked |= {"rename": ("servers", {"rename": {"max_tokens": "limit"}}), "omit": ("servers", {"omit": ["seed"]})}
        asked |= {"roles": ("servers", {"roles": "one_system"})}
        asked |= {"warm.keep": ("servers", {"warm": {"after": "5m", "ttft": "1s", "keep": True}})}
        asked |= {kind: (part.name, {"kind": kind}) for part in PARTS for kind in part.kinds}
        for key, (_, keys) in asked.items():
            own = config(upstream.url, None, store.url)
            own["tiers"][1]["backends"][0] |= {"key_env": "", **keys}
            (tmp_path / "of-part" / f"kind-{key}.yaml").write_text(json.dumps(own))
        in_store = config(upstream.url, None, store.url, policies={"source": "store"})
        (tmp_path / "in-store.yaml").write_text(json.dumps(in_store))
        (tmp_path / "policies" / "chat.test.yaml").write_text("tests: []\n")
        file, of_store = tmp_path / "policies" / "chat.yaml", str(tmp_path / "in-store.yaml")
        apply = ("policy", "apply", str(file), "--config", of_store, "--message", "new", *at_store)
        late = {  # what a command of the core does only with parts
            **({} if "lint" in names else {("policy", "schema", "--tests"): {"lab"}}),
            **({} if "rollout" in names else {apply: {"lab"}}),
        }
        configs = (*sections, *(f"kind-{key}" for key in asked))
        of_part = [str(tmp_path / "of-part" / f"{name}.yaml") for name in configs]
        readers = {"trace": ["trace", "show", request_id], "cache_admin": ["cache", "stats"], "": ["serve"]}
        reads = next(words for part, words in readers.items() if part not in names)
        checks = [[*reads, "--config", file] for file in of_part]
        ran = iter(copy.run([*works, ["policy", "--help"], *late, *(name.split() for name in gone), *checks]))
        worked = [(argv, next(ran)) for argv in works]
        assert [(argv, did) for argv, did in worked if did.code] == []
        assert re.findall(r"^    ([a-z]+)\s", worked[0][1].out, re.MULTILINE) == left
        assert {*re.findall(r"^  tierline ([a-z]+)", worked[0][1].out, re.MULTILINE)} == _EXAMPLES & {*left}
        assert "trace" in names or request_id in worked[1][1].out
        missing = "measures" if "measures" in left_out else "hit_audits"
        setting = f"the setting cache.semantic.max_error needs the part {missing}, which is not installed"
        linted = [ran.out for argv, ran in worked if argv[:2] in (["policy", "lint"], ["check", "--config"])]
        assert {setting in out for out in linted} == (set() if "lint" in names else {unbound})
        unknown = ["wrong hits: not known" in did.out for argv, did in worked if argv[:2] == ["cache", "stats"]]
        assert unknown in ([], [unbound])
        actions = [name.split()[1] for name in help_texts() if name.startswith("policy ") and name not in gone]
        assert re.findall(r"^    ([a-z]+)\s", next(ran).out, re.MULTILINE) == actions

        pip = {f"{part.name}, which is not installed: pip install {part.distribution}\n" for part in lost}
        lacks = f"needs the part ({'|'.join(pip)})"
        for argv, needed in late.items():
            did = next(ran)
            if needed & names:
                assert re.fullmatch(f"tierline: this use of {argv[0]} {lacks}", did.err)
                assert did.code == 2
            else:
                assert "needs the part" not in did.err
        for name in gone:
            did = next(ran)
            assert (did.code, did.out) == (2, "")
            assert re.fullmatch(f"tierline: {name} {lacks}", did.err)
        for section, part in sections.items():
            did = next(ran)
            said = re.search(rf"{section}\.yaml:\d+:\d+: {section}: the section {section} {lacks}", did.err)
            assert (said is not None) == (part in names), did
        for kind, (part, _) in asked.items():
            did = next(ran)
            said = re.search(rf"{kind}\.yaml:\d+:\d+: tiers\[1\]\.backends\[0\]\S*: (kind: )?{kind} {lacks}", did.err)
            assert (said is not None) == (part in names), did


def test_up_starts_no_process_of_a_part_that_is_left_out(copy: Copy, tmp_path: Path) -> None:
    """It would end with the same error again and again."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    settings = {"port": free_port(), "policies": {"source": "store"}}
    write_deployment(tmp_path, config(url, None, "redis://127.0.0.1:9/0", **settings))
    started = [copy.process("-P", "-c", _PLAN, str(tmp_path))]
    requires = {part.name: part.requires for part in PARTS}
    kept = {"local", "rollout"}
    while lacking := {name for part in kept for name in requires[part]} - kept:
        kept |= lacking
    with copy.without(*(part.name for part in PARTS if part.name not in kept)):
        started.append(copy.process("-P", "-c", _PLAN, str(tmp_path)))
    assert [(done.stdout, done.stderr) for done in started] == [
        ("ledger judge gateway console\n", ""),
        ("gateway\n", ""),
    ]


def test_several_processes_are_refused_without_their_part(copy: Copy, tmp_path: Path) -> None:
    write_deployment(tmp_path, config(f"http://127.0.0.1:{free_port()}/v1", None, None, port=free_port()))
    with copy.without("workers"):
        end = ["--workers", "2", "--config", str(tmp_path / "tierline.yaml")]
        ran = copy.run([["serve", *end], ["up", *end, "--state", str(tmp_path / "state")]])
    lacking = "tierline: --workers 2 needs the part workers, which is not installed: pip install tierline"
    assert [(did.code, lacking in did.err) for did in ran] == [(2, True)] * 2, ran


def test_a_program_is_told_what_the_gateway_inside_it_needs(copy: Copy) -> None:
    """Where the part is there, the name is."""
    done = [copy.process("-P", "-c", "from tierline import Tierline")]
    with copy.without("local"):
        done.append(copy.process("-P", "-c", "from tierline import Tierline"))
    assert (done[0].returncode, done[1].returncode) == (0, 1)
    says = "ImportError: Tierline needs the part local, which is not installed: pip install tierline"
    assert done[1].stderr.splitlines()[-1] == says


def test_the_console_takes_wrong_hits_back_without_their_audits(copy: Copy, store: LocalStore, tmp_path: Path) -> None:
    """Nothing learns of them then; the page of the cache says that the share of wrong hits is not known."""
    with copy.without("hit_audits"):
        done = copy.process("-P", "-c", _TAKE_BACK, store.url, str(tmp_path))
    assert (done.stdout, done.stderr) == ("None None [] False\n", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "ModuleNotFoundError: No module named 'gateway.parts.fit.datasets'"),
        ("from gateway.errors import nothing_of_this_name\n", "ImportError: cannot import name 'nothing_of_this_name'"),
    ],
    ids=["a module is not there", "a name is not there"],
)
def test_a_part_that_is_broken_is_not_said_to_be_left_out(text: str | None, says: str, copy: Copy) -> None:
    """Its commands are listed, and end with what Python says of the fault."""
    module = copy.root / "gateway" / "parts" / "fit" / "datasets.py"
    with copy.without("fit/datasets.py"):
        if text is not None:
            module.write_text(text)
        help_, ran = copy.run([["--help"], ["fit", "collect", "--help"]])
        module.unlink(missing_ok=True)
    assert "\n    fit  " in help_.out
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith(says)
    assert "needs the part" not in ran.err


def test_the_list_of_parts_names_folders_and_commands_that_are_there() -> None:
    """Otherwise a part that was renamed would be left out for ever, and nobody would miss it."""
    assert [part.name for part in PARTS if not part.installed] == []
    named = [name for part in PARTS for name in (*part.commands, *part.needed_by)]
    assert [name for name in named if name not in help_texts()] == []
    own = [name for part in PARTS for name in part.commands]
    assert len(own) == len(set(own))


def test_a_store_of_several_servers_is_refused_without_the_fleet(copy: Copy, tmp_path: Path) -> None:
    """By `check` and by commands that take a store's URL alike."""
    url = "redis+sentinel://a:1/main"
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", None, url))
    with copy.without("fleet"):
        checked, listed = copy.run([
            ["check", "--config", str(tmp_path / "tierline.yaml")],
            ["trace", "list", "--store", url, "--state", str(tmp_path)],
        ])  # fmt: skip
    lacks = (
        "a store of several servers (a Redis Cluster, or one under Sentinel) needs the part fleet, which is not "
        "installed: pip install tierline\n"
    )
    assert lacks.strip() in checked.out
    assert listed.err == f"tierline: {lacks}"


def test_an_index_in_the_store_is_refused_without_its_part(copy: Copy, tmp_path: Path) -> None:
    """Where it is left to the gateway, each worker has its own."""
    for index in ("vector_sets", "auto"):
        (tmp_path / index).mkdir()
        store = {"url": "redis://127.0.0.1:9/0", "index": index}
        write_deployment(tmp_path / index, config("http://127.0.0.1:9/v1", None, store=store))
    with copy.without("vector_sets"):
        chosen, left = copy.run([
            ["check", "--config", str(tmp_path / index / "tierline.yaml")] for index in ("vector_sets", "auto")
        ])  # fmt: skip
    lacks = "needs the part vector_sets, which is not installed: pip install tierline"
    assert f"store.index: vector_sets {lacks}" in chosen.out
    assert lacks not in left.out


def test_variables_that_nobody_reads_are_told(copy: Copy) -> None:
    """An endpoint for spans is not passed over in silence where what sends them is left out."""
    told = (
        "from gateway.parts.standard import variables_of_missing_parts\n"
        "named = ['OTEL_EXPORTER_OTLP_ENDPOINT', 'HOME']\n"
        "print([(name, part.name) for name, part in variables_of_missing_parts(named)])"
    )
    assert copy.process("-P", "-c", told).stdout == "[]\n"
    with copy.without("otlp"):
        assert copy.process("-P", "-c", told).stdout == "[('OTEL_EXPORTER_OTLP_ENDPOINT', 'otlp')]\n"


@pytest.mark.parametrize(("key", "value"), [("redact", ["[0-9]{16}"]), ("redact_with", "html:escape")])
def test_a_config_that_redacts_is_refused_without_the_part(key: str, value: object, copy: Copy, tmp_path: Path) -> None:
    """Texts are recorded as it says, or not at all."""
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", None, telemetry={"prompts": True, key: value}))
    check = ["check", "--config", str(tmp_path / "tierline.yaml")]
    with copy.without("redaction"):
        (ran,) = copy.run([check])
    assert ran.code != 0
    lacks = f"telemetry.{key} needs the part redaction, which is not installed: pip install tierline"
    assert lacks in ran.out + ran.err
    (ran,) = copy.run([check])
    assert "needs the part" not in ran.out + ran.err


def test_policy_is_no_command_without_an_action(copy: Copy) -> None:
    """Its actions are those of parts; one that is asked for names its part."""
    with copy.without("lint", "rollout", "lab", "ledger"):
        help_, asked = copy.run([["--help"], ["policy", "lint"]])
    assert "\n    policy " not in help_.out
    assert asked.err == "tierline: policy lint needs the part lint, which is not installed: pip install tierline\n"
