"""Check an answer by what was asked: JSON schemas, fields that the backend ignored, and a prompt that it cut off.

Some servers cut off a prompt's beginning and answer 200, as Ollama does by default. Its own count of prompt tokens
gives it away: no tokenizer makes one token of two words, so a count below the number of words says that it read less
than it was sent. A whole answer is then rejected as a poor draft, so that the next tier answers, or from the last tier
this one does, as `degraded`; a stream has gone out by then, is `degraded` in its record, and is not stored. The server
has shown its context, which keeps later prompts of that length from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.telemetry import names
from routing.confidence.schemas import SMALL_BYTES, compile_schema
from routing.features import text_of

if TYPE_CHECKING:
    from gateway.cascade.call import BackendCall
    from gateway.chat.stream_state import StreamState
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


def ignored_fields(body: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields of a chat-completions body whose values these choices do not have.

    Log-probabilities belong to a text: where there is none, as in a call of a tool, none are missing.
    """
    texts = [choice for choice in choices if choice["message"].get("content")]
    return _ignored(body, bool(texts) and not any(choice.get("logprobs") for choice in texts), len(choices))


def ignored_in_stream(body: Mapping[str, Any], state: StreamState) -> tuple[str, ...]:
    """Return those of an answer that was streamed."""
    return _ignored(body, bool(state.text) and not state.has_logprobs, state.choices)


def _ignored(body: Mapping[str, Any], lacks_logprobs: bool, choices: int) -> tuple[str, ...]:
    ignored: list[str] = []
    if lacks_logprobs and body.get("logprobs") is True:
        ignored.append("logprobs")
    count = body.get("n")
    if type(count) is int and count > choices:
        ignored.append("n")
    return tuple(ignored)


LEAST_TOKENS: Final = 1500
"""Estimated tokens of a prompt that is looked at: no server in use has a context much shorter."""
_LEAST_TOLD: Final = 256
"""Smallest count that is believed: some servers count only what their prompt cache lacked."""


def cut_prompt(request: RequestContext, call: BackendCall) -> str:
    """Return how much of its prompt a call's server read, in words, if that was not all; else an empty string.

    Call it for prompts of at least LEAST_TOKENS alone.
    """
    expected = request.features.approx_tokens
    usage = call.usage or call.state.usage
    if usage is None or usage.estimated or not usage.tokens_in >= _LEAST_TOLD:
        return ""
    lengths = call.slot.endpoint.lengths
    if lengths.context is not None and usage.tokens_in > lengths.context:
        lengths.forget()  # it reads more than it once seemed to: its counts were not those of a cut prompt
    if usage.tokens_in >= expected:
        return ""
    words = _words(request)
    if usage.tokens_in >= words:
        return ""
    lengths.learn(context=usage.tokens_in)
    reason = f"the server read {usage.tokens_in} tokens of a prompt of {words} words"
    call.hop.attributes[names.FAULT] = reason
    return reason


def _words(request: RequestContext) -> int:
    """Return the number of words in a request's messages."""
    return sum(len(text_of(message.get("content"))[0].split()) for message in request.body["messages"])
