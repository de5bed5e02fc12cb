from __future__ import annotations

import pytest

from cache.text import question_conflicts
from cache.text.normalized_question import gist
from cache.text.pair_features import leftover


@pytest.mark.parametrize(
    ("stored", "asked", "rule"),
    [
        ("How do I mute the bell?", "How do I unmute the bell?", "negated"),
        ("Is the museum in the EU?", "Is the museum in Peru?", "another_name"),
        ("How do I convert miles to metres?", "How do I convert metres to miles?", "links_differ"),
        ("Did Anna call Bruno?", "Did Bruno call Anna?", "other_order"),
        ("Can he sue her?", "Can she sue him?", "other_pronouns"),
        ("What does 'stale' mean?", "What does 'fresh' mean?", "quotes_asked"),
    ],
)
def test_what_is_left_of_two_questions_refuses_them_either_way(stored: str, asked: str, rule: str) -> None:
    """An opposite, another name, other roles and another quotation conflict, whichever of the two was stored."""
    conflict = getattr(question_conflicts, rule)
    for one, other in ((stored, asked), (asked, stored)):
        a, b = gist(one), gist(other)
        assert conflict(a, b, leftover(a, b))


@pytest.mark.parametrize(
    ("stored", "asked", "rule"),
    [
        ("How can I become more patient?", "How can I become less impatient?", "negated"),
        ("Who leads the UAE?", "Who leads the United Arab Emirates?", "another_name"),
        ("Is Anna related to Bruno?", "Is Bruno related to Anna?", "other_order"),
    ],
)
def test_two_turns_a_short_form_and_a_symmetric_relation_say_the_same(stored: str, asked: str, rule: str) -> None:
    conflict = getattr(question_conflicts, rule)
    a, b = gist(stored), gist(asked)
    assert not conflict(a, b, leftover(a, b))
