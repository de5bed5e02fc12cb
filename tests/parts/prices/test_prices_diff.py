"""`tierline prices diff`, before the second source itself."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import orjson
import pytest

from gateway.cli.main import main
from gateway.parts.prices.commands._price_diff import differences
from gateway.parts.prices.model_facts import FactsFile

MODELS = {
    # Ours is ten times theirs, and too small; they have a price of long prompts.
    "gpt-6-luna": {"price": {"input": 1.0, "output": 0.5, "cached_input": 0.01}, "context": 400_000},
    "no-such-model": {"price": {"input": 1.0, "output": 1.0}},
}
DEEPSEEK = {"deepseek-flash": {"price": {"input": 0.3, "output": 1.2, "cached_input": 0.006}}}


def facts(**providers: object) -> FactsFile:
    return FactsFile.model_validate({"dated": "2026-11-22", "hosts": {"api.openai.com": "openai"}, "models": providers})


def test_each_value_that_differs_is_told_with_how_much() -> None:
    rows = {row["field"]: row for row in differences(facts(openai=MODELS), {("openai", "gpt-6-luna")}) if row["used"]}
    assert {row["model"] for row in rows.values()} == {"gpt-6-luna"}
    assert (rows["input"]["ours"], rows["input"]["theirs"], rows["input"]["times"]) == (1.0, 0.1, pytest.approx(10))
    assert rows["context"]["theirs"] == 1_050_000
    assert (rows["long.over"]["ours"], rows["long.over"]["theirs"], rows["long.over"]["times"]) == (None, 272_000, None)
    assert rows["cache_write"]["ours"] is None and not rows.keys() & {"output", "cached_input"}
    assert rows["input"]["checked"] < date(2026, 11, 22)
    assert rows["input"]["newer"] == "ours"


def test_every_step_of_long_prompts_is_compared() -> None:
    """Theirs has two, from 32,000 and 128,000 tokens; ours another rate from the second, and one step more."""
    steps = [
        {"over": 32_000, "input": 0.325, "output": 1.625, "cached_input": 0.065, "cache_write": 0.40625},
        {"over": 128_000, "input": 0.6, "output": 2.6, "cached_input": 0.104, "cache_write": 0.65},
        {"over": 200_000, "input": 0.7, "output": 2.6},
    ]
    price = {"input": 0.195, "output": 0.975, "cached_input": 0.039, "cache_write": 0.24375, "long": steps}
    model = {"qwen/qwen3-coder-flash": {"price": price, "context": 1_000_000}}
    rows = {row["field"]: row for row in differences(facts(openrouter=model), ()) if row["field"] != "model"}
    assert rows.keys() == {"long2.input", "long3.over"}
    assert (rows["long2.input"]["ours"], rows["long2.input"]["theirs"]) == (0.6, 0.52)
    assert (rows["long3.over"]["ours"], rows["long3.over"]["theirs"]) == (200_000, None)


def test_the_newer_source_is_that_of_the_later_day() -> None:
    old = facts(openai=MODELS).model_copy(update={"dated": date(2026, 1, 1)})
    assert {row["newer"] for row in differences(old, ()) if row["field"] == "input"} == {"theirs"}


def test_models_of_theirs_alone_are_told() -> None:
    rows = [row for row in differences(facts(openai=MODELS), ()) if row["field"] == "model"]
    assert "gpt-6.1-sol" in {row["model"] for row in rows}
    assert {(row["ours"], row["used"]) for row in rows} == {(None, False)}


def test_a_price_that_changes_by_the_hour_is_the_dearest() -> None:
    """Our facts have one price a model, and it must not be told too low."""
    assert [row for row in differences(facts(deepseek=DEEPSEEK), ()) if row["model"] == "deepseek-flash"] == []


def test_what_is_used_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each model that `tierline init` proposes or the shipped config names, both sources say the same."""
    assert main(["prices", "diff"]) == 0
    shown = capsys.readouterr().out
    assert "theirs: genai-prices" in shown and "\n0 differences, " in shown


def test_a_finding_is_a_difference_of_what_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, config = tmp_path / "prices.json", tmp_path / "tierline.yaml"
    file.write_bytes(orjson.dumps(facts(openai=MODELS).model_dump(mode="json", exclude_defaults=True)))
    config.write_text(
        "tiers: [{name: hosted, backends: [{base_url: 'https://api.openai.com/v1', model: gpt-6-luna}]}]\n"
        f"cross_encoder: none\nprices: {{file: '{file}'}}\n"
    )
    assert main(["prices", "diff", "--config", str(config), "--json"]) == 1
    rows = orjson.loads(capsys.readouterr().out)["differences"]
    assert {row["model"] for row in rows} == {"gpt-6-luna"} and all(row["used"] for row in rows)
    assert main(["prices", "diff", "--config", str(config)]) == 1
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    shown = " ".join(printed.split())
    assert "openai gpt-6-luna: input 1.0, theirs 0.1 (10 times); newer: ours, theirs of 2026-" in shown
    assert main(["prices", "diff", "--config", str(config), "--all"]) == 1
    assert "gpt-6.1-sol: model none" in capsys.readouterr().out


def test_a_check_tells_what_the_second_source_says_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of prices that a file states; whoever states one in the config has decided."""
    file, config = tmp_path / "prices.json", tmp_path / "tierline.yaml"
    file.write_bytes(orjson.dumps(facts(openai=MODELS).model_dump(mode="json", exclude_defaults=True)))
    backend = "{base_url: 'https://api.openai.com/v1', model: gpt-6-luna}"
    stated = backend.replace("luna}", "luna, name: stated, price: {input: 1, output: 0.5, cached_input: 0.01}}")
    config.write_text(
        f"tiers: [{{name: a, backends: [{backend}]}}, {{name: b, backends: [{stated}]}}]\n"
        f"cross_encoder: none\nprices: {{file: '{file}'}}\n"
    )
    assert main(["prices", "check", "--config", str(config), "--max-age", "100000", "--json"]) == 1
    one, other = orjson.loads(capsys.readouterr().out)["backends"]
    assert "genai-prices" in one["finding"] and "input 0.1, of which this is 10 times" in one["finding"]
    assert "as prices.file names it; " in one["finding"] and "genai" not in other["finding"]
