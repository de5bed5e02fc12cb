"""Which tool calls does a request allow, and which of an answer's cannot be?"""

from __future__ import annotations

import time
from typing import Any

import pytest

from policies.model import Escalate
from routing.confidence import calls
from routing.confidence.calls import CallRules, call_fault, call_rules, is_call_as_text
from routing.confidence.judge import Evidence, outcome_of_verdict, structural_fault

OFFERED = frozenset({"get_weather", "get_time"})
TOOLS = [{"type": "function", "function": {"name": name}} for name in sorted(OFFERED)]
ONE = {"type": "function", "function": {"name": "get_time"}}


def fault_of(body: dict[str, Any], *names: str, text: str = "", finish: str = "stop", complete: bool = True) -> str:
    return call_fault(call_rules({"tools": TOOLS, **body}), names, text, finish, complete=complete)


@pytest.mark.parametrize(
    ("body", "names", "fault"),
    [
        ({}, ["get_time"], ""),
        ({}, ["get_time", "get_weather"], ""),
        ({}, [], ""),
        ({}, ["search_web"], calls.NOT_OFFERED),
        ({}, ["get_time", "search_web"], calls.NOT_OFFERED),
        ({}, [""], calls.NOT_OFFERED),
        ({"tools": []}, ["get_time"], calls.NOT_OFFERED),
        ({"tools": None, "functions": [{"name": "old"}]}, ["old"], ""),
        ({"tools": None, "functions": [{"name": "old"}]}, ["new"], calls.NOT_OFFERED),
        ({"tools": None, "functions": [{"name": "old"}], "function_call": {"name": "old"}}, [], calls.NOT_MADE),
        ({"tools": [{"type": "custom", "custom": {"name": "patch"}}]}, ["patch"], ""),
        ({"tool_choice": "required"}, [], calls.NOT_MADE),
        ({"tool_choice": "required"}, ["get_time"], ""),
        ({"tool_choice": "none"}, ["get_time"], calls.FORBIDDEN),
        ({"tool_choice": "auto"}, ["get_time"], ""),
        ({"tool_choice": ONE}, ["get_time"], ""),
        ({"tool_choice": ONE}, ["get_weather"], calls.NOT_CHOSEN),
        ({"tool_choice": ONE}, [], calls.NOT_MADE),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ONE]}}}, [], ""),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ONE]}}},
            ["get_weather"],
            calls.NOT_CHOSEN,
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [ONE]}}},
            [],
            calls.NOT_MADE,
        ),
        ({"parallel_tool_calls": False}, ["get_time"], ""),
        ({"parallel_tool_calls": False}, ["get_time", "get_time"], calls.PARALLEL),
        ({"parallel_tool_calls": False, "n": 2}, ["get_time", "get_time"], ""),
    ],
)
def test_calls_are_held_against_the_request(body: dict[str, Any], names: list[str], fault: str) -> None:
    """The tools that were offered, and what tool_choice and parallel_tool_calls say."""
    assert fault_of(body, *names) == fault


def test_an_answer_that_says_it_calls_must_call() -> None:
    """A finish reason of tool_calls without any call is none that a client could carry out."""
    assert fault_of({}, finish="tool_calls", text="Let me see.") == calls.EMPTY


def test_a_beginning_is_judged_by_what_cannot_change_any_more() -> None:
    """A wrong name, a forbidden or a second call are known at once; a call may yet come, and a name may yet grow."""
    assert fault_of({}, "search", complete=False) == calls.NOT_OFFERED
    assert fault_of({}, "get_", complete=False) == ""
    assert fault_of({}, "get_") == calls.NOT_OFFERED
    assert fault_of({"tool_choice": "required"}, text="Let me", complete=False) == ""
    assert fault_of({"tool_choice": "none"}, "", complete=False) == calls.FORBIDDEN
    assert fault_of({"parallel_tool_calls": False}, "get_time", "", complete=False) == calls.PARALLEL


