"""Sizes of models, as their names state them, and who may judge by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.parts.lint.model_sizes import billions_in


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama3.2:3b", 3.0),
        ("llama3.2:1b-instruct-q4_K_M", 1.0),
        ("SmolLM2-135M-Instruct", 0.135),
        ("Qwen/Qwen3-30B-A3B", 30.0),
        ("Qwen2.5-1.5B-Instruct", 1.5),
        ("claude-haiku-5-5", None),
        ("gpt-6-luna", None),
        ("phi-4-mini-4bit", None),
    ],
)
def test_a_size_is_read_from_the_name(model: str, billions: float | None) -> None:
    assert billions_in(model) == billions


@pytest.mark.parametrize(
    ("judge", "mend"),
    [
        ("model: big, price: {input: 1}", "judge: {backend: hosted}"),
        ("model: llama-8b, price: {input: 1}", "judge: {backend: hosted}"),
        ("model: llama-1b, price: {input: 1}", "agreement: {samples: 1}"),  # no better than chance
        ("model: big", "agreement: {samples: 1}"),  # what nobody can count is not spent: it would judge nothing
        ("model: big, price: {input: 1}, logprobs: false", "agreement: {samples: 1}"),
    ],
)
def test_the_mend_of_drafts_without_a_signal_names_who_can_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judge: str, mend: str
) -> None:
    """And done as it says, it raises no finding of its own."""
    config, policies = tmp_path / "my.yaml", tmp_path / "policies"
    urls = [f"http://models.example:{port}/v1" for port in (1, 2)]
    config.write_text(
        "tiers:\n"
        f'  - {{name: local, backends: [{{model: m, base_url: "{urls[0]}", price: {{input: 1}}, logprobs: false}}]}}\n'
        f'  - {{name: hosted, backends: [{{base_url: "{urls[1]}", {judge}}}]}}\n'
    )
    policies.mkdir()
    (policies / "chat.yaml").write_text(
        "surface: chat\nslo: {deadline: 30s}\ntiers: [local, hosted]\nroute: {start: {local: otherwise}}\n"
        "escalate: {when: {confidence_below: 0.6}}\n"
    )
    assert main(["check", "--json", "--config", str(config), "--policies", str(policies)]) == 0
    found = json.loads(capsys.readouterr().out)["warnings"]
    [warning] = [one for one in found if one["key"] == "escalate.no_signal"]
    assert mend in json.dumps(warning)
    chat = policies / "chat.yaml"
    chat.write_text(chat.read_text().replace("{when", f"{{{mend}, when"))
    main(["check", "--json", "--config", str(config), "--policies", str(policies)])
    assert not [one for one in json.loads(capsys.readouterr().out)["warnings"] if one["key"].startswith("escalate")]
