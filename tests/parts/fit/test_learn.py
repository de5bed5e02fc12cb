"""`tierline fit learn` from the ledger's files: what it proposes, what it refuses, and what it says of quality."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import yaml

from gateway.cli.main import main
from gateway.config.launch import Launch
from gateway.parts.heads.head import ConfidenceHead
from gateway.parts.ledger.columns import FEEDBACK, LABELS, REQUESTS
from gateway.parts.ledger.folder import TableFiles
from routing.confidence.judge import Evidence
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.embedder import StaticEmbedder
from tests.support.gateway import config, write_deployment
from tests.support.strange_labels import label_rows
from tests.support.strange_models import Language

POLICY = """# ours
surface: chat
slo: {deadline: 20s}
tiers: [local, hosted]
route:
  classifier: default              # to be pinned
  start: {local: easiest 40% of its kind, hosted: otherwise}
"""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    embedder = StaticEmbedder.load()
    return label_rows(
        360, Language.made(7, words=50), embedder, DifficultyModel.load(shipped_artefact("static"), embedder)
    )


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """A config and a policy."""
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"), {"chat": POLICY})
    return tmp_path


def archive(
    folder: Path, labels: list[dict[str, Any]], feedback: dict[str, float], requests: list[dict[str, Any]] | None = None
) -> Path:
    """A ledger's folder with these labels, and feedback by request id."""
    ledger = folder / "ledger"
    ledger.mkdir()
    scores = [
        {"request_id": name, "tenant": "acme", "surface": "chat", "score": score, "comment": None, "given_at": 1.0}
        for name, score in feedback.items()
    ]
    for table, some in ((LABELS, labels), (FEEDBACK, scores), (REQUESTS, requests or [])):
        with contextlib.closing(TableFiles(ledger, table)) as files:
            placed = [{"entry_ms": i + 1, "entry_seq": 0, "ordinal": i + 1, **row} for i, row in enumerate(some)]
            if placed:
                files.append(placed)
    return ledger


def learn(folder: Path, *words: str) -> int:
    """Run the command; return its exit code."""
    where = ["--surface", "chat", "--config", str(folder / "tierline.yaml"), "--policies", str(folder / "policies")]
    return main(["fit", "learn", *(words[:1] if words and words[0] in ("quality", "export") else ()), *where,
                 *(words[1:] if words and words[0] in ("quality", "export") else words)])  # fmt: skip


