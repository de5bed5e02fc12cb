"""Provide the seam `answer_schemas`: hold answers against the JSON schemas that their requests came with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.parts.answer_schemas.schemas import SMALL_BYTES, compile_schema
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from routing.confidence.judge import Evidence


async def check_schemas(evidence: Evidence, request: RequestContext, hop: Hop) -> Evidence:
    """Return the evidence, with any breach of the request's schemas if the policy asks for that check.

    A schema that cannot be checked rejects no answer; the hop then has the reason.
    """
    invalid, body = request.policy.escalate.when.invalid, request.body
    checks: list[tuple[object, str, str]] = []
    if evidence.complete and "json_schema" in invalid and evidence.text and request.features.wants_json:
        checks.append((_answer_schema(body["response_format"]), evidence.text, "not what the JSON schema says"))
    if evidence.complete and "tool_args" in invalid and evidence.tool_arguments:
        parameters, misfit = _parameters(body), "tool arguments that do not fit the tool's parameters"
        calls = zip(evidence.tool_names, evidence.tool_arguments, strict=True)
        checks += [(parameters.get(name), arguments.strip() or "{}", misfit) for name, arguments in calls]
    for schema, text, misfit in checks:
        if schema is not None and await _fits(schema, text, hop) is False:
            return replace(evidence, misfit=misfit)
    return evidence


def _answer_schema(response_format: Mapping[str, Any]) -> object | None:
    """Return the schema of `response_format`; llama.cpp and others also take one beside `json_object`."""
    if response_format["type"] == "json_object":
        return response_format.get("schema")
    named = response_format.get("json_schema")
    return named.get("schema") if isinstance(named, dict) else None


def _parameters(body: Mapping[str, Any]) -> dict[str, object]:
    """Return the schema of each tool by its name, functions of the old form included."""
    tools = [tool.get("function") for tool in body.get("tools") or () if isinstance(tool, dict)]
    functions = [*tools, *(body.get("functions") or ())]
    return {
        function["name"]: function.get("parameters")
        for function in functions
        if isinstance(function, dict) and isinstance(function.get("name"), str)
    }


async def _fits(schema: object, text: str, hop: Hop) -> bool | None:
    """Return whether a JSON text fits a schema; None where that cannot be said, and the hop then has the reason."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    raw = orjson.dumps(schema)
    compiled = compile_schema(raw) if len(raw) <= SMALL_BYTES else await asyncio.to_thread(compile_schema, raw)
    fits = compiled.fits(value)
    if fits is None:
        hop.attributes[names.SCHEMA_UNCHECKED] = compiled.unchecked or "the answer is nested too deep for it"
    return fits
