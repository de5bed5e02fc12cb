"""Chat completions as values: a stream's chunks to the whole answer and back, and what can be read off either.

`assemble` and `chunks_of` are each other's inverse for everything a client sees, so that an answer stored from a stream
replays as JSON, and one stored from JSON replays as a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COMMON = ("id", "created", "model", "system_fingerprint", "service_tier")
_MAX_TOOL_CALLS = 1024
_OWN_CHUNK_KEYS = frozenset({"choices", "object", "usage", "obfuscation"})


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one backend call. `estimated` when the backend did not say."""

    tokens_in: int
    tokens_out: int
    estimated: bool = False


def usage_of(value: Mapping[str, Any]) -> Usage | None:
    """The usage a completion or chunk reports; None when it has none or it is nonsense."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return None
    tokens_in, tokens_out = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(tokens_in) is not int or type(tokens_out) is not int or tokens_in < 0 or tokens_out < 0:
        return None
    return Usage(tokens_in, tokens_out)


def token_logprobs(holder: Mapping[str, Any]) -> list[float]:
    """The token log-probabilities in a choice of a completion or of a chunk; empty without."""
    logprobs = holder.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return []
    return [
        float(token["logprob"]) for token in content if isinstance(token, dict) and _is_number(token.get("logprob"))
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def strip_logprobs(value: Mapping[str, Any]) -> None:
    """Takes out, in place, the log-probabilities that the client did not ask for."""
    for choice in value["choices"]:
        if isinstance(choice, dict):
            choice.pop("logprobs", None)


class Progress:
    """Which choices a stream has begun, and which it has finished."""

    __slots__ = ("_finished", "_seen")

    def __init__(self) -> None:
        self._seen: set[int | None] = set()
        self._finished: set[int | None] = set()

    def add(self, choices: Iterable[Mapping[str, Any]]) -> None:
        """Takes the choices of one chunk."""
        for choice in choices:
            index = choice.get("index")
            (self._finished if choice.get("finish_reason") else self._seen).add(index)

    @property
    def finished(self) -> bool:
        """Whether the answer is whole: there was a finish, and no choice is without one."""
        return bool(self._finished) and self._seen <= self._finished


def chunks_of(completion: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks that stream a completion: role, content and tool calls, finish, and usage last where it is known."""
    head = {key: completion[key] for key in completion if key not in _OWN_CHUNK_KEYS}
    head["object"] = "chat.completion.chunk"
    for position, choice in enumerate(completion["choices"]):
        index = choice.get("index", position)
        extra = {key: value for key, value in choice.items() if key not in ("index", "message", "finish_reason")}
        delta = _delta(choice["message"])
        yield {**head, "choices": [{"index": index, "delta": delta, **extra, "finish_reason": None}]}
        yield {**head, "choices": [{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}]}
    if completion.get("usage") is not None:
        yield {**head, "choices": [], "usage": completion["usage"]}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    delta = {key: value for key, value in message.items() if value is not None or key == "content"}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)]
    return {"role": "assistant", **delta}


def assemble(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The completion that a finished stream spelled out. Unknown fields are kept, the last value of each."""
    completion: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key, value in chunk.items():
            if key not in _OWN_CHUNK_KEYS and (value is not None or key not in completion):
                completion[key] = value
        if chunk.get("usage") is not None:
            completion["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            _add_choice(choices, choice)
    completion["choices"] = [choices[index] for index in sorted(choices)]
    return completion


def _add_choice(choices: dict[int, dict[str, Any]], part: Mapping[str, Any]) -> None:
    index = part.get("index") or 0
    choice = choices.get(index)
    if choice is None:
        message = {"role": "assistant", "content": None, "refusal": None}
        choice = choices[index] = {"index": index, "message": message, "finish_reason": None}
    for key, value in part.items():
        if key == "logprobs":
            _add_logprobs(choice, value)
        elif key not in ("index", "delta") and value is not None:
            choice[key] = value
    _add_delta(choice["message"], part.get("delta") or {})


def _add_logprobs(choice: dict[str, Any], part: Any) -> None:
    if not isinstance(part, dict):
        return
    logprobs = choice.setdefault("logprobs", {})
    for key, value in part.items():
        if isinstance(value, list):
            logprobs[key] = [*(logprobs.get(key) or []), *value]
        else:
            logprobs.setdefault(key, value)


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            _add_tool_calls(message, value)
        elif key == "role":
            message["role"] = value or message["role"]
        elif isinstance(value, str) and isinstance(message.get(key), str):
            message[key] += value
        elif isinstance(value, list) and isinstance(message.get(key), list):
            message[key] = [*message[key], *value]
        elif value is not None:
            message[key] = value


def _add_tool_calls(message: dict[str, Any], parts: Any) -> None:
    calls = message.setdefault("tool_calls", [])
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        index = part.get("index", len(calls))
        if type(index) is not int or not 0 <= index < _MAX_TOOL_CALLS:
            continue
        while len(calls) <= index:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        _add_tool_call(calls[index], part)


def _add_tool_call(call: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if key == "function" and isinstance(value, dict):
            function = call["function"]
            for name, text in value.items():
                both = isinstance(text, str) and isinstance(function.get(name, ""), str)
                function[name] = function.get(name, "") + text if both else text
        elif key not in ("index", "function") and value is not None:
            call[key] = value
