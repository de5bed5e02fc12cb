"""A scripted server of chat completions that refuses what providers refuse, on a real socket.

    with StrictChat("details") as upstream:
        upstream.say = lambda body: Say(text="Paris.", thoughts=("France, so",))
        ...                                                        # talk to upstream.url
        assert upstream.refusals == []

`form` says how it hands out reasoning, and with it what it checks when that comes back:

    details    OpenRouter's `reasoning_details`, signed texts and encrypted ones in turn
    blocks     `thinking_blocks`, as LiteLLM's proxy has them
    google     Gemini's OpenAI endpoint: `extra_content.google.thought_signature` on the first call of a message. Since
               the user's last message, the first call of each must have one: its own, or the text that Google documents
               for calls of other models
    plain      readable `reasoning_content`, and nothing that is signed: a server of open models

All refuse calls without a result directly after them and results without a call, unknown roles, ids longer than
OpenAI's 40 characters (but for `plain`), and signed texts that are not their own. A model that `reasons` refuses
`max_tokens` and `temperature`; one that does not refuses `max_completion_tokens`.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.connection import Received
from tests.support.upstream import Reply, ToolCall, Upstream

Json = dict[str, Any]
Form = Literal["details", "blocks", "google", "plain"]
SKIP = "skip_thought_signature_validator"
"""What Gemini takes instead of a signature, on calls that another model made."""
_LONGEST_ID = 40
_ROLES = {"system", "developer", "user", "assistant", "tool"}
_PARTS = {"user": {"text", "image_url", "file", "input_audio"}, "assistant": {"text", "refusal"}, "tool": {"text"}}


class NotTaken(Exception):
    """What the provider answers; `param` is the path at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Say:
    """What the model says: a text, calls, and thoughts before them. `unsure` gives it poor log-probabilities."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[str, ...] = ()
    unsure: bool = False


class StrictChat(Upstream):
    """See the module's docstring."""

    def __init__(self, form: Form, *, reasons: bool = True) -> None:
        super().__init__()
        self.form = form
        self.refusals: list[str] = []
        """What requests were refused for."""
        self.say: Callable[[Json], Say] = lambda body: Say("The scripted model says hello.")
        self._reasons = reasons
        self._secret = f"{form} {id(self)}".encode()
        self._calls: set[str] = set()
        """Ids of the calls that it signed."""
        self._serial = itertools.count(1)

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            return super().reply_to(request)
        self.requests.append(request)
        if self._queue:
            return self._queue.popleft()
        try:
            self._check(request.body)
        except NotTaken as refused:
            self.refusals.append(str(refused))
            told = {"message": str(refused), "type": "invalid_request_error", "param": refused.param, "code": None}
            return Reply(status=400, body=json.dumps({"error": told}).encode())
        return self._rendered(self.say(request.body), request.body)

    def refusal_of(self, body: Json) -> str | None:
        """What a request with this body is refused for; None if it is taken."""
        try:
            self._check(body)
        except NotTaken as refused:
            return f"{refused.param}: {refused}"
        return None

    def signature(self, text: str) -> str:
        """The signature of a text."""
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    # --- what it answers

    def _rendered(self, say: Say, body: Json) -> Reply:
        number = next(self._serial)
        message: Json = {"role": "assistant", "content": say.text or None}
        message |= self._reasoning(say.thoughts, number)
        if say.calls:
            message["tool_calls"] = [self._call(call, index) for index, call in enumerate(say.calls)]
        finish = "tool_calls" if say.calls else "stop"
        words = len(say.text.split())
        usage = self._usage(body, words)
        common = {"id": f"chatcmpl-{number}", "created": 1_700_000_000, "model": body["model"]}
        logprobs = self._logprobs(say) if body.get("logprobs") else None
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            return Reply(body=json.dumps(whole).encode())
        events = []
        for delta, probs in _deltas(message, logprobs):
            choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": probs}
            events.append({**common, "object": "chat.completion.chunk", "choices": [choice]})
        end = {"index": 0, "delta": {}, "finish_reason": finish, "logprobs": None}
        events.append({**common, "object": "chat.completion.chunk", "choices": [end]})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return Reply(body=data.encode(), headers={"content-type": "text/event-stream; charset=utf-8"})

    def _usage(self, body: Json, words: int) -> Json:
        return {"prompt_tokens": 7, "completion_tokens": words, "total_tokens": 7 + words}

    def _reasoning(self, thoughts: tuple[str, ...], number: int) -> Json:
        if not thoughts or self.form == "google":
            return {}
        if self.form == "plain":
            return {"reasoning_content": "\n".join(thoughts)}
        if self.form == "blocks":
            return {
                "reasoning_content": "".join(thoughts),
                "thinking_blocks": [
                    {"type": "thinking", "thinking": one, "signature": self.signature(one)} for one in thoughts
                ],
            }
        details: list[Json] = []
        for one in thoughts:
            common = {"format": "anthropic-claude-v1", "index": len(details)}
            if (number + len(details)) % 2:
                details.append({"type": "reasoning.text", "text": one, "signature": self.signature(one), **common})
            else:
                data = f"{one}.{self.signature(one)}"
                details.append({"type": "reasoning.encrypted", "data": data, "id": f"rs_{number}", **common})
        return {"reasoning": "\n".join(thoughts), "reasoning_details": details}

    def _call(self, call: ToolCall, index: int) -> Json:
        made: Json = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        if self.form == "google" and index == 0:
            self._calls.add(call.id)
            made["extra_content"] = {"google": {"thought_signature": self.signature(call.id)}}
        return made

    def _logprobs(self, say: Say) -> Json:
        entries = [
            {"token": piece, "logprob": -3.0 if say.unsure else -0.01, "bytes": None, "top_logprobs": []}
            for piece in _pieces(say.text)
        ]
        return {"content": entries}

    # --- what it takes

    def _check(self, body: Json) -> None:
        refused = ("max_tokens", "temperature", "top_p") if self._reasons else ("max_completion_tokens",)
        for name in refused:
            _require(name not in body, name, f"Unsupported parameter: '{name}' is not supported with this model.")
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        _require(len(set(names)) == len(names), "tools", "tools must have unique names")
        for at, tool in enumerate(body.get("tools") or ()):
            function = tool["function"]
            if function.get("strict"):
                schema = function.get("parameters") or {}
                closed = schema.get("additionalProperties") is False
                whole = closed and set(schema.get("required") or ()) == set(schema.get("properties") or ())
                _require(whole, f"tools[{at}].function.parameters", "Invalid schema for a strict function")
        choice = body.get("tool_choice")
        _require(choice is None or bool(names), "tool_choice", "'tool_choice' is only allowed with 'tools'")
        messages = body.get("messages")
        _require(bool(messages), "messages", "[] is too short - 'messages'")
        waiting: list[str] = []
        for at, message in enumerate(messages):
            path = f"messages[{at}]"
            role = message.get("role")
            _require(role in _ROLES, f"{path}.role", f"Invalid value: '{role}'.")
            if role == "tool":
                ident = message.get("tool_call_id")
                _require(
                    ident in waiting,
                    path,
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
                )
                waiting.remove(ident)
            else:
                _require(
                    not waiting,
                    path,
                    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                    f"'tool_call_id': {waiting}",
                )
            self._check_message(message, role, path)
            waiting += [call["id"] for call in message.get("tool_calls") or ()]
        _require(not waiting, "messages", f"no tool messages for the tool_call_ids {waiting}")
        if self.form == "google":
            self._check_turn(messages)

    def _check_message(self, message: Json, role: str, path: str) -> None:
        content = message.get("content")
        if isinstance(content, list):
            _require(bool(content), f"{path}.content", "content must not be empty")
            for part in content:
                kind = part.get("type")
                _require(kind in _PARTS.get(role, {"text"}), f"{path}.content", f"Invalid value: '{kind}'.")
        else:
            fits = isinstance(content, str) or (content is None and bool(message.get("tool_calls")))
            _require(fits, f"{path}.content", f"expected a string, got {content!r}")
        if "tool_calls" in message:
            _require(bool(message["tool_calls"]), f"{path}.tool_calls", "[] is too short")
        idents = []
        for call in message.get("tool_calls") or ():
            ident, function = call.get("id"), call.get("function")
            _require(isinstance(ident, str) and ident != "", f"{path}.tool_calls.id", "missing id")
            short = self.form == "plain" or len(ident) <= _LONGEST_ID
            too_long = f"string too long. Expected at most {_LONGEST_ID}, but got a string with length {len(ident)}."
            _require(short, f"{path}.tool_calls.id", too_long)
            _require(call.get("type") == "function", f"{path}.tool_calls.type", "Invalid value")
            json.loads(function["arguments"])
            idents.append(ident)
        _require(len(set(idents)) == len(idents), f"{path}.tool_calls", "Duplicate value for 'tool_call_id'")
        self._check_signatures(message, path)

    def _check_signatures(self, message: Json, path: str) -> None:
        _require("tl1." not in json.dumps(message), path, "sealed reasoning came as it was")
        wrong = f"Invalid signature in {path}"
        for detail in message.get("reasoning_details") or ():
            if "signature" in detail:
                own = self.form == "details" and detail["signature"] == self.signature(detail.get("text") or "")
                _require(own, path, wrong)
            if "data" in detail:
                text, _, tag = detail["data"].rpartition(".")
                _require(self.form == "details" and tag == self.signature(text), path, wrong)
        for block in message.get("thinking_blocks") or ():
            _require(block["signature"] == self.signature(block["thinking"]) and self.form == "blocks", path, wrong)
        for call in message.get("tool_calls") or ():
            given = ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature")
            if self.form == "google":
                _require(given in (None, SKIP, self.signature(call["id"])), path, wrong)
                _require(call["id"] not in self._calls or given not in (None, SKIP), path, f"{wrong}: it is missing")
            else:
                _require(given is None, path, wrong)

    def _check_turn(self, messages: list[Json]) -> None:
        """Gemini's check: since the last message of the user, the first call of each message must have a signature."""
        for message in reversed(messages):
            if message["role"] == "user":
                return
            if message.get("tool_calls"):
                google = (message["tool_calls"][0].get("extra_content") or {}).get("google") or {}
                missing = "Function call is missing a thought_signature in functionCall parts."
                _require("thought_signature" in google, "messages", missing)


