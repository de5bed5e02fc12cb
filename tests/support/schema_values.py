"""Random JSON values of JSON schemas, as OpenAPI documents have them.

values = SchemaValues(random.Random(1), published("openai"))
body = values.of({"$ref": "#/components/schemas/CreateChatCompletionRequest"})
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.support.published_api import PublishedDocument
from tests.support.sdk_types import RandomValues

_DEPTH: Final = 8
_CHANCE: Final = 0.3
_WORDS: Final = ("a", "srvtoolu_a1", "look_up-2")
"""Texts for patterns; in the documents these are of letters and digits, some with the prefix of server tools."""
_FORMATS: Final = {
    "uri": "https://example.test/a.png",
    "date-time": "2026-05-31T12:00:00Z",
    "date": "2026-05-31",
    "byte": "aGVsbG8=",
    "binary": "binary \u0000 file",
}
_LEAVES: Final = frozenset({"string", "integer", "number", "boolean", "null"})


class SchemaValues:
    """Make random values. `named` maps the name of a member to what makes its values."""

    def __init__(
        self,
        rng: random.Random,
        document: PublishedDocument,
        *,
        named: Mapping[str, Callable[[random.Random], Any]] | None = None,
        chance: float = _CHANCE,
    ) -> None:
        self._rng = rng
        self._document = document
        self._named = dict(named or {})
        self._chance = chance
        self.plain = RandomValues(rng)

    def of(self, schema: Any, depth: int = _DEPTH) -> Any:
        """Return a value of a schema; near the end of `depth`, one with its required members alone."""
        rng = self._rng
        schema = self._flat(schema, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = rng.choice(kind)
        if kind is None:
            if "properties" in schema or "additionalProperties" in schema:
                kind = "object"
            elif "items" in schema:
                kind = "array"
            else:
                return self.plain.json(min(depth, 2))
        return getattr(self, f"_{kind}")(schema, depth)

    def _flat(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return a schema without references, `allOf` and alternatives, of which one is chosen."""
        schema = self._document.resolved(schema)
        if schema is True or not schema:
            return {}
        for word in ("allOf", "oneOf", "anyOf"):
            if not (arms := schema.get(word)):
                continue
            if word != "allOf":
                chosen = [arm for arm in arms if self._is_leaf(arm)] if depth <= 1 else arms
                arms = [self._rng.choice(chosen or arms)]
            rest = {name: value for name, value in schema.items() if name != word}
            for arm in arms:
                rest = _merged(rest, self._flat(arm, depth))
            return self._flat(rest, depth)
        return dict(schema)

    def _is_leaf(self, schema: Any) -> bool:
        schema = self._document.resolved(schema)
        return isinstance(schema, dict) and (schema.get("type") in _LEAVES or "enum" in schema or "const" in schema)

    def _null(self, schema: Any, depth: int) -> None:
        return None

    def _boolean(self, schema: Any, depth: int) -> bool:
        return self._rng.random() < 0.5

    def _integer(self, schema: Any, depth: int) -> int:
        low, high = schema.get("minimum"), schema.get("maximum")
        if "exclusiveMinimum" in schema:
            low = schema["exclusiveMinimum"] + 1
        if low is None and high is None and self._rng.random() < 0.3:
            return self._rng.choice((0, -1, 2**31, 2**53 + 1, 2**63 - 1))
        low = 0 if low is None else int(low)
        return self._rng.choice((low, self._rng.randint(low, max(low, int(low + 1000 if high is None else high)))))

    def _number(self, schema: Any, depth: int) -> float:
        low, high = schema.get("minimum", schema.get("exclusiveMinimum", -2)), schema.get("maximum", 2)
        return self._rng.choice((high, self._rng.uniform(low, high), (low + high) / 2))

    def _string(self, schema: Any, depth: int) -> str:
        if (pattern := schema.get("pattern")) is not None:
            return next(word for word in _WORDS if re.search(pattern, word))
        if (text := _FORMATS.get(schema.get("format", ""))) is not None:
            return text
        text = self.plain.text()
        text += "x" * (schema.get("minLength", 0) - len(text))
        return text[: schema.get("maxLength")]

    def _array(self, schema: Any, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 3), least + 3)
        count = self._rng.randint(least, most) if depth > 1 else least
        return [self.of(schema.get("items", {}), depth - 1) for _ in range(count)]

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        rng = self._rng
        required = set(schema.get("required", ()))
        chance = self._chance if depth > 2 else 0.0
        value: dict[str, Any] = {}
        for name, member in schema.get("properties", {}).items():
            if name in required or rng.random() < chance:
                make = self._named.get(name)
                value[name] = self.of(member, depth - 1) if make is None else make(rng)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth > 1:
            for number in range(rng.randrange(3)):
                value.setdefault(f"k{number}", self.of(more, depth - 1))
        elif more is True and "properties" not in schema and depth > 1:
            value |= {f"k{number}": self.plain.json(2) for number in range(rng.randrange(3))}
        return value


def _merged(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that demands what both do."""
    merged = {**schema, **other}
    if "properties" in schema or "properties" in other:
        merged["properties"] = {**schema.get("properties", {}), **other.get("properties", {})}
    if "required" in schema or "required" in other:
        merged["required"] = [*schema.get("required", ()), *other.get("required", ())]
    return merged
