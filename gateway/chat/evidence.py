"""What an answer says of itself: a whole completion as evidence for the judge (a stream's: `stream_state`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.chat.completions import token_logprobs, top_logprobs
from routing.confidence.judge import Evidence


def evidence_of(
    completion: Mapping[str, Any], *, wants_json: bool = False, own_limit: bool = False, alternatives: int = 0
) -> Evidence:
    """Return the evidence in a whole completion: the first choice's text, every choice's tokens.

    `wants_json` and `own_limit` are the request's: it asks for JSON, or limits the output itself. `alternatives` is
    how many alternatives of each token are read, at ten times the cost of reading the token alone.
    """
    choices = completion["choices"]
    message = choices[0]["message"]
    has_other_output = says_more_than_text(message)
    functions = function_pieces(message) if has_other_output else []
    tops = [top for choice in choices for top in top_logprobs(choice, alternatives)] if alternatives else None
    return Evidence(
        text=_plain(message.get("content")),
        logprobs=[logprob for choice in choices for logprob in token_logprobs(choice)] or None,
        top_logprobs=tops or None,
        finish_reason=choices[0].get("finish_reason"),
        tool_names=[name for _, name, _ in functions],
        tool_arguments=[arguments for _, _, arguments in functions],
        has_other_output=has_other_output,
        refused=bool(message.get("refusal")),
        wants_json=wants_json,
        own_limit=own_limit,
    )


def says_more_than_text(holder: Mapping[str, Any]) -> bool:
    """Whether a message or delta calls a tool, in the new form or the old, or speaks."""
    return bool(holder.get("tool_calls") or holder.get("function_call") or holder.get("audio"))


def function_pieces(holder: Mapping[str, Any]) -> list[tuple[object, str, str]]:
    """Return the function calls in a message or delta: for each which one it is, its name and its arguments.

    In a delta, name and arguments may be pieces, to be joined with those of the same call in other chunks.
    """
    calls = holder.get("tool_calls")
    listed = calls if isinstance(calls, list) else ()
    found = [(_whole(call.get("index")), call.get("function")) for call in listed if isinstance(call, dict)]
    found.append(("function_call", holder.get("function_call")))
    return [
        (which, _plain(function.get("name")), _plain(function.get("arguments")))
        for which, function in found
        if isinstance(function, dict)
    ]


def _whole(index: object) -> object:
    return index if isinstance(index, int) else None  # anything else may not even be a key


def _plain(content: object) -> str:
    return content if isinstance(content, str) else ""
