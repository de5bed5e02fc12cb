"""Translate for clients of Anthropic's Messages API: their requests into chat completions, and the replies back.

Each field of a request is expressed in chat completions, refused by name, or listed as lost (see
`gateway.dialects.native`). The request itself travels beside its translation, for a backend of the same dialect.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any, Final

import orjson

from gateway.dialects.native import Native, without_billing_line
from gateway.dialects.reasoning import DETAILS
from gateway.errors import ApiError, InvalidRequest
from gateway.off_loop import off_loop
from gateway.parts.apis.dialects.messages.fit import BUDGETS
from gateway.parts.apis.dialects.messages.paths import messages_path
from gateway.parts.apis.dialects.messages.turns import CACHE, CallIds
from gateway.parts.apis.dialects.messages.writer import DIRECT, MessageEvents, Shown, error_body, message_of
from gateway.parts.apis.dialects.schemas import fits_openai_strict
from policies.fields import REASONING
from routing.features import url_of_file

_PROTOCOL: Final = b"anthropic-"
"""What the names of the API's own headers begin with. Features come as new ones, so none is picked out."""
_AS_IN_CHAT: Final = ("model", "temperature", "top_p", "top_k")
"""Fields that have the same name and meaning in chat completions."""
_READ: Final = frozenset(
    {
        *_AS_IN_CHAT, "messages", "max_tokens", "system", "stop_sequences", "stream", "tools", "tool_choice",
        "thinking", "output_config", "output_format", "metadata", "service_tier",
    }
)  # fmt: skip
_NOT_NATIVE: Final = frozenset({"model", "stream", "metadata", "service_tier"})
"""Fields that the native body lacks: the gateway sets them from the translated body."""
_LONGEST_USER: Final = 64
"""Longest `user` that OpenAI's API takes."""
_TOOL_MEMBERS: Final = {
    "name": "name",
    "description": "description",
    "input_schema": "parameters",
    "strict": "strict",
}
"""Members of a tool that a function of chat completions has too, with their names there."""
_PLAIN_TOOL: Final = frozenset({"name", "description", "input_schema"})
"""Members of most tools."""
_THINKING: Final = ("enabled", "adaptive", "between_tools")
_EFFORTS: Final = {"max": "xhigh"}
"""Efforts that few models of chat completions know, and what they are asked for instead."""
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
"""Types of `tool_choice` that name no tool, as chat completions say them."""
_THOUGHT: Final = ("thinking", "redacted_thinking")
_ROLE_AND_CONTENT: Final = 2
"""Members of a message that has no others."""
_HOSTED: Final = "messages_hosted_tools"
_SEARCH: Final = "messages_web_search"
_NAMED: Final = {_HOSTED: "hosted_tools", _SEARCH: "web_search"}
"""The capabilities of backends of this API by their names in a config."""
_HOSTED_FIELDS: Final = frozenset({"container", "mcp_servers"})
_HOSTED_BLOCKS: Final = frozenset({"image", "document", "container_upload"})
"""Blocks of a user that a chat completion cannot express because only the provider has, or fetches, the file."""
_FORMS: Final = ("document", "search_result")
"""Blocks that a chat completion holds as a text or file, their origin lost."""
_PLAIN_BLOCK: Final = 2
"""Members of a block with a type and a text alone."""
_EXPRESSED: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"type", "text", CACHE}),
    "tool_use": frozenset({"type", "id", "name", "input", CACHE}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", CACHE}),
    "image": frozenset({"type", "source", CACHE}),
    "document": frozenset({"type", "source", "title", "context", "citations", CACHE}),
    "tool_reference": frozenset({"type", "tool_name", CACHE}),
    "search_result": frozenset({"type", "source", "title", "content", CACHE}),
}
"""Members of each type of block that chat completions express, or that are listed by themselves."""


