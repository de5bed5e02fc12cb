"""The request for the rest of an answer, and the overlap at which the rest is fitted in."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.agents.continuation import GO_ON, Overlap, Way, continuing_body, fit_to_text, without_loop

USER = {"role": "user", "content": "Tell me of the sea."}
SAID = "The sea is wide, and the sea is deep, and it is"


def body(**more: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [USER], "stream": True, **more}


@pytest.mark.parametrize("way", ["prefill", "continue_final_message"])
def test_the_text_is_the_models_own_beginning(way: Way) -> None:
    """The assistant's message comes last, without the white space at its end; vLLM is told what that means."""
    found = continuing_body(body(top_k=3), SAID + " \n", 12, way)
    assert found["messages"] == [USER, {"role": "assistant", "content": SAID}]
    assert found["top_k"] == 3
    flags = {name: found[name] for name in ("add_generation_prompt", "continue_final_message") if name in found}
    assert flags == (
        {"add_generation_prompt": False, "continue_final_message": True} if way == "continue_final_message" else {}
    )


def test_the_rest_is_asked_for_in_words() -> None:
    """A backend that takes no beginning gets the text as it is, and a user message that asks for the rest."""
    found = continuing_body(body(), SAID, 12, "prompt")
    assert found["messages"] == [USER, {"role": "assistant", "content": SAID}, {"role": "user", "content": GO_ON}]


def test_a_beginning_of_the_clients_own_is_joined() -> None:
    """Where the client began the answer itself, its beginning and what was said are one message."""
    messages = [USER, {"role": "assistant", "content": "Once upon a time"}]
    found = continuing_body(body(messages=messages), " there was", 2, "prefill")
    assert found["messages"] == [USER, {"role": "assistant", "content": "Once upon a time there was"}]
    assert messages[1]["content"] == "Once upon a time"


def test_the_token_limits_shrink() -> None:
    """What was said counts against the limits, and one token is always left."""
    found = continuing_body(body(max_tokens=100, max_completion_tokens=5), SAID, 12, "prefill")
    assert (found["max_tokens"], found["max_completion_tokens"]) == (88, 1)
    assert "max_tokens" not in continuing_body(body(), SAID, 12, "prefill")


@pytest.mark.parametrize(("way", "kept"), [("prefill", True), ("continue_final_message", False)])
def test_a_grammar_does_not_begin_anew(way: Way, kept: bool) -> None:
    """llama.cpp leads its grammar through the beginning; vLLM's would ask for the first bracket once more."""
    found = continuing_body(body(response_format={"type": "json_object"}), '{"a": ', 3, way)
    assert ("response_format" in found) is kept


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("All is well.", "All is well."),
        ("So: " + "round and round we go " * 8, "So: round and round we go"),
        ("So: " + "round and round we go " * 8 + "rou", "So: round and round we go"),
        ("go " * 40, "go"),
    ],
)
def test_a_loop_is_kept_once(text: str, left: str) -> None:
    """Of a text that ends in a loop the first round is kept, though its last word may not be whole."""
    assert without_loop(text) == left


def through(overlap: Overlap, *pieces: str) -> str:
    return "".join(overlap.feed(piece) for piece in pieces) + overlap.close()


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        ([" full", " of fish."], " full of fish."),
        (["and the sea is deep, and it is", " full"], " full"),
        (["and ", "the ", "sea ", "is ", "deep,", " and", " it", " is", " full", " of"], " full of"),
        (["deep, and it is full"], " full"),
        (["it is full"], "it is full"),  # less than twelve characters: it may be meant
        (["deep, and it was"], "deep, and it was"),
        ([""], ""),
        ([SAID], ""),
        ([SAID + " full"], " full"),
        (["The sea", " is wide", ", and the sea is deep, and it", " is full", " of"], " full of"),
        (["The sea", " is cold"], "The sea is cold"),
    ],
)
def test_a_repetition_at_the_overlap_is_dropped(pieces: list[str], left: str) -> None:
    """The longest repetition of what was said last is dropped, however it is cut into pieces; nothing else is."""
    assert through(Overlap(SAID), *pieces) == left


def test_what_cannot_repeat_is_not_held() -> None:
    """A first token that fits nowhere goes out at once, and so does all that follows it."""
    overlap = Overlap(SAID)
    assert overlap.feed(" full") == " full"
    assert not overlap.open
    assert overlap.feed("the sea is wide") == "the sea is wide"


def test_no_more_than_a_line_is_held() -> None:
    """However much is repeated, no more than 80 characters wait."""
    said = "".join(f"{number} " for number in range(1000))
    overlap = Overlap(said)
    held = said[-80:]
    assert overlap.feed(held[:40]) == ""
    assert overlap.feed(held[40:] + "and on") == "and on"


@pytest.mark.parametrize(
    ("said", "piece", "whole"),
    [
        ("one.\n\n", "\n\nTwo", "one.\n\nTwo"),
        ("one.\n", "\n\nTwo", "one.\n\nTwo"),
        ("one ", " two", "one two"),
        ("one", " two", "one two"),
        ("one. ", "\n\nTwo", "one. \n\nTwo"),
    ],
)
def test_white_space_is_said_once(said: str, piece: str, whole: str) -> None:
    """White space that a beginning lost when it was sent, and the model says again, stands there once."""
    assert said + through(Overlap(said), piece) == whole


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_a_second_beginning_is_no_chunk() -> None:
    """The second half has no role, no thoughts of its own, and no chunk that says nothing."""
    overlap = Overlap(SAID)
    assert not fit_to_text(chunk(role="assistant", content=""), overlap)
    assert not fit_to_text(chunk(reasoning_content="They want more."), overlap)
    first = chunk(role="assistant", content=" full")
    assert fit_to_text(first, overlap)
    assert first == chunk(content=" full")
    assert not fit_to_text({"choices": []}, overlap)


def test_what_is_held_goes_out_with_the_finish() -> None:
    """A second half that ends while it is held loses nothing."""
    overlap = Overlap(SAID)
    assert not fit_to_text(chunk(content="the sea"), overlap)
    last = chunk(finish="stop")
    assert fit_to_text(last, overlap)
    assert last == chunk(finish="stop", content="the sea")
