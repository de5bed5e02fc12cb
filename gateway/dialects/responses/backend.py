"""Translate a chat-completions body into the body of a request to OpenAI's Responses API.

What the two APIs call by different names is renamed, unknown fields are passed on, and everything else is either listed
as dropped (it changes how an answer is made, not what it answers) or raises `Unsupported`.

The backend keeps no state for us: the whole conversation is in `input`, nothing is stored unless the client says so,
and reasoning travels encrypted. The API accepts a reasoning item only before the output that came of it, and only from
the account and model that made it. So items of this backend go back to their places, and of any other reasoning only
the readable text is kept, as a message of the assistant. Messages and calls are sent without ids, because the API
checks an id against items that it no longer has.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dialects.native import NATIVE, native_body
from gateway.dialects.reasoning import DETAILS, Maker
from gateway.dialects.responses.items import EXTRA, joined_details
from gateway.dialects.responses.reading import SAME
from policies.value_type import value_type

ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"
LEAST_OUTPUT_TOKENS: Final = 16
"""Smallest `max_output_tokens` that the API accepts."""
ENCRYPTED_ITEMS: Final = frozenset({"reasoning", "compaction"})
"""Types of the items that hold `encrypted_content`."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_RESULTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_OUTPUT_ITEMS: Final = frozenset({"message", "function_call", "custom_tool_call"})
_FITTING_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_OPENROUTERS: Final = frozenset({"enabled", "exclude", "max_tokens"})
"""Members of OpenRouter's `reasoning` that this API's lacks."""
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_TEXT_ROLES: Final = frozenset({"user", "system", "developer"})
_MESSAGE_KEYS: Final = frozenset({"role", "content"})
_ASSISTANT_KEYS: Final = frozenset(
    {
        "role", "content", "refusal", "tool_calls", "function_call", "annotations", "phase",
        DETAILS, "reasoning_content", "reasoning", "thinking_blocks", "id",
    }
)  # fmt: skip
_RESULT_KEYS: Final = frozenset({"role", "content", "tool_call_id", "name"})
_SAID_KEYS: Final = frozenset({"type", "text", "refusal"})
_SAID_TYPES: Final = frozenset({"text", "output_text", "refusal"})
_PART_KEYS: Final = frozenset({"type", "text", "refusal", "image_url", "file", "prompt_cache_breakpoint"})


class Unsupported(Exception):
    """The API has no way to say a part of the request, and an answer without it would be an answer to another.

    `param` is the part's path in the chat-completions body.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@value_type
class ResponsesRequest:
    """Hold a translated request, and what is needed to read its reply.

    `dropped` lists the paths of what could not be said. `stop` holds the stop sequences: the API knows none, so the
    reply is cut at them. `legacy` is true if the client expects `function_call` instead of `tool_calls`, `native` if it
    speaks this dialect itself. `hides_logprobs`: it did not ask for the log-probabilities that the reply will have.
    """

    body: dict[str, Any]
    dropped: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    legacy: bool = False
    native: bool = False
    hides_logprobs: bool = False


def request_of(
    body: Mapping[str, Any], maker: Maker, *, model: str, stream: bool, alternatives: int | None
) -> ResponsesRequest:
    """Return the request for a chat-completions body. Raises Unsupported.

    `alternatives` asks for the log-probabilities of the tokens and of this many alternatives to each; None leaves that
    to the client.
    """
    own = native_body(body, "responses")
    if own is not None:
        return _passed_on(own, body, maker, model=model, stream=stream, alternatives=alternatives)
    lost: dict[str, None] = {}
    _refuse(body)
    sent = {name: value for name, value in body.items() if value is not None and name not in _TRANSLATED}
    sent["model"] = model
    sent["input"] = _InputItems(maker, lost).of(body["messages"])
    _put_tools(body, sent, lost)
    _put_text(body, sent)
    limit = next((limit for name in _LIMITS if (limit := body.get(name)) is not None), None)
    if limit is not None:
        sent["max_output_tokens"] = _enough(limit, body, lost)
    _put_reasoning(body, sent, lost)
    for name, harmless in _CANNOT_SAY.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            lost[name] = None
    if NATIVE in body and sent.pop("top_k", None) is not None:
        lost["top_k"] = None  # of a client of another dialect, which knows it; others are told that this API does not
    wants = bool(body.get("logprobs"))
    _put_common(sent, wants=wants or alternatives is not None, alternatives=alternatives, stream=stream)
    return ResponsesRequest(
        sent,
        dropped=tuple(lost),
        stop=_stop(body),
        legacy=bool(body.get("functions")) and not body.get("tools"),
        hides_logprobs=alternatives is not None and not wants,
    )


_TRANSLATED: Final = frozenset(
    {
        "model", "messages", "stream", "tools", "functions", "tool_choice", "function_call", "response_format",
        "verbosity", "reasoning_effort", "logprobs", "max_tokens", "max_completion_tokens", "n", "stop", "seed",
        "logit_bias", "frequency_penalty", "presence_penalty", "prediction", "modalities", "audio", "input",
        "web_search_options", "text", NATIVE,
    }
)  # fmt: skip
"""Fields that are not passed on under their own name. `text` is one that a client may add to the API's own."""
_CANNOT_SAY: Final[Mapping[str, tuple[Any, ...]]] = {
    "seed": (),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "prediction": (),
    "audio": (),
    "input": (),
}
"""Fields that this API does not have, with the values that change nothing."""


