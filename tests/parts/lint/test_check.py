"""`tierline check`, as a user runs it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.config.loader import default_config
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.heads.head import ConfidenceHead
from policies.loader import SHIPPED, policy_files, read_policy
from routing.difficulty.model import SHEET_FILE, shipped_artefact
from tests.parts.local.test_gguf_header import gguf
from tests.support.gateway import environment
from tests.support.heads import mean_scorer, write_head
from tests.support.template import run_command


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    for file in policy_files(SHIPPED):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TIERLINE_LOCAL_BASE_URL", "TIERLINE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def line_of(file: Path, text: str) -> int:
    """Where the shipped files say something is theirs to change."""
    return next(number for number, line in enumerate(file.read_text().splitlines(), start=1) if text in line)


def place_of(file: Path, text: str) -> str:
    """The line and the column at which a text first stands in a file."""
    before = file.read_text().partition(text)[0]
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def test_all_is_well_with_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    """The tiers with their state and the surfaces with their versions are shown."""
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert "OPENAI_API_KEY is not set" in out
    assert "chat@" in out
    assert out.endswith("all is well\n")


def test_a_rule_that_can_never_hold_is_a_problem(policies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told at the rule's line, with what the value can be, though the policy would load."""
    edit(policies / "chat.yaml", "kind == chat", "p_adequate >= 2")
    at = place_of(policies / "chat.yaml", "p_adequate >= 2")
    assert main(["check", "--policies", str(policies)]) == 1
    out = capsys.readouterr().out
    assert f"chat.yaml:{at}: route.start.local: 'p_adequate >= 2' can never hold: p_adequate is from 0 to 1; " in out
    assert "[T205]\n" in out
    assert "surface  chat " in out


def test_a_rule_that_asks_for_quantiles_is_shown_with_whose_they_are(
    policies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start rules are listed; traffic that another classifier measured is a warning at its line."""
    file = policies / "batch.yaml"
    rule = read_policy(file)[0].route.start["local"].source
    edit(file, rule, "easiest 40% of its kind and tokens_in < 2000")
    assert main(["check", "--policies", str(policies)]) == 0
    out = capsys.readouterr().out
    assert "start    batch          local                        easiest 40% of its kind and tokens_in < 2000\n" in out
    assert "quantile batch          of the classifier's reference prompts; `tierline fit calibrate --traffic` " in out
    traffic = "\n  traffic: {classifier: a0a0a0a, deciles: {chat: [0, 0, 0, 0, 0, 1, 1, 1, 1]}}\n"
    edit(file, "route:\n", f"route:{traffic}")
    assert main(["check", "--policies", str(policies)]) == 0
    out = capsys.readouterr().out
    at = place_of(file, "a0a0a0a")
    assert f"batch.yaml:{at}: route.traffic.classifier: measured with classifier a0a0a0a, but " in out
    assert "quantile batch          of this surface's own requests: chat; else of the classifier's reference" in out


def test_a_kind_that_the_classifier_does_not_know_is_a_warning(
    policies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An own classifier may know other kinds; one of a format before has none, and no rule with `easiest` holds."""
    artefact = Path(shutil.copytree(shipped_artefact("static"), tmp_path / "mine"))
    config = shutil.copy(default_config(), tmp_path / "tierline.yaml")
    config.write_text(f"classifier: {artefact}\n" + config.read_text())
    command = ["check", "--config", str(config), "--policies", str(policies)]
    assert main(command) == 0
    assert "knows no kind" not in capsys.readouterr().out

    sheet = json.loads((artefact / SHEET_FILE).read_text())
    del sheet["measured"]["kinds"]["chat"]
    (artefact / SHEET_FILE).write_text(json.dumps(sheet))
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"chat.yaml:{place_of(policies / 'chat.yaml', 'kind == chat')}: route.start.local: " in out
    assert "knows no kind 'chat'; it knows choices, maths, code, tools" in out

    del sheet["measured"]["kinds"]
    (artefact / SHEET_FILE).write_text(json.dumps(sheet))
    assert main(command) == 0
    out = capsys.readouterr().out
    for file in policy_files(policies):
        if file.stem in ("research", "search"):
            continue  # their start rules ask for no kind
        line = line_of(file, "    local: ")
        assert re.search(rf"{re.escape(file.name)}:{line}:\d+: route\.start\.local: ", out)
    assert "names no kind, so no comparison with kind or quantile holds" in out


def test_connections_that_cannot_be_had_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than the process may have files open: that is this machine's, and no error of the config."""
    config = shutil.copy(default_config(), tmp_path / "tierline.yaml")
    edit(config, "connections: 8192", "connections: 3000000000")
    assert main(["check", "--config", str(config)]) == 0
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("(warning)")]
    assert warning.startswith(f"{config}:{place_of(config, '3000000000')}: limits.connections: 3000000000 connections")
    assert "this process may have open" in warning


