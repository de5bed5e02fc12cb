"""What of older tool results is sent shorter: every shorter conversation is one that providers take."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.reasoning import NOBODY
from gateway.parts.agents.policy import InputRules
from gateway.parts.agents.shortening import history_span, minified, shorter_input
from gateway.parts.apis.dialects.messages.backend import messages_request
from gateway.parts.apis.dialects.messages.models import facts_of_model
from tests.support.strict_chat import StrictChat
from tests.support.strict_messages import StrictMessages

Json = dict[str, Any]
ALL = InputRules.model_validate({"tool_results": {"keep": 6}, "repeats": "drop", "minify": "json"})
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
LONG = "line after line of what was found " * 20
AS_JSON = json.dumps({"rows": [{"id": i, "name": f"a  b {i}"} for i in range(20)]}, indent=4)


def conversation(*results: list[Any], system: str = "Be kind.") -> list[Json]:
    """A conversation of an agent whose turns called tools with these results; a turn without any says something."""
    messages: list[Json] = [{"role": "system", "content": system}, {"role": "user", "content": "go"}]
    for turn, of_turn in enumerate(results):
        calls = [
            {"id": f"call_{turn}_{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            for n in range(len(of_turn))
        ]
        messages.append({"role": "assistant", "content": "so"} | ({"tool_calls": calls} if calls else {}))
        messages += [
            {"role": "tool", "tool_call_id": f"call_{turn}_{n}", "content": one} for n, one in enumerate(of_turn)
        ]
        if not calls:
            messages.append({"role": "user", "content": f"and {turn}?"})
    return messages


def shortened(messages: list[Json], rules: InputRules = ALL) -> list[Json]:
    """The conversation as it is sent."""
    texts = shorter_input(messages, rules).texts
    return [{**message, "content": texts[i]} if i in texts else message for i, message in enumerate(messages)]


def test_each_step_shortens_what_it_says() -> None:
    """Old results to a line, a repeated one to another, JSON without its white space; the last turns stay whole."""
    messages = conversation([LONG], [AS_JSON], ["short"], [LONG], *[[AS_JSON], [LONG], [LONG + "!"]] * 5)
    found = shorter_input(messages, ALL)
    sent = [message["content"] for message in shortened(messages) if message["role"] == "tool"]
    assert (
        sent[0] == f"[This result of {len(LONG)} characters was left out, as it is old. Call the tool again to see it.]"
    )
    assert sent[2] == "short"
    whole = [i for i, one in enumerate(sent) if one in (LONG, AS_JSON, LONG + "!")]
    assert set(range(len(sent) - 2, len(sent))) <= set(whole)
    assert json.loads(next(one for one in sent if one.startswith('{"rows"'))) == json.loads(AS_JSON)
    assert any(one.startswith("[The same result") for one in sent)
    assert found.saved.keys() == {"tool_results", "repeats", "minify"} and min(found.saved.values()) > 0


def test_a_repeat_of_what_was_left_out_is_sent() -> None:
    """A line may only refer to what the model is shown."""
    sent = shortened(conversation(*[[LONG]] * 16))
    contents = [message["content"] for message in sent if message["role"] == "tool"]
    kinds = ["stub" if one.startswith("[This") else "whole" if one == LONG else "repeat" for one in contents]
    assert kinds == ["stub"] * 6 + ["whole"] + ["repeat"] * 5 + ["whole"] * 4


_RESULTS = st.sampled_from([LONG, LONG, AS_JSON, "ok", "", "[" * 500, '{"a": 1.0, "a": 1e400}' + " " * 500, LONG * 3])
_CONVERSATIONS = st.lists(st.lists(_RESULTS, max_size=3), max_size=24)
_RULES = st.builds(
    lambda keep, results, repeats, minify: InputRules.model_validate(
        {"keep": keep, "tool_results": {"keep": results}, "repeats": repeats, "minify": minify}
    ),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(["drop", None]),
    st.sampled_from(["json", None]),
)


@pytest.fixture(scope="module")
def chat() -> Iterator[StrictChat]:
    with StrictChat("plain") as server:
        yield server


@pytest.fixture(scope="module")
def claude() -> Iterator[StrictMessages]:
    with StrictMessages() as server:
        yield server


@given(_CONVERSATIONS, _RULES)
@settings(max_examples=60, deadline=None)
def test_every_provider_takes_what_is_left(
    chat: StrictChat, claude: StrictMessages, results: list[list[str]], rules: InputRules
) -> None:
    """Calls and results in pairs, roles in turn, no empty content: as chat completions and as Anthropic's messages."""
    body = {"model": "m", "messages": shortened(conversation(*results), rules), "tools": TOOLS}
    assert chat.refusal_of(body) is None
    made = messages_request(body, "claude-sonnet-5", facts_of_model("claude-sonnet-5"), NOBODY, stream=False)
    assert claude.refusal_of(made.body) is None