def test_a_providers_own_tools_are_not_known_by_name() -> None:
    """Then no name is held against the list, but the rest is."""
    rules = call_rules({"tools": TOOLS}, more_tools=True)
    assert call_fault(rules, ["bash"], "", "tool_calls", complete=True) == ""
    assert call_fault(call_rules({"tools": [{"type": "odd"}]}), ["bash"], "", "stop", complete=True) == ""


AS_TEXT = [
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    'Let me look. <tool_call>{"name": "search_web"}',
    "<think>hm</think><tool_call>",
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {}}]',
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    '<function=get_weather>{"city": "Paris"}</function>',
    'Sure.\n```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
    '{"type": "function", "function": {"name": "get_weather", "arguments": {}}}',
    '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    '<|python_tag|>get_weather.call(city="Paris")',
    '<function_calls>\n<invoke name="get_weather">',
    '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>',
    '[get_weather(city="Paris")]',
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{}",
    "<|tool_calls_section_begin|>",
    "<｜tool▁calls▁begin｜>",
    "<minimax:tool_call>",
]


@pytest.mark.parametrize("text", AS_TEXT)
def test_a_call_in_a_models_own_form_is_no_answer(text: str) -> None:
    """Where tools were offered; whoever offers none may be asking about these forms."""
    assert fault_of({}, text=text) == calls.AS_TEXT
    assert fault_of({}, text=text, complete=False) == calls.AS_TEXT
    assert fault_of({"tools": []}, text=text) == ""
    assert fault_of({}, "get_time", text=text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "The `<tool_call>` tag is what Hermes writes.",
        '```json\n{"name": "Paris", "arguments": 1}\n```',
        '{"name": "Ada", "age": 36}',
        "[get_weather](https://example.com)",
        'I would call get_weather("Paris").',
        "<function=other>",
    ],
)
def test_what_only_resembles_a_call_is_an_answer(text: str) -> None:
    """JSON, code and markup that name no tool of the request."""
    assert fault_of({}, text=text) == ""


@pytest.mark.parametrize("piece", ["\n", " ", "\n ", "<", "[", "{", '{"name": "a", ', "```\n", "\n```json\n", "\n[a"])
def test_the_time_to_look_for_a_call_grows_with_the_text_alone(piece: str) -> None:
    """Ten times the text takes some ten times as long, whatever it consists of."""

    def seconds(characters: int) -> float:
        text = (piece * characters)[:characters]
        least = 1.0
        for _ in range(3):
            began = time.thread_time()  # whatever else this machine does
            is_call_as_text(text, OFFERED)
            least = min(least, time.thread_time() - began)
        return least

    assert seconds(100_000) < 40 * seconds(10_000) + 0.01


CHECKED = Escalate.model_validate({"when": {"invalid": ["tool_args", "tool_calls"]}})


@pytest.mark.parametrize(("arguments", "fits"), [("", True), (" ", True), ("{}", True), ("[]", False), ("{", False)])
def test_nothing_is_the_arguments_of_a_tool_without_any(arguments: str, fits: bool) -> None:
    """A JSON object or nothing: a list, a text or half an object are not what a tool is called with."""
    evidence = Evidence("", tool_names=["get_time"], tool_arguments=[arguments], has_other_output=True)
    assert structural_fault(evidence, CHECKED) == ("" if fits else "invalid tool arguments")


def test_a_fault_of_a_call_is_named_and_is_not_a_matter_of_confidence() -> None:
    """The judge's reason names it, and the attempt's outcome is its own."""
    evidence = Evidence(
        "", tool_names=["x"], tool_arguments=["{}"], has_other_output=True, call_rules=CallRules(OFFERED)
    )
    assert structural_fault(evidence, CHECKED) == calls.NOT_OFFERED
    assert outcome_of_verdict(calls.NOT_OFFERED) == "unfit"
    assert outcome_of_verdict("confidence 0.4 < 0.8 (logprob)") == "low_confidence"
