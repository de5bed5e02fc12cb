"""A hundred mistakes are found at their lines and mended by a script; fifty good policies raise no finding."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.launch import Launch
from gateway.config.schema import Deployment
from gateway.parts.lab.evidence import BINS, FirstTokens, Histogram, KeptOut, LintEvidence, lint_against
from gateway.parts.lint.commands.policy_lint import Checks, fix
from policies.errors import Finding
from policies.loader import PolicySource
from policies.model import Policy

CASES = Path(__file__).parent / "lint_cases"
CONFIG = (CASES / "config.yaml").read_text()
GOOD = {match[1]: f"{text}\n" for text in (CASES / "good.yaml").read_text().split("\n---\n")
        if (match := re.search(r"^surface: (\S+)", text, re.MULTILINE))}  # fmt: skip
MISTAKES: list[dict[str, Any]] = yaml.load((CASES / "mistakes.yaml").read_text(), yaml.CSafeLoader)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACME_KEY", "GLOBEX_KEY", "HOSTED_KEY"):
        monkeypatch.setenv(name, f"{name}-for-the-lint-cases")


@cache
def _deployed(text: str, folder: Path) -> tuple[Deployment, PolicySource]:
    file = folder / "config.yaml"
    file.write_text(text)
    launch = Launch(config=file)
    deployment = launch.deployment()
    return deployment, launch.policy_source(deployment)


def _recorded(written: dict[str, Any]) -> Callable[[Policy], list[Finding]]:
    evidence = _evidence(written)
    return lambda policy: list(lint_against(policy, evidence))


def _evidence(written: dict[str, Any]) -> LintEvidence:
    def histograms(name: str) -> dict[str, Histogram]:
        made = {}
        for tier, parts in written.get(name, {}).items():
            counts = [0] * BINS
            for part, count in parts:
                counts[part] = count
            made[tier] = Histogram(tuple(counts))
        return made

    return LintEvidence(
        written.get("requests", 0),
        written.get("with_tools", 0),
        written.get("started", {}),
        histograms("calibrated"),
        histograms("uncalibrated"),
        {tier: FirstTokens(*numbers) for tier, numbers in written.get("first_tokens", {}).items()},
        {rule: KeptOut(*numbers) for rule, numbers in written.get("kept_out", {}).items()},
    )


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


@pytest.mark.parametrize("config", [False, True], ids=["alone", "deployed"])
def test_good_policies_raise_no_finding(tmp_path: Path, configs: Path, config: bool) -> None:
    """Fifty of them, of chat, code, voice, documents, extraction, agents and batch; in a deployment too."""
    for name, text in GOOD.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert len(GOOD) == 50
    assert Checks([tmp_path], *(_deployed(CONFIG, configs) if config else (None, None))).findings() == []


@pytest.mark.parametrize("case", MISTAKES, ids=[f"{case['finding']['code']}-{case['policy']}" for case in MISTAKES])
def test_a_mistake_is_found_at_its_line_and_mended(case: dict[str, Any], tmp_path: Path, configs: Path) -> None:
    """Once all that a script can mend is mended, nothing is found any more."""
    text = GOOD[case["policy"]]
    for old, new in case["change"]:
        assert old in text
        text = text.replace(old, new, 1)
    file = tmp_path / f"{case['policy']}.yaml"
    file.write_text(text)
    for other in case.get("beside", ()):
        (tmp_path / f"{other}.yaml").write_text(GOOD[other])
    config = CONFIG
    for old, new in case.get("config", ()):
        assert old in config
        config = config.replace(old, new)
    deployment, source = _deployed(config, configs) if "config" in case else (None, None)
    checks = Checks([tmp_path], deployment, source, _recorded(case["evidence"]) if "evidence" in case else lambda _: [])
    found = checks.findings()
    wanted = case["finding"]
    assert [(one.code, one.line) for one in found] == [(wanted["code"], wanted["line"])], [*map(str, found)]
    assert found[0].file == file and found[0].column > 0
    if not found[0].edits:
        assert case.get("by_hand") is True
        return
    fix(checks)
    assert checks.findings() == [], file.read_text()