def _refuse(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for what this API can neither do nor leave undone."""
    if (body.get("n") or 1) > 1:
        raise Unsupported("n", "The model's API gives one choice; ask for one, or send several requests.")
    if "audio" in (body.get("modalities") or ()):
        raise Unsupported("modalities", "The model's API gives no audio.")
    if body.get("background"):
        raise Unsupported("background", "Background responses are not passed on to this model.")


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return tuple(text for text in stop if text) if stop else ()


def _enough(limit: int, body: Mapping[str, Any], lost: dict[str, None]) -> int:
    if limit < LEAST_OUTPUT_TOKENS:
        lost[next(name for name in _LIMITS if body.get(name) is not None)] = None
        return LEAST_OUTPUT_TOKENS
    return limit


def _put_common(sent: dict[str, Any], *, wants: bool, alternatives: int | None, stream: bool) -> None:
    """Set what every request has: no state, encrypted reasoning, log-probabilities if wanted, the stream."""
    asked = sent.get("include")
    include = list(asked) if isinstance(asked, list) else []
    if ENCRYPTED not in include:
        include.append(ENCRYPTED)
    if wants and LOGPROBS not in include:
        include.append(LOGPROBS)
    sent["include"] = include
    if alternatives is not None:
        sent["top_logprobs"] = max(alternatives, sent.get("top_logprobs") or 0)
    if sent.get("store") is None:
        sent["store"] = False
    options = sent.pop("stream_options", None)
    if stream:
        sent["stream"] = True
        kept = {name: value for name, value in (options or {}).items() if name != "include_usage"}
        if kept:
            sent["stream_options"] = kept


# --- tools and text ---------------------------------------------------------------------------------------------------


def _put_reasoning(body: Mapping[str, Any], sent: dict[str, Any], lost: dict[str, None]) -> None:
    """Set `reasoning` from `reasoning_effort`, or from the object that OpenRouter's clients send."""
    given = body.get("reasoning")
    if isinstance(given, dict):
        reasoning = {name: value for name, value in given.items() if name not in _OPENROUTERS}
        if given.get("enabled") is False:
            reasoning.setdefault("effort", "none")
        for name in ("exclude", "max_tokens"):
            if given.get(name):
                lost[f"reasoning.{name}"] = None
        sent["reasoning"] = reasoning
    if (effort := body.get("reasoning_effort")) is not None:
        sent["reasoning"] = {**(sent.get("reasoning") or {}), "effort": effort}
    if not sent.get("reasoning", True):
        del sent["reasoning"]


def _put_tools(body: Mapping[str, Any], sent: dict[str, Any], lost: dict[str, None]) -> None:
    tools = [_tool(tool) for tool in body.get("tools") or ()]
    if not tools:
        tools = [_function_tool(function) for function in body.get("functions") or ()]
    elif body.get("functions"):
        lost["functions"] = None
    search = body.get("web_search_options")
    if search is not None:
        tool: dict[str, Any] = {"type": "web_search", **search}
        location = search.get("user_location")
        if location:
            tool["user_location"] = {"type": "approximate", **(location.get("approximate") or {})}
        tools.append(tool)
    if tools:
        sent["tools"] = tools
    choice = body.get("tool_choice")
    if choice is None and (called := body.get("function_call")) is not None:
        choice = {"type": "function", "name": called["name"]} if isinstance(called, dict) else called
    if choice is not None:
        sent["tool_choice"] = _tool_choice(choice) if isinstance(choice, dict) else choice


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if isinstance(function, dict):
        return _function_tool(function)
    custom = tool.get("custom")
    if not isinstance(custom, dict):
        return tool  # one of the API's own tools
    flat = {"type": "custom", **custom}
    grammar = (custom.get("format") or {}).get("grammar")
    if isinstance(grammar, dict):
        flat["format"] = {"type": "grammar", **grammar}
    return flat


def _function_tool(function: dict[str, Any]) -> dict[str, Any]:
    # Without `strict`, this API would hold the arguments to the schema's letter, which chat completions does not.
    strict = bool(function.get("strict"))
    return {
        "type": "function",
        **function,
        "parameters": function.get("parameters") or _NO_PARAMETERS,
        "strict": strict,
    }


def _tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, dict):
        return choice
    if kind != "allowed_tools":
        return {"type": kind, **inner}
    listed = [_tool_choice(tool) if isinstance(tool, dict) else tool for tool in inner.get("tools") or ()]
    return {"type": kind, **inner, "tools": listed}


