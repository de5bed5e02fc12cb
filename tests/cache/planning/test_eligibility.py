from __future__ import annotations

from typing import Any

import pytest

from cache.planning.eligibility import rule_values, why_not_any, why_not_semantic, why_not_the_question
from policies.caching import CACHE_VALUES
from tests.cache.samples import Facts, body, policy


def test_rules_can_ask_for_what_a_policy_may_name() -> None:
    """The names that a policy file may use are the names that get a value here."""
    assert {*rule_values({}, Facts()), "volatile"} == set(CACHE_VALUES)


@pytest.mark.parametrize(
    ("rule", "fields", "facts", "holds"),
    [
        ("tools", {}, Facts(has_tools=True), True),
        ("tools", {}, Facts(), False),
        ("temperature > 0.3", {"temperature": 0.7}, Facts(), True),
        ("temperature > 0.3", {"temperature": 0}, Facts(), False),
        ("temperature > 0.3", {}, Facts(), False),
        ("n > 1", {"n": 2}, Facts(), True),
        ("turns > 3 or tokens_in > 100", {}, Facts(turns=4), True),
        ("volatile", {}, Facts(text="What is the price of gold today?"), True),
        ("volatile", {}, Facts(text="What is gold made of?"), False),
        ("volatile and turns == 1", {}, Facts(text="Any news?", turns=2), False),
    ],
)
def test_a_never_rule_that_holds_switches_both_caches_off(
    rule: str, fields: dict[str, Any], facts: Facts, holds: bool
) -> None:
    """The reason names the rule."""
    reason = why_not_any(policy(never=(rule,)).cache, body("Q", **fields), facts)
    assert reason == (f"never: {rule}" if holds else "")


def test_a_policy_without_caches_has_none() -> None:
    """No section, no cache."""
    assert why_not_any(policy(exact=None, semantic=None).cache, body("Q"), Facts()) == "policy"
    assert why_not_semantic(policy(semantic=None).cache, body("Q"), Facts(), "Q") == "policy"


@pytest.mark.parametrize(
    ("fields", "facts", "reason"),
    [
        ({}, Facts(has_tools=True), "tools"),
        ({}, Facts(has_images=True), "images"),
        ({"seed": 0}, Facts(), "seed"),
        ({"logprobs": True}, Facts(), "logprobs"),
        ({"n": 2}, Facts(), "n"),
        ({"n": 1}, Facts(), ""),
    ],
)
def test_some_requests_are_never_answered_by_meaning(fields: dict[str, Any], facts: Facts, reason: str) -> None:
    """Tools, images, a seed, logprobs and several choices ask for an answer of their own."""
    question = "What is the capital of Italy?"
    assert why_not_semantic(policy().cache, body(question, **fields), facts, question) == reason


@pytest.mark.parametrize(
    ("question", "turns", "reason"),
    [
        ("What is the capital of Italy?", 1, ""),
        ("How do I reset my password?", 1, ""),
        ("Is it true that cats purr when they are happy?", 1, ""),
        ("What about the second one?", 1, "follow_up"),
        ("and in Spain?", 1, "follow_up"),
        ("Why?", 3, "follow_up"),
        ("Continue", 2, "follow_up"),
        ("How does it work?", 1, "follow_up"),
        ("Who is she?", 1, "follow_up"),
        ("Is that allowed in German cities?", 2, "follow_up"),
        ("", 1, "follow_up"),
        ("What is the weather in Rome?", 1, "volatile"),
        ("Who won the match today?", 1, "volatile"),
        ("What is the price of gold?", 1, "volatile"),
        ("Who is the president of France?", 1, "volatile"),
        ("x" * 3000, 1, "long"),
        ("Translate to German: the dog is in the house", 1, "payload"),
        ("Translate the dog is in the house to German", 1, "payload"),
        ("How do you say the dog is on the house in German?", 1, "payload"),
        ("Hi, could you please translate good morning into French?", 1, "payload"),
        ("How many letters are in having?", 1, "payload"),
        ("Count the vowels in having", 1, "payload"),
        ("Spell receive", 1, "payload"),
        ("Repeat after me hello world", 1, "payload"),
        ("Correct the grammar: he do", 1, "payload"),
        ("Fix he do not like cats", 1, "payload"),
        ("Convert 5 miles to kilometres", 1, "payload"),
        ("I want you to rewrite the dog barks", 1, "payload"),
        ("Summarise cats purr because they are happy", 1, "payload"),
        ('uppercase "hello"', 1, "payload"),
        ("Please uppercase hello", 1, "payload"),
        ("Put Hello World in capitals", 1, "payload"),
        ("What does 'havoc' mean?", 1, "payload"),
        ("What does print(x) show in Python?", 1, "payload"),
        ("Why does this fail?\nreturn x", 1, "payload"),
        ("Solve x = 3 - y", 1, "payload"),
        ("What is the plural of ox?", 1, "payload"),
        ("How do I convert a PDF?", 1, ""),
        ("Can I add more memory to a laptop?", 1, ""),
        ("Does the bakery open at 10:30?", 1, ""),
        ("Name the capital city of France, please.", 1, ""),
        ("What's the capital city of Italy?", 1, ""),
    ],
)
def test_a_question_must_stand_alone_and_last(question: str, turns: int, reason: str) -> None:
    """Follow-ups, volatile questions and texts to work on are never answered by another question's answer."""
    assert why_not_the_question(question, turns) == reason


@pytest.mark.parametrize(("asked_for", "reason"), [(0.9, "temperature"), (0.3, ""), (0, ""), (None, "")])
def test_who_asks_for_variety_gets_an_answer_of_its_own(asked_for: float | None, reason: str) -> None:
    """A temperature above the policy's cap is not answered by meaning; one that is not named is no refusal."""
    question = "What is the capital of Italy?"
    assert why_not_semantic(policy().cache, body(question, temperature=asked_for), Facts(), question) == reason
