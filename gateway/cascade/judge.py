"""Judge an answer: hold it against the request's JSON schemas, and score its evidence by policy and confidence head."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.chat.completions import evidence_of, says_more_than_text
from gateway.telemetry import names
from gateway.telemetry.trace import Judged
from routing.confidence.calls import NOTHING_OFFERED, CallRules, call_fault
from routing.confidence.judge import Assessment, Evidence, assess
from routing.confidence.schemas import SMALL_BYTES, Schema, compile_schema

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint
    from routing.cascade import Attempt

UNJUDGED = Assessment(True, None, "nothing stronger follows")
"""The verdict on an answer that nothing could replace."""


def judge(
    request: RequestContext,
    attempt: Attempt,
    endpoint: Endpoint,
    hop: Hop,
    evidence: Evidence,
    tokens: Sequence[str] = (),
) -> Assessment:
    """Return whether the answer with this evidence may be served; record the basis on the hop.

    `tokens` are the judged tokens as text, for the trace alone.
    """
    verdict = assess(evidence, request.policy.escalate, endpoint.config.head, attempt.prior)
    hop.judged = Judged(evidence, time.perf_counter_ns(), verdict.threshold, tokens)
    attributes = hop.attributes
    attributes[names.CONFIDENCE_BASIS] = verdict.basis
    if verdict.head:
        attributes[names.CONFIDENCE_HEAD] = verdict.head
    return verdict


def call_fault_of(completion: Mapping[str, Any], rules: CallRules) -> str:
    """Return the call of a whole answer that its request does not allow, in a few words; empty if there is none."""
    if rules is NOTHING_OFFERED and not says_more_than_text(completion["choices"][0]["message"]):
        return ""
    evidence = evidence_of(completion)
    return call_fault(rules, evidence.tool_names, evidence.text, evidence.finish_reason, complete=True)


def alternatives_for(endpoint: Endpoint) -> int:
    """Return the number of alternatives per token that the endpoint's head reads; 0 if none, or without a head."""
    head = endpoint.config.head
    return 0 if head is None else head.alternatives


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