def _put_text(body: Mapping[str, Any], sent: dict[str, Any]) -> None:
    text = dict(body.get("text") or {})
    wanted = body.get("response_format")
    if wanted is not None:
        schema = wanted.get("json_schema")
        text["format"] = {"type": wanted["type"], **schema} if isinstance(schema, dict) else wanted
    if (verbosity := body.get("verbosity")) is not None:
        text["verbosity"] = verbosity
    if text:
        sent["text"] = text


# --- messages ---------------------------------------------------------------------------------------------------------


class _InputItems:
    """Make the items of `input` from messages, in their order."""

    def __init__(self, maker: Maker, lost: dict[str, None]) -> None:
        self._maker = maker
        self._lost = lost
        self._items: list[dict[str, Any]] = []
        self._calls: dict[Any, str] = {}
        """The id sent for each tool call's own id."""
        self._used: set[str] = set()
        """The ids sent for all calls."""
        self._custom: set[str] = set()
        """Ids, as sent, of calls of custom tools."""
        self._called: dict[Any, str] = {}
        """Id, as sent, of the last call without an id of each function: messages of role `function` answer by name."""

    def of(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the items. Raises Unsupported."""
        for i, message in enumerate(messages):
            role = message["role"]
            if role == "assistant":
                self._add_assistant(message, i)
            elif role == "tool":
                self._add_result(message, i)
            elif role == "function":
                self._add_function_result(message, i)
            else:
                self._items.append({"type": "message", "role": role, "content": self._content(message, i)})
                if len(message) > 2:
                    self._lose(message, _MESSAGE_KEYS)
        return self._items

    def _lose(self, holder: Mapping[str, Any], known: frozenset[str], path: str = "messages[]") -> None:
        for name in holder.keys() - known:
            if holder[name] not in (None, [], {}):
                self._lost[f"{path}.{name}"] = None

    def _content(self, message: Mapping[str, Any], i: int) -> Any:
        content = message.get("content")
        if isinstance(content, list):
            return [self._part(part, f"messages[{i}].content[{j}]") for j, part in enumerate(content)]
        return "" if content is None else content

    def _part(self, part: dict[str, Any], path: str) -> dict[str, Any]:
        kind = part["type"]
        if kind == "text":
            made = {"type": "input_text", "text": part.get("text")}
        elif kind == "image_url":
            image = part.get("image_url")
            image = image if isinstance(image, dict) else {"url": image}
            made = {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
        elif kind == "file":
            made = {"type": "input_file", **(part.get("file") or {})}
        elif kind == "input_audio":
            raise Unsupported(path, "The model's API takes no audio.")
        else:
            return part  # a part in this API's own form, or one that the backend refuses by its name
        if len(part) > 2:
            if (breakpoint_ := part.get("prompt_cache_breakpoint")) is not None:
                made["prompt_cache_breakpoint"] = breakpoint_
            self._lose(part, _PART_KEYS, "messages[].content[]")
        return made

    def _add_assistant(self, message: Mapping[str, Any], i: int) -> None:
        calls = message.get("tool_calls") or ()
        legacy = message.get("function_call")
        said = self._message_item(message)
        placed: dict[Any, list[dict[str, Any]]] = {}
        if DETAILS in message or "reasoning_content" in message or "reasoning" in message:
            placed, readable = self._reasoning(message, {call.get("id") for call in calls}, said is not None)
            if readable:
                self._items.append(_readable_message(readable))
        if said is not None:
            self._items += placed.get(None, ())
            self._items.append(said)
        elif not (calls or legacy):
            self._items.append({"type": "message", "role": "assistant", "content": ""})
        for call in calls:
            self._items += placed.get(call.get("id"), ())
            self._add_call(call)
        if legacy:
            sent = self._called[legacy.get("name")] = self._new_id(f"call_{i}")
            self._items.append(_function_call(sent, legacy))
        if "thinking_blocks" in message:
            self._lost["reasoning"] = None  # another provider's, in the words of LiteLLM's proxy
        if not message.keys() <= _ASSISTANT_KEYS:
            self._lose(message, _ASSISTANT_KEYS)

    def _message_item(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the item of what a message of the assistant says; None if that is nothing."""
        content, refusal = message.get("content"), message.get("refusal")
        texts = [content] if isinstance(content, str) else []
        for part in content if isinstance(content, list) else ():
            if part["type"] == "refusal":
                refusal = f"{refusal or ''}{part.get('refusal') or ''}"
            elif isinstance(part.get("text"), str):
                texts.append(part["text"])
            if len(part) > 2 or part["type"] not in _SAID_TYPES:
                self._lose(part, _SAID_KEYS, "messages[].content[]")
        text, annotations = "".join(texts), message.get("annotations")
        if not text and not refusal:
            return None
        item: dict[str, Any] = {"type": "message", "role": "assistant", "content": text}
        if refusal or annotations:
            # Only the API's own items have such parts, and these have an id.
            item["content"] = [_output_text(text, annotations)] if text else []
            if refusal:
                item["content"].append({"type": "refusal", "refusal": refusal})
            place = str(len(self._items)).encode()
            item["id"] = f"msg_{hashlib.sha256(place + orjson.dumps(item)).hexdigest()[:40]}"
            item["status"] = "completed"
        if (phase := message.get("phase")) is not None:
            item["phase"] = phase
        return item

    def _add_call(self, call: Mapping[str, Any]) -> None:
        if EXTRA in call:
            self._lost["reasoning"] = None  # Gemini's signature of the call
        sent = self._calls[call.get("id")] = self._new_id(call.get("id"))
        custom = call.get("custom")
        if isinstance(custom, dict):
            self._custom.add(sent)
            self._items.append(
                {
                    "type": "custom_tool_call",
                    "call_id": sent,
                    "name": custom.get("name"),
                    "input": custom.get("input") or "",
                }
            )
        else:
            self._items.append(_function_call(sent, call.get("function") or {}))

    def _new_id(self, given: object) -> str:
        """Return an id that the API accepts for a call with this one, which some models use for more than one call."""
        return _unused(_call_id(given), self._used)

    def _add_result(self, message: Mapping[str, Any], i: int) -> None:
        given = message.get("tool_call_id")
        sent = self._calls.get(given) or _call_id(given)
        kind = "custom_tool_call_output" if sent in self._custom else "function_call_output"
        self._items.append({"type": kind, "call_id": sent, "output": self._content(message, i)})
        if len(message) > 3:
            self._lose(message, _RESULT_KEYS)

    def _add_function_result(self, message: Mapping[str, Any], i: int) -> None:
        name = message.get("name")
        sent = self._called.pop(name, None)
        if sent is None:
            # Chat completions accepts such a message alone; this API accepts a result only after its call.
            sent = self._new_id(f"call_{i}")
            self._items.append(_function_call(sent, {"name": name}))
        self._items.append({"type": "function_call_output", "call_id": sent, "output": self._content(message, i)})

    def _reasoning(
        self, message: Mapping[str, Any], calls: set[Any], has_text: bool
    ) -> tuple[dict[Any, list[dict[str, Any]]], str]:
        """Return this backend's reasoning items by the id of the call that each precedes, None for the message; and the
        readable text of all other reasoning.
        """
        sealed: dict[Any, tuple[str, Any]] = {}
        readable: dict[Any, list[dict[str, Any]]] = {}
        foreign = False
        details = message.get(DETAILS)
        given = [one for one in details if isinstance(one, dict)] if isinstance(details, list) else []
        for detail in joined_details(given) if len(given) > 1 else given:
            ident = detail.get("id")
            if detail.get("type") == "reasoning.encrypted":
                data = detail.get("data")
                text = self._maker.unseal(data) if isinstance(data, str) else None
                before, text = (None, None) if text is None else opened(text)
                if text is None or not (before in calls if before else has_text):
                    foreign = True
                    continue
                if not isinstance(ident, str):
                    # Other dialects have no ids: the texts just before belong to it.
                    ident = f"rs_{hashlib.sha256(text.encode()).hexdigest()[:40]}"
                    if None in readable:
                        readable[ident] = [_summary_of(one) for one in readable.pop(None)]
                sealed[ident] = (text, before)
            else:
                foreign = foreign or bool(detail.get("signature"))
                readable.setdefault(ident if isinstance(ident, str) else None, []).append(detail)
        placed: dict[Any, list[dict[str, Any]]] = {}
        for ident, (text, before) in sealed.items():
            placed.setdefault(before, []).append(_reasoning_item(ident, text, readable.pop(ident, ())))
        if foreign:
            self._lost["reasoning"] = None
        texts = [text for rest in readable.values() for one in rest if (text := one.get("summary") or one.get("text"))]
        if not texts and not sealed:
            text = message.get("reasoning_content") or message.get("reasoning")
            return placed, text if isinstance(text, str) else ""
        return placed, "\n\n".join(texts)


def _unused(call_id: str, used: set[str]) -> str:
    """Return an id that is not in `used`, this one if possible, and add it: some models count theirs from 0 each time.

    The API takes a second result for an id as an error.
    """
    made, again = call_id, 1
    while made in used:
        again += 1
        made = f"{call_id[:56]}_{again}"
    used.add(made)
    return made


def _call_id(given: object) -> str:
    if isinstance(given, str) and _FITTING_ID.fullmatch(given):
        return given
    return f"call_{hashlib.sha256(str(given).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _function_call(call_id: str, function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else orjson.dumps(arguments).decode()
    return {"type": "function_call", "call_id": call_id, "name": function.get("name"), "arguments": arguments}


def placed_before(call_id: str, encrypted: str) -> str:
    """Return what to seal for encrypted reasoning before a tool call, so that it finds its place again; see `opened`.

    The call's id is sealed too, because clients return no other member of the detail for certain.
    """
    return f"{call_id}\n{encrypted}"


def opened(text: str) -> tuple[str | None, str]:
    """Return the id of the call after encrypted reasoning, None before a message, and the reasoning, without seal."""
    before, found, encrypted = text.partition("\n")
    return (before, encrypted) if found else (None, text)


def _summary_of(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "reasoning.summary", "summary": detail.get("summary") or detail.get("text") or ""}


def _readable_message(text: str) -> dict[str, Any]:
    """Return the item that keeps the readable part of another model's reasoning."""
    return {"type": "message", "role": "assistant", "content": f"<reasoning>\n{text}\n</reasoning>"}


def _output_text(text: str, annotations: object) -> dict[str, Any]:
    flat = []
    for one in annotations if isinstance(annotations, list) else ():
        if isinstance(one, dict):
            inner = one.get("url_citation")
            flat.append({"type": "url_citation", **inner} if isinstance(inner, dict) else one)
    return {"type": "output_text", "text": text, "annotations": flat}


def _reasoning_item(ident: str, encrypted: str, details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summary = [
        {"type": "summary_text", "text": one["summary"]} for one in details if one.get("type") == "reasoning.summary"
    ]
    item: dict[str, Any] = {"type": "reasoning", "id": ident, "summary": summary}
    content = [
        {"type": "reasoning_text", "text": one["text"]} for one in details if one.get("type") == "reasoning.text"
    ]
    if content:
        item["content"] = content
    if encrypted:
        item["encrypted_content"] = encrypted
    return item


# --- the client's own body --------------------------------------------------------------------------------------------


def _passed_on(
    own: Mapping[str, Any],
    body: Mapping[str, Any],
    maker: Maker,
    *,
    model: str,
    stream: bool,
    alternatives: int | None,
) -> ResponsesRequest:
    """Return the client's own request with the gateway's changes; `body` is its translation, which holds them."""
    lost: dict[str, None] = {}
    sent = {name: value for name, value in own.items() if name not in SAME}
    # Under these names the translation has the client's values, less what is not for this tenant or this model.
    sent |= {name: body[name] for name in own if name in SAME and name in body}
    sent["model"] = model
    sent["store"] = False  # the gateway itself keeps what it is to keep
    sent.pop("stream", None)
    limit = next((limit for name in _LIMITS if (limit := body.get(name)) is not None), None)
    if limit is not None and limit != own.get("max_output_tokens"):
        sent["max_output_tokens"] = max(limit, LEAST_OUTPUT_TOKENS)
    if _stop(body):
        lost["stop"] = None
    given = own.get("input")
    if isinstance(given, list):
        sent["input"] = _own_items(given, maker, lost)
    wants = LOGPROBS in (own.get("include") or ())
    _put_common(sent, wants=wants or alternatives is not None, alternatives=alternatives, stream=stream)
    return ResponsesRequest(
        sent, dropped=tuple(lost), native=True, hides_logprobs=alternatives is not None and not wants
    )


def _own_items(items: Sequence[Any], maker: Maker, lost: dict[str, None]) -> list[Any]:
    """Return the items with this backend's encrypted ones unsealed, and with the others' readable text only.

    After a removed item, those of the same turn get other ids, because the API knows which ones belong together.
    """
    kept: list[Any] = []
    used: set[str] = set()
    calls: dict[Any, str] = {}
    other_ids = False
    for given in items:
        item = given
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in ENCRYPTED_ITEMS:
            sealed = item.get("encrypted_content")
            text = maker.unseal(sealed) if isinstance(sealed, str) else None
            if text is None:
                readable = _readable(item)
                if sealed is not None or not readable:
                    lost["reasoning"] = None
                other_ids = True
                if readable:
                    kept.append(_readable_message(readable))
                continue
            item = {**item, "encrypted_content": opened(text)[1]}
            if not item["encrypted_content"]:
                del item["encrypted_content"]
        elif other_ids and isinstance(item, dict):
            if item.get("role") == "user":
                other_ids = False
            elif item.get("id") and kind in _OUTPUT_ITEMS:
                prefix = str(item["id"]).partition("_")[0]
                item = {**item, "id": f"{prefix}_{hashlib.sha256(str(item['id']).encode()).hexdigest()[:40]}"}
        if kind in _CALLS:
            call_id = str(item.get("call_id"))
            sent = calls[call_id] = _unused(call_id, used)
            item = _own_call(item, sent, lost)
        elif kind in _RESULTS and calls.get(item.get("call_id"), item.get("call_id")) != item.get("call_id"):
            item = {**item, "call_id": calls[item["call_id"]]}
        kept.append(item)
    return kept


def _own_call(item: dict[str, Any], call_id: str, lost: dict[str, None]) -> dict[str, Any]:
    """Return a call with this id, without Gemini's signature."""
    if EXTRA in item:
        lost["reasoning"] = None
        item = {name: value for name, value in item.items() if name != EXTRA}
    return item if item.get("call_id") == call_id else {**item, "call_id": call_id}


def _readable(item: Mapping[str, Any]) -> str:
    parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
    return "\n\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
