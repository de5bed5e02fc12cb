"""Say which tool calls a request allows, and find the call in an answer that cannot be. No I/O.

    not offered     a call of a tool that the request does not list
    not chosen      `tool_choice` names another tool, forbids calls, or requires one that the answer does not make
    parallel        several calls where `parallel_tool_calls` is false
    as text         a call written in the answer's text, in one of the forms that models are trained on: a server that
                    does not recognise its model's form passes it on as it stands

Rules and names are those of chat completions: the other APIs' requests and answers are translated before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from policies.value_type import value_type

NOT_OFFERED: Final = "call of a tool that was not offered"
NOT_CHOSEN: Final = "call of a tool that tool_choice does not name"
FORBIDDEN: Final = "call where tool_choice forbids it"
NOT_MADE: Final = "no call where tool_choice requires one"
PARALLEL: Final = "several calls where parallel_tool_calls is false"
AS_TEXT: Final = "call written as text"
EMPTY: Final = "finish reason tool_calls without a call"
CALL_FAULTS: Final = frozenset({NOT_OFFERED, NOT_CHOSEN, FORBIDDEN, NOT_MADE, PARALLEL, AS_TEXT, EMPTY})
"""Every fault that `call_fault` returns."""
_CALLING: Final = ("tool_calls", "function_call")
"""Finish reasons of an answer that calls a tool."""

# What only a model's own form of a call begins with. `[ \t]*` cannot reach the next line: the time is linear.
_MARKS: Final = re.compile(
    r"(?:^|</think>)[ \t]*(?:</?tool_calls?>|\[TOOL_CALLS\]|<\|python_tag\|>|functools\[\{"
    r"|<\|tool_calls?(?:_section)?_?(?:begin|start)?\|>|<｜tool▁calls?▁begin｜>|<start_function_call>"
    r"|<(?:\w{1,16}:)?(?:function_calls?|tool_call)>)"
    r"|<tool_call>\s{0,8}\{|\[TOOL_CALLS\] ?[\[\w]",
    re.MULTILINE,
)
# Forms that an answer may hold for other reasons: they count where they name a tool that was offered.
_NAMED: Final = re.compile(
    r"(?:^|</think>)[ \t]*(?:<function=|<(?:\w{1,16}:)?(?:invoke|function) name=\"|\[(?=[\w.-]{1,64}\()"
    r"|(?:<\|channel\|>)?commentary to=functions\.)([\w.-]{1,64})",
    re.MULTILINE,
)
_JSON: Final = re.compile(
    r"(?:^|</think>)[ \t]*(?:```[a-z_]{0,16}\s{0,16})?[\[{]\s{0,16}(?:\{\s{0,16})?"
    r"(?:\"type\"\s{0,4}:\s{0,4}\"function\"\s{0,4},\s{0,16})?(?:\"function\"\s{0,4}:\s{0,4}\{\s{0,16})?"
    r"\"(?:name|function|tool|tool_name)\"\s{0,4}:\s{0,4}\"([\w.-]{1,64})\"\s{0,16},\s{0,16}"
    r"\"(?:arguments|parameters|args|input|tool_input)\"\s{0,4}:",
    re.MULTILINE,
)


@value_type
class CallRules:
    """The calls that a request allows.

    `offered` are the names of its tools, None where some have no name here (a provider's own tools). `chosen` are those
    that `tool_choice` limits calls to, None where it names none.
    """

    offered: frozenset[str] | None = frozenset()
    chosen: frozenset[str] | None = None
    required: bool = False
    forbidden: bool = False
    parallel: bool = True


NOTHING_OFFERED: Final = CallRules()
"""The rules of a request without tools."""


def call_rules(body: Mapping[str, Any], *, more_tools: bool = False) -> CallRules:
    """Return the rules of a checked chat-completions body; `more_tools` says that it has tools beside those listed."""
    tools, functions = body.get("tools") or (), body.get("functions") or ()
    offered = None if more_tools else _names_of([*tools, *({"function": function} for function in functions)])
    parallel = body.get("parallel_tool_calls") is not False or (body.get("n") or 1) > 1
    choice = body.get("tool_choice") if tools else body.get("function_call")
    if not isinstance(choice, dict):
        return CallRules(offered, None, choice in ("required", "any"), choice == "none", parallel)
    allowed = choice.get("allowed_tools")
    if not isinstance(allowed, dict):
        name = _name_of(choice) or choice.get("name")
        return CallRules(offered, frozenset((name,)) if isinstance(name, str) else None, True, False, parallel)
    return CallRules(offered, _names_of(allowed.get("tools") or ()), allowed.get("mode") == "required", False, parallel)


def _names_of(tools: Sequence[object]) -> frozenset[str] | None:
    """Return the names of tools; None if one of them has none."""
    names = [name for tool in tools if (name := _name_of(tool)) is not None]
    return frozenset(names) if len(names) == len(tools) else None


def _name_of(tool: object) -> str | None:
    """Return the name of a tool, or of a choice of one."""
    if not isinstance(tool, dict):
        return None
    named = tool.get("function") or tool.get("custom")
    name = named.get("name") if isinstance(named, dict) else None
    return name if isinstance(name, str) else None


def call_fault(rules: CallRules, names: Sequence[str], text: str, finish_reason: str | None, *, complete: bool) -> str:
    """Return the first call that the rules do not allow, in a few words; empty if there is none.

    `names` are those of the calls so far, `text` the answer's text so far. Unless the answer is `complete`, the last
    name may still grow, and a call may yet come.
    """
    if not names:
        if rules.offered != frozenset() and is_call_as_text(text, rules.offered or frozenset()):
            return AS_TEXT
        if not complete or finish_reason == "length":
            return ""
        if rules.required:
            return NOT_MADE
        return EMPTY if finish_reason in _CALLING and rules.offered is not None else ""
    if rules.forbidden:
        return FORBIDDEN
    for at, name in enumerate(names):
        grows = not complete and at == len(names) - 1
        if rules.offered is not None and not _is_one_of(name, rules.offered, grows=grows):
            return NOT_OFFERED
        if rules.chosen is not None and not _is_one_of(name, rules.chosen, grows=grows):
            return NOT_CHOSEN
    return "" if rules.parallel or len(names) < 2 else PARALLEL


def _is_one_of(name: str, names: frozenset[str], *, grows: bool) -> bool:
    return name in names or (grows and any(known_name.startswith(name) for known_name in names))


def is_call_as_text(text: str, offered: frozenset[str]) -> bool:
    """Return whether a text holds a call in one of the forms of models, at the beginning of a line."""
    if _MARKS.search(text):
        return True
    return any(match[1] in offered for pattern in (_NAMED, _JSON) for match in pattern.finditer(text))