class MessagesClient:
    """Translate for one request; see `ClientDialect`."""

    def __init__(
        self,
        headers: Mapping[bytes, bytes],
        request_id: str,
        offered: Container[str] = (),
        *,
        unshared: Container[str] = (),
    ) -> None:
        """Prepare the translation of a request with these headers, by lower-case name.

        `offered` are the capabilities of the backends that speak the dialect: what only they can do is refused, by its
        path, where none of them can. `unshared`: tenants whose clients are told of backends' prompt caches.
        """
        self._unshared = unshared
        self._hides_cache = True
        self._headers = headers
        self._request_id = request_id
        self._offered = offered
        self._thinking = False
        self._model: str | None = None
        """The model that was asked for. Replies name it: Claude Code takes out the thinking of any other model."""
        self._messages: list[dict[str, Any]] = []
        """The messages of the translated body, each a dict of the chat API."""

    async def read(self, body: dict[str, Any], tenant: str, *, large: bool) -> tuple[dict[str, Any], Native, bool]:
        """See `ClientDialect.read`."""
        self._hides_cache = tenant not in self._unshared
        thinking = body.get("thinking")
        self._thinking = isinstance(thinking, dict) and thinking.get("type") in _THINKING
        protocol = protocol_in(self._headers)
        translate = partial(chat_body, body, protocol)
        chat, native = await off_loop(translate) if large else translate()
        self._model = body["model"] if isinstance(body["model"], str) else None
        self._messages = chat["messages"]
        for capability, path in needs_of_body(native.lost).items():
            if capability not in self._offered:
                raise InvalidRequest(
                    f"{path}: no backend here supports it (kind: anthropic with the capability {_NAMED[capability]})",
                    code="unsupported_value",
                    param=path,
                )
        return chat, native, large

    def path_of(self, path: str) -> str:
        """See `ClientDialect.path_of`."""
        return path

    def limited(self, tokens: int) -> None:
        """Do nothing: replies of this API have no place for it, and a header has it."""

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """See `ClientDialect.whole`."""
        return orjson.dumps(message_of(completion, **self._shown()))

    def stream(self) -> MessageEvents:
        """See `ClientDialect.stream`."""
        return MessageEvents(self._request_id, **self._shown())

    def _shown(self) -> Shown:
        # Clients tell results by the ids of calls, through the whole conversation.
        ids = CallIds(call["id"] for message in self._messages for call in message.get("tool_calls") or ())
        return Shown(thinking=self._thinking, model=self._model, ids=ids, hides_cache=self._hides_cache)

    def error(self, error: ApiError) -> bytes:
        """See `ClientDialect.error`."""
        members = {"message": error.message, "param": error.param, "code": error.code}
        return orjson.dumps(error_body(members, error.status, self._request_id))


