"""Translate a chat-completions body into a request to Anthropic's Messages API.

A client of the same dialect has its own body sent (see `gateway.dialects.native`), but for what the gateway may change:
the model, the stream, output limits, sampling, texts added to the conversation, and thinking that another backend
made. Either body is then fitted to the model by the facts in `models.py`: what the model would refuse is turned into
what it takes, or left out and listed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from gateway.dialects.client_paths import client_paths
from gateway.dialects.messages.models import ClaudeFacts
from gateway.dialects.native import NATIVE, lost_fields, native_body
from gateway.dialects.reasoning import DETAILS, Maker
from gateway.dialects.schemas import fit_for_anthropic
from policies.value_type import value_type

REASONING: Final = "reasoning"
"""Entry of `dropped` for reasoning of another backend that was left out."""
LEAST_BUDGET: Final = 1024
BUDGETS: Final = {"low": 2048, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 49_152}
"""Thinking tokens of each effort, for models that think with a budget."""
_EFFORT_OF: Final = {"minimal": "low"}
_LEAST_REPLY: Final = 512
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_THINKING_BLOCKS: Final = frozenset({"thinking", "redacted_thinking"})
_ENCRYPTED: Final = ("encrypted_content", "encrypted_index")
_NOT_IN_AN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
VERSION: Final = "2023-06-01"
"""Version of the API for requests that are not a client's own: the last that takes `temperature`."""
_NO_HEADERS: Final[Mapping[str, str]] = {}
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_CACHE: Final = "cache_control"
_NOTHING_SAID: Final = "."
"""Text for the user where the API requires a turn with some: at the beginning, and for a message without any."""
_GO_ON: Final = "Go on."
"""Text of the user after a reply that is to be continued, for models that do not go on with one themselves."""
_MOST_MARKERS: Final = 4
"""Most markers of the prompt cache that the API takes in a request."""
_DATA_URL: Final = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+)?(?:;[a-z0-9=-]+)*?(;base64)?,", re.IGNORECASE)

_READ: Final = frozenset(
    {
        "messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "top_k", "stop", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls",
        "reasoning_effort", "reasoning", "response_format", "user", "safety_identifier", "metadata", "service_tier",
        "thinking", "output_config", NATIVE,
    }
)  # fmt: skip
"""Fields that `_translated` reads."""
_UNKNOWN_TO_ANTHROPIC: Final = frozenset(
    {
        # OpenAI's
        "audio", "frequency_penalty", "logit_bias", "logprobs", "modalities", "moderation", "n", "prediction",
        "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "seed", "store",
        "top_logprobs", "verbosity", "web_search_options",
        # of servers of open models
        "add_generation_prompt", "allowed_token_ids", "bad_words", "best_of", "cache_prompt", "chat_template",
        "chat_template_kwargs", "continue_final_message", "dry_multiplier", "enable_thinking", "grammar",
        "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex",
        "ignore_eos", "include_reasoning", "include_stop_str_in_output", "json_schema", "keep_alive", "length_penalty",
        "min_p", "min_tokens", "mirostat", "mirostat_eta", "mirostat_tau", "n_probs", "options", "priority",
        "prompt_logprobs", "regex", "repeat_penalty", "repetition_penalty", "samplers", "separate_reasoning",
        "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "structured_outputs", "tfs_z",
        "truncate_prompt_tokens", "typical_p", "use_beam_search", "xtc_probability", "xtc_threshold",
    }
)  # fmt: skip
"""Fields of chat completions that the Messages API refuses, so that they are left out and listed."""
_AS_IF_ABSENT: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "modalities": (["text"],),
}
"""Values that ask for nothing, so that leaving them out loses nothing."""


@value_type
class MessagesRequest:
    """The body to send, and the paths of what was left out."""

    body: dict[str, Any]
    dropped: tuple[str, ...]


