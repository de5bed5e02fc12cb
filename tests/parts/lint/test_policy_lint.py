"""`tierline policy lint`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cache.planning.eligibility import why_not_any
from gateway.cli.main import main
from gateway.parts.lab.evidence import KeptOut, archive_evidence
from gateway.parts.ledger.folder import BASES
from gateway.parts.ledger.query import connect
from gateway.parts.lint.codes import CODES
from gateway.telemetry import names
from policies.loader import SHIPPED, read_policy
from routing.features import Features

CHAT = """\
surface: chat
slo: {ttft: {p99: 400ms}, deadline: 30s}
tiers: [local, hosted]   # cheapest first
route:
  start:
    local: p_adequate >= 70 and tokens_in < 3000   # easy ones
    hosted: otherwise
escalate: {when: {confidence_below: 0.62, uncalibrated_below: 0.8}, stream: {hold_max: 2s}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "chat.yaml").write_text(CHAT)
    return rules


def test_text_shows_the_line_the_reason_and_the_mend(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a caret under what is wrong; exit code 1 for an error."""
    assert main(["policy", "lint", str(folder)]) == 1
    assert (
        capsys.readouterr().out
        == f"""\
{folder}/chat.yaml:6:12: error T205: rule can never hold
    6 |     local: p_adequate >= 70 and tokens_in < 3000   # easy ones
      |            ^^^^^^^^^^
  why   route.start.local: 'p_adequate >= 70' can never hold: p_adequate is from 0 to 1
  mend  write 'p_adequate >= 0.7 and tokens_in < 3000'

{folder}/chat.yaml:8:88: warning T303: hold longer than the first token's budget
    8 | escalate: {{when: {{confidence_below: 0.62, uncalibrated_below: 0.8}}, stream: {{hold_max: 2s}}}}
      | {" " * 87}^^
  why   escalate.stream.hold_max: not less than slo.ttft.p99: holding back alone uses up the time to the first token
  mend  write such as 200ms

1 error, 1 warning; --fix can mend 2 of them
"""
    )


def test_fix_writes_what_to_write_instead(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else changes, comments least of all: they stay in their columns."""
    assert main(["policy", "lint", str(folder), "--fix"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"mended {folder}/chat.yaml:6:12: T205 ") and out.endswith("all is well\n")
    assert (folder / "chat.yaml").read_text() == CHAT.replace(
        "70 and tokens_in < 3000 ", "0.7 and tokens_in < 3000"
    ).replace("2s", "200ms")


def test_warnings_count_where_strict(folder: Path) -> None:
    """Without it they are shown, and pass."""
    (folder / "chat.yaml").write_text(CHAT.replace(">= 70", ">= 0.7"))
    assert main(["policy", "lint", str(folder)]) == 0
    assert main(["policy", "lint", str(folder), "--strict"]) == 1


def test_formats_for_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON for scripts, SARIF for code scanning, and GitHub's annotations."""
    assert main(["policy", "lint", str(folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["errors"], report["warnings"]) == (1, 1)
    first = report["findings"][0]
    assert (first["code"], first["line"], first["column"], first["severity"]) == ("T205", 6, 12, "error")
    assert first["edits"][0]["path"] == ["route", "start", "local"]

    assert main(["policy", "lint", str(folder), "--format", "sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == CODES.keys()
    where = run["results"][0]["locations"][0]["physicalLocation"]
    assert (where["artifactLocation"]["uri"], where["region"]) == (
        f"{folder}/chat.yaml",
        {"startLine": 6, "startColumn": 12},
    )

    assert main(["policy", "lint", str(folder), "--format", "github"]) == 1
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .startswith(
            f"::warning file={folder}/chat.yaml,line=8,col=88,title=T303 hold longer than the first token's budget::"
        )
    )


def test_what_is_not_there_cannot_be_done(folder: Path) -> None:
    """A missing path, a folder without policies and a missing ledger are no findings."""
    (folder / "empty").mkdir()
    assert main(["policy", "lint", str(folder / "empty")]) == 2
    assert main(["policy", "lint", str(folder / "none.yaml")]) == 2
    assert main(["policy", "lint", str(folder), "--ledger", str(folder)]) == 2


def _request(number: int, **changed: Any) -> dict[str, Any]:
    given = {
        "tokens_in": 40 + number, "turns": 1, "has_tools": False, "wants_json": False, "has_images": False,
        "stream": True, "budget_s": 30.0, "ttft_s": 0.4, "room": 100, "holdout": False, "min_tier": None,
        "max_tier": None, "health": [],
        "difficulty": {"in_domain": True, "kind": "chat", "p_kind": 0.9, "quantile": 0.3, "p_right": [0.4, 0.9]},
    }  # fmt: skip
    call = {"attempt": 1, "tier": "local", "basis": "calibrated", "confidence": 0.7 + number / 1000, "ttft_ms": 900.0}
    row = {"entry_ms": number, "entry_seq": 0, "started": 1000.0 + number, "surface": "chat", "classifier": "c" * 12}
    return {**row, "given": {**given, **changed}, "calls": [call]}


def test_recorded_requests_are_held_against_a_policy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scores of its answers, its first tokens, and how often each start rule holds."""
    ledger = folder / "ledger"
    ledger.mkdir()
    rows = [json.dumps(_request(number)) for number in range(1, 121)]
    (ledger / "requests.jsonl").write_text("\n".join(rows) + "\n")
    (ledger / "feedback.jsonl").write_text("")
    assert not (ledger / BASES).exists()
    file = folder / "chat.yaml"
    file.write_text(CHAT.replace("p_adequate >= 70 and tokens_in < 3000", "tokens_in < 20").replace("2s", "200ms"))
    with connect(ledger) as database:
        seen = archive_evidence(database, read_policy(file)[0])
        assert (seen.requests, seen.with_tools, dict(seen.started)) == (120, 0, {"local": 0, "hosted": 120})
        assert seen.calibrated["local"].total == 120 and seen.calibrated["local"].share_below(0.75) == 49 / 120
        assert (seen.first_tokens["local"].count, seen.first_tokens["local"].p50) == (120, 0.9)
        assert archive_evidence(database, read_policy(file)[0], oldest=1100).requests == 21
        assert archive_evidence(database, read_policy(SHIPPED / "batch.yaml")[0]).requests == 0
    assert main(["policy", "lint", str(file), "--ledger", str(ledger), "--strict"]) == 1
    out = capsys.readouterr().out
    assert "T801" in out and "0.0% of 120 scores of 'local' are below 0.62, so nothing is escalated for it: 0 " in out
    assert "T802" in out and "half of the first tokens of 'local' came later than 900ms, in 120 calls" in out
    assert "T803" in out and "took none of the 120 requests recorded" in out
    assert main(["policy", "lint", str(file), "--ledger", str(ledger), "--since", "1h", "--strict"]) == 0


def test_rules_of_the_cache_are_held_against_what_was_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the values that a record has, else by the reason that the cache gave, under policies that had the rule."""
    never = 'never: [tools, n > 1, "turns >= 1 and not tools", "temperature > 1", stream and turns > 3]'
    file = folder / "chat.yaml"
    file.write_text(CHAT.replace("p_adequate >= 70 and ", "") + f"cache: {{exact: {{ttl: 1h}}, {never}}}\n")
    policy = read_policy(file)[0]

    def row(number: int, label: str, body: dict[str, Any], **changed: Any) -> str:
        given = {**_request(number)["given"], **changed}
        features = Features("", given["turns"], 40, given["has_tools"], stream=given["stream"])
        reason = why_not_any(policy.cache, body, features)
        hop = {"name": names.CACHE_EXACT, "attributes": {names.CACHE_REASON: reason} if reason else {}}
        return json.dumps({**_request(number), "given": given, "policy": label, "path": "direct", "hops": [hop]})

    ledger, label = folder / "ledger", policy.label
    ledger.mkdir()
    rows = [row(number, label, {}) for number in range(1, 1101)]
    rows += [row(number, label, {"n": 2}) for number in range(1101, 1111)]
    rows += [row(number, "chat@0000000", {}) for number in range(1111, 1161)]
    hit = {**_request(1161), "given": None, "policy": label, "path": "cache-exact", "hops": []}
    (ledger / "requests.jsonl").write_text("\n".join([*rows, json.dumps(hit)]) + "\n")
    basis = {"version": policy.version, "content": policy.content}
    (ledger / BASES).write_text(json.dumps({"id": "b", "basis": basis}) + "\n")
    with connect(ledger) as database:
        seen = archive_evidence(database, policy).kept_out
    assert seen["tools"] == KeptOut(1161, 0) and seen["turns >= 1 and not tools"] == KeptOut(1161, 1160)
    assert seen["n > 1"] == KeptOut(1111, 10) and seen["temperature > 1"] == KeptOut(1111, 0)
    assert main(["policy", "lint", str(file), "--ledger", str(ledger), "--json"]) == 0
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["code"] in ("T804", "T805")]
    assert [(one["code"], one["key"], one["edits"]) for one in found] == [
        ("T804", "cache.never[0]", []),
        ("T805", "cache.never[2]", []),
        ("T804", "cache.never[3]", []),
        ("T804", "cache.never[4]", []),
    ]
    assert "kept out 1160 of the 1161 requests recorded (99.9%)" in found[1]["message"]
    (ledger / "requests.jsonl").write_text("\n".join(rows[:99]) + "\n")
    assert main(["policy", "lint", str(file), "--ledger", str(ledger)]) == 0
    out = capsys.readouterr().out
    assert "T801" in out and "T804" not in out and "T805" not in out
