"""Translate a chat-completions body into a request to Anthropic's Messages API.

A client of the same dialect has its own body sent (see `gateway.dialects.native`), but for what the gateway may change:
the model, the stream, output limits, sampling, texts added to the conversation, and thinking that another backend
made. Either body is then fitted to the model (`fit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.native import Native, client_paths, lost_fields, native_body
from gateway.dialects.reasoning import Maker
from gateway.parts.apis.dialects.messages.fit import EFFORT_OF, LEAST_BUDGET, SAMPLING, budget_of, fit_to_model
from gateway.parts.apis.dialects.messages.models import ClaudeFacts
from gateway.parts.apis.dialects.messages.turns import (
    CACHE,
    REASONING,
    MessageTurns,
    append_turn,
    blocks_of,
    readable_message,
)
from gateway.parts.apis.dialects.schemas import as_one_object, fit_for_anthropic, is_one_object
from policies.value_type import value_type

VERSION: Final = "2023-06-01"
"""Version of the API for requests that are not a client's own: the last that takes `temperature`."""
_NO_HEADERS: Final[Mapping[str, str]] = {}
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_MOST_MARKERS: Final = 4
"""Most markers of the prompt cache that the API takes in a request."""

_READ: Final = frozenset(
    {
        "messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "top_k", "stop", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls",
        "reasoning_effort", "reasoning", "response_format", "user", "safety_identifier", "metadata", "service_tier",
        "thinking", "output_config",
    }
)  # fmt: skip
"""Fields that `_translated` reads."""
_UNKNOWN_TO_ANTHROPIC: Final = frozenset(
    {
        # the API's own, but of what its account keeps, which all of the gateway's clients share
        "container",
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
"""Fields of chat completions that are not sent to the Messages API, which refuses most, but listed."""
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


def protocol_of(body: Mapping[str, Any], native: Native | None) -> Mapping[str, str]:
    """Return the client's own protocol headers to send with its request; none for a client of another dialect."""
    if native is None or native.dialect != "messages":
        return _NO_HEADERS
    headers = native.protocol
    if "anthropic-version" in headers and any(body.get(name) is not None for name in SAMPLING):
        return {**headers, "anthropic-version": VERSION}  # later versions refuse these fields
    return headers


def messages_request(
    body: Mapping[str, Any],
    model: str,
    facts: ClaudeFacts,
    maker: Maker,
    *,
    stream: bool,
    native: Native | None = None,
) -> MessagesRequest:
    """Return the request for a chat-completions body, and its own form. `maker` is the backend, whose thinking is sent.

    Thinking that another backend made is left out.
    """
    own = native_body(native, "messages")
    dropped: list[str] = []
    if native is None or own is None:
        sent = _translated(body, facts, maker, dropped)
    else:
        sent = _own(own, body, native.messages, facts, maker, dropped)
    sent["model"] = model
    sent.pop("stream", None)
    if stream:
        sent["stream"] = True
    unfit: list[str] = []
    fit_to_model(sent, facts, unfit, removed=REASONING in dropped)
    if own is not None:
        return MessagesRequest(sent, tuple(dict.fromkeys((*dropped, *unfit))))
    dropped += [_name_in_chat(path, body) for path in unfit]
    if native is None:
        return MessagesRequest(sent, tuple(dict.fromkeys(dropped)))
    listed = (*lost_fields(native, "messages"), *client_paths(native, dropped))
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
    own: Mapping[str, Any], body: Mapping[str, Any], count: int, facts: ClaudeFacts, maker: Maker, dropped: list[str]
) -> dict[str, Any]:
    """Return the client's own body with the gateway's changes to the chat-completions body it was translated to.

    That had `count` messages.
    """
    sent = dict(own)
    messages: list[Any] = []
    said_by_system = False
    for i, message in enumerate(own["messages"]):
        kept = readable_message(message, i, maker, dropped)
        if kept is None:
            continue
        if message.get("role") == "system" and not facts.system_turns:
            # Claude Code sends such messages; models that know no system turns get them from the user.
            dropped.append(f"messages[{i}].role")
            kept, said_by_system = _as_users(message, i, dropped), True
            if kept is None:
                continue
        if said_by_system:
            content = kept.get("content")
            append_turn(messages, kept["role"], blocks_of(content, i, dropped) if isinstance(content, str) else content)
        else:
            messages.append(kept)
    for i, message in enumerate(body["messages"][count:], count):  # the gateway's own, such as a text to continue
        append_turn(messages, message["role"], blocks_of(message.get("content"), i, dropped))
    sent["messages"] = messages
    sent["max_tokens"] = _limit(body) or own["max_tokens"]
    if stop := _stop_sequences(body, dropped, "stop_sequences"):
        sent["stop_sequences"] = stop
    else:
        sent.pop("stop_sequences", None)
    for name in SAMPLING:
        if body.get(name) is not None:
            sent[name] = body[name]
        else:
            sent.pop(name, None)
    _add_user(body, sent, [])
    return sent


def _as_users(message: Mapping[str, Any], i: int, dropped: list[str]) -> dict[str, Any] | None:
    """Return the texts of a system's turn as one of the user; None if it has none, but settings or tools alone."""
    dropped += [f"messages[{i}].{name}" for name in message if name not in ("role", "content")]
    content = message.get("content")
    if isinstance(content, list):
        is_text = [isinstance(block, dict) and block.get("type") == "text" for block in content]
        dropped += [f"messages[{i}].content[{j}]" for j, text in enumerate(is_text) if not text]
        content = [block for block, text in zip(content, is_text, strict=True) if text]
    return {"role": "user", "content": content} if content else None


# --- a chat-completions body ------------------------------------------------------------------------------------------


def _translated(body: Mapping[str, Any], facts: ClaudeFacts, maker: Maker, dropped: list[str]) -> dict[str, Any]:
    sent: dict[str, Any] = {"max_tokens": _limit(body) or facts.default_output}
    turns = MessageTurns(maker, dropped)
    sent["messages"] = turns.of(body["messages"])
    if system := turns.system:
        plain = len(system) == 1 and system[0].keys() == {"type", "text"}
        sent["system"] = system[0]["text"] if plain else system
    for name in SAMPLING:
        if (value := body.get(name)) is not None:
            sent[name] = value
    if stop := _stop_sequences(body, dropped, "stop"):
        sent["stop_sequences"] = stop
    _add_tools(body, sent, dropped)
    if "tools" not in sent:
        _define_called_tools(sent)
    _keep_last_markers(sent, dropped, of_parts=turns.of_parts)
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
    limit: int | None = body.get("max_completion_tokens")
    older: int | None = body.get("max_tokens")
    if limit is None or older is None:
        return older if limit is None else limit
    return min(limit, older)


def _stop_sequences(body: Mapping[str, Any], dropped: list[str], name: str) -> list[str]:
    """Return the stop sequences, less those of white space alone, which the API refuses; `name` is the field's."""
    stop = body.get("stop")
    if stop is None:
        return []
    given = [stop] if isinstance(stop, str) else stop
    taken = [text for text in given if text.strip()]
    if len(taken) < len(given):
        dropped.append(name)
    return taken


_NO_CHOICE: Final = (None, "auto", "none")
"""Choices that ask for no tool."""


def _add_tools(body: Mapping[str, Any], sent: dict[str, Any], dropped: list[str]) -> None:
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if isinstance(function, dict):
            made, lost = _tool(function, tool)
            tools.append(made)
            dropped += [f"tools[{i}].function.parameters.{name}" for name in lost]
            if "strict" in function and function["strict"] and "strict" not in made:
                dropped.append(f"tools[{i}].function.strict")
        elif (kind := tool.get("type")) in (None, "function") or (kind == "custom" and "input_schema" not in tool):
            dropped.append(f"tools[{i}]")
        else:
            tools.append(dict(tool))  # one of the API's own
    for i, function in enumerate(body.get("functions") or ()):
        made, lost = _tool(function, {})
        tools.append(made)
        dropped += [f"functions[{i}].parameters.{name}" for name in lost]
    choice = body.get("tool_choice")
    if choice is None and (called := body.get("function_call")) is not None:
        choice = called if isinstance(called, str) else {"type": "function", "function": called}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or {}
        names = {(tool.get("function") or tool).get("name") for tool in allowed.get("tools") or ()}
        tools = [tool for tool in tools if tool.get("name") in names]
        choice = allowed.get("mode", "auto")
    if not tools:
        if choice not in _NO_CHOICE:
            dropped.append("tool_choice")
        return
    sent["tools"] = tools
    if choice is not None or body.get("parallel_tool_calls") is False:
        _add_choice(choice, body, sent, dropped)


def _add_choice(choice: Any, body: Mapping[str, Any], sent: dict[str, Any], dropped: list[str]) -> None:
    chosen = _choice(choice)
    if chosen is None:
        dropped.append("tool_choice")
        chosen = {"type": "auto"}
    if body.get("parallel_tool_calls") is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    if len(chosen) > 1 or chosen["type"] != "auto":
        sent["tool_choice"] = chosen


def _define_called_tools(sent: dict[str, Any]) -> None:
    """Define the tools of the conversation's calls for a request without tools, which the API refuses otherwise."""
    names = dict.fromkeys(block["name"] for block in content_blocks(sent) if block["type"] == "tool_use")
    if names:
        sent["tools"] = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in names]
        sent["tool_choice"] = {"type": "none"}


