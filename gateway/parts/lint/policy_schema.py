"""Make the JSON Schema of policy files from their models, for editors that complete and check YAML.

Keys, types and limits come from the models, and what a key means from the tables of README.md. `policy.schema.json` is
this schema, kept beside the policies; a file names it: `# yaml-language-server: $schema=policy.schema.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.parts.lint.signed import Delay, Fall, Rise
from policies.errors import KeyPath, dotted
from policies.loader import SHIPPED
from policies.model import quantile_or_seconds
from policies.quantities import DURATION
from policies.sections import rules_model
from policies.validation import Seconds, Share, rule, validator_of

SCHEMA_FILE: Final = SHIPPED / "policy.schema.json"
_NUMBER: Final = r"\d+(?:\.\d+)?"
_DURATION: Final = {"type": "string", "pattern": DURATION.pattern}
_RULE: Final = {"type": "string", "minLength": 1}
_ROW: Final = re.compile(r"^\| `([a-z_0-9.]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \| (.*) \|$", re.MULTILINE)


_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic's words for limits behind a validator, and JSON Schema's."""
_TAKEN: Final = {"anyOf": [{"const": "auto"}, {"pattern": "^tier:"}]}


_WRITTEN: Final[Mapping[Any, JsonSchemaValue]] = {
    validator_of(Seconds): _DURATION,
    rule: _RULE,
    validator_of(Share): {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": f"^{_NUMBER}%$"}]
    },
    validator_of(Fall): {"type": "string", "pattern": f"^-{_NUMBER}%?$"},
    validator_of(Rise): {"type": "string", "pattern": f"^\\+{_NUMBER}%?$"},
    validator_of(Delay): {"type": "string", "pattern": DURATION.pattern.replace("^", "^\\+")},
    quantile_or_seconds: {"anyOf": [{"enum": ["p50", "p90", "p95", "p99"]}, _DURATION]},
}
"""What may be written where a validator reads a notation of its own."""


class NotationSchema(GenerateJsonSchema):
    """Pydantic's schema, with the notations of policy files."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Return what a validator accepts that reads a notation; any other changes no type."""
        written = _WRITTEN.get(schema["function"]["function"])
        return super().function_before_schema(schema) if written is None else dict(written)

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        """Return the schema of a rule: the only class that is no model."""
        return dict(_RULE)


def policy_schema(*, defaults: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a policy file, or of `_defaults.yaml`: all optional, without `surface` and `match`."""
    schema = rules_model().model_json_schema(schema_generator=NotationSchema)
    definitions = schema.pop("$defs")
    text = (SHIPPED / "README.md").read_text(encoding="utf-8")
    meaning = {row[1]: row[5].replace("`", "").replace("\\", "") for row in _ROW.finditer(text)}

    def written_out(node: Any, path: KeyPath) -> Any:
        """Return a part of the schema without references, each key with its meaning."""
        if isinstance(node, list):
            return [written_out(item, path) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return written_out({**definitions[node["$ref"].rpartition("/")[2]], **_without(node, "$ref")}, path)
        made = {
            key: written_out(value, path)
            for key, value in _without(
                node, "title", "description", "default", "properties", "allOf", "ge", "le", "gt", "lt"
            ).items()
            if not (defaults and key == "required")
        }
        if made.get("type") in ("integer", "number"):
            made |= {_LIMITS[key]: value for key, value in node.items() if key in _LIMITS}
        for part in node.get("allOf", ()):
            made |= written_out(part, path)
        if "properties" in node:
            made["properties"] = {
                key: _described(written_out(value, (*path, key)), meaning.get(dotted((*path, key)), ""))
                for key, value in node["properties"].items()
                if not (defaults and not path and key in ("surface", "match"))
            }
        return made

    made = written_out(schema, ())
    if not defaults:
        keys = made["properties"]
        keys["surface"]["not"] = {"const": "auto"}
        match = keys["match"]["properties"]
        match["models"]["items"]["not"] = _TAKEN
        match["header"]["propertyNames"] = {"pattern": "^[Xx]-[Tt]ierline-[Ss]urface$"}
    title = "What all policies of a folder have in common" if defaults else "The policy of one surface"
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **made}


def schema_text(*, defaults: bool = False) -> str:
    """Return the schema as text, as it is kept in the tree."""
    return json.dumps(policy_schema(defaults=defaults), indent=1, ensure_ascii=False) + "\n"


def _without(node: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}


def _described(node: dict[str, Any], meaning: str) -> dict[str, Any]:
    return {"description": meaning, **node} if meaning else node
