"""Turn the body of a request into the body of a chat completion.

Each field is kept, refused by its path, or noted: as *lost*, if a chat completion cannot express it and can do without,
or as *needed*, if only a backend of this API can honour it (hosted tools, the URL of a file, stored prompts). Fields
that the API does not define are passed on, as they are for clients that speak chat completions.

An assistant's turn is several items here (reasoning, message, calls) and one message there: adjacent ones are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dialects.native import Native
from gateway.dialects.reasoning import DETAILS
from gateway.errors import InvalidRequest
from gateway.parts.apis.dialects.responses.items import EXTRA, Json, details_of_item, responses_path
from gateway.parts.apis.dialects.responses.response_object import SEARCH, SEARCHES
from gateway.parts.servers.custom_tools import short_name
from routing.features import url_of_file

SAME: Final = frozenset(
    {
        "model", "stream", "temperature", "top_p", "parallel_tool_calls", "service_tier", "metadata", "user",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "moderation",
    }
)  # fmt: skip
"""Fields that both APIs have under one name."""
TRANSLATED: Final = frozenset(
    {
        "input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", "top_logprobs",
        "include", "stream_options",
    }
)  # fmt: skip
STATE: Final = frozenset({"store", "previous_response_id", "conversation", "background"})
"""Fields that the gateway itself honours."""
_ONLY_HERE: Final = (STATE - {"store"}) | {"background_options"}
"""Those of them that no backend is sent: the conversation is sent whole."""
LOST: Final = frozenset(
    {"access_programs", "background_options", "context_management", "image", "max_tool_calls", "truncation"}
)
"""Fields that chat completions lack; a request is answered without them."""
IDLE: Final = frozenset({"client_metadata"})
"""Fields that only say who asks, such as Codex CLI's; they are lost too, and no answer depends on them."""
NEEDED: Final = frozenset({"prompt"})
"""Fields without which the answer would be another one."""
_INSTEAD: Final = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include: [message.output_text.logprobs]",
    "n": "one request for each answer",
}
"""Fields of chat completions that would collide with a translated one, and what this API has instead of each."""
DEFINED: Final = SAME | TRANSLATED | STATE | LOST | NEEDED | IDLE

