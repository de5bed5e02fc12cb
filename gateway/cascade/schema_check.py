"""Hold an answer and its calls against the JSON schemas that came with the request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.telemetry import names
from routing.confidence.schemas import SMALL_BYTES, Schema, compile_schema

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from routing.confidence.judge import Evidence


async def check_schemas(evidence: Evidence, request: RequestContext, hop: Hop) -> Evidence:
    """Return the evidence, with any breach of the request's schemas if the policy asks for that check.

    A schema that cannot be checked rejects no answer; the hop then has the reason.
    """
    invalid = request.policy.escalate.when.invalid
    misfit = ""
    if evidence.complete and "json_schema" in invalid and evidence.text and request.features.wants_json:
        misfit = await _answer_misfit(evidence.text, request.body, hop)
    if evidence.complete and "tool_args" in invalid and evidence.tool_arguments and not misfit:
        misfit = await _calls_misfit(evidence, request.body, hop)
    return replace(evidence, misfit=misfit) if misfit else evidence


async def _answer_misfit(text: str, body: Mapping[str, Any], hop: Hop) -> str:
    schema = _answer_schema(body["response_format"])
    if schema is None or await _fits(schema, text, hop) is not False:
        return ""
    return "not what the JSON schema says"


def _answer_schema(response_format: Mapping[str, Any]) -> object | None:
    """Return the schema of `response_format`; llama.cpp and others also take one beside `json_object`."""
    if response_format["type"] == "json_object":
        return response_format.get("schema")
    named = response_format.get("json_schema")
    return named.get("schema") if isinstance(named, dict) else None


async def _calls_misfit(evidence: Evidence, body: Mapping[str, Any], hop: Hop) -> str:
    parameters = _parameters(body)
    for name, arguments in zip(evidence.tool_names, evidence.tool_arguments, strict=True):
        schema = parameters.get(name)
        if schema is not None and await _fits(schema, arguments.strip() or "{}", hop) is False:
            return "tool arguments that do not fit the tool's parameters"
    return ""


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
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    compiled = await _compiled(orjson.dumps(schema))
    fits = compiled.fits(value)
    if fits is None:
        hop.attributes[names.SCHEMA_UNCHECKED] = compiled.unchecked or "the answer is nested too deep for it"
    return fits


async def _compiled(raw: bytes) -> Schema:
    return compile_schema(raw) if len(raw) <= SMALL_BYTES else await asyncio.to_thread(compile_schema, raw)
