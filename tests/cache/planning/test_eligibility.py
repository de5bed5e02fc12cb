from __future__ import annotations

import math
from typing import Any

import pytest

from cache.planning.eligibility import (
    longest_kept,
    never_values,
    why_not_any,
    why_not_in_context,
    why_not_semantic,
    why_not_the_question,
)
from policies.caching import CACHE_NAMES
from tests.cache.samples import Facts, body, doubtful_text, policy


def test_rules_can_ask_for_what_a_policy_may_name() -> None:
    """The names that a policy file may use are the names that get a value here."""
    assert {*never_values({}, Facts()), "volatile"} == set(CACHE_NAMES)


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


def test_what_may_be_volatile_is_kept_for_a_short_time_where_a_rule_would_hold() -> None:
    """For the policy's time in doubt; with none, the rule holds."""
    text = doubtful_text()
    asked, facts, sure = body(text), Facts(text=text), Facts(text="What is gold made of?")
    rules = policy(never=("volatile",)).cache
    assert (why_not_any(rules, asked, facts), longest_kept(rules, asked, facts)) == ("", 300)
    assert longest_kept(rules, asked, sure) == math.inf
    assert longest_kept(policy(never=("volatile",), doubt_ttl="2m").cache, asked, facts) == 120
    assert why_not_any(policy(never=("volatile",), doubt_ttl="0s").cache, asked, facts) == "never: volatile"
    assert longest_kept(policy(never=("tools",)).cache, asked, facts) == math.inf
    of_turns = policy(never=("volatile and turns > 1",)).cache
    assert longest_kept(of_turns, asked, facts) == math.inf
    assert longest_kept(of_turns, asked, Facts(text=text, turns=2)) == 300


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
    ("question", "reason"),
    [
        ("What is the capital of Italy?", ""),
        ("How do I reset my password?", ""),
        ("Is it true that cats purr when they are happy?", ""),
        ("What about the second one?", "follow_up"),
        ("and in Spain?", "follow_up"),
        ("Why?", "follow_up"),
        ("Continue", "follow_up"),
        ("How does it work?", "follow_up"),
        ("Who is she?", "follow_up"),
        ("And the second one?", "follow_up"),
        ("So what about Spain?", "follow_up"),
        ("Ok, and then?", "follow_up"),
        ("And in northern Spain?", "follow_up"),
        ("And how does that work?", "follow_up"),
        ("Is that allowed in German cities?", ""),
        ("So how do I hang a heavy mirror?", ""),
        ("Okay so I have never done this before. How do I hang a heavy mirror?", ""),
        ("My tap drips all night. How can I fix it?", ""),
        ("", "follow_up"),
        ("What is the weather in Rome?", ""),
        ("x" * 3000, "long"),
        ("Translate to German: the dog is in the house", "payload"),
        ("Translate the dog is in the house to German", "payload"),
        ("How do you say the dog is on the house in German?", "payload"),
        ("Hi, could you please translate good morning into French?", "payload"),
        ("How many letters are in having?", "payload"),
        ("Count the vowels in having", "payload"),
        ("Spell receive", "payload"),
        ("Repeat after me hello world", "payload"),
        ("Correct the grammar: he do", "payload"),
        ("Fix he do not like cats", "payload"),
        ("Convert 5 miles to kilometres", "payload"),
        ("I want you to rewrite the dog barks", "payload"),
        ("Summarise cats purr because they are happy", "payload"),
        ('uppercase "hello"', "payload"),
        ("Please uppercase hello", "payload"),
        ("Put Hello World in capitals", "payload"),
        ("What does 'havoc' mean?", ""),
        ("Quick one for our quiz: when did the Berlin Wall fall?", ""),
        ("Bonjour, je débute : comment faire pousser des fraises ?", ""),
        ("Re: refund: when will my money arrive?", ""),
        ("I have a problem: the printer shows a paper jam after every page", ""),
        ("Hi team: my invoice has the wrong company name", ""),
        ("My question: translate good morning into French", "payload"),
        ("Problem: fix he do not like cats", "payload"),
        ("French: where is the station?", "payload"),
        ("Is this sentence right: where you are going?", "payload"),
        ("Customer says: when does my order arrive?", "payload"),
        ("In French: where is the station?", "payload"),
        ("French visa: how long does it take?", ""),
        ("German keyboard: how do I type an umlaut?", ""),
        ("Question about the text editor: where are its settings?", ""),
        ("About the English course: when does it begin?", ""),
        ("Autumn rain: a walk in the woods", "payload"),
        ("We are lost; where is the station?", ""),
        ("Hi :) how do I boil an egg?", ""),
        ("What should be in a cover letter?", ""),
        ("Translate into German: how are you?", "payload"),
        ("In French: good morning", "payload"),
        ("What does print(x) show in Python?", "payload"),
        ("Why does this fail?\nreturn x", "payload"),
        ("Solve x = 3 - y", "payload"),
        ("What is the plural of ox?", "payload"),
        ("How do I convert a PDF?", ""),
        ("Can I add more memory to a laptop?", ""),
        ("Does the bakery open at 10:30?", ""),
        ("Name the capital city of France, please.", ""),
        ("What's the capital city of Italy?", ""),
    ],
)
def test_a_question_must_stand_alone_and_last(question: str, reason: str) -> None:
    """Follow-ups and texts to work on are never answered by another question's answer."""
    assert why_not_the_question(question) == reason


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Und wie ist das in Norwegen?", "follow_up"),
        ("Nimmt man Hefe oder Natron, und warum?", ""),
        ("¿Y por qué?", "follow_up"),
        ("¿Y la pila del reloj de cocina, cómo la saco?", ""),
        ("Et le troisième ?", "follow_up"),
        ("Che ne dici di quello?", "follow_up"),
        ("O que é um seguro de viagem?", ""),
        ("Hoe zit het met de andere?", "follow_up"),
        ("A co z tamtym?", "follow_up"),
        ("Co to jest inflacja?", ""),
        ("А почему?", "follow_up"),
        ("Peki ya ikincisi?", "follow_up"),
        ("وماذا عن الثالث؟", "follow_up"),
        ("那第二个呢？", "follow_up"),
        ("西瓜怎么挑？", ""),
        ("それはどうして？", "follow_up"),
        ("그건 왜 그래요?", "follow_up"),
        ("แล้วทำไมล่ะ", "follow_up"),
        ("Wie sagt man „Gute Besserung“ auf Finnisch?", "payload"),
        ("Comment dit-on « merle » en anglais ?", "payload"),
        ("Wie wähle ich ein sicheres Passwort?", ""),
        ("Comment choisir un mot de passe solide ?", ""),
        ("把这段话翻译成法语", "payload"),
        ("次の文章を要約して：鳥が飛ぶ。", "payload"),
        ("你好：怎么种番茄？", ""),
        ("이 문장을 고쳐 줘: 새가 난다.", "payload"),
        ("Подскажите: как вырастить томаты?", ""),
        ("Guten Tag: wie ändere ich meine Adresse?", ""),
        ("Auf Englisch: wo ist der Bahnhof?", "payload"),
        ("Cours d'anglais : comment puis-je m'inscrire ?", ""),
        ("Problem: meine Waschmaschine pumpt das Wasser nicht ab", ""),
        ("Bonjour : est-ce que je peux modifier l'adresse après la commande ?", ""),
        ("Duda: ¿se puede cambiar la dirección después de pedir?", ""),
        ("Domanda veloce: come posso reimpostare la password?", ""),
        ("Tenho uma dúvida: o prazo de troca vale para promoções?", ""),
        ("Korte vraag: hoe stel ik mijn wachtwoord opnieuw in?", ""),
        ("Szybkie pytanie: jak zresetować hasło w aplikacji?", ""),
        ("Быстрый вопрос: как сбросить пароль в приложении?", ""),
        ("Kısa bir soru: uygulamada şifremi nasıl sıfırlarım?", ""),
        ("请问：手机应用的密码怎么重置？", ""),
        ("質問：アプリのパスワードをリセットする方法を教えてください", ""),
        ("질문: 앱에서 비밀번호를 어떻게 재설정하나요?", ""),
        ("سؤال سريع: كيف يمكنني إعادة تعيين كلمة المرور في التطبيق؟", ""),
        ("คำถาม: ฉันจะรีเซ็ตรหัสผ่านในแอปได้อย่างไร", ""),
        ("Vertaal: waar is het station?", "payload"),
        ("Englisch: wo ist der Bahnhof?", "payload"),
        ("Przetłumacz: gdzie jest dworzec?", "payload"),
        ("翻译：车站在哪里？", "payload"),
        ("번역: 역이 어디에 있나요?", "payload"),
    ],
)
def test_what_hangs_or_is_worked_on_is_told_in_other_languages(question: str, reason: str) -> None:
    """By the lexicon of the language; a whole question with the same words in it is none."""
    assert why_not_the_question(question) == reason


@pytest.mark.parametrize(
    ("turn", "reason"), [("Warum denn?", "follow_up"), ("Was soll ich jetzt tun?", ""), ("为什么呢？", "follow_up")]
)
def test_in_context_a_turn_needs_few_words_in_any_language(turn: str, reason: str) -> None:
    """`Why?` has nothing to be compared by; what asks something definite is compared with its history."""
    assert why_not_in_context(turn) == reason


@pytest.mark.parametrize(("asked_for", "reason"), [(0.9, "temperature"), (0.3, ""), (0, ""), (None, "")])
def test_who_asks_for_variety_gets_an_answer_of_its_own(asked_for: float | None, reason: str) -> None:
    """A temperature above the policy's cap is not answered by meaning; one that is not named is no refusal."""
    question = "What is the capital of Italy?"
    assert why_not_semantic(policy().cache, body(question, temperature=asked_for), Facts(), question) == reason
