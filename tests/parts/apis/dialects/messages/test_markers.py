"""Markers of Anthropic's prompt cache: where they stand, and that the API takes every request that gets some."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parts.apis.dialects.messages.markers import SystemTexts, add_markers
from tests.support.prompt_caches import blocks_of, marker_faults

Json = dict[str, Any]
CONTROL = {"type": "ephemeral"}
LONG = "A rule that everybody follows. " * 200


def marked(body: Json) -> list[str]:
    """Where a body has markers."""
    return [place for place, block in blocks_of(body) if "cache_control" in block]


def request(*messages: tuple[str, Any], **more: Any) -> Json:
    """A request with these messages."""
    return {"messages": [{"role": role, "content": content} for role, content in messages], **more}


def test_the_last_two_turns_the_system_text_and_the_tools_are_marked() -> None:
    """Each beginning that comes again, in this order, and nothing of what was given is changed."""
    tools = [{"name": "a"}, {"name": "b"}, {"name": "c", "defer_loading": True}]
    body = request(("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "5"))
    body |= {"tools": tools, "system": LONG}
    before = str(body)
    sent = dict(body)
    assert add_markers(sent, CONTROL, 1024, SystemTexts(), goes_on=True) == (
        "tools", "system", "messages[2]", "messages[4]",
    )  # fmt: skip
    assert marked(sent) == ["tools.1", "system.0", "messages.2.content.0", "messages.4.content.0"]
    assert str(body) == before


def test_no_marker_stands_where_the_api_takes_none() -> None:
    """Blank texts and thinking are passed over for the block before them; a turn without any other is left alone."""
    results = [{"type": "tool_result", "tool_use_id": "t", "content": "found"}, {"type": "text", "text": " "}]
    sent = request(("user", "  "), ("assistant", [{"type": "thinking", "thinking": "hm"}]), ("user", results))
    sent["system"] = [{"type": "text", "text": LONG}, {"type": "text", "text": "\n"}]
    add_markers(sent, CONTROL, 1024, SystemTexts(), goes_on=True)
    assert marked(sent) == ["system.0", "messages.2.content.0"]


def test_a_short_head_is_not_marked() -> None:
    """The conversation may be long enough all the same."""
    sent = request(("user", LONG), ("assistant", "yes"), ("user", "go on"), system="Be kind.")
    assert add_markers(sent, CONTROL, 1024, SystemTexts(), goes_on=True) == ("messages[0]", "messages[2]")


def test_system_texts_are_forgotten_after_five_minutes() -> None:
    """As the provider forgets them, so that nothing is written for nobody."""
    now = [0.0]
    seen = SystemTexts(lambda: now[0])
    assert [seen.come_again(("a",)), seen.come_again(("a",)), seen.come_again(("b",))] == [False, True, False]
    now[0] = 301.0
    assert not seen.come_again(("a",))
    for i in range(600):
        seen.come_again((str(i),))
    assert not seen.come_again(("a",))


_BLOCKS = st.sampled_from(
    [
        {"type": "text", "text": "words"},
        {"type": "text", "text": " "},
        {"type": "image", "source": {"type": "url", "url": "https://a.example"}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "found"}]},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
    ]
)
_TURNS = st.tuples(st.sampled_from(["user", "assistant", "system"]), st.lists(_BLOCKS, min_size=1) | st.just("words"))
_TOOLS = st.lists(
    st.sampled_from([{"name": "a"}, {"type": "bash_20250124", "name": "bash"}, {"name": "b", "defer_loading": True}])
)


@given(
    st.lists(_TURNS, min_size=1, max_size=8),
    _TOOLS,
    st.sampled_from(["", LONG, [{"type": "text", "text": LONG}, {"type": "text", "text": ""}]]),
    st.booleans(),
    st.sampled_from([CONTROL, {"type": "ephemeral", "ttl": "1h"}]),
)
def test_the_api_takes_every_marked_request(
    turns: list[Any], tools: list[Json], system: Any, goes_on: bool, control: Json
) -> None:
    """At most four markers, none where one may not stand; and a request that has them gets no more."""
    sent = request(*turns, tools=tools, system=system)
    added = add_markers(sent, control, 512, SystemTexts(), goes_on=goes_on)
    assert marker_faults(sent) == []
    assert len(marked(sent)) == len(added) <= 4
    if added:
        assert add_markers(sent, control, 512, SystemTexts(), goes_on=goes_on) == ()


@pytest.mark.parametrize("name", ["tools", "system"])
def test_a_body_without_a_head_is_taken(name: str) -> None:
    """Null and empty are none."""
    for none in (None, [], ""):
        sent = request(("user", LONG), **{name: none})
        assert add_markers(sent, CONTROL, 1024, SystemTexts(), goes_on=True) == ("messages[0]",)
