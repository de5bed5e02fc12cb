from __future__ import annotations

from collections.abc import Sequence

import pytest

from cache.semantic.decision import Verdict
from cache.text.conversation import as_text, assistant_turn, user_turn
from cache.text.reading import SCRIPTS
from gateway.parts.encoders.turns import TurnScorer, turn_by_turn
from policies.caching import SemanticCache

Pair = tuple[str, str]


def talk(*texts: str) -> str:
    """Return the turns of user and assistant, the user first, as one text."""
    return as_text([(user_turn, assistant_turn)[at % 2](text) for at, text in enumerate(texts)])


def singles(stored: str, asked: str, cosine: float) -> Verdict:
    """Stand for the decision on two single questions: a veto on tight for loose."""
    if ("tight" in stored) != ("tight" in asked):
        return Verdict(0.5, "guard: negation", "verifier")
    return Verdict(0.5, "", "verifier")


decide = turn_by_turn(singles, SemanticCache.model_validate({"ttl": "1h", "min_similarity": 0.6}))
STORED = talk("Tell me about Cleopatra.", "She ruled Egypt.", "How did she die?")


def test_a_single_question_is_decided_as_before() -> None:
    """So is one that looks like a turn."""
    assert decide("abcd", "ab", 0.9) == Verdict(0.5, "", "verifier")
    assert decide("u:abcd", "u:", 0.9) == Verdict(0.5, "", "verifier")


def test_the_same_words_are_served_by_rule_and_others_are_left_to_the_cross_encoder() -> None:
    """Case, polite phrases and slips make no other turn."""
    assert decide(STORED, STORED, 0.9) == Verdict(1.0, "", "rule")
    assert (
        decide(STORED, talk("tell me about Cleopatra", "She ruled Egypt.", "How did she die, please?"), 0.9).score == 1
    )
    assert decide(STORED, talk("Tell me abuot Cleoptara.", "She ruled Egypt.", "How did she die?"), 0.9).score == 1
    asked = talk("Who was Cleopatra?", "She was the ruler of Egypt.", "What did she die of?")
    assert decide(STORED, asked, 0.9) == Verdict(0.9, "", "guards")
    assert decide(STORED, asked, 0.5).refused == "similarity"


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (talk("Tell me about Nefertiti.", "She ruled Egypt.", "How did she die?"), "entities"),
        (talk("Tell me about Cleopatra.", "She ruled Egypt.", "How did she not die?"), "negation"),
        (talk("Don't tell me about Cleopatra.", "She ruled Egypt.", "How did she die?"), "negation"),
        (talk("Tell me about Cleopatra.", "Egypt ruled she.", "How did she die?"), "order"),
        (talk("Tell me about Cleopatra.", "She ruled Rome.", "How did she die?"), "entities"),
        (talk("Tell me about 2 Cleopatra.", "She ruled Egypt.", "How did she die?"), "numbers"),
        (talk("Tell me about Cleopatra.", "She ruled Egypt for 21 years.", "How did she die?"), "numbers"),
        (talk("Tell me about Cleopatra.", "She ruled Egypt." * 30, "How did she die?"), "turns"),
        (talk("Translate about Cleopatra.", "She ruled Egypt.", "How did she die?"), "payload"),
        (talk("Tell me about Cleopatra.", "She ruled Egypt.", "Why?"), "follow_up"),
        (talk("Tell me about Cleopatra."), "turns"),
        (talk("Tell me about Cleopatra.", "She ruled Egypt.", "How did she get tight?"), "negation"),
    ],
)
def test_what_changes_an_answer_in_any_turn_refuses(asked: str, refused: str) -> None:
    """Another name, number, answer, task, or number of turns is another conversation, at any score."""
    assert decide(STORED, asked, 1.0).refused == f"guard: {refused}"


def test_long_answers_must_be_equal() -> None:
    """Only their hashes are there to compare."""
    one, other = "She ruled Egypt. " * 30, "She ruled over Egypt. " * 30
    stored = talk("Who was Cleopatra?", one, "How did she die?")
    assert decide(stored, talk("Who was Cleopatra?", one, "How did she die, then?"), 1.0).refused == ""
    assert decide(stored, talk("Who was Cleopatra?", other, "How did she die?"), 1.0).refused == "guard: answer"


