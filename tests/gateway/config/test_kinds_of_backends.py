"""Kinds of backend: the core knows its own, and asks the others' classes."""

from __future__ import annotations

import ast
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from gateway.config.backends import Auth, BackendConfig
from gateway.parts.standard import kinds_of_backends
from tests.bench.parts import part_of
from tests.bench.ratchets import module_of, syntax_of, wheel_files

OTHER_MEANINGS = {
    "gateway.parts.servers.chat_reasoning": "a member of messages of Gemini's chat completions",
}
"""Modules where words that are names of kinds too stand for something else."""


def test_the_core_hardly_names_a_kind_of_a_part() -> None:
    """A new kind is a folder: what the core says of one by its name would have to be said of the next one too."""
    names = {*kinds_of_backends(), *get_args(Auth.model_of({}).model_fields["kind"].annotation)}
    assert {"anthropic", "scripted", "aws"} <= names
    named = [
        (module, node.lineno, node.value)
        for file in wheel_files()
        if not part_of(module := module_of(file)) and module not in {"gateway.parts.standard", *OTHER_MEANINGS}
        for node in ast.walk(syntax_of(file))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert len(named) < 10, named


@pytest.mark.parametrize(
    ("config", "at", "says"),
    [
        ({"kind": "antropic"}, ("kind",), "Input should be 'openai', "),
        ({"kind": 1}, ("kind",), "Input should be 'openai', "),
        ({"kind": "anthropic", "weight": "x"}, ("weight",), "Input should be a valid number"),
        (
            {"kind": "anthropic", "auth": {"kind": "ibm"}},
            ("auth", "kind"),
            "Input should be 'aws', 'google' or 'entra'",
        ),
        ({"auth": {"kind": "aws", "keys": 1}}, ("auth", "keys"), "Extra inputs are not permitted"),
    ],
)
def test_a_mistake_in_a_part_is_told_at_its_own_key(config: dict[str, Any], at: tuple[str, ...], says: str) -> None:
    """Whichever part's class reads it."""
    with pytest.raises(ValidationError) as refused:
        BackendConfig.model_validate({"model": "m", **config})
    errors = refused.value.errors()
    assert [error["loc"] for error in errors] == [at]
    assert errors[0]["msg"].startswith(says)


def test_a_key_of_another_kind_is_told_as_that() -> None:
    """Rather than as one that nobody knows."""
    with pytest.raises(ValidationError, match="only a backend of kind: scripted follows one"):
        BackendConfig.model_validate({"model": "m", "script": []})
