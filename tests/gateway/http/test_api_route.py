"""What is wrong with a body is told in OpenAI's envelope, and who may not ask is refused before a body is read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.http.test_openapi import admin_of, app  # noqa: F401
from tests.support.app import InProcess


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        ({}, "missing_required_parameter", "text", "Missing required parameter: 'text'."),
        ({"text": 3}, "invalid_type", "text", "Invalid type for 'text': expected a string."),
        ({"text": "a", "test": "b"}, "unsupported_value", "test", "Unknown key 'test'; known are text."),
        ({"text": " "}, "missing_required_parameter", "text", "text is required, as text."),
        ([], "invalid_type", None, "The body must be a JSON object."),
        ("{", "invalid_json", None, "The body is not valid JSON"),
        ('{"text": "a", "text": "b"}', "unsupported_value", "text", "The key 'text' is given twice."),
        ('"' + "a" * (4 << 20) + '"', "request_too_large", None, "The body is larger than"),
    ],
)
async def test_what_is_wrong_with_a_body_is_told(
    app: InProcess,  # noqa: F811
    body: Any,
    code: str,
    param: str | None,
    message: str,
) -> None:
    async with admin_of(app) as client:
        sent = {"content": body} if isinstance(body, str) else {"json": body}
        reply = await client.post("/admin/policies/lint", headers={"content-type": "application/json"}, **sent)
        error = reply.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert error["message"].startswith(message)


async def test_a_body_without_the_key_is_not_looked_at(app: InProcess) -> None:  # noqa: F811
    """A wrong key is what the reply tells of, whatever is wrong with the body."""
    async with admin_of(app) as client:
        client.headers["authorization"] = "Bearer another"
        reply = await client.post("/admin/policies/lint", content="{", headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_405_names_all_methods_of_the_url(app: InProcess) -> None:  # noqa: F811
    async with admin_of(app) as client:
        reply = await client.put("/admin/cache/entries/abcdef012345")
    assert reply.headers["allow"] == "DELETE, GET, HEAD"