def test_a_bounded_number_of_turns_may_differ() -> None:
    """Otherwise one request would fill the cross-encoder's queue."""
    stored, asked = (talk(*(f"{word} about {thing}" for thing in ("ducks",) * 9)) for word in ("talk", "speak"))
    assert decide(stored, asked, 1.0).refused == "guard: turns"


class Scorer:
    """A scorer that knows a few pairs, and counts its calls."""

    strict = 0.9
    scripts = SCRIPTS
    languages = ("en",)

    def __init__(self, known: dict[Pair, float]) -> None:
        self.known = known
        self.calls: list[list[Pair]] = []

    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        self.calls.append(list(pairs))
        return [self.known[pair] for pair in pairs]


def test_the_cross_encoder_reads_the_turns_that_differ_in_one_call() -> None:
    """A conversation's score is the lowest of its turns; equal turns are not read, nor those of the same words."""
    asked = talk("Who was Cleopatra?", "She ruled Egypt.", "What did she die of?")
    known = {
        ("Tell me about Cleopatra.", "Who was Cleopatra?"): 0.8,
        ("How did she die?", "What did she die of?"): 0.95,
        ("a", "b"): 0.3,
    }
    scorer = Scorer(known)
    turns = TurnScorer(scorer)
    loud = talk("TELL ME ABOUT CLEOPATRA!", "She ruled Egypt.", "how did she die")
    assert turns.scores([(STORED, asked), ("a", "b"), (STORED, loud)]) == pytest.approx([0.856, 0.3, 1.0], abs=0.001)
    assert scorer.calls == [list(known)]
    assert turns.strict == 0.9


def test_questions_with_the_same_answer_count_as_more_alike() -> None:
    """Unless the answer would fit any question, or it is the last turn, which has no answer yet."""
    known = {("Is the oven hot?", "Is the stove warm?"): 0.5, ("Can I bake?", "May I bake?"): 0.9}
    scorer = TurnScorer(Scorer(known))
    pairs = []
    for answer in ("The oven reaches its heat after ten minutes.", "Sure, go ahead.", "An oven is hot. " * 30):
        stored = talk("Is the oven hot?", answer, "Can I bake?")
        pairs.append((stored, talk("Is the stove warm?", answer, "May I bake?")))
    assert scorer.scores(pairs) == pytest.approx([0.731, 0.599, 0.731], abs=0.001)
    alone = talk("Hello", "The oven reaches its heat after ten minutes.", "Is the oven hot?")
    other = talk("Hello", "The oven reaches its heat after ten minutes.", "Is the stove warm?")
    assert scorer.scores([(alone, other)]) == pytest.approx([0.599], abs=0.001)


def test_answers_in_other_words_count_as_more_alike_as_the_questions_before_them_have_to() -> None:
    """A conversation that is reworded throughout; where the questions differ, so does the conversation."""
    answers = ("It was founded by monks.", "Monks founded it.")
    questions = ("Who founded the abbey?", "By whom was the abbey founded?")
    stored, asked = (talk(question, said, "When?") for question, said in zip(questions, answers, strict=True))
    assert TurnScorer(Scorer({answers: 0.7, questions: 0.98})).scores([(stored, asked)]) == pytest.approx(
        [0.955], abs=0.001
    )
    assert TurnScorer(Scorer({answers: 0.98, questions: 0.1})).scores([(stored, asked)])[0] < 0.2


def test_six_turns_of_a_long_history_may_be_in_other_words() -> None:
    """Each is read, and the one that is least alike decides."""
    stored, asked = (talk(*(f"{word} about duck {at}" for at in range(6))) for word in ("talk", "speak"))
    assert decide(stored, asked, 1.0).refused == ""
    scorer = Scorer({(f"talk about duck {at}", f"speak about duck {at}"): 0.99 - at / 100 for at in range(6)})
    assert TurnScorer(scorer).scores([(stored, asked)])[0] < 0.97
    assert [len(call) for call in scorer.calls] == [6]


