"""The decisions API (`POST /v1/decisions`): typed questions about an input, answered with probabilities and no text.

OpenAI has it, and servers of one's own that speak it. It serves judges alone (`escalate.judge`): the system message is
the statement to judge, the user's message the input, and the answer reads as a chat model's would: one token, yes or
no, with the log-probabilities of both.
"""

from __future__ import annotations

import math
from typing import Any, Final

from gateway.backends.base import BackendRequest, BadStatus, Completion, InvalidReply, Response
from gateway.backends.http_backend import HttpBackend, Prepared, SseReply, json_object
from gateway.parts.servers.chat_forms import translated_completion

_LEAST: Final = 1e-9


class DecisionsBackend(HttpBackend):
    """One endpoint of the decisions API."""

    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        texts = {str(message.get("role")): message.get("content") for message in request.body["messages"]}
        statement, about = texts.get("system"), texts.get("user")
        if stream or len(request.body["messages"]) != 2 or not isinstance(statement, str) or not isinstance(about, str):
            message = b'{"error": {"message": "this backend judges drafts, and answers nothing else"}}'
            raise BadStatus(400, message)
        question = {"type": "predicate", "name": "adequate", "instructions": statement}
        return {"model": self._model, "input": about, "questions": [question]}, _DecisionReader(self._model), ()


class _DecisionReader:
    """Read the reply to one request."""

    def __init__(self, model: str) -> None:
        self._model = model

    def completion(self, raw: bytes) -> Completion:
        """Return the probability as the log-probabilities of yes and no; of a refusal, no text and none."""
        reply = json_object(raw)
        try:
            [answer] = reply["answers"]
            p = float(answer["probability"]) if answer["type"] == "predicate" else math.nan
        except (KeyError, TypeError, ValueError):
            raise InvalidReply("a reply that is not of the decisions API") from None
        usage = reply.get("usage") or {}
        value = {
            "id": "", "object": "chat.completion", "created": 0, "model": reply.get("model") or self._model,
            "choices": [_choice(p)],
            "usage": {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")},
        }  # fmt: skip
        return translated_completion(value, self._model)

    def stream(self, response: Response) -> SseReply:
        """Raise InvalidReply: the API has no streams."""
        response.close()
        raise InvalidReply("a stream, which the decisions API does not have")


def _choice(p: float) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if not 0 <= p <= 1:
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    words = [
        {"token": word, "logprob": math.log(max(_LEAST, q)), "bytes": None} for word, q in (("yes", p), ("no", 1 - p))
    ]
    first = words[p < 0.5]
    message["content"] = first["token"]
    logprobs = {"content": [{**first, "top_logprobs": words}], "refusal": None}
    return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
