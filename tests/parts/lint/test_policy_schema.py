"""The JSON Schema of policy files, as an editor uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.cli.main import main
from gateway.parts.lint.policy_schema import SCHEMA_FILE, policy_schema, schema_text
from policies.loader import SHIPPED, policy_files
from policies.yaml_source import parse_yaml
from tests.parts.lint.test_lint_cases import GOOD, MISTAKES

SCHEMA = jsonschema_rs.validator_for(policy_schema())
MODELINE = "# yaml-language-server: $schema=policy.schema.json\n"


def read(text: str) -> Any:
    return parse_yaml(text, Path("policy.yaml")).value


def test_the_kept_file_is_up_to_date() -> None:
    """`tierline policy schema --write policies/policy.schema.json` writes it anew."""
    instead = "run: tierline policy schema --write policies/policy.schema.json"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), instead


@pytest.mark.parametrize("file", policy_files(SHIPPED), ids=lambda file: file.stem)
def test_shipped_policies_are_accepted_and_name_it(file: Path) -> None:
    """Opened in an editor they are completed and checked without further ado."""
    text = file.read_text()
    SCHEMA.validate(read(text))
    assert MODELINE in text


def test_each_good_policy_is_accepted() -> None:
    """Durations, shares and rules as people write them; null takes a default away."""
    assert [(name, error.message) for name, text in GOOD.items() for error in SCHEMA.iter_errors(read(text))] == []


@pytest.mark.parametrize("code", ["T103", "T104", "T105"])
def test_mistakes_of_one_value_are_refused(code: str) -> None:
    """Unknown keys, missing ones and wrong values: an editor marks them before anything else reads the file."""
    accepted = []
    for case in MISTAKES:
        if case["finding"]["code"] != code:
            continue
        text = GOOD[case["policy"]]
        for old, new in case["change"]:
            text = text.replace(old, new, 1)
        if SCHEMA.is_valid(read(text)):
            accepted.append(case["change"])
    assert accepted == []


def test_every_key_says_what_it_means() -> None:
    """Shown by an editor under the pointer; it is the text of the README."""

    def silent(node: dict[str, Any], path: str) -> list[str]:
        own = [path] if path and "description" not in node and "properties" not in node else []
        parts = [node, *node.get("anyOf", ())]
        return own + [
            one
            for part in parts
            for key, below in part.get("properties", {}).items()
            for one in silent(below, f"{path}.{key}" if path else key)
        ]

    assert silent(policy_schema(), "") == []


def test_defaults_have_a_schema_of_their_own() -> None:
    """Nothing is required in them, and nothing may be there that is of one surface."""
    schema = jsonschema_rs.validator_for(policy_schema(defaults=True))
    schema.validate(read("slo: {ttft: {p95: 1s}}\ncache: {semantic: {max_error: 1%}}\nrollout: {sure: 0.9}\n"))
    assert not schema.is_valid({"surface": "chat"}) and not schema.is_valid({"slo": {"dedline": "3s"}})


def test_the_command_prints_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To standard output, or to a file beside one's own policies."""
    assert main(["policy", "schema"]) == 0
    assert capsys.readouterr().out == schema_text()
    assert main(["policy", "schema", "--defaults", "--write", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text() == schema_text(defaults=True)
    assert main(["policy", "schema", "--write", str(tmp_path / "none" / "s.json")]) == 2
