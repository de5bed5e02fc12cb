"""Translate a chat-completions body into the body of a request to OpenAI's Responses API.

What the two APIs call by different names is renamed, unknown fields are passed on, and everything else is either listed
as dropped (it changes how an answer is made, not what it answers) or raises `Unsupported`.

The backend keeps no state for us: the whole conversation is in `input` (`input_items.py`), nothing is stored unless the
client says so, and reasoning travels encrypted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.native import Native
from gateway.dialects.reasoning import Maker
from gateway.parts.apis.dialects.responses.input_items import InputItems, Unsupported, own_items
from gateway.parts.apis.dialects.responses.reading import ENCRYPTED, IDLE, LOGPROBS, SAME
from policies.value_type import value_type

LEAST_OUTPUT_TOKENS: Final = 16
"""Smallest `max_output_tokens` that the API accepts."""
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_OPENROUTERS: Final = frozenset({"enabled", "exclude", "max_tokens"})
"""Members of OpenRouter's `reasoning` that this API's lacks."""
_LIMITS: Final = ("max_completion_tokens", "max_tokens")


@value_type
class ResponsesRequest:
    """Hold a translated request, and what is needed to read its reply.

    `dropped` lists the paths of what could not be said. `stop` holds the stop sequences: the API knows none, so the
    reply is cut at them. `legacy` is true if the client expects `function_call` instead of `tool_calls`, `native` if it
    gets the reply's own events. `hides_logprobs`: it did not ask for the log-probabilities that the reply will have.
    """

    body: dict[str, Any]
    dropped: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    legacy: bool = False
    native: bool = False
    hides_logprobs: bool = False


def request_of(
    body: Mapping[str, Any],
    maker: Maker,
    *,
    model: str,
    stream: bool,
    alternatives: int | None,
    native: Native | None = None,
) -> ResponsesRequest:
    """Translate a chat-completions body into the request to send to a Responses API. Raises Unsupported.

    A client's own Responses body (`native`) is passed on instead. `alternatives` asks for the log-probabilities of the
    tokens and of this many alternatives to each; None leaves that to the client.
    """
    if native is not None and native.dialect == "responses":
        return _passed_on(native, body, maker, model=model, stream=stream, alternatives=alternatives)
    lost: dict[str, None] = {}
    _refuse(body)
    sent = {name: value for name, value in body.items() if value is not None and name not in _TRANSLATED}
    sent["model"] = model
    sent["input"] = InputItems(maker, lost).of(body["messages"])
    _put_tools(body, sent, lost)
    _put_text(body, sent)
    if (limit := _limit_of(body)) is not None:
        sent["max_output_tokens"] = _enough(limit, body, lost)
    _put_reasoning(body, sent, lost)
    for name, harmless in _CANNOT_SAY.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            lost[name] = None
    if native is not None and sent.pop("top_k", None) is not None:
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
        "web_search_options", "text",
    }
)  # fmt: skip
"""Fields that are not passed on under their own name. `text` is one that a client may add to the API's own."""
_OF_ACCOUNT: Final = ("background", "conversation", "previous_response_id", "prompt")
"""Fields of this API that name what its account keeps, which all of the gateway's clients share."""
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
    for name in _OF_ACCOUNT:
        if body.get(name):
            raise Unsupported(name, f"{name} is not passed on: the provider keeps it for all users of the gateway.")


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return tuple(text for text in stop if text) if stop else ()


def _limit_of(body: Mapping[str, Any]) -> int | None:
    return next((limit for name in _LIMITS if (limit := body.get(name)) is not None), None)


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


# --- the client's own body --------------------------------------------------------------------------------------------


def _passed_on(
    native: Native,
    body: Mapping[str, Any],
    maker: Maker,
    *,
    model: str,
    stream: bool,
    alternatives: int | None,
) -> ResponsesRequest:
    """Return the client's own request with the gateway's changes; `body` is its translation, which holds them."""
    own = native.body
    # The account need not know who asks, and is asked for no response in the background.
    lost = dict.fromkeys((*(own.keys() & IDLE), *(native.lost.keys() & {"background_options"})))
    sent = {name: value for name, value in own.items() if name not in SAME and name not in IDLE}
    # Under these names the translation has the client's values, less what is not for this tenant or this model.
    sent |= {name: body[name] for name in own if name in SAME and name in body}
    sent["model"] = model
    sent["store"] = False  # the gateway itself keeps what it is to keep
    sent.pop("stream", None)
    limit = _limit_of(body)
    if limit is not None and limit != own.get("max_output_tokens"):
        sent["max_output_tokens"] = max(limit, LEAST_OUTPUT_TOKENS)
    # The API knows no stop sequences, and its own events cannot be cut: the reply is then translated, unless it may
    # hold what chat completions do not have.
    stop = _stop(body)
    translated = bool(stop) and not native.needs
    if stop and not translated:
        lost["stop"] = None
    given = own.get("input")
    if isinstance(given, list):
        sent["input"] = own_items(given, maker, lost)
    wants = LOGPROBS in (own.get("include") or ())
    _put_common(sent, wants=wants or alternatives is not None, alternatives=alternatives, stream=stream)
    return ResponsesRequest(
        sent,
        dropped=tuple(lost),
        stop=stop if translated else (),
        native=not translated,
        hides_logprobs=alternatives is not None and not wants,
    )
