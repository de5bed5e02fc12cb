"""`tierline policy apply`, `status`, `history` and the others, as a user runs them, over a real store and gateways."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from gateway.cli.main import main
from tests.parts.rollout.registry.conftest import BATCH, ROLLOUT, chat, server, store
from tests.support.gateway import CHAT, Gateway, config, serve
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream
from tests.support.wait import until

__all__ = ["server", "store"]
pytestmark = pytest.mark.usefixtures("store")  # it empties the registry


class Shell:
    """Runs `tierline policy` beside two gateways that follow one store."""

    def __init__(
        self, folder: Path, store_url: str, capsys: pytest.CaptureFixture[str], gateways: list[Gateway]
    ) -> None:
        self.folder = folder
        self._store_url = store_url
        self.gateways = gateways
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what was said on stdout and stderr."""
        # The config takes time to load, and only `apply` needs it.
        of_config = ["--config", str(self.folder / "tierline.yaml")] if arguments[0] == "apply" else []
        code = main(["policy", *arguments, "--store", self._store_url, *of_config])
        said = self._capsys.readouterr()
        return code, said.out + said.err

    def apply(self, text: str, *arguments: str) -> tuple[int, str]:
        file = self.folder / "new.yaml"
        file.write_text(text)
        return self.run("apply", str(file), "-m", "why", "--author", "ada", *arguments)

    def versions(self) -> list[str]:
        """The version by which each gateway answers, as its replies name it."""
        return [_version(gateway) for gateway in self.gateways]


def _version(gateway: Gateway) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    assert reply.status == 200
    return str(reply.headers["x-tierline-policy"])


