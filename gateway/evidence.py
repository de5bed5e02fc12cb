"""What an answer says of itself: a completion, or a stream's chunks so far, as evidence for the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.completions import token_logprobs
from gateway.context import RequestContext
from routing.confidence import Evidence


def evidence_of(completion: Mapping[str, Any], ctx: RequestContext) -> Evidence:
    """The evidence in a whole completion: the first choice's text, every choice's tokens."""
    choices = completion["choices"]
    message = choices[0]["message"]
    calls = _calls(message.get("tool_calls"))
    return Evidence(
        text=_plain(message.get("content")),
        logprobs=[logprob for choice in choices for logprob in token_logprobs(choice)] or None,
        finish_reason=choices[0].get("finish_reason"),
        tool_arguments=[_arguments(call) for call in calls],
        has_tool_calls=bool(calls or message.get("function_call")),
        refused=bool(message.get("refusal")),
        wants_json=ctx.features.wants_json,
        own_limit=ctx.own_limit,
    )


def _calls(calls: object) -> list[dict[str, Any]]:
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _arguments(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return _plain(function.get("arguments")) if isinstance(function, dict) else ""


def _plain(content: object) -> str:
    return content if isinstance(content, str) else ""


class StreamEvidence:
    """Grows with a stream's chunks. `tokens` is what the model has said, by log-probabilities if there are any."""

    __slots__ = ("_arguments", "_logprobs", "_refused", "_texts", "finish_reason", "tokens")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[float] = []
        self._arguments: dict[str, str] = {}
        self._refused = False
        self.finish_reason: str | None = None
        self.tokens = 0

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Takes one chunk."""
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("reasoning_content")
            said = bool(text or delta.get("tool_calls") or delta.get("refusal"))
            logprobs = token_logprobs(choice)
            self._logprobs += logprobs
            self.tokens += len(logprobs) or said
            if isinstance(delta.get("content"), str) and not choice.get("index"):
                self._texts.append(delta["content"])
            for call in _calls(delta.get("tool_calls")):
                key = f"{choice.get('index')} {call.get('index')}"
                self._arguments[key] = self._arguments.get(key, "") + _arguments(call)
            self._refused = self._refused or bool(delta.get("refusal"))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def evidence(self, ctx: RequestContext, *, complete: bool) -> Evidence:
        """What is known so far; `complete` when the stream has finished."""
        return Evidence(
            text="".join(self._texts),
            logprobs=self._logprobs or None,
            finish_reason=self.finish_reason,
            tool_arguments=list(self._arguments.values()),
            has_tool_calls=bool(self._arguments),
            refused=self._refused,
            wants_json=ctx.features.wants_json,
            own_limit=ctx.own_limit,
            complete=complete,
        )