def test_a_model_without_a_chat_template_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp serves it as ChatML without saying so, and its answers end by their length."""
    gguf(tmp_path / "base.gguf")
    config = tmp_path / "tierline.yaml"
    shutil.copy(default_config(), config)
    config.write_text(config.read_text() + "local_model:\n  gguf: base.gguf\n  context: 4096\n")
    main(["check", "--config", str(config)])
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "chat template" in line]
    assert warning.startswith(f"{config}:{place_of(config, 'base.gguf')}: local_model.gguf: base.gguf has no chat")
    assert warning.endswith("(warning)")


def test_a_problem_is_a_line_with_its_place(policies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """file:line:column: key: message [code], as editors and people read it, and exit code 1."""
    edit(policies / "chat.yaml", "deadline: 2m", "dedline: 60s")
    assert main(["check", "--policies", str(policies)]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = place_of(policies / "chat.yaml", "dedline")
    assert f"{policies}/chat.yaml:{at}: slo.dedline: unknown key (did you mean 'deadline'?) [T103]" in lines
    assert lines[-1] == "1 problem"


def test_quotas_that_the_embedded_store_has_no_room_for_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is in force instead; with more memory, or another store, nothing is said."""
    config = tmp_path / "tierline.yaml"
    shutil.copy(default_config(), config)
    with config.open("a") as file:
        file.write("responses: {bytes: 100MiB}\n")
    assert main(["check", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert "responses: 20000 entries and 100 MiB are cut down to 20000 and 40 MiB" in out
    assert out.endswith("1 warning\n")
    edit(config, "  # memory: 256MiB", "  memory: 1GiB #")
    assert main(["check", "--config", str(config)]) == 0
    assert "cut down" not in capsys.readouterr().out
    edit(config, "  memory: 1GiB #", "  #")
    monkeypatch.setenv("TIERLINE_STORE_URL", "redis://127.0.0.1:1")
    assert main(["check", "--config", str(config)]) == 0
    assert "cut down" not in capsys.readouterr().out


def test_what_is_doubtful_is_said_and_passes(policies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning changes no exit code."""
    edit(policies / "chat.yaml", "hold_max: 250ms", "hold_max: 2s")
    assert main(["check", "--policies", str(policies)]) == 0
    out = capsys.readouterr().out
    at = place_of(policies / "chat.yaml", "2s")
    assert f"chat.yaml:{at}: escalate.stream.hold_max: not less than slo.ttft.p95" in out
    assert out.endswith("1 warning\n")


def test_config_and_policies_are_told_together(
    policies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken config does not hide a broken policy."""
    config = tmp_path / "my.yaml"
    config.write_text("tiers: [{name: a, backends: [{model: m, modle: n}]}]\n")
    edit(policies / "batch.yaml", "deadline: 5m", "deadline: 5 minutes")
    assert main(["check", "--json", "--config", str(config), "--policies", str(policies)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert [(Path(p["file"]).name, p["line"], p["key"]) for p in report["problems"]] == [
        ("my.yaml", 1, "tiers[0].backends[0].modle"),
        ("batch.yaml", line_of(policies / "batch.yaml", "5 minutes"), "slo.deadline"),
    ]


def test_json_shows_what_would_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """States, reasons and versions, and never a key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    assert main(["check", "--json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out)
    assert [(tier["name"], tier["configured"]) for tier in report["tiers"]] == [
        ("local", False),
        ("hosted", True),
        ("large", True),
    ]
    assert {surface["name"] for surface in report["surfaces"]} == {file.stem for file in policy_files(SHIPPED)}
    assert "sk-canary" not in out


def test_a_policy_for_tiers_that_are_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The policies must fit the deployment."""
    config = tmp_path / "my.yaml"
    config.write_text("tiers: [{name: local, backends: [{model: m, base_url: 'http://127.0.0.1:1/v1'}]}]\n")
    assert main(["check", "--config", str(config)]) == 1
    assert "tiers[1]: the deployment has no tier 'hosted'; it has local" in capsys.readouterr().out


HEADS = """\
tiers:
  - {{name: local, backends: [{{model: small, base_url: "http://127.0.0.1:1/v1", {local}}}]}}
  - {{name: hosted, backends: [{{model: large, base_url: "http://127.0.0.1:2/v1"}}]}}
"""


def test_the_head_of_each_backend_is_shown(policies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its version, to people and to scripts."""
    head = ConfidenceHead.load(write_head(tmp_path / "head.json", "small", whole=mean_scorer(0.0)))
    config = tmp_path / "my.yaml"
    config.write_text(HEADS.format(local="confidence_head: head.json"))
    assert main(["check", "--config", str(config), "--policies", str(policies)]) == 0
    assert f"small                        {head.version}" in capsys.readouterr().out
    assert main(["check", "--json", "--config", str(config), "--policies", str(policies)]) == 0
    tiers = json.loads(capsys.readouterr().out)["tiers"]
    assert [tier["backends"][0]["confidence_head"] for tier in tiers] == [head.version, None]


@pytest.mark.parametrize(
    ("local", "change", "key", "says"),
    [
        ("logprobs: true", (r"    uncalibrated_below:.*\n", ""), "escalate.when.confidence_below", "has no conf"),
        ("logprobs: false", None, "escalate.no_signal", "all are escalated"),
        ("logprobs: false", ("no_signal: escalate", "no_signal: accept"), "escalate.no_signal", "all are accepted"),
    ],
)
def test_thresholds_that_a_backend_gives_nothing_for_are_pointed_out(
    policies: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    local: str,
    change: tuple[str, str] | None,
    key: str,
    says: str,
) -> None:
    """A backend whose answers are judged, without a head or without log-probabilities."""
    config = tmp_path / "my.yaml"
    config.write_text(HEADS.format(local=local))
    for other in policy_files(policies):
        if other.stem != "chat":
            other.unlink()
    if change is not None:
        chat = policies / "chat.yaml"
        chat.write_text(re.sub(*change, chat.read_text()))
    assert main(["check", "--json", "--config", str(config), "--policies", str(policies)]) == 0
    [warning] = json.loads(capsys.readouterr().out)["warnings"]
    assert warning["key"] == key
    assert says in warning["message"]


@pytest.mark.parametrize("config", ["/dev/zero", "nope.yaml", "."])
def test_a_config_that_cannot_be_read_ends_at_once(config: str) -> None:
    """Within seconds, whatever the path points to; without an end, it would be killed."""
    done = run_command("check", "--config", config, env=environment())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_cross_encoder_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that can be served is shown with its version; of a broken one it is said what is wrong, and where."""
    pytest.importorskip("onnx", reason="the minilm extra is not installed")
    pytest.importorskip("onnxruntime", reason="the minilm extra is not installed")
    from tests.support.cross_encoder import write_cross_encoder

    folder = write_cross_encoder(tmp_path / "model", strict=0.9)
    config = tmp_path / "tierline.yaml"
    config.write_text(default_config().read_text() + "cross_encoder: model\n")
    assert main(["check", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cross_encoder"] == CrossEncoder.load(folder).version
    (folder / "tokenizer.json").unlink()
    assert main(["check", "--config", str(config)]) == 1
    line = len(config.read_text().splitlines())
    assert f"{config}:{line}:16: cross_encoder: {folder}/tokenizer.json: " in capsys.readouterr().out


def test_the_languages_that_are_answered_by_meaning_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the cross-encoder lists where a policy asks it, English where the fast rules decide alone."""
    pytest.importorskip("onnxruntime", reason="the minilm extra is not installed")
    assert main(["check"]) == 0
    lines = [line.split(None, 2) for line in capsys.readouterr().out.splitlines()]
    told = {line[1]: line[2] for line in lines if line[0] == "meaning"}
    assert told["chat"] == "ar de en es fr it ja ko nl pl pt ru th tr zh; other languages go to a model"
    assert told["voice"] == "en; other languages go to a model"
    assert "autocomplete" not in told
    assert main(["check", "--json"]) == 0
    surfaces = {surface["name"]: surface for surface in json.loads(capsys.readouterr().out)["surfaces"]}
    assert "zh" in surfaces["chat"]["answers_by_meaning_in"]
    assert (surfaces["voice"]["answers_by_meaning_in"], surfaces["agent"]["answers_by_meaning_in"]) == (["en"], [])


@pytest.mark.parametrize(
    ("written", "key", "says"),
    [
        ("        queue: {wait: 2s}\n", "load.max_wait", "backend 'local' lets no request wait for more than 2 s"),
        ("        queue: {length: 128}\n", "load.max_waiting", "tier 'local' lets no more than 128 requests wait"),
        ("", "load.max_waiting", "a worker handles at most 512 requests at a time"),
    ],
)
def test_a_cap_that_is_tighter_than_a_policy_is_said(
    policies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, key: str, says: str
) -> None:
    """Where the config lets fewer wait, or less long, than a policy writes, the policy's line is pointed out."""
    config = tmp_path / "my.yaml"
    text = default_config().read_text()
    if not written:
        text = text.replace("in_flight: 2048", "in_flight: 512")
    config.write_text(text.replace("        continuation: prefill", f"{written}        continuation: prefill"))
    assert main(["check", "--json", "--config", str(config), "--policies", str(policies)]) == 0
    [warning] = [one for one in json.loads(capsys.readouterr().out)["warnings"] if one["file"].endswith("batch.yaml")]
    assert (warning["key"], warning["line"]) == (key, line_of(policies / "batch.yaml", "max_waiting: 1024"))
    assert says in warning["message"]


def test_a_judge_that_cannot_be_asked_is_said(policies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unconfigured backend compares nothing, and an audit of nought leaves nothing to compare."""
    edit(policies / "chat.yaml", "semantic: {", "semantic: {audit_judge: {backend: hosted}, ")
    assert main(["check", "--policies", str(policies)]) == 0
    out = capsys.readouterr().out
    assert "cache.semantic.audit_judge.backend: backend 'hosted' is unconfigured (OPENAI_API_KEY is not set)" in out
    edit(policies / "chat.yaml", "semantic: {", "semantic: {audit: 0%, ")
    assert main(["check", "--policies", str(policies)]) == 0
    assert "cache.semantic.audit_judge: audit is 0%" in capsys.readouterr().out
