"""`tierline fit calibrate`, as a user runs it."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import yaml

from gateway.cli.main import main
from gateway.parts.heads.head import FORMAT, LogisticScorer, numbers_hash
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.loader import read_policy
from routing.difficulty.model import shipped_artefact
from tests.support.gateway import Gateway, config
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

POLICY = """\
# The surface that these tests calibrate.
surface: chat
slo: {deadline: 30s}
tiers: [local, hosted]
route:
  start:
    local: (p_adequate >= 0.7 or not in_domain) and tokens_in < 3000   # where easy ones start
    hosted: otherwise
escalate:
  when:
    confidence_below: 0.62     # by a head
    uncalibrated_below: 0.8    # without one
    finish: [length]
"""
Calibrate = Callable[..., int]


def rows(n: int, seed: int = 0, **answer: Any) -> list[dict[str, Any]]:
    """Rows of a small model that knows what it knows, and a large one that is right in 90%; `answer` adds to both."""
    draw = np.random.default_rng(seed)
    made = []
    for i in range(n):
        sure = float(draw.random())
        small = {"correct": int(draw.random() < 0.3 + 0.65 * sure), "confidence": math.log(0.5 + 0.4999 * sure)}
        large = {"correct": int(draw.random() < 0.9)}
        models = {"small": small | answer, "large": large | answer}
        made.append({"id": f"r{i}", "dataset": "d", "group": "g", "prompt": f"What is {i} + {i}?", "models": models})
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deployment with one surface, and 800 labelled rows."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "chat.yaml").write_text(POLICY)
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(config("http://127.0.0.1:1/v1", None)))
    write(tmp_path / "rows.jsonl", rows(800))
    return tmp_path


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def calibrate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    """calibrate("quality=0.95", ...): runs the command in `folder` on its rows, or on the source that is given."""
    monkeypatch.chdir(folder)

    def _calibrate(target: str, *more: str) -> int:
        source = () if {"--data", "--ledger"} & set(more) else ("--data", "rows.jsonl")
        where = ("--config", "tierline.yaml", "--policies", "policies")
        return main(["fit", "calibrate", "--surface", "chat", "--target", target, *source, *where, *more])

    return _calibrate


def policy_of(folder: Path) -> Path:
    return folder / "policies" / "chat.yaml"


def chosen(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `--json` printed, which is one object."""
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_it_prints_the_curve_and_a_diff_to_review(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy stays as it is; `patch` makes the change from what was printed."""
    assert calibrate("quality=0.95") == 0
    out = capsys.readouterr().out
    assert "800 labelled requests; quality at least 0.95 of always-large's, at 90% confidence" in " ".join(out.split())
    assert "<- chosen" in out and "escalate below" in out
    assert policy_of(folder).read_text() == POLICY
    if shutil.which("patch"):
        subprocess.run(["patch", "-p1"], input=out, text=True, cwd=folder, check=True, capture_output=True)
        policy, _ = read_policy(policy_of(folder))
        assert f"uncalibrated_below {policy.escalate.when.uncalibrated_below:g}" in " ".join(out.split())


@pytest.mark.long
def test_it_changes_the_policy_in_place_when_asked(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two numbers change; comments, order and the threshold that was not calibrated stay."""
    assert calibrate("quality=0.95", "--write", "--out", "chat.diff", "--json") == 0
    said = chosen(capsys)
    policy, _ = read_policy(policy_of(folder))
    when = policy.escalate.when
    assert (when.confidence_below, when.uncalibrated_below) == (0.62, said["chosen"]["uncalibrated_below"])
    start = said["chosen"]["p_adequate"]
    assert policy.route.start["local"].source == f"(p_adequate >= {start:g} or not in_domain) and tokens_in < 3000"
    assert (folder / "chat.diff").read_text() == said["diff"]
    before, after = POLICY.splitlines(), policy_of(folder).read_text().splitlines()
    assert [old.split("#")[1:] for old in before] == [new.split("#")[1:] for new in after]


@pytest.mark.long
def test_json_is_one_object_with_everything(calibrate: Calibrate, capsys: pytest.CaptureFixture[str]) -> None:
    """Target, chosen thresholds, labels, confidence, bound and curve."""
    assert calibrate("error=0.05", "--json", "--delta", "0.2", "--check", "5") == 0
    said = chosen(capsys)
    assert (said["target"], said["n"], said["delta"]) == ({"kind": "error", "level": 0.05}, 800, 0.2)
    assert said["chosen"]["uncalibrated"] and said["chosen"]["confidence_below"] is None
    assert said["chosen"]["error_at_most"] <= 0.05
    assert said["chosen"]["uncalibrated_below"] in [point["threshold"] for point in said["curve"] if point["proven"]]
    assert "betting" in said["bound"] and said["missing"] is None
    assert said["check"]["rounds"] == 5 and said["check"]["n"] == 400


@pytest.mark.long
@pytest.mark.parametrize("as_json", [False, True])
def test_it_refuses_what_the_data_cannot_support(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Exit code 1, how many labels are missing, and no diff."""
    write(folder / "few.jsonl", rows(40))
    more = ("--json",) if as_json else ()
    assert calibrate("quality=0.97", "--data", "few.jsonl", "--write", "--out", "chat.diff", *more) == 1
    said = capsys.readouterr()
    assert "40 labels cannot show quality at least 0.97" in said.err and "more labels are missing" in said.err
    assert "---" not in said.out.replace("<---", "") and not (folder / "chat.diff").exists()
    assert policy_of(folder).read_text() == POLICY
    if as_json:
        found = json.loads(said.out)
        assert found["chosen"] is None and found["missing"] > 0 and found["curve"]


@pytest.mark.long
def test_it_refuses_what_no_number_of_labels_would_support(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small model that is never right saves nothing, and more labels would not change that."""
    wrong = rows(600)
    for row in wrong:
        row["models"]["small"]["correct"] = 0
    write(folder / "wrong.jsonl", wrong)
    assert calibrate("quality=0.99", "--data", "wrong.jsonl") == 1
    assert "no number would" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--small", "tiny"), "none of tiny is among the models of the file: large, small; name one by --small"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--surface", "chta"), "no surface 'chta' (did you mean 'chat'?)"),
        (("--labels", "labels.jsonl"), "--ledger and --labels belong together"),
        (("--head", "nowhere.json"), "nowhere.json cannot be read"),
    ],
)
def test_mistakes_are_said_in_one_line(
    calibrate: Calibrate, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    """The line says what to do; nothing is printed on stdout."""
    assert calibrate("quality=0.95", *more) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    complaint = [line for line in printed.err.splitlines() if line.startswith("tierline:")]
    assert len(complaint) == 1 and said in complaint[0]


@pytest.mark.parametrize("target", ["quality", "quality=2", "speed=0.5", "cost=0", "error=x"])
def test_a_target_is_a_kind_and_a_share(calibrate: Calibrate, capsys: pytest.CaptureFixture[str], target: str) -> None:
    """Anything else is a usage error that shows how it is written."""
    with pytest.raises(SystemExit) as exit_:
        calibrate(target)
    assert exit_.value.code == 2 and "--target" in capsys.readouterr().err


def test_one_tier_has_nothing_to_calibrate(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A surface without a second tier is told so."""
    only = "surface: chat\nslo: {deadline: 30s}\ntiers: [hosted]\nroute: {start: {hosted: otherwise}}\n"
    policy_of(folder).write_text(only)
    assert calibrate("quality=0.95") == 2
    assert "one tier" in capsys.readouterr().err


@pytest.mark.long
def test_costs_are_the_rows_or_the_configs_or_counted(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded dollars come first, then tokens at the tier's price; without either a cost is a large call."""
    said = {}
    labelled = {
        "counted": rows(400),
        "priced": rows(400, tok_in=100, tok_out=10),
        "recorded": rows(400, tok_in=100, tok_out=10, cost_usd=0.5),
    }
    for row in labelled["recorded"]:
        row["models"]["small"]["cost_usd"] = 0.1
    for name, some in labelled.items():
        write(folder / f"{name}.jsonl", some)
        assert calibrate("quality=0.9", "--data", f"{name}.jsonl", "--json") == 0
        said[name] = chosen(capsys)
    assert [one["cost_unit"] for one in said.values()] == ["large calls", "dollars", "dollars"]
    cheapest = {name: one["curve"][0]["cost"] for name, one in said.items()}
    assert cheapest["counted"] == cheapest["priced"] == 0  # the local tier is free in this config
    assert cheapest["recorded"] == pytest.approx(0.2)


@pytest.mark.long
def test_labels_of_other_models_are_told_from_the_surfaces_own(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thresholds belong to the models they were chosen with, and so the reader is warned."""
    other = rows(400)
    for row in other:
        row["models"]["llama"] = row["models"].pop("small")
    write(folder / "other.jsonl", other)
    assert calibrate("quality=0.9", "--data", "other.jsonl", "--small", "llama", "--json") == 0
    assert any("the labels are llama's, but local runs small" in note for note in chosen(capsys)["notes"])
    assert calibrate("quality=0.9", "--json") == 0
    assert chosen(capsys)["notes"] == []


def test_a_classifier_trained_on_the_labels_is_told(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its scores look better on its own training data than they will on traffic."""
    artefact = folder / "artefact"
    shutil.copytree(shipped_artefact("static"), artefact)
    sheet = json.loads((artefact / "difficulty.json").read_text())
    digest = hashlib.sha256((folder / "rows.jsonl").read_bytes()).hexdigest()
    sheet["trained_on"] = [{"file": "rows.jsonl", "sha256": digest}]
    (artefact / "difficulty.json").write_text(json.dumps(sheet))
    assert calibrate("quality=0.95", "--artefact", "artefact", "--json") == 0
    assert any("was fitted on rows.jsonl" in note for note in chosen(capsys)["notes"])


@pytest.mark.long
def test_a_fitted_heads_threshold_is_the_calibrated_one(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`confidence_below` is changed, on the head's scale, and `uncalibrated_below` is left alone."""
    scorer = LogisticScorer(("mean",), (0.0,), (1.0,), (1.0,), 1.0, (-20.0,), (0.0,), ((0.3, 0.2), (1.0, 0.9)))
    numbers = {"alternatives": 0, "prior": {"weight": 0.0, "centre": 0.0}, "scorers": {"whole": [scorer.numbers()]}}
    head = {"format": FORMAT, "model": "small", "sha256": numbers_hash(numbers), "numbers": numbers}
    (folder / "head.json").write_text(json.dumps(head))
    assert calibrate("quality=0.95", "--head", "head.json", "--json", "--write") == 0
    said = chosen(capsys)["chosen"]
    assert not said["uncalibrated"] and said["uncalibrated_below"] is None and said["confidence_below"] < 0.9
    when = read_policy(policy_of(folder))[0].escalate.when
    assert (when.confidence_below, when.uncalibrated_below) == (said["confidence_below"], 0.8)


def test_answers_the_judge_turns_down_are_escalated_at_any_threshold(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is cut off goes on to the large tier here, because it does so in the gateway."""
    cut = rows(400)
    for row in cut[:100]:
        row["models"]["small"]["finish_reason"] = "length"
    write(folder / "cut.jsonl", cut)
    assert calibrate("quality=0.9", "--data", "cut.jsonl", "--json") == 0
    assert chosen(capsys)["curve"][0]["kept"] == pytest.approx(0.75)


@pytest.mark.long
def test_answers_can_be_judged_as_streams_are(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the tokens the policy holds back, here 24: doubts that come later are not seen."""
    streamed = rows(400)
    for row in streamed:
        sure = row["models"]["small"].pop("confidence")
        row["models"]["small"] |= {"logprobs": [sure] * 24 + [-6.0] * 24, "finish_reason": "length", "answer": "a b"}
    write(folder / "streamed.jsonl", streamed)
    assert calibrate("quality=0.9", "--data", "streamed.jsonl", "--stream", "--json") == 0
    kept = {point["threshold"]: point["kept"] for point in chosen(capsys)["curve"]}
    assert kept[0.5] == 1 and 0.1 < kept[0.9] < 0.3
    assert calibrate("quality=0.9", "--data", "streamed.jsonl", "--json") == 1
    assert chosen(capsys)["curve"][0]["kept"] == 0  # whole, they are seen to be cut off
    assert calibrate("quality=0.9", "--stream") == 2
    assert "--stream needs the logprobs" in capsys.readouterr().err


@pytest.mark.long
def test_of_three_tiers_the_first_step_is_calibrated(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the cheapest tier to the next; and the reader is told."""
    policy_of(folder).write_text(POLICY.replace("[local, hosted]", "[local, hosted, best]"))
    deployment = yaml.safe_load((folder / "tierline.yaml").read_text())
    third = {"base_url": "http://127.0.0.1:9/v1", "model": "huge"}
    deployment["tiers"].append({"name": "best", "backends": [third]})
    (folder / "tierline.yaml").write_text(yaml.safe_dump(deployment))
    assert calibrate("quality=0.95") == 0
    assert "the first step of local -> hosted -> best; always-large means always hosted" in capsys.readouterr().out


@pytest.mark.long
def test_the_check_is_printed(calibrate: Calibrate, capsys: pytest.CaptureFixture[str]) -> None:
    """How often calibrating on half of the labels broke the target."""
    assert calibrate("quality=0.95", "--check", "20") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "check: 20 random halves of 400 labels" in out and "(allowed 10%)" in out


@pytest.mark.long
def test_the_curve_is_drawn(calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture, where matplotlib is installed."""
    pytest.importorskip("matplotlib")
    assert calibrate("cost=0.5", "--plot", "curve.png") == 0
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


# The ledger.


def record(i: int, p_adequate: float | None, confidence: float | None, **changes: Any) -> dict[str, Any]:
    """A record as the store keeps it: of a request that local answered or began, or, below 0.7, only hosted."""
    local = p_adequate is None or p_adequate >= 0.7
    route = {
        names.DECISION: ["local", "hosted"] if local else ["hosted"],
        names.REASON: "local: (p_adequate >= 0.7 or not in_domain)" if local else "hosted: otherwise",
        detail.IN_DOMAIN: p_adequate is not None,
        detail.CLASSIFIER: "c1c1c1c",
        **({} if p_adequate is None else {detail.P_ADEQUATE: p_adequate}),
    } | changes.pop("route", {})
    attempt = {
        names.TIER: "local" if local else "hosted",
        names.OUTCOME: "accepted",
        names.CONFIDENCE_BASIS: "logprob",
        names.REASON: "confidence 0.9 >= 0.8",
        names.CONFIDENCE: confidence,
        names.GEN_AI_TOKENS_IN: 20,
        names.GEN_AI_TOKENS_OUT: 5,
    } | changes.pop("attempt", {})
    hops = [{"name": names.ROUTE, "attributes": route}, {"name": names.ATTEMPT, "attributes": attempt}]
    ledger = {"request_id": f"req-{i}", "surface": "chat", "stream": False, "tokens_in": 20} | changes
    return {"v": 1, "ledger": ledger, "hops": hops}


def labels(n: int, seed: int = 0) -> tuple[list[float], list[dict[str, Any]]]:
    """Confidences, and who was right, as in `rows`."""
    draw = np.random.default_rng(seed)
    sure = draw.random(n)
    small, large = draw.random(n) < 0.3 + 0.65 * sure, draw.random(n) < 0.9
    made = [{"request_id": f"req-{i}", "small": int(small[i]), "large": int(large[i])} for i in range(n)]
    return (0.5 + 0.4999 * sure).tolist(), made


LEDGER = ("--ledger", "ledger.jsonl", "--labels", "labels.jsonl")


def test_a_ledger_gives_thresholds(calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From what the gateway recorded and who was right, at the config's prices."""
    confidences, right = labels(600)
    write(folder / "labels.jsonl", right)
    write(folder / "ledger.jsonl", [record(i, None, confidence) for i, confidence in enumerate(confidences)])
    assert calibrate("quality=0.95", *LEDGER, "--json") == 0
    said = chosen(capsys)
    assert said["n"] == 600 and said["cost_unit"] == "dollars" and said["models"] == ["small", "large"]
    assert 0.5 < said["chosen"]["uncalibrated_below"] < 1


def test_start_thresholds_nobody_has_tried_are_not_chosen(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of requests that went past the small tier its confidence is unknown, so the start rule may only get stricter."""
    confidences, right = labels(600)
    write(folder / "labels.jsonl", right)
    scores = np.random.default_rng(1).random(600)
    records = [record(i, round(float(p), 4), c) for i, (p, c) in enumerate(zip(scores, confidences, strict=True))]
    write(folder / "ledger.jsonl", records)
    assert calibrate("quality=0.95", *LEDGER, "--json") == 0
    said = chosen(capsys)
    assert said["chosen"]["p_adequate"] >= 0.7
    assert any("not looked at: p_adequate >= 0, p_adequate >= 0.3, p_adequate >= 0.5" in note for note in said["notes"])


QUANTILES = POLICY.replace("(p_adequate >= 0.7 or not in_domain)", "easiest 40% of its kind")


def seen(n: int, kind: str = "chat", version: str = "c1c1c1c", **changes: Any) -> list[dict[str, Any]]:
    """Records of a surface whose requests are all of the easier half of their kind: quantiles from 0 to 0.5."""
    quantiles = np.linspace(0, 0.5, n).round(4).tolist()
    known = {detail.KIND: kind, detail.IN_DOMAIN: True, detail.CLASSIFIER: version}
    return [
        record(i, None, 0.9, route=known | {detail.QUANTILE: quantile}, **changes)
        for i, quantile in enumerate(quantiles)
    ]


def test_traffic_alone_says_what_a_quantile_means(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No labels are needed. Kinds with few requests are left out, and a second measurement replaces the first."""
    monkeypatch.chdir(folder)
    policy_of(folder).write_text(QUANTILES)
    command = [
        "fit",
        "calibrate",
        "--surface",
        "chat",
        "--config",
        "tierline.yaml",
        "--policies",
        "policies",
        "--write",
    ]
    write(folder / "ledger.jsonl", [*seen(101), *seen(99, "code"), *seen(400, surface="batch")])
    assert main([*command, "--traffic", "ledger.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "this surface's own requests: 101 chat, by classifier c1c1c1c" in " ".join(out.split())
    assert "99 of kinds with fewer than 100" in " ".join(out.split())
    policy, _ = read_policy(policy_of(folder))
    assert policy.route.share_easier("chat", 0.2, "c1c1c1c") == pytest.approx(0.4)
    assert policy.route.share_easier("code", 0.2, "c1c1c1c") is None
    assert [line for line in QUANTILES.splitlines() if line not in policy_of(folder).read_text()] == []

    newer = seen(200, "code", "c2c2c2c")
    write(folder / "ledger.jsonl", [*newer, *seen(101)])
    assert main([*command, "--traffic", "ledger.jsonl"]) == 0
    policy, _ = read_policy(policy_of(folder))
    assert policy.route.traffic is not None
    assert (policy.route.traffic.classifier, list(policy.route.traffic.deciles)) == ("c2c2c2c", ["code"])
    capsys.readouterr()
    write(folder / "ledger.jsonl", seen(20))
    assert main([*command, "--traffic", "ledger.jsonl"]) == 2
    assert "too few requests of chat whose kind is known (20 chat)" in capsys.readouterr().err


def test_a_quantile_is_chosen_by_the_surfaces_own_traffic(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The easiest 40% of these requests reach to a quantile of 0.2; a rule that lets in more is not looked at."""
    policy_of(folder).write_text(QUANTILES)
    confidences, right = labels(600)
    records = seen(600)
    for one, confidence in zip(records, confidences, strict=True):
        route, attempt = (hop["attributes"] for hop in one["hops"])
        attempt[names.CONFIDENCE] = confidence
        if route[detail.QUANTILE] > 0.2:  # went straight to the large tier
            route |= {names.DECISION: ["hosted"], names.REASON: "hosted: otherwise"}
            attempt[names.TIER] = "hosted"
    write(folder / "labels.jsonl", right)
    write(folder / "ledger.jsonl", records)
    assert calibrate("quality=0.95", *LEDGER, "--traffic", "ledger.jsonl", "--write", "--out", "d", "--json") == 0
    said = chosen(capsys)
    assert said["chosen"]["quantile"] in (0.4, 0.2) and "p_adequate" not in said["chosen"]
    assert any("not looked at: easiest 100% of its kind, easiest 80% of its kind, " in note for note in said["notes"])
    policy, _ = read_policy(policy_of(folder))
    share = said["chosen"]["quantile"]
    assert policy.route.start["local"].source == f"easiest {share * 100:g}% of its kind and tokens_in < 3000"
    assert policy.route.share_easier("chat", 0.2, "c1c1c1c") == pytest.approx(0.4, abs=0.01)
    assert said["starts"][0]["quantile"] == 0.4


@pytest.mark.parametrize("flags", [("--target", "quality=0.9"), ("--data", "rows.jsonl"), ()])
def test_a_target_needs_labels_and_labels_a_target(folder: Path, flags: tuple[str, ...]) -> None:
    """Without either there must be traffic to measure."""
    assert main(["fit", "calibrate", "--surface", "chat", "--policies", str(folder / "policies"), *flags]) == 2


def test_records_that_say_nothing_of_thresholds_are_left_out(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cached answers, tiers set by the request, unjudged answers, another classifier's scores: counted, and told."""
    confidences, right = labels(310)
    write(folder / "labels.jsonl", right)
    records = [record(i, None, confidence) for i, confidence in enumerate(confidences[:304])]
    records[300]["hops"] = []
    records[301] = record(301, 0.1, 0.9, route={names.REASON: "hosted alone is open to it"})
    records[302] = record(302, None, None, attempt={names.CONFIDENCE_BASIS: None, names.REASON: "nothing stronger"})
    del records[302]["hops"][1]["attributes"][names.CONFIDENCE_BASIS]
    records[303] = record(303, None, 0.9, route={detail.CLASSIFIER: "c0"})
    records.append(record(304, None, 0.9, surface="batch"))
    write(folder / "ledger.jsonl", records)
    assert calibrate("quality=0.9", *LEDGER, "--json") == 0
    said = chosen(capsys)
    assert said["n"] == 300
    told = " ".join(said["notes"])
    for reason in ("1 answered without a routing", "1 whose tier was set", "1 whose answer of local was not judged"):
        assert reason in told
    assert "1 scored by another classifier than c1c1c1c" in told and "6 without a record of chat" in told


def test_a_structural_fault_is_escalated_whatever_its_confidence(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer turned down as a loop was not turned down for its confidence."""
    confidences, right = labels(400)
    write(folder / "labels.jsonl", right)
    loop = {names.OUTCOME: "low_confidence", names.REASON: "repetition loop"}
    records = [record(i, None, c, attempt=loop if i < 100 else {}) for i, c in enumerate(confidences)]
    write(folder / "ledger.jsonl", records)
    assert calibrate("quality=0.9", *LEDGER, "--json") == 0
    assert chosen(capsys)["curve"][0]["kept"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("ledger", "right", "said"),
    [
        ("{}\n", '{"request_id": "a", "small": 1, "large": 1}\n', "ledger.jsonl:1: not a record"),
        ("", '{"request_id": "a", "small": 1}\n', "labels.jsonl:1: large missing; a row is"),
        ("", '{"request_id": "a", "small": 3, "large": 1}\n', "labels.jsonl:1: small and large are shares"),
        ("", '{"request_id": "a", "small": 1, "large": 1}\n', "no labelled request of chat"),
        ("what\n", '{"request_id": "a", "small": 1, "large": 1}\n', "ledger.jsonl:1: not JSON"),
    ],
)
def test_a_broken_ledger_is_told_by_file_and_line(
    calibrate: Calibrate, folder: Path, capsys: pytest.CaptureFixture[str], ledger: str, right: str, said: str
) -> None:
    """One line on stderr that says which file, and what it should hold."""
    (folder / "ledger.jsonl").write_text(ledger)
    (folder / "labels.jsonl").write_text(right)
    assert calibrate("quality=0.95", *LEDGER) in (1, 2)
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_what_the_gateway_records_can_be_calibrated(
    cached_gateway: Gateway, store: LocalStore, local_upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """From requests through the real gateway, by `tierline trace list --json`, to a curve."""
    local_upstream.on("sure").reply(Reply(text="yes", logprob=-0.01))
    local_upstream.on("unsure").reply(Reply(text="hm", logprob=-2.0))
    right = []
    for i in range(12):
        word = "sure" if i % 2 else "unsure"
        body = {"model": "chat", "messages": [{"role": "user", "content": f"are you {word} {i}?"}]}
        reply = httpx2.post(f"{cached_gateway.url}/chat/completions", json=body, timeout=20)
        right.append({"request_id": reply.headers["x-request-id"], "small": i % 2, "large": 1})
    folder = cached_gateway.folder

    def exported() -> str:
        main(["trace", "list", "-n", "100", "--json", "--store", store.url])
        return capsys.readouterr().out

    until(lambda: len(exported().splitlines()) == 12, 5, "the records")
    (folder / "ledger.jsonl").write_text(exported())
    write(folder / "labels.jsonl", right)
    source = ["--ledger", str(folder / "ledger.jsonl"), "--labels", str(folder / "labels.jsonl")]
    where = ["--config", str(folder / "tierline.yaml"), "--policies", str(folder / "policies")]
    command = ["fit", "calibrate", "--surface", "chat", "--target", "quality=0.95", *source, *where, "--json"]
    assert main(command) == 1  # twelve labels prove nothing
    said = json.loads(capsys.readouterr().out)
    assert said["n"] == 12 and said["missing"] > 0 and said["notes"] == []
    kept = {point["threshold"]: point["kept"] for point in said["curve"]}
    assert kept[0.1] == 1 and kept[0.5] == 0.5 and kept[0.9999] == 0
