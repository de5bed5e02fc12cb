"""An answer is held against the JSON schemas of its request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cascade.answer_checks import check_schemas
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from routing.confidence.judge import Evidence
from routing.features import features_of
from tests.support.context import streamed_request

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def request_of(*invalid: str, **members: Any) -> RequestContext:
    """A request whose policy holds answers against these kinds of schemas."""
    request = streamed_request(None, escalate={"when": {"invalid": list(invalid)}})  # type: ignore[arg-type]
    body = {**request.body, **members}
    return replace(request, body=body, features=features_of(body))


async def misfit_of(request: RequestContext, **evidence: Any) -> tuple[str, Hop]:
    """What is said of an answer, and its hop."""
    hop = Hop([], "attempt")
    found = await check_schemas(Evidence(**{"text": "", **evidence}), request, hop)
    return found.misfit, hop


@pytest.mark.parametrize(
    "response_format", [AS_SCHEMA, {"type": "json_object", "schema": SCHEMA}], ids=["json_schema", "json_object"]
)
@pytest.mark.parametrize(("text", "fits"), [('{"city": "Rome"}', True), ('{"town": "Rome"}', False), ("Rome", False)])
async def test_an_answer_has_to_fit_its_schema(response_format: dict[str, Any], text: str, fits: bool) -> None:
    """In either of the two places where a schema may stand."""
    request = request_of("json", "json_schema", response_format=response_format)
    misfit, _ = await misfit_of(request, text=text)
    assert misfit == ("" if fits else "not what the JSON schema says")


@pytest.mark.parametrize("member", ["tools", "functions"])
@pytest.mark.parametrize(("arguments", "fits"), [('{"city": "Rome"}', True), ("{}", False), ("", False), ("{", False)])
async def test_a_call_has_to_fit_its_tool(member: str, arguments: str, fits: bool) -> None:
    """Functions of the old form too; no arguments are an empty object."""
    request = request_of("tool_args", **{member: [TOOL if member == "tools" else TOOL["function"]]})
    misfit, _ = await misfit_of(request, tool_names=["look"], tool_arguments=[arguments])
    assert misfit == ("" if fits else "tool arguments that do not fit the tool's parameters")


async def test_what_is_not_asked_for_is_not_checked() -> None:
    """A policy without the check, a draft, a tool that the request does not name, and a format without a schema."""
    wrong = {"text": "Rome", "tool_names": ["look"], "tool_arguments": ["{}"]}
    assert (await misfit_of(request_of("json", response_format=AS_SCHEMA, tools=[TOOL]), **wrong))[0] == ""
    checked = request_of("json", "json_schema", "tool_args", response_format=AS_SCHEMA, tools=[TOOL])
    assert (await misfit_of(checked, **wrong, complete=False))[0] == ""
    assert (await misfit_of(request_of("tool_args", tools=[TOOL]), tool_names=["go"], tool_arguments=["{}"]))[0] == ""
    plain = request_of("json", "json_schema", response_format={"type": "json_object"})
    assert (await misfit_of(plain, text="{}"))[0] == ""


async def test_a_schema_that_cannot_be_checked_rejects_nothing() -> None:
    """The hop says why."""
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    misfit, hop = await misfit_of(request_of("json", "json_schema", response_format=broken), text="{}")
    assert misfit == ""
    assert hop.attributes[names.SCHEMA_UNCHECKED]