def protocol_of(body: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the client's own protocol headers to send with its request; none for a client of another dialect."""
    if native_body(body, "messages") is None:
        return _NO_HEADERS
    headers: Mapping[str, str] = body[NATIVE]["headers"]
    if "anthropic-version" in headers and any(body.get(name) is not None for name in _SAMPLING):
        return {**headers, "anthropic-version": VERSION}  # later versions refuse these fields
    return headers


def messages_request(
    body: Mapping[str, Any], model: str, facts: ClaudeFacts, maker: Maker, *, stream: bool
) -> MessagesRequest:
    """Return the request for a chat-completions body. `maker` is the backend, whose own thinking alone is sent."""
    own = native_body(body, "messages")
    dropped: list[str] = []
    sent = _translated(body, facts, maker, dropped) if own is None else _own(own, body, facts, maker, dropped)
    sent["model"] = model
    sent.pop("stream", None)
    if stream:
        sent["stream"] = True
    unfit: list[str] = []
    _fit(sent, facts, unfit, removed=REASONING in dropped)
    if own is not None:
        return MessagesRequest(sent, tuple(dict.fromkeys((*dropped, *unfit))))
    dropped += [_name_in_chat(path, body) for path in unfit]
    listed = (*lost_fields(body, "messages"), *(client_paths(body, dropped) if dropped else ()))
    return MessagesRequest(sent, tuple(dict.fromkeys(listed)))


def _name_in_chat(path: str, body: Mapping[str, Any]) -> str:
    """Return the path in a chat-completions body of what became the field at `path` of the request."""
    field = path.partition(".")[0]
    if body.get(field) is not None:
        return path
    if path == "output_config.format":
        return "response_format"
    if field.startswith("messages["):  # the last one
        return f"messages[{len(body['messages']) - 1}].role"
    if path == "tools[].strict":
        return "tools[].function.strict"
    if field in ("thinking", "output_config"):
        return "reasoning_effort" if body.get("reasoning_effort") is not None else "reasoning"
    return path


# --- a client's own body ----------------------------------------------------------------------------------------------


def _own(
    own: Mapping[str, Any], body: Mapping[str, Any], facts: ClaudeFacts, maker: Maker, dropped: list[str]
) -> dict[str, Any]:
    """Return the client's own body with the gateway's changes to the chat-completions body it was translated to."""
    sent = dict(own)
    messages: list[Any] = []
    said_by_system = False
    for i, message in enumerate(own["messages"]):
        kept = _readable(message, i, maker, dropped)
        if kept is None:
            continue
        if message.get("role") == "system" and not facts.system_turns:
            # Claude Code sends such messages; models that know no system turns get them from the user.
            dropped.append(f"messages[{i}].role")
            kept, said_by_system = {**message, "role": "user"}, True
        if said_by_system:
            content = kept.get("content")
            _append(messages, kept["role"], _blocks(content, i, dropped) if isinstance(content, str) else content)
        else:
            messages.append(kept)
    count = body[NATIVE]["messages"]
    for i, message in enumerate(body["messages"][count:], count):  # the gateway's own, such as a text to continue
        _append(messages, message["role"], _blocks(message.get("content"), i, dropped))
    sent["messages"] = messages
    sent["max_tokens"] = _limit(body) or own["max_tokens"]
    if stop := _stop_sequences(body, dropped, "stop_sequences"):
        sent["stop_sequences"] = stop
    else:
        sent.pop("stop_sequences", None)
    for name in _SAMPLING:
        if body.get(name) is not None:
            sent[name] = body[name]
        else:
            sent.pop(name, None)
    _add_user(body, sent, [])
    return sent


def _readable(message: Any, number: int, maker: Maker, dropped: list[str]) -> Any:
    """Return the message of this number with its signed and encrypted texts unsealed, without those of other backends.

    Returns None if nothing is left of it.
    """
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    kept: list[Any] = []
    unreadable: set[str] = set()
    for j, block in enumerate(content):
        readable = _unsealed(block, maker)
        if readable is not None:
            kept.append(readable)
        else:
            unreadable.add(block.get("tool_use_id", ""))
        uncited = readable is not None and "citations" in block and "citations" not in readable
        if readable is None or uncited:
            dropped.append(REASONING)
            if block.get("type") not in _THINKING_BLOCKS:
                dropped.append(f"messages[{number}].content[{j}]{'.citations' if uncited else ''}")
    if unreadable - {""}:
        # A server tool's call is sent with its result or not at all.
        dropped += [f"messages[{number}].content[{j}]" for j, one in enumerate(content) if one.get("id") in unreadable]
        kept = [block for block in kept if block.get("id") not in unreadable]
    return {**message, "content": kept} if kept else None


def _unsealed(block: Any, maker: Maker) -> Any:
    kind = block.get("type")
    if kind == "thinking":
        signature = maker.unseal(block.get("signature") or "")
        return None if signature is None else {**block, "signature": signature}
    if kind == "redacted_thinking":
        data = maker.unseal(block.get("data") or "")
        return None if data is None else {**block, "data": data}
    if kind in ("text", "tool_use") and not block.get("citations"):
        return block
    own = _each_encrypted(block, maker.unseal)
    return {"type": kind, "text": block["text"]} if own is None and kind == "text" else own


def sealed(block: Any, maker: Maker) -> Any:
    """Return a content block with its signed and encrypted texts sealed, to hand it out."""
    kind = block.get("type")
    if kind == "thinking":
        return {**block, "signature": maker.seal(block["signature"])} if block.get("signature") else block
    if kind == "redacted_thinking":
        return {**block, "data": maker.seal(block["data"])} if block.get("data") else block
    if kind in ("text", "tool_use") and not block.get("citations"):
        return block
    return _each_encrypted(block, maker.seal)


def _each_encrypted(value: Any, change: Any) -> Any:
    """Return a value with all its encrypted texts changed; None if `change` returns None for one of them."""
    if isinstance(value, dict):
        changed = {}
        for name, member in value.items():
            new = change(member) if name in _ENCRYPTED and isinstance(member, str) else _each_encrypted(member, change)
            if new is None and member is not None:
                return None
            changed[name] = new
        return changed
    if isinstance(value, list):
        items = [_each_encrypted(item, change) for item in value]
        return None if any(new is None and old is not None for new, old in zip(items, value, strict=True)) else items
    return value


# --- a chat-completions body ------------------------------------------------------------------------------------------


def _translated(body: Mapping[str, Any], facts: ClaudeFacts, maker: Maker, dropped: list[str]) -> dict[str, Any]:
    sent: dict[str, Any] = {"max_tokens": _limit(body) or facts.default_output}
    turns = _MessageTurns(maker, dropped)
    sent["messages"] = turns.of(body["messages"])
    if system := turns.system:
        plain = len(system) == 1 and system[0].keys() == {"type", "text"}
        sent["system"] = system[0]["text"] if plain else system
    for name in _SAMPLING:
        if body.get(name) is not None:
            sent[name] = body[name]
    if stop := _stop_sequences(body, dropped, "stop"):
        sent["stop_sequences"] = stop
    _add_tools(body, sent, dropped)
    if "tools" not in sent:
        _define_called_tools(sent)
    _keep_last_markers(sent, dropped)
    _add_reasoning(body, sent, facts, dropped)
    _add_format(body, sent, dropped)
    _add_user(body, sent, dropped)
    if (body.get("stream_options") or {}).get("include_obfuscation"):
        dropped.append("stream_options.include_obfuscation")
    for name, value in body.items():
        if name in _READ or value is None:
            continue
        if name not in _UNKNOWN_TO_ANTHROPIC:
            sent[name] = value
        elif value not in _AS_IF_ABSENT.get(name, ()):
            dropped.append(name)
    return sent


def _limit(body: Mapping[str, Any]) -> int | None:
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    return min(limits, default=None)


def _stop_sequences(body: Mapping[str, Any], dropped: list[str], name: str) -> list[str]:
    """Return the stop sequences, less those of white space alone, which the API refuses; `name` is the field's."""
    stop = body.get("stop")
    given = [stop] if isinstance(stop, str) else stop or []
    taken = [one for one in given if one.strip()]
    if len(taken) < len(given):
        dropped.append(name)
    return taken


class _MessageTurns:
    """Make the turns of a conversation from its messages, in their order."""

    def __init__(self, maker: Maker, dropped: list[str]) -> None:
        self.system: list[dict[str, Any]] = []
        """The texts of all system messages."""
        self._maker = maker
        self._dropped = dropped
        self._turns: list[dict[str, Any]] = []
        self._ids = CallIds()
        self._legacy: dict[Any, str] = {}
        """Id of the last call without an id of each function: messages of role `function` answer by name."""

    def of(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the turns, roles alternating."""
        for i, message in enumerate(messages):
            role = message["role"]
            if message.get("name") and role != "function":
                self._dropped.append(f"messages[{i}].name")
            if role in ("system", "developer"):
                self.system += _blocks(message.get("content"), i, self._dropped)
            elif role == "assistant":
                self._add_assistant(message, i)
            elif role == "tool":
                self._add_result(self._ids.of_result(message.get("tool_call_id")), message, i)
            elif role == "function":
                self._add_function_result(message, i)
            else:
                self._add_user(message, i)
        self._fit_ends()
        for turn in self._turns:
            content = turn["content"]
            if len(content) == 1 and content[0].keys() == {"type", "text"}:
                turn["content"] = content[0]["text"]
        return self._turns

    def _add_user(self, message: Mapping[str, Any], i: int) -> None:
        blocks = _blocks(message.get("content"), i, self._dropped)
        if not blocks and self._turns and self._turns[-1]["role"] == "assistant":
            blocks = [{"type": "text", "text": _NOTHING_SAID}]
        _append(self._turns, "user", blocks)

    def _add_assistant(self, message: Mapping[str, Any], i: int) -> None:
        said = self._said(message, i)
        thinking = _thinking(message, self._maker, self._dropped)
        _append(self._turns, "assistant", thinking + said if said else [])
        if thinking and not said:
            self._dropped.append(REASONING)  # the API refuses thinking that nothing follows, as in a reply that was cut

    def _said(self, message: Mapping[str, Any], i: int) -> list[dict[str, Any]]:
        """Return the texts and tool calls of an assistant's message."""
        blocks = _blocks(message.get("content"), i, self._dropped)
        if isinstance(refusal := message.get("refusal"), str) and refusal:
            blocks.append({"type": "text", "text": refusal})
        if message.get("audio"):
            self._dropped.append(f"messages[{i}].audio")
        for j, call in enumerate(message.get("tool_calls") or ()):
            if (function := call.get("function")) is not None:
                blocks.append(_tool_use(self._ids.of_call(call.get("id")), function))
            elif (custom := call.get("custom")) is not None:  # of a tool that takes a text
                given = {"input": custom.get("input") or ""}
                ident = self._ids.of_call(call.get("id"))
                blocks.append({"type": "tool_use", "id": ident, "name": custom.get("name"), "input": given})
            else:
                self._dropped.append(f"messages[{i}].tool_calls[{j}]")
            if "extra_content" in call:
                self._dropped.append(REASONING)  # Gemini's signature of the call
        if function := message.get("function_call"):
            ident = self._legacy[function.get("name")] = self._ids.of_call(f"call_{i}")
            blocks.append(_tool_use(ident, function))
        return blocks

    def _add_result(self, ident: Any, message: Mapping[str, Any], i: int) -> None:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": ident}
        if content := message.get("content"):
            result["content"] = content if isinstance(content, str) else _blocks(content, i, self._dropped)
        _append(self._turns, "user", [result])

    def _add_function_result(self, message: Mapping[str, Any], i: int) -> None:
        ident = self._legacy.pop(message.get("name"), None)
        if ident is None:  # chat completions take such a message alone, the API only after its call
            ident = self._ids.of_call(f"call_{i}")
            _append(self._turns, "assistant", [_tool_use(ident, message)])
        self._add_result(ident, message, i)

    def _fit_ends(self) -> None:
        """Let the conversation begin with the user, and no text to continue end in white space."""
        turns = self._turns
        if not turns and self.system:
            turns.append({"role": "user", "content": self.system})
            self.system = []
        elif not turns or turns[0]["role"] == "assistant":
            turns.insert(0, {"role": "user", "content": [{"type": "text", "text": _NOTHING_SAID}]})
        last = turns[-1]["content"][-1]
        if turns[-1]["role"] == "assistant" and last["type"] == "text":
            turns[-1]["content"][-1] = {**last, "text": last["text"].rstrip()}


def _append(turns: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add blocks to the turns: to the last if it has the same role, since roles alternate."""
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        before = turns[-1]["content"]
        listed = [{"type": "text", "text": before}] if isinstance(before, str) else before
        turns[-1] = {**turns[-1], "content": [*listed, *blocks]}
    else:
        turns.append({"role": role, "content": blocks})


def _thinking(message: Mapping[str, Any], maker: Maker, dropped: list[str]) -> list[dict[str, Any]]:
    """Return the thinking blocks of an assistant's message that this backend made."""
    blocks: list[dict[str, Any]] = []
    details = message.get(DETAILS)
    if message.get("thinking_blocks"):
        dropped.append(REASONING)  # another server's, in the words of LiteLLM's proxy
    if not isinstance(details, list) or not details:
        if message.get("reasoning_content") or message.get("reasoning"):
            dropped.append(REASONING)
        return blocks
    for detail in joined_details(details):
        if detail.get("type") == "reasoning.encrypted":
            data = maker.unseal(detail.get("data") or "")
            if data is not None:
                blocks.append({"type": "redacted_thinking", "data": data})
                continue
        elif detail.get("type") == "reasoning.text":
            signature = maker.unseal(detail.get("signature") or "")
            if signature is not None:
                blocks.append({"type": "thinking", "thinking": detail.get("text") or "", "signature": signature})
                continue
        dropped.append(REASONING)
    return blocks


def joined_details(details: Iterable[Any]) -> list[dict[str, Any]]:
    """Return reasoning details with the pieces that a stream left of one detail joined: those of one index and type.

    A detail in one piece is returned as it is, not copied.
    """
    joined: list[dict[str, Any]] = []
    copied = False
    for detail in details:
        if not isinstance(detail, dict):
            continue
        last = joined[-1] if joined else None
        index = detail.get("index")
        if last is None or index is None or index != last.get("index") or detail.get("type") != last.get("type"):
            joined.append(detail)
            copied = False
            continue
        if not copied:
            last = joined[-1] = dict(last)
            copied = True
        for name, value in detail.items():
            if name in ("text", "summary") and isinstance(value, str):
                last[name] = (last.get(name) or "") + value
            elif value is not None:
                last[name] = value
    return joined


def _tool_use(ident: Any, function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        given = orjson.loads(function.get("arguments") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        given = None
    # The API takes objects only; an invalid call is shown to the model as the text that it was.
    arguments = given if isinstance(given, dict) else {"arguments": function.get("arguments")}
    return {"type": "tool_use", "id": ident, "name": function.get("name"), "input": arguments}


class CallIds:
    """Give tool calls ids that the API takes: of few characters, and each once in a conversation."""

    __slots__ = ("_given", "_used")

    def __init__(self, used: Iterable[str] = ()) -> None:
        """Prepare for a conversation in which these ids are in use."""
        self._used = set(used)
        self._given: dict[Any, str] = {}

    def of_call(self, ident: Any) -> str:
        """Return the id of the next call, whose own id is `ident`."""
        base = fitting = _NOT_IN_AN_ID.sub("_", ident) if isinstance(ident, str) and ident else "call"
        number = 1
        while fitting in self._used:
            number += 1
            fitting = f"{base}_{number}"
        self._used.add(fitting)
        self._given[ident] = fitting
        return fitting

    def of_result(self, ident: Any) -> Any:
        """Return the id of the latest call whose own id is `ident`."""
        found = self._given.get(ident)
        return found or (_NOT_IN_AN_ID.sub("_", ident) if isinstance(ident, str) else ident)


def _blocks(content: Any, at: int, dropped: list[str]) -> list[dict[str, Any]]:
    """Return the content of the message at this place as blocks; empty texts, which the API refuses, are left out."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content and not content.isspace() else []
    blocks: list[dict[str, Any]] = []
    for j, part in enumerate(content or ()):
        path = f"messages[{at}].content[{j}]"
        block = _block(part, path, dropped)
        if block is None:
            dropped.append(path)
        elif block["type"] != "text" or block["text"].strip():
            if _CACHE in part and _CACHE not in block:
                block[_CACHE] = part[_CACHE]
            if part.get("prompt_cache_breakpoint") is not None:
                block.pop("prompt_cache_breakpoint", None)
                dropped.append(f"{path}.prompt_cache_breakpoint")
            blocks.append(block)
    return blocks


def _block(part: Mapping[str, Any], path: str, dropped: list[str]) -> dict[str, Any] | None:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text") or ""}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal") or ""}
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(image, dict) and image.get("detail") not in (None, "auto"):
            dropped.append(f"{path}.image_url.detail")
        return {"type": "image", "source": _source(url)} if isinstance(url, str) else None
    if kind == "file" and isinstance(file := part.get("file"), dict):
        return _document(file)
    if kind in ("input_audio", "video_url", "file"):
        return None
    return dict(part)  # a block of the API's own


def _source(url: str) -> dict[str, Any]:
    match = _DATA_URL.match(url)
    if match is None or not match[2]:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": match[1] or "image/png", "data": url[match.end() :]}


def _document(file: Mapping[str, Any]) -> dict[str, Any] | None:
    data, name = file.get("file_data"), file.get("filename")
    if isinstance(data, str):
        match = _DATA_URL.match(data)
        kind = (match and match[1]) or "application/pdf"
        encoded = data[match.end() :] if match else data
        if kind.startswith("text/"):  # the API takes such files as texts only
            text = base64.b64decode(encoded).decode(errors="replace") if match and match[2] else unquote(encoded)
            source = {"type": "text", "media_type": "text/plain", "data": text}
        else:
            source = {"type": "base64", "media_type": kind, "data": encoded}
    elif isinstance(ident := file.get("file_id"), str):
        source = {"type": "file", "file_id": ident}
    else:
        return None
    block: dict[str, Any] = {"type": "document", "source": source}
    if isinstance(name, str):
        block["title"] = name
    return block


_NO_CHOICE: Final = (None, "auto", "none")
"""Choices that ask for no tool."""


def _add_tools(body: Mapping[str, Any], sent: dict[str, Any], dropped: list[str]) -> None:
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(body.get("tools") or ()):
        kind, function = tool.get("type"), tool.get("function")
        if isinstance(function, dict):
            tools.append(_tool(function, tool))
            if function.get("strict") and "strict" not in tools[-1]:
                dropped.append(f"tools[{i}].function.strict")
        elif kind in (None, "function") or (kind == "custom" and "input_schema" not in tool):
            dropped.append(f"tools[{i}]")
        else:
            tools.append(dict(tool))  # one of the API's own
    tools += [_tool(function, {}) for function in body.get("functions") or ()]
    choice = body.get("tool_choice")
    if choice is None and (called := body.get("function_call")) is not None:
        choice = called if isinstance(called, str) else {"type": "function", "function": called}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or {}
        names = {(one.get("function") or one).get("name") for one in allowed.get("tools") or ()}
        tools = [tool for tool in tools if tool.get("name") in names]
        choice = allowed.get("mode", "auto")
    if not tools:
        if choice not in _NO_CHOICE:
            dropped.append("tool_choice")
        return
    sent["tools"] = tools
    chosen = _choice(choice)
    if chosen is None:
        dropped.append("tool_choice")
        chosen = {"type": "auto"}
    if body.get("parallel_tool_calls") is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    if chosen != {"type": "auto"}:
        sent["tool_choice"] = chosen


def _define_called_tools(sent: dict[str, Any]) -> None:
    """Define the tools of the conversation's calls for a request without tools, which the API refuses otherwise."""
    names = dict.fromkeys(block["name"] for block in _content_blocks(sent) if block["type"] == "tool_use")
    if names:
        sent["tools"] = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in names]
        sent["tool_choice"] = {"type": "none"}


def _keep_last_markers(sent: dict[str, Any], dropped: list[str]) -> None:
    """Leave the markers of the prompt cache where the longest beginnings end, if there are too many."""
    system = sent.get("system")
    blocks = [*sent.get("tools", ()), *(system if isinstance(system, list) else ()), *_content_blocks(sent)]
    marked = [block for block in blocks if _CACHE in block]
    for block in marked[:-_MOST_MARKERS]:
        del block[_CACHE]
        dropped.append(_CACHE)


def _content_blocks(sent: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of the messages, and those within tools' results."""
    for message in sent["messages"]:
        if isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_result" and isinstance(block.get("content"), list):
                    yield from block["content"]
                yield block


def _tool(function: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters")
    made: dict[str, Any] = {
        "name": function.get("name"),
        "input_schema": {"type": "object", **schema} if schema else {"type": "object", "properties": {}},
    }
    if function.get("description"):
        made["description"] = function["description"]
    if function.get("strict"):
        fitted = fit_for_anthropic(schema or _NO_PARAMETERS)
        if fitted is not None and fitted.whole:
            made |= {"strict": True, "input_schema": fitted.schema}
    if _CACHE in tool:
        made[_CACHE] = tool[_CACHE]
    return made


def _choice(choice: Any) -> dict[str, Any] | None:
    if choice is None or choice == "auto":
        return {"type": "auto"}
    if choice in ("none", "required"):
        return {"type": "none" if choice == "none" else "any"}
    function = choice.get("function") if isinstance(choice, dict) else None
    return {"type": "tool", "name": function.get("name")} if isinstance(function, dict) else None


def _add_reasoning(body: Mapping[str, Any], sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str]) -> None:
    """Turn `reasoning_effort`, or OpenRouter's `reasoning`, into `thinking` and `output_config.effort`.

    A client's own `thinking` and `output_config` are sent instead, if it gives them.
    """
    for name in ("thinking", "output_config"):
        if body.get(name) is not None:
            sent[name] = body[name]
    given = body.get("reasoning")
    reasoning = given if isinstance(given, dict) else {}
    effort, where = body.get("reasoning_effort"), "reasoning_effort"
    if effort is None and reasoning:
        effort, where = reasoning.get("effort"), "reasoning"
        if effort is None and reasoning.get("enabled") is False:
            effort = "none"
    budget = reasoning.get("max_tokens")
    if "thinking" in sent or (effort is None and budget is None and not reasoning.get("enabled")):
        return
    if effort == "none":
        if facts.thinking == "always":
            dropped.append(where)
        elif facts.thinking == "adaptive":
            sent["thinking"] = {"type": "disabled"}
        return
    if effort in _EFFORT_OF:
        dropped.append(where)
    if facts.thinking != "budget":
        sent["thinking"] = {"type": "adaptive"}
    else:
        wanted = max(budget, LEAST_BUDGET) if isinstance(budget, int) else _budget_of(effort)
        sent["thinking"] = {"type": "enabled", "budget_tokens": wanted}
    if isinstance(effort, str) and facts.efforts:
        level = _EFFORT_OF.get(effort, effort)
        sent["output_config"] = {**(sent.get("output_config") or {}), "effort": level}


def _budget_of(effort: object) -> int:
    """Return the thinking tokens for an effort, those of a medium one for any that is not known."""
    return (
        BUDGETS.get(_EFFORT_OF.get(effort, effort), BUDGETS["medium"]) if isinstance(effort, str) else BUDGETS["medium"]
    )


_OF_SCHEMA: Final = {"title": "name", "description": "description"}
"""Members of a JSON schema that say what chat completions say beside it, by their names there."""


def _add_format(body: Mapping[str, Any], sent: dict[str, Any], dropped: list[str]) -> None:
    wanted = body.get("response_format")
    if wanted is None or wanted.get("type") == "text":
        return
    schema = (wanted.get("json_schema") or {}).get("schema")
    fitted = fit_for_anthropic(schema) if isinstance(schema, dict) else None
    if wanted.get("type") == "json_schema" and fitted is not None:
        config = sent.get("output_config") or {}
        told = {own: text for own, name in _OF_SCHEMA.items() if (text := wanted["json_schema"].get(name))}
        said = {**told, **fitted.schema}
        sent["output_config"] = {**config, "format": {"type": "json_schema", "schema": said}}
        if not fitted.whole:
            dropped.append("response_format.json_schema.schema")
        dropped += [f"response_format.json_schema.{_OF_SCHEMA[own]}" for own in told if said[own] != told[own]]
    else:
        dropped.append("response_format")


def _add_user(body: Mapping[str, Any], sent: dict[str, Any], dropped: list[str]) -> None:
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    user = body.get("safety_identifier") or body.get("user") or metadata.get("user_id")
    if user is not None:
        sent.setdefault("metadata", {"user_id": user})
    dropped += [f"metadata.{name}" for name in metadata if name != "user_id"]
    tier = body.get("service_tier")
    if tier in ("auto", "standard_only"):
        sent["service_tier"] = tier
    elif tier == "default":
        sent["service_tier"] = "standard_only"
    elif tier is not None:
        dropped.append("service_tier")


# --- what the model takes ---------------------------------------------------------------------------------------------


def _fit(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str], *, removed: bool) -> None:
    """Change, in place, what the model would refuse; `removed`: whether another backend's thinking was left out."""
    if facts.max_output is not None and sent["max_tokens"] > facts.max_output:
        sent["max_tokens"] = facts.max_output
    _fit_last_turn(sent, facts, dropped)
    _fit_thinking(sent, facts, dropped, removed=removed)
    _fit_output(sent, facts, dropped)
    thinks = _thinks(sent, facts)
    for name in _SAMPLING:
        if name not in sent:
            continue
        if not facts.sampling or (thinks and not (name == "top_p" and sent[name] >= 0.95)):
            asks_for_default = name == "temperature" and sent[name] == 1
            del sent[name]
            if not asks_for_default:
                dropped.append(name)
    if facts.max_output is not None and "temperature" in sent and "top_p" in sent and facts.schemas:
        # Models from Claude 4.5 on take one of the two.
        del sent["top_p"]
        dropped.append("top_p")
    if isinstance(heat := sent.get("temperature"), int | float) and heat > 1:
        sent["temperature"] = 1  # the API's range ends at 1, OpenAI's at 2
        dropped.append("temperature")


def _fit_last_turn(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str]) -> None:
    """Ask for the rest of a reply that the last message begins, where the model does not go on with it by itself."""
    messages = sent["messages"]
    if not facts.prefill and messages[-1]["role"] == "assistant":
        sent["messages"] = [*messages, {"role": "user", "content": _GO_ON}]
        dropped.append(f"messages[{len(messages) - 1}].role")


def _thinks(sent: Mapping[str, Any], facts: ClaudeFacts) -> bool:
    thinking = sent.get("thinking")
    if facts.thinking == "always":
        return True
    return isinstance(thinking, dict) and thinking.get("type") not in (None, "disabled")


def _fit_thinking(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str], *, removed: bool) -> None:
    thinking = sent.get("thinking")
    if not isinstance(thinking, dict):
        return
    kind = thinking.get("type")
    if kind == "enabled" and facts.thinking in ("adaptive", "always"):
        thinking = {**thinking, "type": "adaptive"}
        thinking.pop("budget_tokens", None)
        dropped.append("thinking.budget_tokens")
    elif kind == "disabled" and facts.thinking == "always":
        thinking = None
        dropped.append("thinking")
    elif kind in ("adaptive", "between_tools") and facts.thinking == "budget":
        effort = (sent.get("output_config") or {}).get("effort")
        thinking = {**thinking, "type": "enabled", "budget_tokens": _budget_of(effort)}
    if thinking is not None and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        thinking = _with_room(thinking, sent, removed=removed)
        if thinking is None:
            dropped.append("thinking")
        elif thinking.get("budget_tokens") != budget:
            dropped.append("thinking.budget_tokens")
    if thinking is not None and thinking.get("type") != "disabled" and _forces_a_tool(sent):
        thinking = None
        dropped.append("thinking")
    if thinking is None:
        del sent["thinking"]
    else:
        sent["thinking"] = thinking


def _with_room(thinking: dict[str, Any], sent: Mapping[str, Any], *, removed: bool) -> dict[str, Any] | None:
    """Return thinking with a budget that leaves room for a reply; None if the model may not think in this request.

    `removed`: whether thinking of another backend was removed from the messages.
    """
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and budget >= sent["max_tokens"]:
        budget = sent["max_tokens"] - _LEAST_REPLY
        if budget < LEAST_BUDGET:
            return None
        thinking = {**thinking, "budget_tokens": budget}
    # A turn that calls tools must begin with the thinking that led to the calls. It does not if another backend made
    # it. Later messages of the turn may lack it as well, unless it was removed.
    turn = _turn_in_progress(sent["messages"])
    begins = turn if removed else turn[-1:]
    return thinking if all(_begins_with_thinking(message) for message in begins) else None


def _turn_in_progress(messages: list[Any]) -> list[Any]:
    """Return the assistant's messages since the last message of the user that is not a tool's result, latest first."""
    turn = []
    for message in reversed(messages):
        content = message.get("content")
        if message["role"] == "assistant":
            turn.append(message)
        elif isinstance(content, str) or not any(block.get("type") == "tool_result" for block in content or ()):
            break
    return turn


def _begins_with_thinking(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and bool(content) and content[0].get("type") in _THINKING_BLOCKS


def _forces_a_tool(sent: Mapping[str, Any]) -> bool:
    choice = sent.get("tool_choice")
    return isinstance(choice, dict) and choice.get("type") in ("any", "tool")


def _fit_output(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str]) -> None:
    config = sent.get("output_config")
    if isinstance(config, dict):
        effort = config.get("effort")
        if effort is not None and effort not in facts.efforts and facts.max_output is not None:
            config = {name: value for name, value in config.items() if name != "effort"}
            if facts.efforts and effort in ("xhigh", "max"):
                config["effort"] = facts.efforts[-1]
                dropped.append("output_config.effort")
            elif "thinking" not in sent:
                dropped.append("output_config.effort")
        if config.get("format") is not None and not facts.schemas:
            config = {name: value for name, value in config.items() if name != "format"}
            dropped.append("output_config.format")
        if config:
            sent["output_config"] = config
        else:
            del sent["output_config"]
    if not facts.schemas and any(tool.get("strict") for tool in sent.get("tools") or ()):
        sent["tools"] = [{name: tool[name] for name in tool if name != "strict"} for tool in sent["tools"]]
        dropped.append("tools[].strict")