@given(_CONVERSATIONS, st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_every_provider_takes_a_summary_in_place_of_a_span(
    chat: StrictChat, claude: StrictMessages, results: list[list[str]], keep: int
) -> None:
    """It begins behind the user's first message, and ends at a turn of the assistant, the last turns behind it."""
    messages = conversation(*results)
    span = history_span(messages, keep)
    if not span:
        return
    assert span.start == 2 and messages[span.stop]["role"] == "assistant"
    assert sum(message["role"] == "assistant" for message in messages[span.stop :]) >= keep
    instead = [{"role": "assistant", "content": "So far"}, {"role": "user", "content": "Go on."}]
    body = {"model": "m", "messages": [*messages[: span.start], *instead, *messages[span.stop :]], "tools": TOOLS}
    assert chat.refusal_of(body) is None
    made = messages_request(body, "claude-sonnet-5", facts_of_model("claude-sonnet-5"), NOBODY, stream=False)
    assert claude.refusal_of(made.body) is None


def test_a_summary_stands_for_no_system_text_and_no_unanswered_call() -> None:
    """Nor for what the beginning of another conversation would be."""
    messages = conversation(*[["found"]] * 12)
    assert history_span(messages, 2)
    for place, other in ((4, {"role": "system", "content": "Be brief."}), (5, {"role": "user", "content": "hm"})):
        assert not history_span([*messages[:place], other, *messages[place + 1 :]], 2)
    assert not history_span(messages[2:], 2)


@given(_CONVERSATIONS, _RULES)
@settings(max_examples=100, deadline=None)
def test_nothing_else_changes(results: list[list[str]], rules: InputRules) -> None:
    """Neither the system's text, nor what was said or called, nor the last turns; and nothing becomes longer."""
    before = conversation(*results)
    after = shortened(before, rules)
    assert len(after) == len(before)
    turns = [i for i, message in enumerate(before) if message["role"] == "assistant"]
    last = turns[-rules.keep] if len(turns) >= rules.keep else 0
    for i, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            assert i < last and one["role"] == "tool"
            assert {**one, "content": ""} == {**other, "content": ""}
            assert len(other["content"]) < len(one["content"])


@given(_CONVERSATIONS, _RULES)
@settings(max_examples=100, deadline=None)
def test_a_longer_conversation_begins_as_the_shorter_one_did(results: list[list[str]], rules: InputRules) -> None:
    """Of any four turns three leave the beginning as it was, so that a provider's cache of it stays warm."""
    sent = [shortened(conversation(*results[:count]), rules) for count in range(len(results) + 1)]
    changed = [longer[: len(one)] != one for one, longer in itertools.pairwise(sent)]
    moves = len({(count - keep) // max(keep, 4) for keep in _keeps(rules) for count in range(keep, len(results) + 1)})
    assert sum(changed) <= 2 * moves
    if len(_keeps(rules)) == 1:
        places = [i for i, one in enumerate(changed) if one]
        assert all(later - one >= 4 for one, later in itertools.pairwise(places))


def _keeps(rules: InputRules) -> set[int]:
    assert rules.tool_results is not None
    return {rules.keep, max(rules.keep, rules.tool_results.keep)}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(_VALUES, st.sampled_from([1, 4, "\t"]), st.booleans())
def test_minified_json_says_the_same(value: Any, indent: Any, escaped: bool) -> None:
    """To every reader: only white space between tokens goes."""
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert json.loads(minified(text)) == value
    assert len(minified(text)) <= len(text)


@pytest.mark.parametrize(
    "text", ["not JSON {", '{"a": 1', "[1, 2] and more", "{ no: JSON }", '"a  text"', "", "{ } x", "3  "]
)
def test_what_is_no_json_stays_as_it_is(text: str) -> None:
    """A text that looks like it, too."""
    assert minified(text) == text
