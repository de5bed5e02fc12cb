"""Make the JSON Schema of test files, for editors that complete and check YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from gateway.parts.lab.policy_tests.format import TestFileRules, confidence, listed
from gateway.parts.lint.policy_schema import NotationSchema

_SHARE: Final = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": r"^\d+(?:\.\d+)?%$"}]
}
_WRITTEN: Final[dict[Callable[..., Any], JsonSchemaValue]] = {
    confidence: {"anyOf": [{"const": "none"}, *_SHARE["anyOf"]]},
}


class _TestSchema(NotationSchema):
    """Pydantic's schema, with the notations of test files."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Return what a validator accepts: a share or a word, and one value in place of a list of them."""
        function = schema["function"]["function"]
        if function in _WRITTEN:
            return dict(_WRITTEN[function])
        made = super().function_before_schema(schema)
        if function is not listed:
            return made
        lists = [part for part in made.get("anyOf", [made]) if part.get("type") == "array"]
        return {"anyOf": [*lists, *(part["items"] for part in lists)]}


def tests_schema_text() -> str:
    """Return the schema of test files as text."""
    made = TestFileRules.model_json_schema(schema_generator=_TestSchema)
    made = {"$schema": "http://json-schema.org/draft-07/schema#", **made, "title": "Tests of policies"}
    return json.dumps(_plain(made), indent=1, ensure_ascii=False) + "\n"


def _plain(node: Any) -> Any:
    """Return the schema without defaults, and in draft 7, which editors read: `$defs` are `definitions` there."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if isinstance(node, dict):
        return {
            "definitions" if key == "$defs" else key: _plain(value) for key, value in node.items() if key != "default"
        }
    return node.replace("#/$defs/", "#/definitions/") if isinstance(node, str) else node