@pytest.fixture
def shell(server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Two gateways over an empty registry."""
    with ExitStack() as stack:
        upstream = stack.enter_context(Upstream())
        gateways = [
            stack.enter_context(
                serve(
                    tmp_path / name,
                    upstream.url,
                    store_url=server.url,
                    policies={"chat": CHAT},
                    settings={"policies": {"source": "store"}, "embedding": {"state": str(tmp_path / name)}},
                )
            )
            for name in ("one", "two")
        ]
        yield Shell(tmp_path / "one", server.url, capsys, gateways)


def test_a_policy_is_applied_refused_tried_and_rolled_back_on_two_gateways(shell: Shell) -> None:
    """An edit, an invalid one, a candidate and a rollback; each is in force on both when the command returns."""
    first = shell.versions()[0]
    code, out = shell.apply(chat(0.6))
    assert code == 0, out
    assert "on 2 of 2 workers" in out
    second = shell.versions()[0]
    assert shell.versions() == [second, second] != [first, first]
    assert f"{second} is in force, was {first}" in out

    code, out = shell.apply(chat(0.7).replace("hold_tokens: 4", "hold_token: 4"))
    assert code == 1
    assert "new.yaml:13:12: escalate.stream.hold_token" in out
    assert shell.versions() == [second, second]

    tests = shell.folder / "new.test.yaml"
    tests.write_text(
        "policies: [new.yaml]\ntests: [{name: starts high, given: {tokens_in: 9}, expect: {start: hosted}}]\n"
    )
    code, out = shell.apply(chat(0.8, ROLLOUT))
    assert code == 1
    assert "its tests fail" in out and "starts high" in out
    assert shell.versions() == [second, second]
    tests.write_text(
        "policies: [new.yaml]\ntests: [{name: starts low, given: {tokens_in: 9}, expect: {start: local}}]\n"
    )
    code, out = shell.apply(chat(0.8, ROLLOUT))
    assert code == 0, out
    assert "canary 5%" in out
    assert "no `tierline policy judge` is at work" in out
    code, out = shell.run("status")
    assert "canary 5%, step 1 of 2" in out
    assert code == 1, "the gateways' own files say something else"
    assert "drift: chat.yaml says" in out
    assert shell.run("apply", str(shell.folder / "new.yaml"), "-m", "x")[0] == 2
    assert shell.run("pause", "chat", "-m", "the fair")[1].count("paused: the fair") == 1
    assert shell.run("resume", "chat", "-m", "over")[0] == 0
    assert "canary 25%" in shell.run("promote", "chat", "-m", "good")[1]
    assert shell.run("promote", "chat", "-m", "good", "--full")[0] == 0
    third = shell.versions()[0]
    assert shell.versions() == [third, third] != [second, second]

    code, out = shell.run("rollback", "chat", "-m", "worse", "--author", "bob", "--json")
    assert code == 0
    assert json.loads(out)["workers"]["in_force"] == 2
    assert shell.versions() == [second, second]
    code, out = shell.run("rollback", "chat", "--to", third.removeprefix("chat@")[:5], "-m", "it was not that")
    assert code == 0
    assert shell.versions() == [third, third]

    assert f"last change: rollback of {second} by " in shell.run("status", "chat")[1]

    code, out = shell.run("history", "chat", "--json")
    changes = json.loads(out)["changes"]
    assert [change["action"] for change in changes] == [
        "rollback", "rollback", "promote", "step", "resume", "pause", "apply", "apply", "seed",
    ]  # fmt: skip
    assert (changes[1]["by"], changes[1]["message"]) == ("bob", "worse")
    code, out = shell.run("blame", "chat", "--json")
    lines = {line["key"]: line for line in json.loads(out)["lines"]}
    assert lines["escalate.when"]["author"] == "ada"
    assert lines["slo"]["author"] == "files"
    assert shell.run("show", second)[1].startswith(f"{chat(0.6)}{second}, not in force: ada")


def test_a_surface_is_removed_from_two_gateways_and_brought_back(shell: Shell) -> None:
    """The command says so, and the history keeps it; the default surface of the gateways stays."""
    code, out = shell.run("remove", "chat", "-m", "why")
    assert code == 2 and "chat is the default surface of 2 workers" in out
    assert shell.apply(BATCH, "--now")[0] == 0
    code, out = shell.run("remove", "batch", "-m", "nobody uses it", "--author", "ada")
    assert code == 0 and "requests for batch get a 404" in out and "on 2 of 2 workers after" in out
    assert "batch" not in shell.run("status")[1]
    assert "batch was removed; `tierline policy rollback batch" in shell.run("status", "batch")[1]
    assert "  remove    ada  nobody uses it" in shell.run("history", "batch")[1]
    code, out = shell.run("rollback", "batch", "-m", "it is used")
    assert code == 0 and "is in force, was removed\non 2 of 2 workers" in out
    assert "batch@" in shell.run("status")[1]


def test_a_status_is_all_well_where_files_and_store_agree(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is edited afterwards is drift, in `policy status` and in `check`."""
    code, out = shell.run("status", "chat")
    assert (code, out.count("in force on 2 of 2 workers")) == (0, 1)
    for wrong in (("status", "chatt"), ("show", "chat@zz"), ("rollback", "chat", "-m", "nothing before")):
        code, out = shell.run(*wrong)
        assert code == 2, out
    assert shell.run("history")[0] == 0
    chat_file = shell.gateways[1].policies / "chat.yaml"
    chat_file.write_text(chat(0.9))
    until(lambda: "drift" in shell.run("status")[1])
    assert shell.run("status")[0] == 1
    there = shell.gateways[1].folder
    assert main(["check", "--config", str(there / "tierline.yaml"), "--policies", str(there / "policies")]) == 0
    assert "policies.source: chat.yaml says chat@" in capsys.readouterr().out
    assert shell.versions()[0] == shell.versions()[1]


def test_a_watch_goes_on_while_the_store_is_silent(tmp_path: Path) -> None:
    """It says so, with the time; Ctrl-C ends it."""
    output = tmp_path / "output"
    with ExitStack() as stack:
        running = stack.enter_context(local_store())
        words = [sys.executable, "-m", "gateway", "policy", "status", "--watch", "--store", running.url]
        watch = stack.enter_context(subprocess.Popen(words, stdout=output.open("wb"), stderr=subprocess.STDOUT))
        stack.callback(watch.kill)
        until(lambda: output.read_text().count("the registry is empty") > 1, 20, "two looks")
        running.stop()
        until(lambda: "trying on. This is what was known last:" in output.read_text(), 20, "the silence")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 130
    assert "every second, Ctrl-C ends" in output.read_text() and "Traceback" not in output.read_text()


def test_in_files_mode_a_change_is_refused(
    server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(config("http://127.0.0.1:9/v1", None, server.url)))
    shell = Shell(tmp_path, server.url, capsys, [])
    code, out = shell.apply(chat(0.6))
    assert code == 2
    assert "save the file" in out and "policies: {source: store}" in out
    assert shell.run("status") == (
        0,
        "the registry is empty: a gateway with `policies: {source: store}` fills it from its files\n",
    )


def test_a_plan_is_applied_unless_its_base_has_moved(shell: Shell) -> None:
    """A plan made from the store's version is applied; the same plan later names the version that came between."""
    file, plan = shell.folder / "planned.yaml", shell.folder / "chat.plan"
    file.write_text(chat(0.6))
    config_file = str(shell.folder / "tierline.yaml")
    code, out = shell.run(
        "plan", str(file), "--from-store", "--out", str(plan), "--state", str(shell.folder), "--config", config_file
    )
    assert code == 0, out
    assert "escalate.when.confidence_below 0.5 -> 0.6 (planned.yaml:" in out
    assert "tests none: no test file beside it" in out and "replay none:" in out
    before = shell.versions()[0]
    file.unlink()  # the plan holds the text

    code, out = shell.run("apply", str(plan), "-m", "as reviewed")
    assert code == 0, out
    after = shell.versions()[0]
    assert after != before
    code, out = shell.run("apply", str(plan), "-m", "again")
    assert code == 2
    assert f"the policy in force was {before} and is {after}" in out
