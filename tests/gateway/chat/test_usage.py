"""What calls used and cost is read in every provider's words, and each count that is told is counted once."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.chat.usage import hide_cache, usage_of
from gateway.parts.apis.dialects.messages.backend_replies import chat_usage
from gateway.parts.apis.dialects.responses.reply import usage_in as usage_of_response


def counts(tokens_in: int | None, tokens_out: int | None, total: int | None = None, **more: Any) -> dict[str, Any]:
    """A usage as chat completions have it; the total is the sum if it is not given."""
    total = (tokens_in or 0) + (tokens_out or 0) if total is None else total
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total, **more}


@pytest.mark.parametrize(
    ("details", "thought"),
    [({"reasoning_tokens": 3}, 3), ({"reasoning_tokens": 99}, 5), ({"reasoning_tokens": "3"}, 0), ([], 0), (None, 0)],
)
def test_thinking_is_a_part_of_the_output(details: Any, thought: int) -> None:
    usage = usage_of({"usage": {"prompt_tokens": 4, "completion_tokens": 5, "completion_tokens_details": details}})
    assert usage is not None and (usage.tokens_out, usage.tokens_reasoning) == (5, thought)


@pytest.mark.parametrize(
    ("words", "dollars"),
    [
        ({"cost": 0.95}, 0.95),
        ({"cost": 0}, 0.0),
        ({"cost": {"total_cost": 0.006, "request_cost": 0.005}}, 0.006),
        ({"cost_in_usd_ticks": 37756000}, 0.0037756),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, 0.21),
        ({"cost": 0.01, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.01}}, 0.01),
        ({"cost": 0.01, "is_byok": True}, None),
        ({"cost": -1}, None),
        ({"cost": "0.1"}, None),
        ({"cost": None}, None),
        ({"cost": True}, None),
        ({}, None),
    ],
)
def test_the_charge_that_a_provider_states(words: dict[str, Any], dollars: float | None) -> None:
    """OpenRouter's and Perplexity's dollars, xAI's ticks; with a key of one's own also what its provider charges."""
    for usage in (
        counts(3, 2, **words),
        chat_usage({"input_tokens": 3, "output_tokens": 2, **words}),
        usage_of_response({"usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **words}}),
    ):
        read = usage_of({"usage": usage})
        assert read is not None
        assert read.cost_usd == (None if dollars is None else pytest.approx(dollars))


def test_an_error_is_no_secret_of_the_prompt_cache() -> None:
    """Where tenants share a backend, a stream that breaks off still says why."""
    told: dict[str, Any] = {"error": {"message": "overloaded"}, "timings": {"cache_n": 9}}
    assert hide_cache(told)
    assert told == {"error": {"message": "overloaded"}}