def test_two_long_english_texts_told_anew_count_as_more_alike() -> None:
    """A model is less sure of many words; in other languages nothing was measured."""
    texts = tuple(
        f"{one} My landlord has not answered for a month, and water keeps running down the wall of the kitchen next to "
        f"the window, where the paint has gone already and mould is growing. {other}"
        for one, other in (
            ("May I pay less rent?", "I have told him twice."),
            ("It is damp.", "Can I cut the rent? How?"),
        )
    )
    german = tuple(
        f"{one} Mein Vermieter hat seit einem Monat nicht geantwortet, und das Wasser läuft die Wand der Küche neben "
        f"dem Fenster herunter, wo die Farbe schon ab ist und Schimmel wächst. {other}"
        for one, other in (("Darf ich weniger zahlen?", "Ich habe es gesagt."), ("Es ist nass.", "Geht das? Wie?"))
    )
    scorer = TurnScorer(Scorer({(texts[0], texts[1]): 0.5, (german[0], german[1]): 0.5}))
    assert scorer.scores([(texts[0], texts[1])]) == pytest.approx([0.69], abs=0.001)
    assert scorer.scores([(german[0], german[1])]) == pytest.approx([0.5], abs=0.001)


TOLD = (
    "Three weeks ago I ordered a large dining table from a furniture shop on the internet and paid for it in advance. "
    "The letter said that it would be here within ten days. I have called several times, but nobody answers. {}"
)


def test_long_texts_are_judged_by_the_sentences_in_which_they_differ() -> None:
    """A veto on one pair refuses them; with greetings only between them they are served by rule."""
    stored = TOLD.format("Is the screw too tight?")
    assert decide(stored, TOLD.format("Is the bolt too tight?"), 0.9) == Verdict(0.9, "", "guards")
    assert decide(stored, TOLD.format("Is the screw too loose?"), 0.9).refused == "guard: negation"
    assert decide(stored, f"Hello there! {stored} Thanks!", 0.9) == Verdict(1.0, "", "rule")
    assert decide(stored, TOLD.format("Is the bolt too tight?"), 0.5) == Verdict(0.5, "", "verifier")


def test_the_cross_encoder_reads_these_sentences_alone() -> None:
    """The lowest score counts; a statement in which no word of content differs is likelier the same."""
    scorer = Scorer(
        {
            ("How do I get it?", "How can I have it?"): 0.9,
            ("I have called several times, but nobody answers.", "I've called several times, but nobody answers."): 0.7,
            (
                "I have called several times, but nobody answers.",
                "I've rung several times, but nobody answers me.",
            ): 0.7,
        }
    )
    stored, asked = TOLD.format("How do I get it?"), TOLD.format("How can I have it?")
    turns = TurnScorer(scorer)
    contracted, other = (asked.replace("I have called", by) for by in ("I've called", "I've rung"))
    assert turns.scores([(stored, asked)]) == [0.9]
    assert turns.scores([(stored, contracted)]) == [0.9]
    assert turns.scores([(stored, other.replace("answers.", "answers me."))]) == [0.7]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("My boss owes me two months of pay.", "I owe my boss two months of pay."),
        ("It hurts when I sit, not when I run.", "It hurts when I run, not when I sit."),
        ("I have paid for it but it was not delivered.", "I have not paid for it but it was delivered."),
        ("He can come on Monday or Tuesday.", "He can come on Monday and Tuesday."),
        ("She should take the pills.", "She can take the pills."),
        ("I paid with my credit card.", "I paid by bank transfer."),
    ],
)
def test_other_roles_order_or_content_make_no_statement_likelier_the_same(one: str, other: str) -> None:
    base = TOLD.format("How do I get it?")
    texts = [base.replace("The letter said that it would be here within ten days.", told) for told in (one, other)]
    assert TurnScorer(Scorer({(one, other): 0.6})).scores([(texts[0], texts[1])]) == [0.6]
