"""A scripted model server of Anthropic's Messages API that refuses what the provider refuses, on a real socket.

    with StrictMessages() as claude:
        claude.say(thinking("let me see"), text("Paris."))      # the next replies, in order; the last one repeated
        claude.say(tool_use("look", {"at": "map"}))
        ...                                                      # talk to claude.url with claude.KEY
        assert claude.requests[0].body["max_tokens"] == 100

Thinking is signed by the server's own secret, and checked when it comes back. Refusals are the provider's: status 400
and `{"type": "error", "error": {"type": "invalid_request_error", "message": "..."}}`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gateway.parts.apis.dialects.messages.models import facts_of_model
from tests.support.connection import Received
from tests.support.upstream import Reply, Upstream

Block = dict[str, Any]
_ids = itertools.count(1)
_FIELDS = {
    "max_tokens", "messages", "model", "cache_control", "container", "diagnostics", "inference_geo", "metadata",
    "output_config", "service_tier", "speed", "stop_sequences", "system", "thinking", "tool_choice", "tools", "stream",
}  # fmt: skip
_SAMPLING = {"temperature", "top_p", "top_k"}
_OF_BETAS = {"context_management", "mcp_servers", "fallbacks"}
_BLOCKS: dict[str, set[str]] = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control", "transformations"},
    "document": {"type", "source", "cache_control", "citations", "context", "title"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller", "toolset_name"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "server_tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "web_search_tool_result": {"type", "tool_use_id", "content", "cache_control", "caller"},
    "search_result": {"type", "content", "source", "title", "cache_control", "citations"},
}
_THINKING = ("thinking", "redacted_thinking")
_IDENT = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class RefusedError(Exception):
    """What the provider says to a wrong request."""


def text(said: str, **more: Any) -> Block:
    """A block of text."""
    return {"type": "text", "text": said, **more}


def thinking(thought: str) -> Block:
    """A block of thinking, which the server signs."""
    return {"type": "thinking", "thinking": thought, "signature": ""}


def redacted(thought: str) -> Block:
    """A block of thinking that nobody may read, which the server encrypts (after its fashion)."""
    return {"type": "redacted_thinking", "data": thought}


def tool_use(name: str, given: dict[str, Any], ident: str | None = None) -> Block:
    """A tool call."""
    return {"type": "tool_use", "id": ident or f"toolu_{next(_ids):04}", "name": name, "input": given}


class StrictMessages(Upstream):
    """See the module's docstring."""

    KEY = "sk-scripted"
    """The key that it accepts, which is that of the hosted tier in `tests.support.gateway`."""

    def __init__(self, secret: str = "one") -> None:
        super().__init__()
        self.secret = secret
        self.refusals: list[str] = []
        """What requests were refused for."""
        self._script: deque[tuple[list[Block], str | None, dict[str, Any]]] = deque()
        self._choose: Callable[[dict[str, Any]], Block] | None = None

    def say(self, *blocks: Block, stop_reason: str | None = None, **message: Any) -> None:
        """Answer the next request with these blocks; `message` are further members of the message."""
        self._script.append((list(blocks), stop_reason, message))

    def say_by(self, choose: Callable[[dict[str, Any]], Block]) -> None:
        """Answer each request, of a body, with the block that `choose` makes of it."""
        self._choose = choose

    async def _reset(self) -> None:
        await super()._reset()
        self._script.clear()
        self._choose = None
        self.refusals.clear()

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        path = request.path.partition("?")[0]
        if request.method != "POST" or not path.startswith("/v1/messages"):
            return super().reply_to(request)
        self.requests.append(request)
        if self._queue:
            return self._queue.popleft()
        if request.headers.get("x-api-key") != self.KEY:
            return error(401, "authentication_error", "invalid x-api-key")
        try:
            self._check(
                self._with_limit(request.body) if path.endswith("/count_tokens") else request.body, request.headers
            )
        except RefusedError as refused:
            self.refusals.append(str(refused))
            return error(400, "invalid_request_error", str(refused))
        if path.endswith("/count_tokens"):
            return Reply(body=json.dumps({"input_tokens": len(request.raw) // 4}).encode())
        message = self._message(request.body)
        if not request.body.get("stream"):
            return Reply(body=json.dumps(message).encode(), headers={"request-id": "req_scripted"})
        events = b"".join(_encoded(event) for event in events_of(message))
        return Reply(body=events, headers={"content-type": "text/event-stream"})

    def refusal_of(self, body: Any, headers: dict[str, str] | None = None) -> str | None:
        """What a request with this body is refused for; None if it is taken."""
        try:
            self._check(body, {"anthropic-version": "2023-06-01", **(headers or {})})
        except RefusedError as refused:
            return str(refused)
        return None

    @staticmethod
    def _with_limit(body: dict[str, Any]) -> dict[str, Any]:
        """A request to count tokens as one to answer: it has no limit, and must not have what is not counted."""
        for name in ("max_tokens", "stream", "stop_sequences", "metadata", "service_tier", *_SAMPLING):
            _require(name not in body, f"{name}: Extra inputs are not permitted")
        return {**body, "max_tokens": facts_of_model(body["model"]).max_output or 1 << 20}

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._choose is not None:
            self._script.clear()
            self.say(self._choose(body))
        if not self._script:
            self.say(text("The scripted Claude says hello."))
        blocks, stop_reason, more = self._script.popleft() if len(self._script) > 1 else self._script[0]
        signed = [self._signed(block) for block in blocks]
        called = any(block["type"] == "tool_use" for block in blocks)
        words = sum(len(str(block).split()) for block in blocks)
        return {
            "id": f"msg_{next(_ids):06}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": signed,
            "stop_reason": stop_reason or ("tool_use" if called else "end_turn"),
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": {
                "input_tokens": 11,
                "cache_creation_input_tokens": 5,
                "cache_read_input_tokens": 7,
                "output_tokens": words,
                "service_tier": "standard",
            },
            **more,
        }

    def _signed(self, block: Block) -> Block:
        if block["type"] == "thinking":
            return {**block, "signature": self.signature(block["thinking"])}
        if block["type"] == "redacted_thinking":
            return {**block, "data": f"{block['data']}.{self.signature(block['data'])}"}
        return block

    def signature(self, thought: str) -> str:
        """The signature of a thought."""
        return hashlib.sha256(f"{self.secret}\0{thought}".encode()).hexdigest()[:24]

    # --- what the provider checks -------------------------------------------------------------------------------------

    def _check(self, body: Any, headers: dict[str, str]) -> None:
        version = headers.get("anthropic-version")
        _require(version in ("2023-06-01", "2026-10-21"), "anthropic-version: header is required")
        allowed = _FIELDS | (_SAMPLING if version == "2023-06-01" else set())
        if headers.get("anthropic-beta"):
            allowed |= _OF_BETAS
        for name in body:
            _require(name in allowed, f"{name}: Extra inputs are not permitted")
        facts = facts_of_model(body["model"])
        _require(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        most = facts.max_output or 1 << 20
        _require(0 <= body["max_tokens"] <= most, f"max_tokens: {body['max_tokens']} > {most}")
        if not facts.sampling:
            for name in _SAMPLING:
                _require(name not in body, f"`{name}` is deprecated for this model.")
        both = "temperature" in body and "top_p" in body and facts.max_output is not None
        _require(not both, "`temperature` and `top_p` cannot both be specified")
        _require(0 <= body.get("temperature", 1) <= 1, "temperature: range: 0..1")
        _require(all(one.strip() for one in body.get("stop_sequences", ())), "stop_sequences: whitespace only")
        self._check_tools(body)
        self._check_thinking(body, facts)
        turns = body["messages"]
        for i, message in enumerate(turns):
            if message["role"] == "system":
                _require(facts.system_turns, "role 'system' is not supported on this model")
                follows = i > 0 and turns[i - 1]["role"] == "user"
                _require(follows and (i + 1 == len(turns) or turns[i + 1]["role"] == "assistant"), "system: misplaced")
        self._check_messages([message for message in turns if message["role"] != "system"])
        ends = body["messages"][-1]["role"]
        _require(facts.prefill or ends != "assistant", "This model does not support assistant message prefill.")
        if isinstance(body.get("system"), list):
            for block in body["system"]:
                _require(block.get("type") == "text" and block["text"].strip() != "", "system: text must be non-empty")
                _known(block, "system")

    def _check_tools(self, body: dict[str, Any]) -> None:
        tools = body.get("tools") or []
        parts = [block for one in body["messages"] if isinstance(one["content"], list) for block in one["content"]]
        called = any(part["type"] in ("tool_use", "tool_result") for part in parts)
        _require(
            bool(tools) or not called, "Requests which include `tool_use` or `tool_result` blocks must define tools"
        )
        markers = json.dumps(body).count('"cache_control":')
        _require(markers <= 4, f"A maximum of 4 blocks with cache_control may be provided. Found {markers}.")
        for i, tool in enumerate(tools):
            if tool.get("type") not in (None, "custom"):
                continue
            _require(_NAME.fullmatch(tool.get("name") or "") is not None, f"tools.{i}.name: wrong pattern")
            _require(tool.get("input_schema", {}).get("type") == "object", f"tools.{i}.input_schema.type: required")
            if tool.get("strict"):
                _check_schema(tool["input_schema"], f"tools.{i}.input_schema")
        wanted = (body.get("output_config") or {}).get("format")
        if wanted is not None:
            _check_schema(wanted["schema"], "output_config.format.schema")
        choice = body.get("tool_choice")
        if choice is not None:
            _require(bool(tools), "tool_choice may only be specified while providing tools")
            _require(choice["type"] in ("auto", "any", "tool", "none"), "tool_choice.type")
            if choice["type"] == "tool":
                _require(any(tool["name"] == choice["name"] for tool in tools), "tool_choice: no such tool")

    def _check_thinking(self, body: dict[str, Any], facts: Any) -> None:
        thought = body.get("thinking")
        kind = thought["type"] if thought else None
        taken = {
            "budget": ("enabled", "disabled"),
            "both": ("enabled", "adaptive", "disabled"),
            "adaptive": ("adaptive", "between_tools", "disabled"),
            "always": ("adaptive",),
        }[facts.thinking]
        _require(kind is None or kind in taken, f'"thinking.type.{kind}" is not supported for this model.')
        effort = (body.get("output_config") or {}).get("effort")
        _require(effort is None or effort in facts.efforts, f"output_config.effort: {effort} is not supported")
        if kind in ("enabled", "adaptive"):
            _require(body.get("temperature", 1) == 1, "`temperature` may only be set to 1 when thinking is enabled")
            forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
            _require(not forced, "Thinking may not be enabled when tool_choice forces tool use.")
        if kind == "enabled":
            budget = thought["budget_tokens"]
            _require(budget >= 1024, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
            _require(budget < body["max_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`.")
            turn = _turn(body["messages"])
            _require(
                not turn or (isinstance(turn[0]["content"], list) and turn[0]["content"][0]["type"] in _THINKING),
                "Expected `thinking` or `redacted_thinking`. When `thinking` is enabled, a final `assistant` message "
                "must start with a thinking block.",
            )

    def _check_messages(self, messages: list[Any]) -> None:
        _require(bool(messages), "messages: at least one message is required")
        _require(messages[0]["role"] == "user", "messages: first message must use the user role")
        called: set[str] = set()
        seen: set[str] = set()
        for i, message in enumerate(messages):
            role = message["role"]
            _require(role in ("user", "assistant"), f"messages.{i}.role: {role}")
            _require(message.keys() == {"role", "content"}, f"messages.{i}: Extra inputs are not permitted")
            _require(i == 0 or messages[i - 1]["role"] != role, "messages: roles must alternate")
            content = message["content"]
            _require(bool(content), f"messages.{i}: all messages must have non-empty content")
            blocks = [text(content)] if isinstance(content, str) else content
            results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            missing = called - set(results)
            _require(
                not missing, f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after"
            )
            _require(
                len(set(results)) == len(results), f"messages.{i}: found multiple `tool_result` blocks with one id"
            )
            _require(set(results) <= called, f"messages.{i}: unexpected `tool_use_id` found in `tool_result` blocks")
            first = [block["type"] for block in blocks[: len(results)]]
            _require(set(first) <= {"tool_result"}, f"messages.{i}: `tool_result` blocks must come first")
            final = blocks[-1]["type"]
            _require(
                final not in _THINKING, f"messages.{i}: The final block in an assistant message cannot be `{final}`."
            )
            called = set()
            for j, block in enumerate(blocks):
                where = f"messages.{i}.content.{j}"
                self._check_block(block, role, where)
                if block["type"] == "tool_use":
                    _require(block["id"] not in seen, f"{where}: `tool_use` ids must be unique")
                    called.add(block["id"])
                    seen.add(block["id"])
        _require(not called, f"messages.{len(messages)}: `tool_use` ids were found without `tool_result` blocks")
        last = messages[-1]
        if last["role"] == "assistant":
            said = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
            _require(said == said.rstrip(), "messages: final assistant content cannot end with trailing whitespace")

    def _check_block(self, block: Block, role: str, where: str) -> None:
        kind = block["type"]
        _known(block, where)
        if kind == "text":
            _require(block["text"].strip() != "", f"{where}: text content blocks must contain non-whitespace text")
        elif kind in ("tool_use", *_THINKING):
            _require(role == "assistant", f"{where}: `{kind}` blocks can only be specified in assistant messages")
            if kind == "tool_use":
                _require(_IDENT.fullmatch(block["id"]) is not None, f"{where}.id: wrong pattern")
                _require(isinstance(block["input"], dict), f"{where}.input: Input should be a valid dictionary")
            elif kind == "thinking":
                signed = block["signature"] == self.signature(block["thinking"])
                _require(signed, f"{where}: Invalid `signature` in `thinking` block")
            else:
                thought, _, tag = block["data"].rpartition(".")
                _require(tag == self.signature(thought), f"{where}: Invalid `data` in `redacted_thinking` block")
        elif kind == "tool_result":
            _require(role == "user", f"{where}: `tool_result` blocks can only be in user messages")
            if isinstance(block.get("content"), list):
                for k, inner in enumerate(block["content"]):
                    _known(inner, f"{where}.content.{k}")
        elif kind in ("image", "document"):
            _require(block["source"]["type"] in ("base64", "url", "file", "text", "content"), f"{where}.source.type")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RefusedError(message)


def _known(block: Block, where: str) -> None:
    kind = block.get("type", "")
    _require(kind in _BLOCKS, f"{where}: Input tag '{kind}' does not match any of the expected tags")
    for name in block:
        _require(name in _BLOCKS[kind], f"{where}.{kind}.{name}: Extra inputs are not permitted")


def _check_schema(schema: Any, where: str) -> None:
    """Refuse the keywords that structured outputs do not have."""
    if isinstance(schema, list):
        for one in schema:
            _check_schema(one, where)
    elif isinstance(schema, dict):
        if schema.get("type") == "object":
            closed = schema.get("additionalProperties") is False
            _require(closed, f"{where}: For 'object' type, 'additionalProperties' must be explicitly set to false")
        for name in ("minimum", "maximum", "multipleOf", "minLength", "maxLength", "maxItems", "uniqueItems", "oneOf"):
            _require(name not in schema, f"{where}: property '{name}' is not supported")
        _require(schema.get("minItems", 0) in (0, 1), f"{where}: 'minItems' values other than 0 or 1 are not supported")
        for name, inner in schema.items():
            _check_schema(list(inner.values()) if name in ("properties", "$defs") else inner, where)


def _turn(messages: list[Any]) -> list[Any]:
    """The assistant's messages since the user last said something, in order."""
    turn: list[Any] = []
    for message in reversed(messages):
        content = message["content"]
        if message["role"] == "assistant":
            turn.insert(0, message)
        elif isinstance(content, str) or all(block["type"] != "tool_result" for block in content):
            break
    return turn


def error(status: int, kind: str, message: str, **headers: str) -> Reply:
    """An error in the API's envelope."""
    told = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}
    return Reply(status=status, body=json.dumps(told).encode(), headers=headers)


def events_of(message: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The events that stream a message, in the provider's order."""
    end = ("stop_reason", "stop_sequence", "stop_details", "container")
    usage = {**message["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": {**message, **dict.fromkeys(end), "content": [], "usage": usage}}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        begun, deltas = _streamed(block)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {name: message[name] for name in end},
        "usage": {"output_tokens": message["usage"]["output_tokens"]},
    }
    yield {"type": "message_stop"}


def _streamed(block: Block) -> tuple[Block, list[Block]]:
    """A block as it begins, and the deltas that complete it."""
    match block["type"]:
        case "text":
            cited = [{"type": "citations_delta", "citation": one} for one in block.get("citations") or ()]
            begun = {**block, "text": ""} | ({"citations": []} if cited else {})
            return begun, [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])] + cited
        case "thinking":
            said = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*said, signature]
        case "tool_use" | "server_tool_use":
            pieces = ["", *_pieces(json.dumps(block["input"]))]
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block, []


def _pieces(said: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", said)


def _encoded(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
