from __future__ import annotations

import pytest

from cache.text.guards import SWITCHED, Pair
from cache.text.reading import spelled_out


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("how 2 bake bread", "how to bake bread"),
        ("is it ok 2 swim after eating", "is it ok to swim after eating"),
        ("thx 2 my mum", "thanks to my mum"),
        ("2 late 2 apply?", "too late to apply?"),
        ("a cake 4 my aunt", "a cake for my aunt"),
        ("looking 4 a flat", "looking for a flat"),
        ("shoes 4 running", "shoes for running"),
        ("room 4 rent", "room for rent"),
        ("hectares 2 acres", "hectares to acres"),
        ("my app wont open b4 noon", "my app will not open before noon"),
        ("ur dog n my cat", "your dog and my cat"),
        ("waht shoud i wear abroad", "what should i wear abroad"),
        ("tea w/o milk", "tea without milk"),
        ("Non-profits and non-stick pans", "nonprofits and nonstick pans"),
        ("a gluten-free cake", "a without gluten cake"),
    ],
)
def test_short_forms_are_spelled_out(text: str, spelled: str) -> None:
    """A 2 is `to` or `too`, and a 4 is `for`, where nothing is counted."""
    assert spelled_out(text) == spelled


@pytest.mark.parametrize(
    "text",
    [
        "need 2 screws for a shelf",
        "a table for 4",
        "room 4, what is the rent",
        "best 4 player board games",
        "tickets for 3 kids and 2 adults",
        "I have 2 dogs and 3 cats",
        "Of 3 cities, 2 fit.",
        "got a 2 year old, what toys",
        "android 4 update",
        "What is 2 + 2?",
        "camera 2 a Roma",
        "How do I learn R?",
    ],
)
def test_numbers_stay_numbers(text: str) -> None:
    """So does what has another sense in capitals."""
    assert spelled_out(text) == text


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How do I bake bread?", "how 2 bake bread"),
        ("What may non-profits sell?", "What are nonprofits allowed to sell?"),
        ("How far is five thousand km?", "How far is 5,000 km?"),
        ("Who were the twenty-two players?", "Who were the 22 players?"),
        ("Can I leave after one year?", "Can I leave after 1 year?"),
        ("What is ten percent of my salary?", "What is 10% of my salary?"),
        ("Do I get a refund if a show is cancelled?", "Can I get a refund when a show is cancelled?"),
        ("How do I help someone who snores?", "What helps a person that snores?"),
        ("In Rome, where do locals eat with Anna?", "Where do locals eat with Anna in Rome?"),
        ("Why does my car not start?", "Why does my car fail to start?"),
        ("How do I stop paint from peeling?", "How do I keep paint from peeling?"),
        ("How do Rust and Go compare?", "How does Go compare to Rust?"),
        ("What should I do about mice?", "What do I have to do about mice?"),
        ("Does anyone know where swifts nest?", "Where do swifts nest?"),
        ("Does anybody have tips for growing figs?", "How do I grow figs?"),
        ("My boss says he is leaving. What now?", "My boss is leaving. What now?"),
    ],
)
def test_plain_rewordings_are_left_to_the_cross_encoder(stored: str, asked: str) -> None:
    """No guard holds where only the spelling, the order of parts or the way of asking differs."""
    assert Pair(stored, asked).refusal(SWITCHED, "screened") == ""
    assert Pair(asked, stored).refusal(SWITCHED, "screened") == ""


@pytest.mark.parametrize(
    ("stored", "asked", "guard"),
    [
        ("recipe 4 pancakes", "recipe for 14 pancakes", "numbers"),
        ("tickets 4 the zoo", "4 tickets for the zoo", "numbers"),
        ("How far is five thousand km?", "How far is 500 km?", "numbers"),
        ("What may non-profits sell?", "What may profits sell?", "negation"),
        ("What helps against hypertension?", "What helps against hypotension?", "negation"),
        ("What are the duties of a lessor?", "What are the duties of a lessee?", "negation"),
        ("Is overcooked rice bad?", "Is undercooked rice bad?", "negation"),
        ("Can I sue my doctor?", "Can my doctor sue me?", "order"),
        ("Would he help her?", "Would she help him?", "order"),
        ("Who helps when I snore?", "When do I snore?", "asked"),
        ("Tell me who wrote Emma.", "Tell me when someone wrote Emma.", "asked"),
        ("my app wont open", "my app opens", "negation"),
    ],
)
def test_what_changes_the_answer_is_still_refused(stored: str, asked: str, guard: str) -> None:
    """Opposites by a prefix or an ending, swapped roles, other numbers in words."""
    assert Pair(stored, asked).refusal(SWITCHED, "screened") == guard


_STORY = (
    "My neighbour has had a new floor laid and since {when} we hear each step that is taken there, so that my wife "
    "cannot sleep although she has a hard job at the clinic. What can we do about it?"
)
_RETOLD = (
    "Ever since {when} there has been a racket above our heads, because somebody upstairs had boards put in; my wife, "
    "who is a surgeon, gets no rest any more. How is that brought to an end?"
)


def test_a_time_in_a_story_told_in_other_words_is_left_to_the_cross_encoder() -> None:
    """In nearly the same words another day is another question, and without a cross-encoder always."""
    stored, retold = _STORY.format(when="Monday"), _RETOLD.format(when="the weekend")
    assert Pair(stored, retold).refusal(SWITCHED, "screened") == ""
    assert Pair(stored, retold).refusal(SWITCHED, "alone") != ""
    assert Pair(stored, _STORY.format(when="Friday")).refusal(SWITCHED, "screened") == "dates"


def test_a_number_that_only_one_of_two_long_texts_has_is_left_to_the_cross_encoder() -> None:
    """Other numbers in both are refused."""
    stored = _STORY.format(when="our 2 kids were born")
    assert Pair(stored, _RETOLD.format(when="then")).refusal(SWITCHED, "screened") == ""
    assert Pair(stored, _RETOLD.format(when="our 3 kids were born")).refusal(SWITCHED, "screened") == "numbers"
