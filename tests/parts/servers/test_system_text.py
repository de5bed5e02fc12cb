"""One system message for servers that know no other, and Claude Code's billing line for nobody but Anthropic."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.native import without_billing_line
from gateway.parts.apis.dialects.messages.client import chat_body
from gateway.parts.apis.kinds.responses.one_instruction import with_one_instruction
from gateway.parts.servers.chat_forms import names_of_systems, with_one_system

LINE = "x-anthropic-billing-header: cc_version=2.1.330.7b4; cc_entrypoint=cli; cch={};"


def said(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ([("developer", "a"), ("user", "q")], [("system", "a"), ("user", "q")]),
        ([("system", "a"), ("developer", "b"), ("user", "q")], [("system", "a\n\nb"), ("user", "q")]),
        ([("system", "a"), ("system", "b"), ("user", "q")], [("system", "a\n\nb"), ("user", "q")]),
        ([("developer", "a")], [("system", "a")]),
        ([("user", "q"), ("system", "b")], [("user", "q\n\n<system>\nb\n</system>")]),
        (
            [("system", "a"), ("user", "q"), ("assistant", "r"), ("developer", "b"), ("user", "s")],
            [("system", "a"), ("user", "q"), ("assistant", "r"), ("user", "<system>\nb\n</system>\n\ns")],
        ),
        (
            [("user", "q"), ("tool", "r"), ("system", "b"), ("system", "c"), ("assistant", "s")],
            [("user", "q"), ("tool", "r\n\n<system>\nb\n</system>\n\n<system>\nc\n</system>"), ("assistant", "s")],
        ),
        (
            [("user", "q"), ("assistant", "r"), ("system", "b")],
            [("user", "q"), ("assistant", "r"), ("user", "<system>\nb\n</system>")],
        ),
        (
            [("user", "q"), ("assistant", "r"), ("system", "b"), ("assistant", "s")],
            [("user", "q"), ("assistant", "r"), ("user", "<system>\nb\n</system>"), ("assistant", "s")],
        ),
        (
            [("system", [{"type": "text", "text": "a"}]), ("developer", "b"), ("user", "q")],
            [("system", "a\n\nb"), ("user", "q")],
        ),
        (
            [("user", [{"type": "image_url", "image_url": {"url": "u"}}]), ("system", "b")],
            [
                (
                    "user",
                    [
                        {"type": "image_url", "image_url": {"url": "u"}},
                        {"type": "text", "text": "<system>\nb\n</system>"},
                    ],
                )
            ],
        ),
        ([("system", None), ("developer", "b"), ("user", None)], [("system", "b"), ("user", None)]),
    ],
)
def test_one_system_message_at_the_beginning(given: list[tuple[str, Any]], made: list[tuple[str, Any]]) -> None:
    """What comes first is joined; what comes later stays where it is said, and turns still alternate."""
    before = said(*given)
    got = with_one_system(before)
    assert got == said(*made)
    assert before == said(*given)
    assert with_one_system(got) is None


def test_a_new_instruction_changes_nothing_before_it() -> None:
    """The beginning of a conversation stays the same as it goes on, so that a server's prefix cache holds."""
    turns = said(("system", "a"), ("user", "q"), ("system", "b"), ("assistant", "r"), ("user", "s"), ("system", "c"))
    earlier = with_one_system(turns[:3])
    later = with_one_system(turns)
    assert earlier is not None and later is not None
    assert later[: len(earlier)] == earlier


def test_names_of_the_systems_messages_have_no_place_in_one() -> None:
    named = [{"role": "developer", "content": "a", "name": "ops"}, {"role": "user", "content": "q", "name": "ann"}]
    assert names_of_systems(named) == ("messages[0].name",)
    assert with_one_system(named) == [{"role": "system", "content": "a"}, named[1]]


def test_plain_conversations_stay_as_they_are() -> None:
    assert with_one_system(said(("system", "a"), ("user", "q"), ("assistant", "r"), ("user", "s"))) is None
    assert with_one_system(said(("user", "q"))) is None
    assert with_one_system([]) is None


def test_one_instruction_of_a_responses_body() -> None:
    """Codex's developer message joins the instructions; one after the first turn is the user's, marked."""
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]}
    body = {"instructions": "be kind", "input": [developer, asked, developer, {"type": "reasoning", "summary": []}]}
    with_one_instruction(body)
    assert body == {
        "instructions": "be kind\n\nbe brief",
        "input": [
            asked,
            {"type": "message", "role": "user", "content": "<system>\nbe brief\n</system>"},
            {"type": "reasoning", "summary": []},
        ],
    }
    for plain in ({"input": "q"}, {"instructions": "a", "input": [asked]}):
        kept = dict(plain)
        with_one_instruction(kept)
        assert kept == plain


def test_an_item_of_another_type_is_no_text_of_the_systems() -> None:
    """Codex gives tools in an item that has a role, and no content."""
    tools = {"type": "additional_tools", "role": "developer", "tools": [{"type": "image_generation"}]}
    body = {"input": [{"role": "developer", "content": "Be brief."}, tools, {"role": "user", "content": "hi"}]}
    with_one_instruction(body)
    assert body == {"instructions": "Be brief.", "input": [tools, {"role": "user", "content": "hi"}]}


def test_the_billing_line_goes() -> None:
    """As a block of its own, at the start of a text, and nowhere else."""
    line = LINE.format("36ee5")
    block = {"type": "text", "text": "You are Claude Code."}
    assert without_billing_line([{"type": "text", "text": line}, block]) == [block]
    assert without_billing_line([{"type": "text", "text": f"{line}\nYou are Claude Code."}]) == [block]
    assert without_billing_line(f"{line}\n\nYou are.") == "You are."
    assert without_billing_line(f"You are. {line}") == f"You are. {line}"
    assert without_billing_line([block]) == [block] and without_billing_line(None) is None


def test_requests_that_differ_in_it_alone_are_the_same() -> None:
    """In their translation, and in what tells their stored answers apart."""

    def translated(number: str) -> tuple[Any, Any]:
        system = [{"type": "text", "text": LINE.format(number)}, {"type": "text", "text": "You are."}]
        body = {"model": "m", "max_tokens": 5, "system": system, "messages": [{"role": "user", "content": "q"}]}
        chat, native = chat_body(body, {})
        assert native.body["system"] == system  # Anthropic itself gets it
        return chat, native.options()

    assert translated("36ee5") == translated("0aaa9")
    assert translated("36ee5")[0]["messages"][0] == {"role": "system", "content": "You are."}
