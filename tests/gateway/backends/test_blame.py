from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.base import BadStatus
from gateway.backends.blame import status_in, told_in

WORDS = "The model does not support image inputs"


def error(message: str = "", **members: Any) -> bytes:
    """A body with OpenAI's error object."""
    return json.dumps({"error": {"message": message, **members}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "blame"),
    [
        (400, error("Unknown parameter: 'x'", code="unknown_parameter", param="x"), "request"),
        (422, b'{"detail":[{"loc":["body","messages"],"msg":"Field required"}]}', "request"),
        (400, error(WORDS), "unfit"),
        (400, error("Invalid tool name 'the model m does not exist'"), "unknown"),
        (400, error("Unexpected field 'your credit balance is too low'"), "unknown"),
        (400, error("Unknown parameter: budget has been exceeded"), "unknown"),
        (400, error("Invalid value for 'x': incorrect api key provided"), "unknown"),
        (422, b"", "unknown"),
        (404, error("No such File object: file-1", param="id"), "request"),
        (404, error("No such File object: a-model", param="id"), "request"),
        (404, error("Prompt with id 'the model does not exist' not found."), "request"),
        (404, error("model 'file' not found"), "model"),
        (429, error("Extra usage is required for long context requests."), "unfit"),
        (404, error("No endpoints available matching your guardrail restrictions and data policy."), "unfit"),
        (404, error("No endpoints found for some/model."), "model"),
        (404, error("Previous response with id 'resp_1' not found."), "request"),
        (431, b"", "request"),
        (
            403,
            error("The input was flagged", code=403, metadata={"reasons": ["hate"], "flagged_input": "."}),
            "content",
        ),
        (403, error("Prohibited", metadata={"reasons": ["hate"]}), "content"),
        (400, error("The response was filtered", code="content_filter"), "content"),
        (400, error("x", code=None, innererror={"code": "ResponsibleAIPolicyViolation"}), "content"),
        (400, error("Content Exists Risk", type="invalid_request_error"), "content"),
        (400, error("Input data may contain inappropriate content.", code="data_inspection_failed"), "content"),
        (403, b"<html>Just a moment...</html>", "unfit"),
        (403, error("Country not supported", code="unsupported_country_region_territory"), "unfit"),
        (400, error("User location is not supported for the API use.", status="FAILED_PRECONDITION"), "unfit"),
        (451, error("Blocked for legal reasons: this territory is not supported"), "unfit"),
        (
            413,
            error("Request too large for model on tokens per minute (TPM): Limit 6", code="rate_limit_exceeded"),
            "unfit",
        ),
        (429, error("Request too large for gpt-4o on tokens per min (TPM): Limit 3, Requested 7"), "unfit"),
        (413, b"<html>413 Request Entity Too Large</html>", "unfit"),
        (404, error("No endpoints found that support tool use."), "unfit"),
        (400, error("Failed to call a function.", code="tool_use_failed"), "unfit"),
        (404, error("model 'large' not found", type="api_error"), "model"),
        (404, error("model: claude-x", type="not_found_error"), "model"),
        (404, b"", "model"),
        (404, b"404 page not found", "model"),
        (405, b"<html>", "model"),
        (410, error("This model is retired."), "model"),
        (403, error("Project does not have access to model x", code="model_not_found"), "model"),
        (400, error("Model Not Exist"), "model"),
        (400, error("Invalid model: x", type="invalid_model"), "model"),
        (400, error("The provided model identifier is invalid."), "model"),
        (401, b"", "key"),
        (403, b"", "key"),
        (403, error("Your API key has no permission for this operation"), "key"),
        (
            403,
            error("Your account was deactivated for violating our usage policies", code="account_deactivated"),
            "key",
        ),
        (402, error("This request requires more credits"), "account"),
        (429, error("You exceeded your current quota", code="insufficient_quota"), "account"),
        (400, error("Your credit balance is too low to access the API."), "account"),
        (
            429,
            error("Rate limit reached on tokens per min (TPM): Limit 6, Used 5", code="rate_limit_exceeded"),
            "pause",
        ),
        (498, error("Flex tier capacity exceeded"), "server"),
        (503, b"", "server"),
        (529, b"", "server"),
        (500, b"", "server"),
        (408, b"", "server"),
        (307, b"", "server"),
    ],
)
def test_whose_fault(status: int, body: bytes, blame: str) -> None:
    """Status, code and words say whose fault an error is; a caller's words put no endpoint out."""
    assert BadStatus(status, body).blame == blame


def test_a_server_that_says_when_to_come_back() -> None:
    """With a Retry-After, having no capacity is a pause."""
    for status in (498, 503, 529):
        assert BadStatus(status, b"", 3).blame == "pause"
    assert BadStatus(500, b"", 3).blame == "server"


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": WORDS}},
        {"error": WORDS},
        {"object": "error", "message": WORDS, "type": "BadRequestError", "param": None, "code": 400},
        {"detail": WORDS},
        {"detail": [{"loc": ["body", "messages"], "msg": WORDS, "type": "value_error"}]},
        [{"error": {"code": 400, "message": WORDS, "status": "INVALID_ARGUMENT"}}],
        {"message": WORDS},
        {"errors": [{"message": WORDS}]},
        {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps({"error": WORDS})}}},
        {"statusCode": 400, "error": "Bad Request", "message": [WORDS]},
        {"type": "error", "error": {"type": "invalid_request_error", "message": WORDS}},
        WORDS,
    ],
)
def test_a_providers_words_in_any_form(body: Any) -> None:
    """Whatever form an error has, its words are found; FastAPI's place stands before them."""
    for raw in (json.dumps(body).encode(), *([WORDS.encode()] if body == WORDS else [])):
        message = told_in(raw)["message"]
        assert message.endswith(WORDS)
        assert message in (WORDS, f"body.messages: {WORDS}", f"Provider returned error: {WORDS}")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"null", b"7", b"<html>secret", b" <!DOCTYPE html>", b'{"a":{"b":1}}']
)
def test_a_reply_that_says_nothing(body: bytes) -> None:
    """A page of HTML, and JSON without words, say nothing."""
    assert "message" not in told_in(body)


def test_words_are_short_printable_and_without_keys() -> None:
    """A provider may quote the key it refuses, and the prompt at length."""
    assert told_in(b'{"error":"Incorrect API key: sk-abcdefghijkl"}')["message"] == "Incorrect API key: ***"
    assert told_in(b"Bearer abcdefghijklmno\r\nfailed")["message"] == "***  failed"
    assert len(told_in(json.dumps({"error": "x" * 9999}).encode())["message"]) == 1000
    deep = b"[" * 5000 + b"]" * 5000
    assert told_in(deep) == {}


def test_the_status_that_an_error_stands_for() -> None:
    """An error in a reply of status 200 names its status by number, code or type."""
    assert status_in({"code": 429}) == 429
    assert status_in({"code": "502"}) == 502
    assert status_in({"code": None, "type": "overloaded_error"}) == 529
    assert status_in({"type": "rate_limit_error"}) == 429
    assert status_in({"code": 7, "type": "of a later version"}) is None
    assert status_in("no object") is None