def names_version(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request names a version of the API: its clients do so at paths shared with OpenAI's, too."""
    return any(name == b"anthropic-version" for name, _ in headers)


def protocol_in(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the API's own headers, the version and the betas first of all, among the client's by lower-case name."""
    return {
        name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items() if name.startswith(_PROTOCOL)
    }


def chat_body(
    body: Mapping[str, Any], protocol: Mapping[str, str], *, counting: bool = False
) -> tuple[dict[str, Any], Native]:
    """Return the chat-completions body for a request, and its own form. Raises InvalidRequest, by the field's own path.

    `protocol` holds the client's headers that a backend of the dialect is sent. `counting`: the request is to count
    tokens, so that it has no limit of its own.
    """
    lost: dict[str, Any] = {}
    chat: dict[str, Any] = {}
    for name in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        if body.get(name) is None:
            raise InvalidRequest(f"{name}: Field required", code="missing_required_parameter", param=name)
    for name in _AS_IN_CHAT:
        if (value := body.get(name)) is not None:
            chat[name] = value
    if not counting:
        chat["max_tokens"] = _typed(body["max_tokens"], int, "max_tokens")
    paths: list[Any] = []
    forms: list[list[Any]] = []
    chat["messages"] = _messages(body, lost, paths, forms)
    if body.get("stop_sequences"):
        chat["stop"] = _typed(body["stop_sequences"], list, "stop_sequences")
    if body.get("stream") is not None:
        chat["stream"] = _typed(body["stream"], bool, "stream")
        if chat["stream"]:
            chat["stream_options"] = {"include_usage": True}
    _add_tools(body, chat, lost)
    _add_thinking(body, chat, lost)
    _add_user(body, chat, lost)
    if not body.keys() <= _READ:
        lost.update({name: value for name, value in body.items() if name not in _READ and value is not None})
    if protocol.get("anthropic-beta"):
        lost["anthropic-beta"] = protocol["anthropic-beta"]
    native = Native(
        "messages",
        {name: value for name, value in body.items() if name not in _NOT_NATIVE or name in lost},
        lost,
        paths,
        frozenset(needs_of_body(lost)),
        len(chat["messages"]),
        protocol,
        forms,
        messages_path,
        given=_reasoning_in(body),
        turns="messages",
        front=-1,
    )
    return chat, native


def _reasoning_in(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields that `Native.given` is to hold.

    Adaptive thinking leaves the effort open; thinking that is switched off or has a budget does not.
    """
    thinking, config = body.get("thinking"), body.get("output_config")
    if isinstance(config, Mapping) and config.get("effort") is not None:
        return REASONING
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind is None:
        return frozenset()
    return REASONING - {"reasoning_effort"} if kind == "adaptive" else REASONING


def _typed(value: Any, kind: type, path: str) -> Any:
    if type(value) is not kind:
        named = {
            int: "a valid integer",
            bool: "a valid boolean",
            list: "a valid array",
            dict: "an object",
            str: "a string",
        }
        raise InvalidRequest(f"{path}: Input should be {named[kind]}", code="invalid_type", param=path)
    return value


def needs_of_body(lost: Mapping[str, Any]) -> dict[str, str]:
    """Return the capabilities without which a tier's answer would be wrong, each with the first path that needs it.

    They are needed by the provider's own tools, and by files that only the provider has or fetches.
    """
    needed: dict[str, str] = {}
    for path, value in lost.items():
        kind = str(value.get("type")) if isinstance(value, dict) else ""
        if path.startswith("tools[") and path.endswith("]"):
            needed.setdefault(_SEARCH if kind.startswith("web_search") else _HOSTED, path)
        elif path in _HOSTED_FIELDS or (kind in _HOSTED_BLOCKS and path.startswith("messages[")):
            needed.setdefault(_HOSTED, path)
    return needed


def _given(body: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field's value, an empty one if it is absent. Raises InvalidRequest if it is of another type."""
    value = body.get(name)
    return kind() if value is None else _typed(value, kind, name)


# --- the conversation -------------------------------------------------------------------------------------------------


def _messages(
    body: Mapping[str, Any], lost: dict[str, Any], paths: list[Any], forms: list[list[Any]]
) -> list[dict[str, Any]]:
    """Return the messages, and add to `forms` the place and type of each block of `_FORMS`."""
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        text = without_billing_line(_system(body["system"], "system", lost))
        if text:
            paths.append(-1)
            messages.append({"role": "system", "content": text})
    given = _typed(body["messages"], list, "messages")
    if not given:
        message = "messages: at least one message is required"
        raise InvalidRequest(message, code="unsupported_value", param="messages")
    for i, message in enumerate(given):
        if type(message) is not dict:
            _typed(message, dict, f"messages[{i}]")
        role, content = message.get("role"), message.get("content")
        if role == "system":
            # Without a content, it changes settings for what follows, such as the effort.
            if content is not None and (text := _system(content, f"messages[{i}].content", lost)):
                paths.append(i)
                messages.append({"role": "system", "content": text})
            if type(content) is list:
                forms += [[i, j, block["type"]] for j, block in enumerate(content) if block.get("type") in _FORMS]
        elif role not in ("user", "assistant"):
            path = f"messages[{i}].role"
            raise InvalidRequest(
                f"{path}: Input should be 'user', 'assistant' or 'system'", code="unsupported_value", param=path
            )
        elif type(content) is str:
            paths.append(i)
            messages.append({"role": role, "content": content})
        else:
            _check_blocks(content, i, forms)
            messages += (_assistant if role == "assistant" else _user)(content, i, lost, paths)
        if len(message) > _ROLE_AND_CONTENT or content is None:
            path = f"messages[{i}]"
            lost.update({f"{path}.{name}": message[name] for name in message if name not in ("role", "content")})
    return messages


def _check_blocks(content: Any, i: int, forms: list[list[Any]]) -> None:
    """Raise InvalidRequest if a message's content is no list of blocks with types, and add those of `_FORMS`."""
    path = f"messages[{i}].content"
    for j, block in enumerate(_typed(content, list, path)):
        if type(block) is not dict or type(kind := block.get("type")) is not str:
            where = f"{path}[{j}]"
            _typed(_typed(block, dict, where).get("type"), str, f"{where}.type")
        elif kind in _FORMS:
            forms.append([i, j, kind])


def _system(system: Any, path: str, lost: dict[str, Any]) -> str:
    if isinstance(system, str):
        return system
    texts = []
    for i, block in enumerate(_typed(system, list, path)):
        if type(block) is not dict or type(block.get("text")) is not str:
            where = f"{path}[{i}]"
            kind = _typed(block, dict, where).get("type")
            if kind is None or kind == "text":
                _typed(block.get("text"), str, f"{where}.text")
            _typed(kind, str, f"{where}.type")
            lost[where] = block  # such as a tool that is added here
            continue
        texts.append(block["text"])
        if len(block) > _PLAIN_BLOCK or "type" not in block:
            _note_others(block, "text", path, i, lost)
    return "\n\n".join(texts)


def _note_cache(block: Mapping[str, Any], lost: dict[str, Any]) -> None:
    """List the markers of the prompt cache, once: they change what a request costs, not what it means."""
    if block.get(CACHE) is not None:
        lost[CACHE] = True


def _note_others(block: Mapping[str, Any], kind: str, path: str, j: int, lost: dict[str, Any]) -> None:
    """List the members of a block that its translation does not express, by their paths.

    It is of this type, and the block of number `j` in the list at `path`.
    """
    _note_cache(block, lost)
    known = _EXPRESSED.get(kind)
    if known is not None and not block.keys() <= known:
        others = {name: block[name] for name in block.keys() - known if block[name] is not None}
        if others.get("caller") == DIRECT:
            del others["caller"]
        lost.update({f"{path}[{j}].{name}": value for name, value in others.items()})


def _call_of(block: Mapping[str, Any], path: str, j: int) -> dict[str, Any]:
    """Return a `tool_use` block, the one of number `j` in the list at `path`, as chat's tool call."""
    name, ident = block.get("name"), block.get("id")
    if type(name) is not str or type(ident) is not str:
        _typed(name, str, f"{path}[{j}].name")
        _typed(ident, str, f"{path}[{j}].id")
    function = {"name": name, "arguments": orjson.dumps(block.get("input") or {}).decode()}
    return {"id": ident, "type": "function", "function": function}


def _detail_of(block: Mapping[str, Any], path: str, j: int, index: int) -> dict[str, Any]:
    """Return a block of reasoning, the one of number `j` in the list at `path`, as one of `reasoning_details`."""
    if block["type"] == "redacted_thinking":
        data = _typed(block.get("data"), str, f"{path}[{j}].data")
        return {"type": "reasoning.encrypted", "data": data, "index": index}
    detail = {"type": "reasoning.text", "text": block.get("thinking") or "", "index": index}
    if signature := block.get("signature"):
        detail["signature"] = signature if type(signature) is str else _typed(signature, str, f"{path}[{j}].signature")
    return detail


def _assistant(content: list[Any], number: int, lost: dict[str, Any], paths: list[Any]) -> list[dict[str, Any]]:
    """Return the message of an assistant's turn, the message of this number; none if nothing can be expressed."""
    path = f"messages[{number}].content"
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    for j, block in enumerate(content):
        kind = block["type"]
        if len(block) > _PLAIN_BLOCK:
            _note_others(block, kind, path, j, lost)
        if kind == "text":
            text = block.get("text")
            texts.append(text if type(text) is str else _typed(text, str, f"{path}[{j}].text"))
        elif kind == "tool_use":
            calls.append(_call_of(block, path, j))
        elif kind in _THOUGHT:
            details.append(_detail_of(block, path, j, len(details)))
        else:
            lost[f"{path}[{j}]"] = block
    if not (texts or calls or details):
        return []
    # A message without calls must have a text, if an empty one.
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if calls:
        message["tool_calls"] = calls
    if details:
        message[DETAILS] = details
    paths.append(number)
    return [message]


def _user(content: list[Any], number: int, lost: dict[str, Any], paths: list[Any]) -> list[dict[str, Any]]:
    """Return the messages of a user's turn, the message of this number: one for each tool's result, and the rest.

    Images in a tool's result are part of that last message, since the results of chat completions are texts.
    """
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    blocks: list[int] = []
    path = f"messages[{number}].content"
    for j, block in enumerate(content):
        kind = block["type"]
        if len(block) > _PLAIN_BLOCK:
            _note_others(block, kind, path, j, lost)
        if kind == "text" and type(text := block.get("text")) is str:
            parts.append({"type": "text", "text": text})
        elif kind == "tool_result":
            where = f"{path}[{j}]"
            text, shown = _result(block, where, lost)
            ident = _typed(block.get("tool_use_id"), str, f"{where}.tool_use_id")
            results.append({"role": "tool", "tool_call_id": ident, "content": text})
            paths.append((number, j))
            parts += shown
        else:
            parts += _parts(block, f"{path}[{j}]", lost)
        while len(blocks) < len(parts):
            blocks.append(j)
    if not parts:
        if not results:
            # All of it may be lost; a conversation must have the user's turn nevertheless.
            paths.append(number)
            return [{"role": "user", "content": ""}]
        return results
    paths.append((number, blocks))
    alone = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": "user", "content": parts[0]["text"] if alone else parts}]


def _result(block: Mapping[str, Any], path: str, lost: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a tool's result and its parts that are no text."""
    if block.get("is_error"):
        lost[f"{path}.is_error"] = True
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or "", []
    parts = _parts_of(content, f"{path}.content", lost)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join(texts), [part for part in parts if part["type"] != "text"]


def _parts_of(content: Any, path: str, lost: dict[str, Any]) -> list[dict[str, Any]]:
    """Return blocks within a block as parts of a chat message."""
    parts: list[dict[str, Any]] = []
    for k, inner in enumerate(_typed(content, list, path)):
        where = f"{path}[{k}]"
        _typed(_typed(inner, dict, where).get("type"), str, f"{where}.type")
        _note_others(inner, inner["type"], path, k, lost)
        parts += _parts(inner, where, lost)
    return parts


def _parts(block: Mapping[str, Any], path: str, lost: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a block of a user's content as parts of a chat message."""
    kind = block["type"]
    if kind == "text":
        return [{"type": "text", "text": _typed(block.get("text"), str, f"{path}.text")}]
    if kind == "tool_reference" and isinstance(name := block.get("tool_name"), str):
        return [{"type": "text", "text": f"The tool {name} can be called now."}]  # it is among the request's tools
    source = block.get("source")
    if kind == "image" and isinstance(source, dict):
        url = _image_url(source)
        if url is not None:
            return [{"type": "image_url", "image_url": {"url": url}}]
    elif kind == "document" and isinstance(source, dict):
        return _document(block, source, path, lost)
    elif kind == "search_result":
        inner = _parts_of(block.get("content"), f"{path}.content", lost)
        head = [text for name in ("title", "source") if isinstance(text := block.get(name), str) and text]
        return [{"type": "text", "text": "\n".join([*head, *(one["text"] for one in inner if one["type"] == "text")])}]
    lost[path] = block
    return []


def _image_url(source: Mapping[str, Any]) -> str | None:
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    url = source.get("url")
    return url if source.get("type") == "url" and isinstance(url, str) else None


def _document(
    block: Mapping[str, Any], source: Mapping[str, Any], path: str, lost: dict[str, Any]
) -> list[dict[str, Any]]:
    kind, title = source.get("type"), block.get("title")
    if block.get("citations"):
        lost[f"{path}.citations"] = block["citations"]
    head = [text for text in (title, block.get("context")) if isinstance(text, str) and text]
    url = url_of_file({"file_data": source.get("url")}) if kind == "url" else None
    if kind == "base64" or url is not None:
        data = url or f"data:{source.get('media_type')};base64,{source.get('data')}"
        file = {"file_data": data}
        if isinstance(title, str) or url is None:
            file["filename"] = title if isinstance(title, str) else "document.pdf"
        context = [{"type": "text", "text": text} for text in head if text is not title]
        return [*context, {"type": "file", "file": file}]
    if kind == "text":
        return [{"type": "text", "text": "\n".join([*head, str(source.get("data") or "")])}]
    if kind == "content":
        inner = source.get("content")
        if isinstance(inner, str):
            return [{"type": "text", "text": "\n".join([*head, inner])}]
        return [{"type": "text", "text": text} for text in head] + _parts_of(inner, f"{path}.source.content", lost)
    lost[path] = block
    return []


# --- tools, thinking, the rest ----------------------------------------------------------------------------------------


def _add_tools(body: Mapping[str, Any], chat: dict[str, Any], lost: dict[str, Any]) -> None:
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(_given(body, "tools", list)):
        if type(tool) is not dict:
            _typed(tool, dict, f"tools[{i}]")
        if tool.get("type") not in (None, "custom"):
            lost[f"tools[{i}]"] = tool
            continue
        tools.append({"type": "function", "function": _function(tool, i, lost)})
    if tools:
        chat["tools"] = tools
    choice = _given(body, "tool_choice", dict)
    kind = choice.get("type") if choice else "auto"
    if kind not in ("auto", "any", "tool", "none"):
        message = "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'"
        raise InvalidRequest(message, code="unsupported_value", param="tool_choice.type")
    chosen: Any = _CHOICES.get(kind)
    if kind == "tool":
        name = _typed(choice.get("name"), str, "tool_choice.name")
        if any(tool["function"]["name"] == name for tool in tools):
            chosen = {"type": "function", "function": {"name": name}}
    if chosen is None or (kind == "any" and not tools):
        lost["tool_choice"] = choice  # it asks for a tool that chat completions cannot express
    elif tools and body.get("tool_choice") is not None:
        chat["tool_choice"] = chosen
    if tools and choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False


def _function(tool: Mapping[str, Any], i: int, lost: dict[str, Any]) -> dict[str, Any]:
    """Return a client's own tool, the one of this number, as a function of chat completions."""
    name, schema = tool.get("name"), tool.get("input_schema")
    if type(name) is str and type(schema) is dict and tool.keys() == _PLAIN_TOOL and None not in tool.values():
        return {"name": name, "description": tool["description"], "parameters": schema}
    path = f"tools[{i}]"
    _typed(name, str, f"{path}.name")
    given = {name: value for name, value in tool.items() if value is not None} if None in tool.values() else tool
    if type(given.get("input_schema", given)) is not dict:
        _typed(given["input_schema"], dict, f"{path}.input_schema")
    function = {_TOOL_MEMBERS[name]: value for name, value in given.items() if name in _TOOL_MEMBERS}
    if function.get("strict") and not fits_openai_strict(given.get("input_schema")):
        lost[f"{path}.strict"] = function.pop("strict")
    if len(function) < len(given):
        _note_cache(given, lost)
        more = [name for name in given if name not in _TOOL_MEMBERS and name not in ("type", CACHE)]
        lost.update({f"{path}.{name}": given[name] for name in more})
    return function


def _add_thinking(body: Mapping[str, Any], chat: dict[str, Any], lost: dict[str, Any]) -> None:
    config = _given(body, "output_config", dict)
    wanted = config.get("format") or body.get("output_format")
    if wanted is not None:
        schema = _typed(wanted, dict, "output_config.format").get("schema")
        _typed(schema, dict, "output_config.format.schema")
        # In strict mode OpenAI refuses schemas with optional members, which Anthropic takes.
        named = {"name": "output", "schema": schema, "strict": fits_openai_strict(schema)}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    effort = config.get("effort")
    if effort is not None:
        _typed(effort, str, "output_config.effort")
    if config:
        lost.update({f"output_config.{name}": config[name] for name in config if name not in ("effort", "format")})
    thinking = _given(body, "thinking", dict)
    kind = thinking.get("type")
    if kind not in (None, "adaptive", "enabled", "between_tools", "disabled"):
        message = "thinking.type: Input should be 'adaptive', 'enabled', 'between_tools' or 'disabled'"
        raise InvalidRequest(message, code="unsupported_value", param="thinking.type")
    if kind in ("disabled", "between_tools"):
        lost["thinking"] = thinking
    elif kind == "enabled":
        lost["thinking.budget_tokens"] = thinking.get("budget_tokens")
        effort = effort or _effort_of(thinking.get("budget_tokens"))
    elif kind == "adaptive" and effort is None:
        lost["thinking"] = thinking  # chat completions can ask for an effort, and not for thinking of any
    others = thinking.keys() - {"type", "budget_tokens"}
    lost.update({f"thinking.{name}": thinking[name] for name in others if thinking[name] is not None})
    if effort is not None and kind != "disabled":
        chat["reasoning_effort"] = _EFFORTS.get(effort, effort)
        if effort in _EFFORTS:
            lost["output_config.effort"] = effort
    elif effort is not None:
        lost["output_config.effort"] = effort


def _effort_of(budget: Any) -> str:
    if not isinstance(budget, int):
        return "medium"
    return "low" if budget <= BUDGETS["low"] else "medium" if budget <= BUDGETS["medium"] else "high"


def _add_user(body: Mapping[str, Any], chat: dict[str, Any], lost: dict[str, Any]) -> None:
    metadata = body.get("metadata")
    if metadata is not None:
        user = _typed(metadata, dict, "metadata").get("user_id")
        fits = isinstance(user, str) and len(user) <= _LONGEST_USER and metadata.keys() == {"user_id"}
        if fits:
            chat["user"] = user
        elif user is not None or len(metadata) > 1:
            lost["metadata"] = metadata
    tier = body.get("service_tier")
    if tier in ("auto", "standard_only"):
        chat["service_tier"] = "auto" if tier == "auto" else "default"
    elif tier is not None:
        lost["service_tier"] = tier
