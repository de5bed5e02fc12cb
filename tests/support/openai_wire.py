"""OpenAI's wire format: what a `Reply` says to a request, as completion and chunk objects (contract.md)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from tests.support.replies import Fault, Json, Reply, ToolCall

_ids = itertools.count(1)
ERROR: Json = {"error": {"message": "scripted error", "type": "server_error", "param": None, "code": "scripted"}}
"""What a backend sends in place of an answer."""


def completion(reply: Reply, request: Json) -> Json:
    """The chat.completion object."""
    tokens, finish = _cut(reply, request)
    message: Json = {"role": "assistant", "content": "".join(tokens), "refusal": None, "annotations": []}
    if reply.tool_calls:
        message |= {"content": None, "tool_calls": [_tool_call(call) for call in reply.tool_calls]}
    logprobs = _logprobs(reply, request, tokens, 0)
    made = {"message": message, "logprobs": logprobs, "finish_reason": finish}
    found: Json = _base(reply, request, "chat.completion")
    found["choices"] = [{"index": index} | made for index in range(request.get("n") or 1)]
    _break_choices(found, reply.fault)
    if reply.usage is not None:
        found["usage"] = usage(reply, request)
    return found | reply.extra


def usage(reply: Reply, request: Json) -> Json:
    """The token counts: the scripted ones, else words counted."""
    if isinstance(reply.usage, dict):
        return reply.usage
    prompt = sum(len(str(message.get("content") or "").split()) for message in request.get("messages", ()))
    answer = len(_cut(reply, request)[0]) * (request.get("n") or 1)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _base(reply: Reply, request: Json, kind: str) -> Json:
    model = reply.model or request.get("model")
    return {"id": f"chatcmpl-{next(_ids)}", "object": kind, "created": 1760000000, "model": model}


def _cut(reply: Reply, request: Json) -> tuple[Sequence[str], str]:
    """The tokens within the request's limit, and the finish_reason that goes with them."""
    tokens = () if reply.tool_calls else reply.pieces()
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None and len(tokens) > limit:
        return tokens[:limit], "length"
    return tokens, reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(reply: Reply, request: Json, tokens: Sequence[str], start: int) -> Json | None:
    if not request.get("logprobs") or reply.no_logprobs:
        return None
    every = reply.logprob
    given = every if isinstance(every, tuple) else (every,) * (start + len(tokens))
    top = request.get("top_logprobs") or 0
    content = []
    for token, logprob in zip(tokens, given[start:], strict=False):
        entry = {"token": token, "logprob": logprob, "bytes": list(token.encode())}
        content.append(entry | {"top_logprobs": [entry] if top else []})
    return {"content": content, "refusal": None}


def _break_choices(found: Json, fault: Fault | None) -> None:
    match fault:
        case Fault.EMPTY_CHOICES:
            found["choices"] = []
        case Fault.NULL_CHOICES:
            found["choices"] = None
        case Fault.NO_CHOICES:
            del found["choices"]


def wants_usage(request: Json) -> bool:
    """Whether a stream's request asks for the totals."""
    return bool((request.get("stream_options") or {}).get("include_usage"))


def deltas_of(reply: Reply, request: Json) -> tuple[list[tuple[Json, Json | None]], str]:
    """(delta, logprobs) of every chunk but the last, the role first; and the finish_reason."""
    tokens, finish = _cut(reply, request)
    content = None if reply.tool_calls else ""
    deltas: list[tuple[Json, Json | None]] = [({"role": "assistant", "content": content, "refusal": None}, None)]
    for at, token in enumerate(tokens):
        deltas.append(({"content": token}, _logprobs(reply, request, [token], at)))
    for index, call in enumerate(reply.tool_calls):
        opening = _tool_call(call)
        opening["function"]["arguments"] = ""
        deltas.append(({"tool_calls": [{"index": index} | opening]}, None))
        for at in range(0, len(call.arguments), 8):
            part = {"index": index, "function": {"arguments": call.arguments[at : at + 8]}}
            deltas.append(({"tool_calls": [part]}, None))
    return deltas, finish


class Chunks:
    """Makes the chunks of one stream: same id, model and time in all."""

    def __init__(self, reply: Reply, request: Json) -> None:
        self._reply, self._request = reply, request
        self._base = _base(reply, request, "chat.completion.chunk")

    def __call__(self, delta: Json | None, logprobs: Json | None, finish: str | None = None) -> str:
        """A chunk with this delta for every choice, or with the usage when there is no delta."""
        made = {"delta": delta, "logprobs": logprobs, "finish_reason": finish}
        count = 0 if delta is None else self._request.get("n") or 1
        found = self._base | {"choices": [{"index": index} | made for index in range(count)]}
        _break_choices(found, self._reply.fault)
        if wants_usage(self._request):
            found["usage"] = usage(self._reply, self._request) if delta is None else None
        return json.dumps(found | self._reply.extra, ensure_ascii=False, separators=(",", ":"))