@pytest.mark.long
def test_it_proposes_a_policy_that_pins_the_new_classifier(
    deployed: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else changes in the file; it loads as soon as it is put in force, and figures are of held-out labels."""
    monkeypatch.setenv("HOSTED_KEY", "sk-test")
    ledger = archive(deployed, rows, {})
    assert learn(deployed, "--ledger", str(ledger), "--out", str(deployed / "policies/learned"), "--json") == 0
    said = orjson.loads(capsys.readouterr().out)
    figures = said["measured"]
    assert said["labels"] == 360 and figures["labels"] == 108
    assert figures["own"]["apgr"]["value"] > 0.6 > figures["other"]["apgr"]["value"]
    assert figures["apgr_gain"]["lo"] > 0 and said["verdict"] == "better"
    pinned = said["proposed"]["classifier"]
    proposed = Path(said["proposed"]["policy"]).read_text()
    assert pinned.startswith("learned/chat-")
    assert yaml.safe_load(proposed) == {
        **yaml.safe_load(POLICY),
        "route": {**yaml.safe_load(POLICY)["route"], "classifier": pinned},
    }
    assert "# to be pinned" in proposed and proposed.startswith("# ours")
    sheet = orjson.loads((Path(said["proposed"]["artefact"]) / "difficulty.json").read_bytes())
    assert sheet["measured"]["held_out"]["own"]["apgr"] == figures["own"]["apgr"]
    assert [head["tier"] for head in said["heads"] if head["better"]] == ["local"]
    assert ConfidenceHead.load(Path(said["proposed"]["heads"]["local"])).model == "local"
    (deployed / "policies/chat.yaml").write_text(proposed)
    launch = Launch(config=deployed / "tierline.yaml", policies=deployed / "policies")
    assert launch.policy_source(launch.deployment()).load().default.route.pinned is not None


@pytest.mark.long
def test_what_is_not_better_is_not_proposed(
    deployed: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels that tell nothing end with exit 1 and no file; too few of them with 2 and the number that is missing."""
    turned = [
        {**row, "small": other["small"], "strong": other["strong"]} for row, other in zip(rows, rows[::-1], strict=True)
    ]
    file = deployed / "labels.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, turned[:150])))
    out = deployed / "learned"
    assert learn(deployed, "--labels", str(file), "--out", str(out)) == 1
    assert "not better" in capsys.readouterr().out and not list(out.glob("chat-*")) and not (out / "chat.yaml").exists()
    file.write_bytes(b"\n".join(map(orjson.dumps, rows[:40])))
    assert learn(deployed, "--labels", str(file), "--out", str(out)) == 2
    assert "at least 100 labels" in capsys.readouterr().err


@pytest.mark.parametrize("told", ["by the judge's labels", "by people"])
def test_a_verifier_is_calibrated_by_the_surface_s_own_labels(
    deployed: Path, capsys: pytest.CaptureFixture[str], told: str
) -> None:
    """Too few for the classifier, or of people alone: what the verifier said of each answer was recorded with it."""
    chance = np.random.default_rng(2)
    logits = chance.normal(4.0, 2.0, 400)
    words = (1 / (1 + np.exp(-logits))).tolist()
    right = (chance.random(400) < 1 / (1 + np.exp(-(logits - 4.0)))).astype(float).tolist()
    answer = {"tier": "hosted", "backend": "hosted", "model": "m", "served": True, "evidence": None, "text": None}
    by_people = told == "by people"
    labels = [
        {
            "request_id": f"r{i}", "tenant": "acme", "surface": "chat", "judged_at": float(i), "conversation": i,
            "better": "tie", "agreed": True, "kind": "chat", "classifier": "another", "embedder": "e",
            "small": {**answer, "adequate": y, "verified": {"judge": w}},
            "strong": {**answer, "tier": "large", "adequate": 1.0, "verified": None},
        }
        for i, (y, w) in enumerate(zip(right, words, strict=True))
    ]  # fmt: skip
    call = {"attempt": 1, "tier": "hosted", "wasted": False, "verifier": "judge"}
    requests = [
        {
            "request_id": f"r{i}", "tenant": "acme", "surface": "chat", "status": 200, "tier": "hosted", "model": "m",
            "path": "direct", "kind": "chat", "started": float(i), "session": f"{i:08x}",
            "calls": [{**call, "wasted": True, "verified": 0.5}, {**call, "verified": w}],
        }
        for i, w in enumerate(words)
    ]  # fmt: skip
    scores = {f"r{i}": y for i, y in enumerate(right)} if by_people else {}
    ledger = archive(deployed, [] if by_people else labels, scores, requests if by_people else [])
    assert learn(deployed, "--ledger", str(ledger), "--out", str(deployed / "learned"), "--json") == 0
    said = orjson.loads(capsys.readouterr().out)
    [head] = said["heads"]
    assert (head["tier"], head["answers"], head["better"]) == ("hosted", 400, True)
    assert "at least 100 labels" in said["verdict"] and head["ece"] < 0.12
    fitted = ConfidenceHead.load(Path(said["proposed"]["heads"]["hosted"]))
    sure = fitted.p_right(Evidence("a", verified={"judge": 0.98}), by="judge")
    assert sure == pytest.approx(1 / (1 + np.exp(-(np.log(0.98 / 0.02) - 4.0))), abs=0.15)
    assert fitted.p_right(Evidence("a", logprobs=[-0.1])) is None


def test_quality_is_one_figure_for_each_tier(
    deployed: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """With its interval, whose word it is, and how often judge and people agree."""
    feedback = {f"req_{i}": rows[i]["small"]["adequate"] for i in range(0, 120, 2)}
    ledger = archive(deployed, rows, feedback)
    assert learn(deployed, "quality", "--ledger", str(ledger), "--json") == 0
    said = orjson.loads(capsys.readouterr().out)
    local, hosted = said["tiers"]
    right = sum(row["small"]["adequate"] for row in rows) / len(rows)
    assert local["low"] < right < local["high"] and local["both"] == 60 and local["corrected"]
    assert hosted["judged"] == 360 and not hosted["corrected"]
    assert said["judge_and_people"]["answers"] == said["judge_and_people"]["agreed"] == 60
    assert learn(deployed, "quality", "--ledger", str(ledger)) == 0
    assert "judge and people agree on 60 of 60 answers (100%, 95% interval 94% to 100%)" in capsys.readouterr().out


def test_export_writes_chat_lines(
    deployed: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the pairs with a better, adequate answer; and says what became of the others."""
    ledger, chat = archive(deployed, rows, {}), deployed / "pairs.jsonl"
    assert learn(deployed, "export", "--ledger", str(ledger), "--chat", str(chat)) == 0
    lines = [orjson.loads(line) for line in chat.read_bytes().splitlines()]
    unequal = sum(row["better"] != "tie" for row in rows)
    assert len(lines) == unequal and all(line["messages"][-1]["content"] == "The answer is right." for line in lines)
    out = capsys.readouterr().out
    assert f"{unequal} pairs written" in out and f"left out: {360 - unequal} because no answer is better" in out
