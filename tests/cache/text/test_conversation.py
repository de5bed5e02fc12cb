from __future__ import annotations

from cache.text.conversation import HASH, as_text, assistant_turn, last_of, readable, turns_of, user_turn


def test_turns_are_read_back_as_they_were_written() -> None:
    """Colons, line breaks and empty texts included; a single question has no turns."""
    turns = (user_turn("Ratio 3:1?\nReally?"), assistant_turn(""), user_turn("u:a"))
    assert turns_of(as_text(turns)) == turns
    assert turns_of("u:a") == ()
    assert last_of(as_text(turns)) == last_of("u:a") == "u:a"


def test_a_long_answer_stands_as_its_hash() -> None:
    """It is equal to itself, however its lines are broken, and to no other."""
    answer = "The Thirty Years' War ended with a peace. " * 10
    turn = assistant_turn(answer)
    assert turn.speaker == HASH
    assert turn == assistant_turn(answer.replace(" ", "\n"))
    assert turn != assistant_turn(answer + "No.")


def test_people_read_who_said_what() -> None:
    """A line per turn, without the hash of a long answer; a single question is shown as it is."""
    turns = (user_turn("Who was Ada?"), assistant_turn("A" * 400), user_turn("When?"))
    assert readable(as_text(turns)) == "user: Who was Ada?\nassistant: ...\nuser: When?"
    assert readable("Who was Ada?") == "Who was Ada?"
