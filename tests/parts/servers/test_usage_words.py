"""Token counts are read in every provider's words, and each count that is told is counted once."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.chat.usage import Usage, usage_of
from gateway.parts.apis.dialects.messages.backend_replies import chat_usage
from gateway.parts.apis.dialects.messages.writer import messages_usage
from gateway.parts.apis.dialects.responses.items import usage_object
from gateway.parts.apis.dialects.responses.reply import usage_in as usage_of_response
from gateway.parts.servers.chat_forms import standardise


def counts(tokens_in: int | None, tokens_out: int | None, total: int | None = None, **more: Any) -> dict[str, Any]:
    """A usage as chat completions have it; the total is the sum if it is not given."""
    total = (tokens_in or 0) + (tokens_out or 0) if total is None else total
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total, **more}


def thought(tokens: int) -> dict[str, Any]:
    """The details of so many reasoning tokens."""
    return {"completion_tokens_details": {"reasoning_tokens": tokens}}


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        pytest.param(counts(1000, 10, prompt_tokens_details={"cached_tokens": 800}), (1000, 10, 800), id="openai"),
        pytest.param(counts(100, 510, **thought(500)), (100, 510, 0), id="openai, reasoning within"),
        pytest.param(counts(100, 10, 610, **thought(500)), (100, 510, 0), id="xai, reasoning beside"),
        pytest.param({**counts(100, 10, **thought(500))}, (100, 510, 0), id="reasoning beside, total without it"),
        pytest.param(counts(100, 10, 610), (100, 510, 0), id="gemini, thinking in the total alone"),
        pytest.param(
            counts(1000, 10, prompt_cache_hit_tokens=800, prompt_cache_miss_tokens=200), (1000, 10, 800), id="deepseek"
        ),
        pytest.param(counts(1000, 10, cached_tokens=800), (1000, 10, 800), id="moonshot"),
        pytest.param(
            counts(1000, 10, cached_tokens=800, prompt_tokens_details={"cached_tokens": 800}),
            (1000, 10, 800),
            id="both",
        ),
        pytest.param(
            counts(1000, 10, cached_tokens=800, prompt_tokens_details={"cached_tokens": None}),
            (1000, 10, 800),
            id="null in the details",
        ),
        pytest.param(
            counts(200, 10, 1010, prompt_tokens_details={"cached_tokens": 800}), (1000, 10, 800), id="cache beside"
        ),
        pytest.param(counts(None, 10, 110), (100, 10, 0), id="null prompt, total tells"),
        pytest.param(counts(100, None, 110), (100, 10, 0), id="null completion, total tells"),
        pytest.param(counts(100, -5, 110), (100, 10, 0), id="negative completion, total tells"),
        pytest.param({"prompt_tokens": 100.0, "completion_tokens": 10.0}, (100, 10, 0), id="floats"),
        pytest.param(counts(50, 5, prompt_tokens_details=None, **thought(0)), (50, 5, 0), id="null details"),
    ],
)
def test_every_count_that_is_told_is_read_once(usage: dict[str, Any], read: tuple[int, int, int]) -> None:
    """The counts come out in OpenAI's members, whatever the provider calls them, and its own words stay."""
    before = {name: value for name, value in usage.items() if "tokens" in name and not name.startswith(("prom", "com"))}
    value = {"usage": dict(usage)}
    standardise(value)
    got = usage_of(value)
    assert got is not None
    assert (got.tokens_in, got.tokens_out, got.tokens_cached, got.estimated) == (*read, False)
    made = value["usage"]
    assert made["total_tokens"] == got.tokens_in + got.tokens_out
    assert {name: made[name] for name in before if name != "total_tokens"} == {
        name: count for name, count in before.items() if name != "total_tokens"
    }
    again = {"usage": dict(made)}
    standardise(again)
    assert again["usage"] == made
    in_responses, in_messages = usage_object(made), messages_usage(made)
    assert in_responses is not None
    assert (in_responses["input_tokens"], in_responses["output_tokens"]) == read[:2]
    assert in_responses["input_tokens_details"]["cached_tokens"] == read[2]
    assert (in_messages["input_tokens"] + read[2], in_messages["output_tokens"]) == read[:2]
    assert in_messages["cache_read_input_tokens"] == read[2]


def test_one_choice_of_several_that_was_counted_counts_for_each() -> None:
    """llama.cpp tells the tokens of one choice; a server that counts them all tells what no single choice took."""
    choices = [{"index": number} for number in range(3)]
    one: dict[str, Any] = {"choices": choices, "usage": counts(7, 20, 27), "timings": {"predicted_n": 20}}
    assert standardise(one)
    got = usage_of(one)
    assert got is not None and (got.tokens_in, got.tokens_out, got.estimated) == (7, 60, True)
    assert one["usage"]["total_tokens"] == 67
    assert not standardise(one), "it is counted once"
    for value in (
        {"choices": choices[:1], "usage": counts(7, 20, 27), "timings": {"predicted_n": 20}},
        {"choices": choices, "usage": counts(7, 60, 67), "timings": {"predicted_n": 20}},
        {"choices": choices, "usage": counts(7, 60, 67)},
        {"usage": counts(7, 20, 27), "timings": {"predicted_n": 20}},
        {"choices": choices, "usage": counts(7, 20, 27), "timings": None},
    ):
        assert not standardise(value), value


def test_usage_in_the_usual_words_stays_as_it_is() -> None:
    """Nothing is changed, so that a reply's bytes may be passed on."""
    for usage in (
        {"prompt_tokens": 1e300},
        counts(3, 2),
        counts(3, 2, prompt_tokens_details={"cached_tokens": 1}),
        {},
        {"prompt_tokens": "3"},
    ):
        kept = dict(usage)
        assert not standardise({"usage": usage})
        assert usage == kept
    assert not standardise({"usage": None})
    assert not standardise({})


def test_a_count_that_nobody_tells_is_marked() -> None:
    """The other count is kept, and what is missing is 0 and marked, for the gateway to count itself."""
    value: dict[str, Any] = {"usage": {"prompt_tokens": 100, "completion_tokens": None}}
    assert standardise(value)
    got = usage_of(value)
    assert got == Usage(100, 0, estimated=True) and got.incomplete  # so that it is in no stored answer
    assert not Usage(100, 1, estimated=True).incomplete  # of a gateway behind this one
    assert value["usage"] == {"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100, "estimated": True}


def test_nulls_in_the_words_of_other_apis() -> None:
    """A null in one member of Anthropic's or the Responses API's usage loses no other."""
    anthropic = chat_usage({"input_tokens": 3, "cache_read_input_tokens": None, "output_tokens": None})
    assert usage_of({"usage": anthropic}) == Usage(3, 0, estimated=True)
    read = usage_of({"usage": chat_usage({"input_tokens": None, "cache_read_input_tokens": 7, "output_tokens": 2})})
    assert read == Usage(7, 2, tokens_cached=7)
    response = usage_of_response({"usage": {"input_tokens": 3, "output_tokens": None, "total_tokens": 5}})
    assert usage_of({"usage": response}) == Usage(3, 2)
    beside = {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 7},
    }
    assert usage_of({"usage": usage_of_response({"usage": beside})}) == Usage(3, 9, tokens_reasoning=7)
