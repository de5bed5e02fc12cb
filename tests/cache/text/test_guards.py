from __future__ import annotations

import re
from typing import get_args

import pytest

from cache.text.guards import GUARDS, RULES, SWITCHED, Pair, Where, _rules_of
from tests.support.gateway import ROOT

_SAYS = re.compile(r'(?:guard: |GUARD\}|refused = ")(\w+)"')
_ROW = re.compile(r"^\| `guard: (\w+)` \| (.*?) \|$", re.MULTILINE)


def refusal(stored: str, asked: str, guards: tuple[str, ...] = SWITCHED) -> str:
    """The guard that refuses where no model scores the pair."""
    return Pair(stored, asked).refusal(guards, "strict")


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("What is the capital city of Italy?", "What's the capital city of Italy?"),
        ("What is the capital city of Italy?", "what is the capital city of italy"),
        ("How do I reset my password?", "how can I reset my password?"),
        ("How do I reset my password?", "Hi, could you please tell me how to reset my password?"),
        ("How do I reset my password?", "What are the steps to reset my password?"),
        ("How can I learn coding?", "If I want to learn coding, what should I do?"),
        ("How can I become a better writer?", "How do I become a better writer?"),
        ("Is 1,000 more than 1,000,000?", "Is 1000 more than 1000000?"),
        ("Do cats like milk?", "Does a cat like milk?"),
        ("How do I buy a car?", "How can I purchase an automobile?"),
        ("Why don't cats like water?", "Why do cats not like water?"),
        ("Name the capital city of France.", "Name the capital city of France, please."),
        ("Name the capital city of France.", "Please name the capital city of France."),
        ("Hello, what is a dog?", "What is a dog?"),
        ("What are some of the best novels?", "What are the best novels?"),
        ("What is a well-known river?", "What is a well known river?"),
        ("Is it really true that cats purr?", "Is it true that cats purr?"),
    ],
)
def test_plain_rephrasings_pass(stored: str, asked: str) -> None:
    """Politeness, contractions, articles, case, endings and common synonyms change no answer."""
    assert refusal(stored, asked) == ""
    assert refusal(asked, stored) == ""


@pytest.mark.parametrize(
    ("stored", "asked", "guard"),
    [
        ("Can I take 2 pills?", "Can I take 3 pills?", "numbers"),
        ("Can I take two pills?", "Can I take 3 pills?", "numbers"),
        ("What is 1.5 times 2?", "What is 15 times 2?", "numbers"),
        ("Ist 1,5 viel?", "Ist 15 viel?", "numbers"),
        ("Ist 1.000.000 viel?", "Ist 1.000 viel?", "numbers"),
        ("Is -5 above zero?", "Is 5 above zero?", "numbers"),
        ("Run 5 km", "Run 5 miles", "wording"),
        ("Is 5km far?", "Is 5mi far?", "wording"),
        ("What does $5 buy?", "What does €5 buy?", "wording"),
        ("What is 2 + 2?", "What is 2 * 2?", "wording"),
        ("Is it safe to eat raw eggs?", "Is it not safe to eat raw eggs?", "negation"),
        ("Can I log in with a password?", "Can I log in without a password?", "negation"),
        ("How do I become more patient?", "How do I become less patient?", "negation"),
        ("How do I enable logging?", "How do I disable logging?", "negation"),
        ("What is the capital of France?", "What is the capital of Spain?", "entities"),
        ("What is the capital of France?", "what is the capital of spain", "entities"),
        ("How do I install NumPy?", "How do I install SciPy?", "entities"),
        ("What does foo_bar do?", "What does foo_baz do?", "entities"),
        ("Can I move to the US?", "Can I move to the UK?", "entities"),
        ("Is it open on Monday?", "Is it open on Tuesday?", "dates"),
        ("Should I stretch before a run?", "Should I stretch after a run?", "dates"),
        ("Is John Watson a producer?", "Was John Watson a producer?", "dates"),
        ("Who wrote this book?", "Why wrote this book?", "asked"),
        ("Can I feed a dog?", "Should I feed a dog?", "asked"),
        ("What is my name now?", "What is your name now?", "wording"),
        ("Flights from Rome to Paris", "Flights from Paris to Rome", "order"),
        ("Is Sarah kidnapping Kelly?", "Is Kelly kidnapping Sarah?", "order"),
        ("Would he reject her alone?", "Would she reject him alone?", "order"),
        ("Did Anna miss the school?", "Was Anna missed by the school?", "wording"),
        ("Can I feed my chicken insulin?", "Can I feed my dog insulin?", "wording"),
        ("What is a lesson?", "What is a lesson plan?", "wording"),
        ("What does a[i] = 0 do?", "What does a(i) = 0 do?", "wording"),
        ("Can dogs eat grapes?", "Do dogs eat grapes?", "asked"),
        ("How can I be a good engineer?", "How good is an engineer?", "asked"),
        ("What is it?", "What is this?", "wording"),
        ("Is the dog in the house?", "Is the dog on the house?", "wording"),
        ("Name some books of Einstein.", "Name some books about Einstein.", "wording"),
        ("What did they do with the queen?", "What did they do to the queen?", "wording"),
        ("What does nitrogen do?", "What is nitrogen?", "wording"),
        ("Is a dog like a cat?", "Does a dog like a cat?", "wording"),
        ("What is in catnip?", "What is catnip?", "wording"),
        ("What is money for?", "What is money?", "wording"),
        ("What is having a dog like?", "What is a dog like?", "wording"),
        ("Is coffee too hot?", "Is coffee hot?", "wording"),
        ("Are some dogs dangerous?", "Are dogs dangerous?", "wording"),
        ("Can I take one pill?", "Can I take pills?", "wording"),
        ("What is the resistance of this circuit?", "What is the resistance of a circuit?", "wording"),
        ("What is vitamin A?", "What is vitamin?", "entities"),
        ("What is vitamin a?", "What is vitamin?", "entities"),
        ("Can I sue you?", "Can you sue me?", "order"),
        ("What is a market?", "What is marketing?", "wording"),
        ("What is glass made of?", "What are glasses made of?", "wording"),
        ("How do children learn?", "How should children learn?", "asked"),
        ("Where is Hello Kitty from?", "Where is Kitty from?", "entities"),
        ("Hello Kitty", "Kitty", "wording"),
        ("Is it the dog's food?", "Is it the dog is food?", "wording"),
        ("Is it the rabbit's food?", "Is it the rabbit is food?", "wording"),
        ("What may one not do in Rome but do in Oslo?", "What may one do in Rome but not do in Oslo?", "negation"),
        ("Is it safe to not eat?", "Is it not safe to eat?", "negation"),
        ("How do I stop smoking?", "How do I avoid smoking?", "negation"),
        ("Solve x = 3 - y", "Solve x = 3 y", "wording"),
        ("What is 3-4?", "What is 3+4?", "wording"),
        ("What is a-b?", "What is a b?", "entities"),
        ("What is 2*(3+4)?", "What is 2*3+4?", "wording"),
        ("What is 5 minus x?", "What is x minus 5?", "order"),
        ("What is 5! here?", "What is 5 here?", "wording"),
        ("日本の首都は？", "中国の首都は？", "wording"),
    ],
)
def test_what_changes_the_answer_is_seen(stored: str, asked: str, guard: str) -> None:
    """A small edit that changes the answer is refused, whichever of the two was kept."""
    assert refusal(stored, asked) == guard
    assert refusal(asked, stored) != ""