HOSTED: Final = "responses_hosted_tools"
"""The capability of a backend that runs the tools of this API itself, and has its files and prompts: one of this kind,
with `hosted_tools` in its config."""
ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"
_CHECKED: Final[Mapping[str, tuple[type, str]]] = {
    "background": (bool, "a boolean"),
    "parallel_tool_calls": (bool, "a boolean"),
    "service_tier": (str, "a string"),
    "metadata": (dict, "an object"),
    "user": (str, "a string"),
    "safety_identifier": (str, "a string"),
    "prompt_cache_key": (str, "a string"),
    "prompt_cache_retention": (str, "a string"),
    "max_tool_calls": (int, "an integer"),
    "truncation": (str, "a string"),
}
_DEFAULTS: Final[Mapping[str, Any]] = {"truncation": "disabled"}
"""Values of lost fields that ask for nothing."""
_INSTRUCTIONS: Final = ("instructions", "")
"""Where the message comes from that holds them."""
_ROLES: Final = frozenset({"user", "system", "developer", "assistant"})
_OUTPUTS: Final = {"function_call_output", "custom_tool_call_output"}
_SERVER_RECORDS: Final = frozenset(
    {
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
        "mcp_list_tools", "tool_search_call", "tool_search_output", "program", "program_output",
    }
)  # fmt: skip
"""Records of what a provider's own tools did in earlier turns: the answers that follow hold what came of it."""
_CHOICES: Final = frozenset({"auto", "none", "required"})
_REASONING_TEXTS: Final = frozenset({"summary", "generate_summary", "mode", "context"})
"""Members of `reasoning` that are texts, which the reply repeats."""
_FUNCTION: Final = ("name", "description", "parameters", "strict")
_KNOWN_KEYS: Final = {
    "message": frozenset({"type", "role", "content", "id", "status"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "namespace", "status", EXTRA}),
    "custom_tool_call": frozenset({"type", "id", "call_id", "name", "namespace", "input", "status"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
    "custom_tool_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
    "input_text": frozenset({"type", "text"}),
    "output_text": frozenset({"type", "text"}),
    "refusal": frozenset({"type", "refusal"}),
    "input_image": frozenset({"type", "image_url", "file_id", "detail"}),
    "input_file": frozenset({"type", "file_data", "file_id", "filename", "file_url"}),
    "input_audio": frozenset({"type", "input_audio"}),
    "tool_search_call": frozenset({"type", "id", "call_id", "execution", "arguments", "status"}),
    "tool_search_output": frozenset({"type", "id", "call_id", "execution", "tools", "status", "output"}),
    "function": frozenset({"type", *_FUNCTION}),
    "custom": frozenset({"type", "name", "description", "format"}),
    "namespace": frozenset({"type", "name", "tools"}),
}
"""Members of items, parts and tools that are kept, or that say nothing to a model (ids, status, citations)."""
_MESSAGE_KEYS: Final = _KNOWN_KEYS["message"]
_FUNCTION_KEYS: Final = _KNOWN_KEYS["function"]
_EMPTY: Final[tuple[Any, ...]] = (None, [], {})
"""Values of members that say nothing: the annotations and log-probabilities of most texts, which clients send back."""
_RECORDS: Final = ("annotations", "logprobs")
_TEXT_PARTS: Final = ("input_text", "output_text")
_TEXT_KEYS: Final = _KNOWN_KEYS["output_text"] | {*_RECORDS}


def wrong_type(param: str, expected: str) -> InvalidRequest:
    """Return the error for a field of a wrong type."""
    return InvalidRequest(f"Invalid type for {param!r}: expected {expected}.", code="invalid_type", param=param)


def typed(value: Any, kind: type, param: str, expected: str) -> None:
    """Raise InvalidRequest if a field's value is not of exactly this type; `expected` names the type to the client."""
    if type(value) is not kind:
        raise wrong_type(param, expected)


def unsupported(param: str, why: str) -> InvalidRequest:
    """Return the error for a value that is not supported; `why` follows the field's path in the message."""
    return InvalidRequest(f"{param} {why}", code="unsupported_value", param=param)


def missing(param: str) -> InvalidRequest:
    """Return the error for a field that is missing."""
    return InvalidRequest(f"Missing required parameter: {param!r}.", code="missing_required_parameter", param=param)


def entries_of(body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the items of a body's `input`, each with its path, unchecked; a text is one message of the user."""
    given = body.get("input")
    if given is None:
        return []
    if type(given) is str:
        return [("input", {"type": "message", "role": "user", "content": given})]
    typed(given, list, "input", "a string or an array of items")
    return [(f"input[{i}]", item) for i, item in enumerate(given)]


def is_reference(item: Any) -> bool:
    """Return whether an item only names an earlier one: by its type, or having none and no role."""
    if type(item) is not dict:
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def _type_of(item: Any, at: str) -> str:
    """Return the type of an item, which is a message if it names none."""
    if type(item) is not dict:
        raise wrong_type(at, "an object")
    if (item_id := item.get("id")) is not None and type(item_id) is not str:
        raise wrong_type(f"{at}.id", "a string")
    kind = item.get("type")
    if kind is None:
        return "message"
    if type(kind) is not str:
        raise wrong_type(f"{at}.type", "a string")
    return kind


def chat_request(
    body: Mapping[str, Any], entries: Sequence[tuple[str, Any]], *, hosted: bool, kept: bool
) -> tuple[Json, Native, dict[str, tuple[str, str]]]:
    """Return the chat completion's body, its own form, and the names of its tools that the API has in namespaces.

    `entries` is the whole conversation, without references.

    `hosted`: whether a backend of this API is configured, which can honour what a chat completion cannot express; if
    not, that is refused. `kept`: whether the gateway keeps the response for later turns. Raises InvalidRequest.
    """
    reading = _Reading(hosted=hosted)
    chat: Json = {}
    if (instructions := body.get("instructions")) is not None:
        if type(instructions) is not str:
            raise wrong_type("instructions", "a string")
        if instructions:
            reading.messages.append({"role": "system", "content": instructions})
            reading.paths.append(_INSTRUCTIONS)
    reading.add_items(entries)
    if not reading.messages:
        # A stored prompt has the user's turn; a conversation must have one nevertheless.
        reading.messages.append({"role": "user", "content": ""})
        reading.paths.append(("input", ""))
    chat["messages"] = reading.messages
    for name, value in body.items():
        if name in SAME or name not in DEFINED:
            if name in _INSTEAD:
                raise unsupported(name, f"is not a parameter of responses; use {_INSTEAD[name]}.")
            chat[name] = value
        elif name in LOST and value is not None and value != _DEFAULTS.get(name):
            reading.lost[name] = value
        elif name in IDLE:
            reading.lost[name] = None
        elif name in NEEDED and value is not None:
            typed(value, dict, name, "an object")
            _text(value, "id", name)
            reading.need(name, "a stored prompt", name, value)
    _refuse(body)
    reading.add_options(body, chat)
    own = _native_body(body, entries, kept=kept)
    needs = frozenset({HOSTED} if reading.needed else ())
    native = Native("responses", own, reading.lost, reading.paths, needs, path_in=responses_path, front=_INSTRUCTIONS)
    return chat, native, reading.names


def _refuse(body: Mapping[str, Any]) -> None:
    for name in _CHECKED.keys() & body.keys():
        if body[name] is not None and type(body[name]) is not _CHECKED[name][0]:
            raise wrong_type(name, _CHECKED[name][1])
    for name, value in (body.get("metadata") or {}).items():
        if type(value) is not str:
            raise wrong_type(f"metadata.{name}", "a string")


def _native_body(body: Mapping[str, Any], entries: Sequence[tuple[str, Any]], *, kept: bool) -> Json:
    """Return the client's body with its whole conversation as input, and without what the gateway itself honours."""
    native = {name: value for name, value in body.items() if name not in _ONLY_HERE}
    if entries or "input" in body:
        native["input"] = [item for _, item in entries]
    include = body.get("include") or []
    if kept and body.get("reasoning") and ENCRYPTED not in include:
        native["include"] = [*include, ENCRYPTED]  # without it, the next turn would begin without this one's reasoning
    return native


class _Reading:
    """Translate one body: collect messages, and what a chat completion cannot express."""

    __slots__ = (
        "_called", "_given_tools", "_hosted", "_may_not_search", "_shown", "_turn", "_turn_paths", "lost", "messages",
        "names", "needed", "paths",
    )  # fmt: skip

    def __init__(self, *, hosted: bool) -> None:
        self._hosted = hosted
        self._may_not_search = False
        self._given_tools: list[tuple[str, Any]] = []
        """Lists of tools that items of the conversation give, by their paths."""
        self._called: dict[str, Json] = {}
        """The assistant's message with each call that has no output yet, by the call's id."""
        self._shown: Json | None = None
        """The user's message with the last pictures and files of calls' outputs."""
        self._turn: Json | None = None
        """The assistant's message that adjacent items are joined to."""
        self._turn_paths: Json = {}
        self.messages: list[Json] = []
        self.paths: list[Any] = []
        """Where each message comes from: the path of its item, and the member that is its content. For a turn of the
        assistant, the paths of its first item, of the one with its text, and of its calls; for the pictures and files
        of calls' outputs, the path of each part.
        """
        self.lost: Json = {}
        """Values that are not expressed, by path."""
        self.names: dict[str, tuple[str, str]] = {}
        """Namespace and name of the tools that chat completions know by one name, by that name."""
        self.needed = False
        """Whether something is lost that only a backend of this API can honour."""

    def need(self, at: str, what: str, whole_at: str, value: Any) -> None:
        """Note a value that only a backend of this API can honour. Raises InvalidRequest if there is none.

        `at` is the path of what shows it, `whole_at` the value's own.
        """
        if not self._hosted:
            raise unsupported(
                at, f"is {what}, which no backend here supports (kind: responses with the capability hosted_tools)."
            )
        self.needed = True
        self.lost[whole_at] = value

    def lose_others(self, holder: Mapping[str, Any], kind: str, at: str) -> None:
        """Note the members of an item, part or tool that are not kept."""
        if not holder.keys() <= _KNOWN_KEYS[kind]:
            for name in sorted(holder.keys() - _KNOWN_KEYS[kind]):
                if holder[name] not in _EMPTY:
                    self.lost[_path(at, name)] = holder[name]

    # --- items --------------------------------------------------------------------------------------------------------

    def add_items(self, entries: Sequence[tuple[str, Any]]) -> None:
        """Add the messages of a conversation."""
        for at, item in entries:
            kind = _type_of(item, at)
            if kind == "message":
                self._add_message(item, at)
            elif kind == "function_call":
                call = {"name": _name_in_chat(item, at), "arguments": _text(item, "arguments", at)}
                self._add_call(item, {"type": "function", "function": call}, kind, at)
            elif kind in _OUTPUTS:
                self._add_output(item, kind, at)
            elif kind == "reasoning":
                self._add_reasoning(item, at)
            elif kind == "custom_tool_call":
                custom = {"name": _name_in_chat(item, at), "input": _text(item, "input", at)}
                self._add_call(item, {"type": "custom", "custom": custom}, kind, at)
            elif kind == "tool_search_call" and item.get("execution") == "client":
                arguments = orjson.dumps(item.get("arguments") or {}).decode()
                self._add_call(
                    item, {"type": "function", "function": {"name": SEARCH, "arguments": arguments}}, kind, at
                )
            elif kind == "tool_search_output" and item.get("call_id") in self._called:
                self._given_tools.append((f"{at}.tools", item.get("tools")))
                self._add_output({**item, "output": _found(item.get("tools"))}, kind, at)
            elif kind in _SERVER_RECORDS:
                self.lost[at] = item
            elif kind == "additional_tools":
                self._given_tools.append((f"{at}.tools", item.get("tools")))
            else:
                self.need(f"{at}.type", f"an item of the type {kind!r}", at, item)
        self._close_turn()

    def _add_message(self, item: Mapping[str, Any], at: str) -> None:
        role = _text(item, "role", at)
        if role not in _ROLES:
            raise unsupported(f"{at}.role", "must be user, assistant, system or developer.")
        content = item.get("content")
        if type(content) is not str and (text := _only_text(content)) is not None:
            content = text
        elif type(content) is not str:
            if content is None:
                raise missing(f"{at}.content")
            content = self._content(content, f"{at}.content")
        if not item.keys() <= _MESSAGE_KEYS:
            self.lose_others(item, "message", at)
        if role != "assistant":
            self._close_turn()
            self.messages.append({"role": role, "content": content})
            self.paths.append((at, "content"))
            return
        turn = self._turn
        if turn is None or (turn["content"] is not None and "tool_calls" not in turn):
            self._close_turn()
            turn = self._open_turn(at)
        self._turn_paths["content"] = self._turn_paths["content"] or at
        # A text beside calls belongs to their message: nothing may stand between calls and their outputs.
        turn["content"] = content if turn["content"] is None else _parts_of(turn["content"]) + _parts_of(content)

    def _add_call(self, item: Mapping[str, Any], call: Json, kind: str, at: str) -> None:
        turn = self._turn or self._open_turn(at)
        self._turn_paths["tool_calls"].append(at)
        if kind == "function_call" and item.get(EXTRA) is not None:
            call[EXTRA] = item[EXTRA]
        call_id = _text(item, "call_id", at)
        self._called[call_id] = turn
        turn.setdefault("tool_calls", []).append({"id": call_id, **call})
        self.lose_others(item, kind, at)

    def _add_output(self, item: Mapping[str, Any], kind: str, at: str) -> None:
        self._close_turn()
        output = item.get("output")
        if output is None:
            raise missing(f"{at}.output")
        content = output if type(output) is str else self._content(output, f"{at}.output")
        call_id = _text(item, "call_id", at)
        place = self._place_of_output(self._called.pop(call_id, None))
        shown: list[tuple[str, Json]] = []
        if type(content) is list:
            shown = [(f"{at}.output[{i}]", part) for i, part in enumerate(content) if part["type"] != "text"]
            content = _plainest([part for part in content if part["type"] == "text"])
        self.messages.insert(place, {"role": "tool", "tool_call_id": call_id, "content": content})
        self.paths.insert(place, (at, "output"))
        if shown:
            self._show(shown, place + 1)
        self.lose_others(item, kind, at)

    def _show(self, shown: list[tuple[str, Json]], place: int) -> None:
        """Add pictures and files of a call's output, each with its path, to a user's message after all outputs.

        In chat completions, an output is text. `place` is that of the message after the output's own.
        """
        messages, paths = self.messages, self.paths
        while place < len(messages) and messages[place]["role"] == "tool":
            place += 1
        if place == len(messages) or messages[place] is not self._shown:
            self._shown = {"role": "user", "content": []}
            messages.insert(place, self._shown)
            paths.insert(place, [])
        messages[place]["content"] += [part for _, part in shown]
        paths[place] += [path for path, _ in shown]

    def _place_of_output(self, turn: Json | None) -> int:
        """Return the place after the message with the call and the other outputs of its calls.

        Here, messages may come between a call and its output. In chat completions they must not.
        """
        at = end = len(self.messages)
        while at and self.messages[at - 1]["role"] == "tool":
            at -= 1
        if turn is None or self.messages[at - 1] is turn:
            return end
        at = next(i for i, message in enumerate(self.messages) if message is turn) + 1
        while self.messages[at]["role"] == "tool":
            at += 1
        return at

    def _add_reasoning(self, item: Mapping[str, Any], at: str) -> None:
        for name in ("summary", "content"):
            parts = item.get(name)
            if parts is not None and type(parts) is not list:
                raise wrong_type(f"{at}.{name}", "an array")
            for i, part in enumerate(parts or ()):
                if type(part) is not dict:
                    raise wrong_type(f"{at}.{name}[{i}]", "an object")
                _text(part, "text", f"{at}.{name}[{i}]")
        for name in ("encrypted_content", "id"):
            if item.get(name) is not None and type(item[name]) is not str:
                raise wrong_type(f"{at}.{name}", "a string")
        turn = self._turn
        if turn is not None and turn["content"] is not None and "tool_calls" not in turn:
            # A new turn of the assistant begins with its reasoning; within one, reasoning comes between calls too.
            self._close_turn()
            turn = None
        turn = turn or self._open_turn(at)
        turn.setdefault(DETAILS, []).extend(details_of_item(item))
        self.lose_others(item, "reasoning", at)

    def _open_turn(self, at: str) -> Json:
        self._turn = {"role": "assistant", "content": None}
        self._turn_paths = {"at": at, "content": None, "tool_calls": []}
        self.messages.append(self._turn)
        self.paths.append(self._turn_paths)
        return self._turn

    def _close_turn(self) -> None:
        if self._turn is not None:
            if self._turn["content"] is None and "tool_calls" not in self._turn:
                self._turn["content"] = ""  # reasoning alone; a message must have something
            self._turn = None

    # --- parts --------------------------------------------------------------------------------------------------------

    def _content(self, content: Any, at: str) -> str | list[Json]:
        """Return the content of a message or a call's output; one text without parts, which all backends take."""
        if type(content) is str:
            return content
        typed(content, list, at, "a string or an array of parts")
        return _plainest(
            [part for i, given in enumerate(content) if (part := self._part(given, f"{at}[{i}]")) is not None]
        )

    def _part(self, part: Any, at: str) -> Json | None:
        if type(part) is not dict:
            raise wrong_type(at, "an object with a type")
        kind = _text(part, "type", at)
        if kind in ("input_text", "output_text"):
            made: Json | None = {"type": "text", "text": _text(part, "text", at)}
        elif kind == "input_image":
            made = self._image(part, at)
        elif kind == "input_file":
            made = self._file(part, at)
        elif kind == "refusal":
            made = {"type": "refusal", "refusal": _text(part, "refusal", at)}
        elif kind == "input_audio":
            typed(part.get("input_audio"), dict, f"{at}.input_audio", "an object")
            made = {"type": "input_audio", "input_audio": part["input_audio"]}
        else:
            self.need(f"{at}.type", f"a part of the type {kind!r}", at, part)
            return None
        self.lose_others(part, kind, at)
        return made

    def _image(self, part: Mapping[str, Any], at: str) -> Json | None:
        if part.get("file_id") is not None:
            self.need(f"{at}.file_id", "the id of a file", at, part)
            return None
        image = {"url": _text(part, "image_url", at)}
        if part.get("detail") is not None:
            image["detail"] = _text(part, "detail", at)
        return {"type": "image_url", "image_url": image}

    def _file(self, part: Mapping[str, Any], at: str) -> Json | None:
        if (url := part.get("file_url")) is not None:
            beside = part.get("file_data") is not None or part.get("file_id") is not None
            if beside or url_of_file({"file_data": url}) is None:
                what = "the URL of a file beside the file" if beside else "a URL that is neither http nor https"
                self.need(f"{at}.file_url", what, at, part)
                return None
            named = {} if part.get("filename") is None else {"filename": _text(part, "filename", at)}
            return {"type": "file", "file": {"file_data": url, **named}}
        names = [name for name in ("file_data", "file_id", "filename") if part.get(name) is not None]
        if "file_data" not in names and "file_id" not in names:
            raise missing(f"{at}.file_data")
        return {"type": "file", "file": {name: _text(part, name, at) for name in names}}

    # --- options ------------------------------------------------------------------------------------------------------

    def add_options(self, body: Mapping[str, Any], chat: Json) -> None:
        """Add to the chat body what is neither input nor named alike in both APIs."""
        self._add_tools(body, chat)
        self._add_text(body.get("text"), chat)
        self._add_reasoning_options(body.get("reasoning"), chat)
        if (most := body.get("max_output_tokens")) is not None:
            typed(most, int, "max_output_tokens", "an integer")
            if most < 1:
                raise unsupported("max_output_tokens", "must be at least 1.")
            chat["max_completion_tokens"] = most
        self._add_logprobs(body, chat)
        if body.get("stream"):
            chat["stream_options"] = {"include_usage": True}
        if (options := body.get("stream_options")) is not None:
            typed(options, dict, "stream_options", "an object")
            if body.get("stream"):
                chat["stream_options"] = {**options, "include_usage": True}

    def _add_logprobs(self, body: Mapping[str, Any], chat: Json) -> None:
        include, tops = body.get("include"), body.get("top_logprobs")
        if include is not None:
            if type(include) is not list or not all(type(name) is str for name in include):
                raise wrong_type("include", "an array of strings")
            if others := [name for name in include if name not in (ENCRYPTED, LOGPROBS)]:
                self.lost["include"] = others
        if tops is not None:
            typed(tops, int, "top_logprobs", "an integer")
            if not 0 <= tops <= 20:
                raise unsupported("top_logprobs", "must be 0 to 20.")
        if tops or LOGPROBS in (include or ()):
            chat["logprobs"] = True
            if tops:
                chat["top_logprobs"] = tops

    def _add_text(self, text: Any, chat: Json) -> None:
        if text is None:
            return
        typed(text, dict, "text", "an object")
        for name, value in text.items():
            if value is None:
                continue
            if name == "format":
                chat_format = self._format(value)
                if chat_format is not None:
                    chat["response_format"] = chat_format
            elif name == "verbosity":
                chat["verbosity"] = _text(text, name, "text")
            else:
                self.lost[_path("text", name)] = value

    def _format(self, given: Any) -> Json | None:
        typed(given, dict, "text.format", "an object")
        kind = _text(given, "type", "text.format")
        if kind == "text":
            return None
        if kind != "json_schema":
            return dict(given)
        _text(given, "name", "text.format")
        if type(given.get("schema")) is not dict:
            raise (
                missing("text.format.schema")
                if given.get("schema") is None
                else wrong_type("text.format.schema", "an object")
            )
        schema = {name: value for name, value in given.items() if name != "type" and value is not None}
        return {"type": "json_schema", "json_schema": schema}

    def _add_reasoning_options(self, reasoning: Any, chat: Json) -> None:
        if reasoning is None:
            return
        typed(reasoning, dict, "reasoning", "an object")
        for name, value in reasoning.items():
            if name == "effort" and value is not None:
                chat["reasoning_effort"] = _text(reasoning, name, "reasoning")
            elif value is not None:
                if name in _REASONING_TEXTS:
                    _text(reasoning, name, "reasoning")
                self.lost[_path("reasoning", name)] = value

    def _add_tools(self, body: Mapping[str, Any], chat: Json) -> None:
        self._may_not_search = not self._hosted and body.get("tool_choice") in (None, "auto")
        tools: list[Json] = []
        for at, given in (*self._given_tools, ("tools", body.get("tools"))):
            if given is None:
                continue
            typed(given, list, at, "an array")
            for i, tool in enumerate(given):
                if type(tool) is dict and tool.get("type") == "namespace":
                    tools += self._namespace(tool, f"{at}[{i}]")
                elif (made := self._tool(tool, f"{at}[{i}]")) is not None:
                    tools.append(made)
        if self._given_tools:  # of those that several turns gave, the last counts
            tools = list({tool[tool["type"]]["name"]: tool for tool in tools}.values())
        if tools:
            chat["tools"] = tools
        choice = body.get("tool_choice")
        if choice is not None and (chosen := self._choice(choice, "tool_choice")) is not None:
            chat["tool_choice"] = chosen

    def _namespace(self, namespace: Mapping[str, Any], at: str) -> list[Json]:
        """Return the tools of a namespace, which chat completions lack, under names that begin with its name."""
        _text(namespace, "name", at)
        typed(namespace.get("tools"), list, f"{at}.tools", "an array")
        tools: list[Json] = []
        for i, tool in enumerate(namespace["tools"]):
            if (made := self._tool(tool, f"{at}.tools[{i}]")) is not None:
                inner = made[made["type"]]
                known = _joined(namespace["name"], inner["name"])
                self.names[known] = namespace["name"], inner["name"]
                inner["name"] = known
                tools.append(made)
        self.lose_others(namespace, "namespace", at)
        return tools

    def _tool(self, tool: Any, at: str) -> Json | None:
        if type(tool) is not dict:
            raise wrong_type(at, "an object with a type")
        kind = tool.get("type")
        if kind == "function" and type(tool.get("name")) is str and tool.keys() <= _FUNCTION_KEYS:
            function = tool.copy()
            del function["type"]
            if None not in function.values():
                return {"type": kind, kind: function}
        kind = _text(tool, "type", at)
        if kind == "function":
            _text(tool, "name", at)
            made: Json = {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}
        elif kind == "custom":
            made = {"name": _text(tool, "name", at)}
            if tool.get("description") is not None:
                made["description"] = _text(tool, "description", at)
            if tool.get("format") is not None:
                made["format"] = _custom_format(tool["format"], f"{at}.format")
        elif kind == SEARCH and tool.get("execution") == "client":
            # The client looks for tools itself: its answer holds those that the model may call from then on.
            made = {"name": SEARCH, "parameters": tool.get("parameters") or {"type": "object", "properties": {}}}
            if tool.get("description") is not None:
                made["description"] = _text(tool, "description", at)
            self.names[SEARCH] = SEARCHES
            kind = "function"
        elif kind == SEARCH and not self._hosted:
            self.lost[at] = tool  # all tools are given at once, so nothing has to be looked for
            return None
        elif self._may_not_search and kind.startswith("web_search"):
            self.lost[at] = tool  # agents offer it with every request, and the model is free not to use it
            return None
        else:
            self.need(f"{at}.type", f"the hosted tool {kind!r}", at, tool)
            return None
        self.lose_others(tool, kind, at)
        return {"type": kind, kind: made}

    def _choice(self, choice: Any, at: str) -> str | Json | None:
        if type(choice) is str:
            if choice not in _CHOICES:
                raise unsupported(at, "must be auto, none, required or an object.")
            return choice
        typed(choice, dict, at, "a string or an object")
        kind = _text(choice, "type", at)
        if kind in ("function", "custom"):
            return {"type": kind, kind: {"name": _text(choice, "name", at)}}
        if kind == "allowed_tools":
            typed(choice.get("tools"), list, f"{at}.tools", "an array")
            allowed = [
                made
                for i, tool in enumerate(choice["tools"])
                if (made := self._choice(tool, f"{at}.tools[{i}]")) is not None
            ]
            return {"type": kind, kind: {"mode": _text(choice, "mode", at), "tools": allowed}}
        self.need(f"{at}.type", f"the hosted tool {kind!r}", at, choice)
        return None


def _plainest(parts: list[Json]) -> str | list[Json]:
    """Return a content as one text, if it has no more than that: all backends take one."""
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _custom_format(given: Any, at: str) -> Json:
    """Return the format of a custom tool's input, whose grammar chat completions put one level deeper."""
    typed(given, dict, at, "an object")
    if _text(given, "type", at) != "grammar":
        return dict(given)
    return {"type": "grammar", "grammar": {name: value for name, value in given.items() if name != "type"}}


def _found(tools: Any) -> str:
    """Return what a search for tools has found as a text for the model, which is given the tools themselves, too."""
    listed = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    lines = []
    for tool in listed:
        inner = [one for one in tool["tools"] if isinstance(one, dict)] if isinstance(tool.get("tools"), list) else []
        names = [f"{tool.get('name')}__{inner_tool.get('name')}" for inner_tool in inner] or [str(tool.get("name"))]
        lines.append(f"{', '.join(names)}: {tool.get('description') or ''}".rstrip(": "))
    return "\n".join(["These tools can be called now:", *lines]) if lines else "No tool was found."


def _joined(namespace: str, name: str) -> str:
    return short_name(f"{namespace}__{name}")


def _name_in_chat(item: Mapping[str, Any], at: str) -> str:
    """Return the name of a call's tool as chat completions know it."""
    name = _text(item, "name", at)
    return name if item.get("namespace") is None else _joined(_text(item, "namespace", at), name)


def _path(at: str, name: str) -> str:
    """Return the path of a member; the names of unknown ones are the client's, and paths are sent in a header."""
    return f"{at}.{name}" if name.isascii() and name.isprintable() else f"{at}[{name!a}]"


def _only_text(content: Any) -> str | None:
    """Return the text of a content that is one part of text and nothing more; None for all others, checked or not."""
    if type(content) is list and len(content) == 1:
        part = content[0]
        if type(part) is dict and part.get("type") in _TEXT_PARTS and part.keys() <= _TEXT_KEYS:
            if part.get("annotations") or part.get("logprobs"):
                return None
            text = part.get("text")
            return text if type(text) is str else None
    return None


def _parts_of(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(holder: Mapping[str, Any], name: str, at: str) -> str:
    """Return a member that must be a string. Raises InvalidRequest."""
    value = holder.get(name)
    if type(value) is not str:
        raise missing(f"{at}.{name}") if value is None else wrong_type(f"{at}.{name}", "a string")
    return value


def check_limits(messages: Sequence[Any], most: int) -> None:
    """Raise InvalidRequest if the conversation has more messages than the gateway takes."""
    if len(messages) > most:
        raise unsupported("input", f"has {len(messages)} messages; at most {most} are taken (limits.messages).")
