"""What an answer says of itself: a completion, or a stream's chunks so far, as evidence for the judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.chat.completions import token_logprobs, top_logprobs
from routing.confidence.judge import Evidence


def evidence_of(
    completion: Mapping[str, Any], *, wants_json: bool = False, own_limit: bool = False, alternatives: int = 0
) -> Evidence:
    """The evidence in a whole completion: the first choice's text, every choice's tokens.

    `wants_json` and `own_limit` are the request's: it asks for JSON, or limits the output itself. Of each token's
    `alternatives` so many are kept; reading them costs ten times what the tokens' own cost.
    """
    choices = completion["choices"]
    message = choices[0]["message"]
    functions = _functions(message)
    tops = [top for choice in choices for top in top_logprobs(choice, alternatives)] if alternatives else None
    return Evidence(
        text=_plain(message.get("content")),
        logprobs=[logprob for choice in choices for logprob in token_logprobs(choice)] or None,
        top_logprobs=tops or None,
        finish_reason=choices[0].get("finish_reason"),
        tool_names=[name for _, name, _ in functions],
        tool_arguments=[arguments for _, _, arguments in functions],
        has_other_output=says_more_than_text(message),
        refused=bool(message.get("refusal")),
        wants_json=wants_json,
        own_limit=own_limit,
    )


def says_more_than_text(holder: Mapping[str, Any]) -> bool:
    """Whether a message or delta calls a tool, by the new form or the old, or speaks: an answer without a text."""
    return bool(holder.get("tool_calls") or holder.get("function_call") or holder.get("audio"))


def says_something(choices: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a chunk's choices hold any of the answer, rather than only the role, or nothing."""
    deltas = (choice.get("delta") or {} for choice in choices)
    return any(
        delta.get("content") or delta.get("reasoning_content") or delta.get("refusal") or says_more_than_text(delta)
        for delta in deltas
    )


def _functions(holder: Mapping[str, Any]) -> list[tuple[object, str, str]]:
    """The function calls in a message or delta, or their pieces: which one it is, its name and arguments in it."""
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


class StreamEvidence:
    """Grows with a stream's chunks. `tokens` is what the model has said, by log-probabilities if there are any."""

    __slots__ = (
        "_alternatives",
        "_calls",
        "_logprobs",
        "_more_than_text",
        "_refused",
        "_texts",
        "_tops",
        "finish_reason",
        "tokens",
    )

    def __init__(self, *, alternatives: int = 0) -> None:
        self._alternatives = alternatives
        self._texts: list[str] = []
        self._logprobs: list[float] = []
        self._tops: list[list[float]] = []
        self._calls: dict[tuple[object, object], tuple[str, str]] = {}
        self._more_than_text = False
        self._refused = False
        self.finish_reason: str | None = None
        self.tokens = 0

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Takes one chunk."""
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("reasoning_content")
            more = says_more_than_text(delta)
            said = bool(text or more or delta.get("refusal"))
            logprobs = token_logprobs(choice)
            self._logprobs += logprobs
            if self._alternatives:
                self._tops += top_logprobs(choice, self._alternatives)
            self.tokens += len(logprobs) or said
            if isinstance(delta.get("content"), str) and not choice.get("index"):
                self._texts.append(delta["content"])
            if more:
                self._more_than_text = True
                for which, name, arguments in _functions(delta):
                    key = (choice.get("index"), which)
                    named, so_far = self._calls.get(key, ("", ""))
                    self._calls[key] = (named or name, so_far + arguments)
            self._refused = self._refused or bool(delta.get("refusal"))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def evidence(self, *, wants_json: bool, own_limit: bool, complete: bool) -> Evidence:
        """What is known so far; `complete` when the stream has finished."""
        return Evidence(
            text="".join(self._texts),
            logprobs=self._logprobs or None,
            top_logprobs=self._tops or None,
            finish_reason=self.finish_reason,
            tool_names=[name for name, _ in self._calls.values()],
            tool_arguments=[arguments for _, arguments in self._calls.values()],
            has_other_output=self._more_than_text,
            refused=self._refused,
            wants_json=wants_json,
            own_limit=own_limit,
            complete=complete,
        )