def _keep_last_markers(sent: dict[str, Any], dropped: list[str], *, of_parts: bool) -> None:
    """Leave the markers of the prompt cache where the longest beginnings end, if there are too many.

    `of_parts`: whether the content of a message was a list, whose parts alone can have markers.
    """
    blocks = sent.get("tools", ())
    if of_parts:
        system = sent.get("system")
        blocks = [*blocks, *(system if isinstance(system, list) else ()), *content_blocks(sent)]
    marked = [block for block in blocks if CACHE in block]
    for block in marked[:-_MOST_MARKERS]:
        del block[CACHE]
        dropped.append(CACHE)


def content_blocks(sent: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of the messages, and those within tools' results."""
    blocks: list[dict[str, Any]] = []
    for message in sent["messages"]:
        content = message["content"]
        if isinstance(content, list):
            for block in content:
                if block["type"] == "tool_result" and isinstance(inner := block.get("content"), list):
                    blocks += inner
                blocks.append(block)
    return blocks


def _tool(function: Mapping[str, Any], tool: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a function as a tool of the API, and the keywords at the top of its schema that could not be kept."""
    schema = function.get("parameters")
    lost: list[str] = []
    if not schema:
        schema, typed = None, {"type": "object", "properties": {}}
    elif is_one_object(schema):
        typed = schema
    else:
        schema, lost = as_one_object(schema)
        typed = schema
    made: dict[str, Any] = {"name": function.get("name"), "input_schema": typed}
    if description := function.get("description"):
        made["description"] = description
    if function.get("strict"):
        fitted = fit_for_anthropic(schema or _NO_PARAMETERS)
        if fitted is not None and fitted.whole:
            made |= {"strict": True, "input_schema": fitted.schema}
    if CACHE in tool:
        made[CACHE] = tool[CACHE]
    return made, lost


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
    if effort in EFFORT_OF:
        dropped.append(where)
    if facts.thinking != "budget":
        sent["thinking"] = {"type": "adaptive"}
    else:
        wanted = max(budget, LEAST_BUDGET) if isinstance(budget, int) else budget_of(effort)
        sent["thinking"] = {"type": "enabled", "budget_tokens": wanted}
    if isinstance(effort, str) and facts.efforts:
        level = EFFORT_OF.get(effort, effort)
        sent["output_config"] = {**(sent.get("output_config") or {}), "effort": level}


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
    if metadata:
        dropped += [f"metadata.{name}" for name in metadata if name != "user_id"]
    tier = body.get("service_tier")
    if tier in ("auto", "standard_only"):
        sent["service_tier"] = tier
    elif tier == "default":
        sent["service_tier"] = "standard_only"
    elif tier is not None:
        dropped.append("service_tier")
