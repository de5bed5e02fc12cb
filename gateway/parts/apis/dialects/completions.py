"""Read OpenAI's legacy text completions as chats of one user message, and write the answers as text completions.

A model that chats is asked, so a text is answered and not continued. What a chat cannot do is refused by name: a prompt
of tokens, a `suffix`, the log-probabilities of an echoed prompt. What comes beside the text of a chat's answer, such as
reasoning, has no place in a text completion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from gateway.errors import ApiError, InvalidRequest, UpstreamFailed, envelope
from gateway.off_loop import off_loop

_DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's own default for this endpoint."""
_MOST_ALTERNATIVES: Final = 20
_MOST_CHOICES: Final = 128
_OURS: Final = frozenset({"prompt", "suffix", "echo", "best_of", "logprobs"})
"""Fields that a chat completion does not have, or has with another meaning."""
_OF_CHATS: Final = ("messages", "tools", "tool_choice", "functions", "function_call", "top_logprobs", "modalities")
"""Fields of chats that would change what is asked, or give what a text completion cannot hold."""
_FINISH: Final = {"tool_calls": "stop", "function_call": "stop"}


def prompts_of(body: Mapping[str, Any]) -> list[str]:
    """Return the prompts of a body, one or more. Raises InvalidRequest."""
    prompt = body.get("prompt")
    if prompt is None:
        message = "Missing required parameter: 'prompt'."
        raise InvalidRequest(message, code="missing_required_parameter", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _wrong("prompt", "a string or a list of strings")
    if all(isinstance(text, str) for text in prompt):
        return list(prompt)
    if all(_is_integer(part) or isinstance(part, list) for part in prompt):
        raise _unsupported(
            "prompt",
            "A prompt of tokens fits one model alone, and here several may answer. Send the text, or name a service "
            "that has this endpoint: endpoints.completions in the policy.",
        )
    raise _wrong("prompt", "a string or a list of strings")


class CompletionsClient:
    """Translate for one request with one prompt; see `ClientDialect`.

    `first_index` is the index of its first choice in the client's reply, for a prompt among several.
    """

    def __init__(self, first_index: int = 0) -> None:
        self._first = first_index
        self._prompt = ""
        self._echo = False
        self._n = 1
        self._best_of = 1
        self._show_logprobs = False
        self._include_usage = False
        self._chat = False
        """Whether the body was read, so that what is wrong with its messages is wrong with the prompt."""

    async def read(self, body: dict[str, Any], tenant: str, *, large: bool) -> tuple[dict[str, Any], None, bool]:
        """See `ClientDialect.read`."""
        translate = partial(self.chat_of, body)
        return await off_loop(translate) if large else translate(), None, large

    def chat_of(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the chat-completions body of a body with one prompt. Raises InvalidRequest."""
        (self._prompt,) = prompts_of(body)
        self._echo = _flag(body, "echo")
        self._show_logprobs = body.get("logprobs") is not None
        self._n = _count(body, "n", 1)
        self._best_of = _count(body, "best_of", self._n)
        _check(body, self._n, self._best_of)
        chat = {name: value for name, value in body.items() if name not in _OURS and value is not None}
        chat["messages"] = [{"role": "user", "content": self._prompt}]
        chat.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if self._best_of > 1:
            chat["n"] = self._best_of
        if self._show_logprobs or self._best_of > self._n:
            chat["logprobs"] = True
        if self._show_logprobs:
            chat["top_logprobs"] = body["logprobs"]
        self._chat = True
        options = chat.get("stream_options")
        self._include_usage = isinstance(options, dict) and options.get("include_usage") is True
        return chat

    def path_of(self, path: str) -> str:
        """See `ClientDialect.path_of`."""
        if path.startswith("messages"):
            return "prompt"
        if path in ("logprobs", "top_logprobs"):
            return "logprobs" if self._show_logprobs else "best_of"
        return "best_of" if path == "n" and self._best_of > self._n else path

    def limited(self, tokens: int) -> None:
        """Do nothing: replies of this API have no place for it, and a header has it."""

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """See `ClientDialect.whole`."""
        choices = completion["choices"]
        if self._best_of > self._n and len(choices) > self._n:
            choices = _best(choices, self._n)
        value = _head(completion)
        value["choices"] = [self._choice(place, choice) for place, choice in enumerate(choices)]
        for name in ("usage", "system_fingerprint"):
            if completion.get(name) is not None:
                value[name] = completion[name]
        return orjson.dumps(value)

    def stream(self) -> CompletionsStream:
        """See `ClientDialect.stream`."""
        prompt = self._prompt if self._echo else ""
        return CompletionsStream(
            self._first, prompt, show_logprobs=self._show_logprobs, include_usage=self._include_usage
        )

    def error(self, error: ApiError) -> bytes:
        """See `ClientDialect.error`."""
        param = error.param if error.param is None or not self._chat else self.path_of(error.param)
        return envelope(error.message, error.type, param, error.code)

    def _choice(self, place: int, choice: Mapping[str, Any]) -> dict[str, Any]:
        text = _text(choice["message"])
        prompt = self._prompt if self._echo else ""
        logprobs = _legacy(choice.get("logprobs"), len(prompt)) if self._show_logprobs else None
        return {
            "text": prompt + text,
            "index": self._first + place,
            "logprobs": logprobs,
            "finish_reason": _finish(choice.get("finish_reason")),
        }


class CompletionsStream:
    """Write one streamed text completion; see `StreamWriter`."""

    def __init__(self, first_index: int, prompt: str, *, show_logprobs: bool, include_usage: bool) -> None:
        self._first = first_index
        self._prompt = prompt
        """What every choice begins with; '' for nothing."""
        self._show_logprobs = show_logprobs
        self._include_usage = include_usage
        self._offsets: dict[int, int] = {}
        """Characters of each choice so far."""

    def chunk(self, value: Mapping[str, Any]) -> bytes:
        """See `StreamWriter.chunk`."""
        choices = [chat for choice in value.get("choices") or () if (chat := self._choice(choice)) is not None]
        usage = value.get("usage") if self._include_usage else None
        if not choices and usage is None:
            return b""
        chunk = {**_head(value), "choices": choices}
        if value.get("system_fingerprint") is not None:
            chunk["system_fingerprint"] = value["system_fingerprint"]
        if self._include_usage:
            chunk["usage"] = usage
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def begin(self) -> bytes:
        """See `StreamWriter.begin`: a text completion has nothing before its text."""
        return b""

    def alive(self) -> bytes:
        """See `StreamWriter.alive`."""
        return b""

    def done(self) -> bytes:
        """See `StreamWriter.done`."""
        return b"data: [DONE]\n\n"

    def error(self, error: Mapping[str, Any]) -> bytes:
        """See `StreamWriter.error`."""
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"

    def _choice(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        index = choice.get("index") or 0
        text, finish = _text(choice.get("delta") or {}), _finish(choice.get("finish_reason"))
        if index not in self._offsets:
            self._offsets[index] = 0
            text = self._prompt + text
        given = choice.get("logprobs")
        if not text and finish is None and not given:
            return None
        logprobs = None
        if self._show_logprobs:
            echoed = len(self._prompt) if not self._offsets[index] else 0
            logprobs = _legacy(given, self._offsets[index] + echoed)
        self._offsets[index] += len(text)
        return {"text": text, "index": self._first + index, "logprobs": logprobs, "finish_reason": finish}


def _head(value: Mapping[str, Any]) -> dict[str, Any]:
    name = str(value.get("id") or "")
    return {
        "id": "cmpl-" + name.removeprefix("chatcmpl-"),
        "object": "text_completion",
        "created": value.get("created"),
        "model": value.get("model"),
    }


def _text(message: Mapping[str, Any]) -> str:
    texts = (message.get(name) for name in ("content", "refusal"))
    return "".join([text for text in texts if isinstance(text, str)])


def _finish(reason: Any) -> Any:
    return _FINISH.get(reason, reason) if isinstance(reason, str) else None


def _legacy(logprobs: Any, offset: int) -> dict[str, list[Any]] | None:
    """Return a choice's log-probabilities in the old form. `offset` is where its text begins, in characters."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        return None
    legacy: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in content:
        legacy["tokens"].append(token["token"])
        legacy["token_logprobs"].append(token["logprob"])
        legacy["top_logprobs"].append({top["token"]: top["logprob"] for top in token.get("top_logprobs") or ()})
        legacy["text_offset"].append(offset)
        offset += len(token["token"])
    return legacy


def _best(choices: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the choices with the highest mean log-probability of a token, best first. Raises UpstreamFailed."""

    def mean(choice: Mapping[str, Any]) -> float:
        content = (choice.get("logprobs") or {}).get("content")
        if content is None:
            raise UpstreamFailed(
                "The model returned no log-probabilities, so the best of its answers is not known. Send best_of: 1.",
                code="upstream_invalid_response",
            )
        return math.fsum(token["logprob"] for token in content) / max(1, len(content))

    return sorted(choices, key=mean, reverse=True)[:count]


def _check(body: Mapping[str, Any], n: int, best_of: int) -> None:
    """Check the fields that only a text completion has. Raises InvalidRequest."""
    for name in _OF_CHATS:
        if body.get(name) is not None:
            raise _unsupported(name, f"{name} is a field of chat completions; send those to /v1/chat/completions.")
    if body.get("suffix"):
        message = "suffix asks for text to insert, which a model that chats cannot do. Leave it out, or name a service "
        raise _unsupported("suffix", message + "that has this endpoint: endpoints.completions in the policy.")
    if best_of < n:
        raise _unsupported("best_of", f"best_of ({best_of}) must be at least n ({n}).")
    if best_of > n and body.get("stream"):
        raise _unsupported("best_of", "With stream, best_of cannot be more than n: the best is known at the end.")
    if body.get("max_tokens") == 0:
        raise _unsupported("max_tokens", "max_tokens must be at least 1: the prompt alone is not scored here.")
    logprobs = body.get("logprobs")
    if logprobs is None:
        return
    if not _is_integer(logprobs):
        raise _wrong("logprobs", "an integer")
    if not 0 <= logprobs <= _MOST_ALTERNATIVES:
        raise _unsupported("logprobs", f"logprobs must be from 0 to {_MOST_ALTERNATIVES}.")
    if body.get("echo"):
        raise _unsupported(
            "echo", "The log-probabilities of an echoed prompt are not known; leave out echo or logprobs."
        )


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, "a boolean")
    return bool(value)


def _count(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not _is_integer(value):
        raise _wrong(name, "an integer")
    if not 1 <= value <= _MOST_CHOICES:
        raise _unsupported(name, f"{name} must be from 1 to {_MOST_CHOICES}.")
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for {param!r}: expected {expected}.", code="invalid_type", param=param)


def _unsupported(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_value", param=param)