def _deltas(message: Json, logprobs: Json | None) -> Iterator[tuple[Json, Json | None]]:
    """The deltas that stream a message, each with its log-probabilities."""
    yield {"role": "assistant", "content": ""}, None
    for block in message.get("thinking_blocks") or ():
        for piece in _pieces(block["thinking"]):
            begun = {"type": "thinking", "thinking": piece, "signature": None}
            yield {"reasoning_content": piece, "thinking_blocks": [begun]}, None
        yield {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": block["signature"]}]}, None
    if "thinking_blocks" not in message:
        for piece in _pieces(message.get("reasoning_content") or ""):
            yield {"reasoning_content": piece}, None
    for detail in message.get("reasoning_details") or ():
        if "text" not in detail:
            yield {"reasoning_details": [detail]}, None
            continue
        common = {name: detail[name] for name in ("type", "format", "index")}
        for piece in _pieces(detail["text"]):
            yield {"reasoning": piece, "reasoning_details": [{"text": piece, **common}]}, None
        yield {"reasoning_details": [{"signature": detail["signature"], **common}]}, None
    for at, piece in enumerate(_pieces(message["content"] or "")):
        yield {"content": piece}, {"content": [logprobs["content"][at]]} if logprobs else None
    for index, call in enumerate(message.get("tool_calls") or ()):
        begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        yield {"tool_calls": [begun]}, None
        arguments = call["function"]["arguments"]
        for start in range(0, len(arguments), 9):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + 9]}}]}, None


def _pieces(text: str) -> list[str]:
    return [text[at : at + 6] for at in range(0, len(text), 6)]


def _require(holds: bool, param: str, message: str) -> None:
    if not holds:
        raise NotTaken(param, message)
