"""Fields that a server ignored are named, and what the core alone says of schemas."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cascade.answer_checks import check_schemas, ignored_fields
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from routing.confidence.judge import Evidence
from tests.support.context import streamed_request

TEXT: dict[str, Any] = {"message": {"content": "a"}, "logprobs": None}
SURE: dict[str, Any] = {"message": {"content": "a"}, "logprobs": {"content": []}}
CALL: dict[str, Any] = {"message": {"content": None, "tool_calls": [{}]}}


@pytest.mark.parametrize(
    ("body", "choices", "ignored"),
    [
        ({"logprobs": True}, [TEXT], ("logprobs",)),
        ({"logprobs": True}, [SURE], ()),
        ({"logprobs": True}, [CALL], ()),
        ({"logprobs": False}, [TEXT], ()),
        ({"n": 2}, [TEXT], ("n",)),
        ({"n": 2}, [TEXT, TEXT], ()),
        ({"n": 2, "logprobs": True}, [TEXT], ("logprobs", "n")),
        ({"n": None}, [TEXT], ()),
    ],
)
def test_what_an_answer_lacks(body: dict[str, Any], choices: list[Any], ignored: tuple[str, ...]) -> None:
    assert ignored_fields(body, choices) == ignored


async def test_the_core_alone_checks_no_schema_and_says_so() -> None:
    """It does where the policy asks for that."""
    alone = check_schemas.__wrapped__  # type: ignore[attr-defined]
    for invalid, unchecked in (["json", "json_schema"], True), (["json"], False):
        request = streamed_request(None, escalate={"when": {"invalid": invalid}})  # type: ignore[arg-type]
        evidence, hop = Evidence(text="Rome"), Hop([], "attempt")
        assert await alone(evidence, request, hop) is evidence
        assert (names.SCHEMA_UNCHECKED in hop.attributes) == unchecked
