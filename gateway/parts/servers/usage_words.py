"""Bring token counts into OpenAI's words: providers spell and divide them differently.

`standardise` adds OpenAI's members to a reply's usage, once, where the reply arrives; all that follows reads these
alone. What the provider said in its own words stays beside them.

    who                     what it says                                             what it means
    DeepSeek                prompt_cache_hit_tokens                                  prompt_tokens_details.cached_tokens
    Moonshot, Together      cached_tokens                                            prompt_tokens_details.cached_tokens
    xAI                     total_tokens = prompt + completion + reasoning tokens    the reasoning is output
    Gemini                  total_tokens beyond prompt + completion tokens           the rest is output (thinking)
    Anthropic               cache_creation, with a count for each lifetime           `CACHE_WRITES`, as LiteLLM names it
    anyone                  a count that is null, missing or negative                the rest of total_tokens, if told
    llama.cpp               completion_tokens are timings.predicted_n, of n choices  the tokens of one choice

Kinds `anthropic` and `responses` translate their own members to OpenAI's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.chat.usage import CACHE_WRITES, count_in, portion

_IN, _OUT, _TOTAL, _ESTIMATED = "prompt_tokens", "completion_tokens", "total_tokens", "estimated"
_PARTS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "prompt_tokens_details",
        "cached_tokens",
        ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens"),
    ),
    ("prompt_tokens_details", "cache_write_tokens", ("cache_creation_input_tokens",)),
    ("completion_tokens_details", "reasoning_tokens", ("reasoning_tokens",)),
)
"""Details of a usage: the object that holds one, its name there, and other names that it has beside the counts."""
_CACHE_CREATION: Final = "cache_creation"
_OTHER_WORDS: Final = frozenset((_CACHE_CREATION, *(word for _, _, words in _PARTS for word in words)))


def standardise(value: Mapping[str, Any]) -> bool:
    """Add what is missing of OpenAI's members to a reply's `usage`, in place; return whether anything changed.

    A usage without any count stays as it is. A count that neither is told nor follows from the others becomes 0, and
    `estimated` is set. It is, too, where one choice of several was counted: each then has as many.
    """
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return False
    tokens_in, tokens_out, total = usage.get(_IN), usage.get(_OUT), usage.get(_TOTAL)
    if "timings" in value and tokens_out is not None and _counts_one_choice(value, tokens_out):
        usage[_OUT] = tokens_out * len(value["choices"])
        usage[_TOTAL] = usage[_IN] + usage[_OUT]
        usage[_ESTIMATED] = True
        return True
    if (
        type(tokens_in) is int
        and type(tokens_out) is int
        and tokens_in >= 0
        and tokens_out >= 0
        and total == tokens_in + tokens_out
        and _OTHER_WORDS.isdisjoint(usage)
        and not (usage.get("completion_tokens_details") and _more_thought(usage, tokens_out))
    ):
        return False
    before = dict(usage)
    for holder, name, words in _PARTS:
        details = usage.get(holder)
        details = details if isinstance(details, dict) else {}
        told = next((count for word in words if (count := count_in(usage.get(word))) is not None), None)
        if told is not None and count_in(details.get(name)) is None:
            usage[holder] = {**details, name: told}
    if isinstance(writes := usage.get(_CACHE_CREATION), dict):
        details = usage.get("prompt_tokens_details")
        usage["prompt_tokens_details"] = {CACHE_WRITES: writes, **(details if isinstance(details, dict) else {})}
    _fill_in_counts(usage)
    return usage != before


def _counts_one_choice(value: Mapping[str, Any], tokens_out: object) -> bool:
    """Return whether llama.cpp counted the tokens of one choice of several, with those of the prompt."""
    timings, choices = value["timings"], value.get("choices")
    if not (isinstance(timings, dict) and isinstance(choices, list) and len(choices) > 1):
        return False
    told = count_in(value["usage"].get(_IN)) is not None and type(tokens_out) is int
    return told and timings.get("predicted_n") == tokens_out


def _fill_in_counts(usage: dict[str, Any]) -> None:
    tokens_in, tokens_out, total = (count_in(usage.get(name)) for name in (_IN, _OUT, _TOTAL))
    if tokens_in is None and tokens_out is None:
        return
    rest = 0 if total is None else total - (tokens_in or 0) - (tokens_out or 0)
    if rest > 0:
        prompt = usage.get("prompt_tokens_details")
        in_cache = portion(prompt, "cached_tokens", rest + 1) + portion(prompt, "cache_write_tokens", rest + 1)
        thought = portion(usage.get("completion_tokens_details"), "reasoning_tokens", rest + 1)
        if tokens_in is None or (tokens_out is not None and rest == in_cache != thought):
            tokens_in = (tokens_in or 0) + rest
        else:
            tokens_out = (tokens_out or 0) + rest
    if tokens_in is None or tokens_out is None:
        usage[_ESTIMATED] = True
    usage[_IN], usage[_OUT] = tokens_in or 0, tokens_out or 0
    usage[_OUT] += _more_thought(usage, usage[_OUT])
    usage[_TOTAL] = usage[_IN] + usage[_OUT]


def _more_thought(usage: Mapping[str, Any], tokens_out: int) -> int:
    """Return the reasoning tokens if they are more than the output, of which they cannot be a part then; else 0."""
    details = usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return thought if type(thought) is int and thought > tokens_out else 0