def test_a_policy_may_switch_a_guard_off() -> None:
    """A guard that is not asked for does not speak."""
    assert refusal("Can I take 2 pills?", "Can I take 3 pills?", ("negation",)) == ""


def test_the_same_text_passes_and_a_very_long_one_is_not_judged() -> None:
    """Equal texts need no reading; texts too long to be read fail closed."""
    assert refusal("?", "?") == ""
    assert refusal("word " * 1000, "word " * 1001) == "length"


def test_every_guard_is_named_once() -> None:
    """What a policy may switch has rules, what a rule or a stage says is a row of GUARDS, and each row is told."""
    ruled = {rule.guard for rule in RULES}
    assert set(SWITCHED) <= ruled <= set(GUARDS)
    files = [*(ROOT / "cache").rglob("*.py"), *(ROOT / "gateway/parts/encoders").rglob("*.py")]
    written = {match for file in files for match in _SAYS.findall(file.read_text())}
    assert "unknown_token" in written and written <= set(GUARDS)
    told = dict(_ROW.findall((ROOT / "cache/README.md").read_text()))
    assert told == {name: what + ("" if name in SWITCHED else " (always)") for name, what in GUARDS.items()}


@pytest.mark.parametrize("guard", SWITCHED)
def test_a_guard_that_a_policy_leaves_out_refuses_nothing_anywhere(guard: str) -> None:
    """In conversations, before a cross-encoder and without any model."""
    others = tuple(one for one in SWITCHED if one != guard)
    for where in get_args(Where):
        names = {name for tests in _rules_of(frozenset(others), where) for name, _ in tests}
        assert guard not in names
        assert {rule.guard for rule in RULES if where in rule.where} - {guard} == names


@pytest.mark.parametrize(
    ("stored", "asked", "where", "guard"),
    [
        ("He has 2 dogs and 3 cats.", "He has 3 cats and 2 dogs.", "turn", "order"),
        ("He has 2 dogs.", "He has 3 dogs.", "turn", "numbers"),
        ("Tell me about it.", "Don't tell me about it.", "turn", "negation"),
        ("It costs more.", "It costs less.", "turn", "negation"),
        ("Tell me about Cleopatra.", "Tell me about Nefertiti.", "turn", ""),
        ("Tell me about Cleopatra.", "Tell me about Nefertiti.", "earlier", "entities"),
        ("Is it open?", "Is it open on Monday?", "alone", "dates"),
        ("Is it open?", "Is it open on Monday?", "screened", ""),
        ("?", "!", "screened", "wording"),
        ("?", "!", "answers", ""),
        ("word " * 1000, "word " * 1001, "alone", "length"),
    ],
)
def test_where_a_rule_holds(stored: str, asked: str, where: Where, guard: str) -> None:
    """Less is refused where a cross-encoder reads what is left, and other things in the turns of a conversation."""
    assert Pair(stored, asked).refusal(SWITCHED, where) == guard
