"""The decision on one candidate, the choice among several, and what is left to a cross-encoder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest

from cache.semantic.decision import (
    Decide,
    Doubtful,
    Shortlist,
    Verdict,
    decide_by,
    default_threshold,
    same_words,
    shortlist,
)
from cache.text.reading import SCRIPTS
from gateway.parts.encoders.blend import Blend, settled
from policies.caching import SemanticCache
from tests.cache.samples import policy

REWORDED = "Which city is the capital of Italy?"
ITALY, SAME, SPAIN = "What is the capital of Italy?", "what's the capital of Italy", "What is the capital of Spain?"


def semantic(**fields: object) -> SemanticCache:
    found = policy(semantic={"ttl": "6h", "min_similarity": 0.85, **fields}).cache.semantic
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class Always:
    """A verifier that says the same of every pair."""

    verdict: Verdict
    strict: float = 0.97
    scripts: Collection[str] = SCRIPTS

    def score(
        self, stored: str, asked: str, cosine: float, guards: Collection[str], *, screening: bool = False
    ) -> Verdict:
        return self.verdict


VETOED = Verdict(0.0, "asked")
"""What a verifier says that reads English only, so that it shows which questions are left to it."""


def test_without_a_verifier_the_cosine_decides_and_the_guards_refuse() -> None:
    """A near question that asks the same is served from the policy's similarity on; one with another name never."""
    decide = decide_by(semantic())
    threshold = default_threshold(semantic())
    assert decide(ITALY, SAME, 0.85).served(threshold)
    assert not decide(ITALY, SAME, 0.84).served(threshold)
    assert decide(ITALY, SPAIN, 1.0).refused.startswith("guard: ")
    assert not decide(ITALY, SPAIN, 1.0).served(-1.0)


def test_with_a_verifier_its_score_and_its_veto_count() -> None:
    """The cosine is then only the least that the policy asks for."""
    sure = decide_by(semantic(), Always(Verdict(0.99)))
    assert sure(ITALY, REWORDED, 0.9) == Verdict(0.99, "", "verifier")
    assert sure(ITALY, REWORDED, 0.8).refused == "similarity"
    vetoed = decide_by(semantic(), Always(Verdict(0.99, "roles")))(ITALY, REWORDED, 0.9)
    assert vetoed == Verdict(0.99, "guard: roles", "verifier")
    assert default_threshold(semantic(), Always(Verdict(0.99))) == 0.97


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (ITALY, SAME),
        (ITALY, "  what is the  capital of Italy"),
        (ITALY, "Hi! Could you please tell me what is the capital of Italy? Thanks!"),
        ("Write a haiku on rain.", "please write a haiku on rain"),
        ("What is C++?", "what is C++ ?"),
        ("Wie reinige ich den Ofen?", "Guten Tag, wie reinige ich bitte den Ofen? Vielen Dank!"),
        ("¿Cómo limpio el horno?", "cómo limpio el horno por favor"),
        ("Comment nettoyer le four ?", "Bonjour, comment nettoyer le four s'il vous plaît ?"),
        ("Как почистить духовку?", "Здравствуйте! Подскажите, пожалуйста, как почистить духовку"),
        ("怎么清洗烤箱？", "你好，请问怎么清洗烤箱？谢谢！"),
        ("烤箱可以用三年吗？", "烤箱可以用3年吗"),
        ("オーブンを掃除するには？", "すみません、オーブンを掃除するには？"),
        ("오븐을 어떻게 청소하나요?", "안녕하세요, 오븐을 어떻게 청소하나요? 감사합니다!"),
        ("ล้างเตาอบยังไง", "สวัสดีครับ ล้างเตาอบยังไงครับ"),
        ("كيف أنظف الفرن؟", "السلام عليكم، كيف أنظف الفرن من فضلك؟"),
        ("Fırını nasıl temizlerim?", "Merhaba, fırını nasıl temizlerim lütfen?"),
    ],
)
def test_texts_of_the_same_words_are_served_by_rule(stored: str, asked: str) -> None:
    """Case, spaces, punctuation and polite phrases change no answer, so no model is asked."""
    assert same_words(stored, asked)
    assert decide_by(semantic(), Always(Verdict(0.0, "roles")))(stored, asked, 0.9) == Verdict(1.0, "", "rule")


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (ITALY, SPAIN),
        (ITALY, REWORDED),
        ("What do US banks charge?", "What do us banks charge?"),
        ("Compute 5! by hand", "Compute 5 by hand"),
        ("What is .NET used for?", "What is net used for?"),
        ("What is 1.5 times two?", "What is 15 times two?"),
        ("Do you know Java?", "Java?"),
        ("Is a < b?", "Is a > b?"),
        ("Was ist C++ auf Deutsch gesagt?", "Was ist C# auf Deutsch gesagt?"),
        ("Ist 1,5 viel für zwei?", "Ist 15 viel für zwei?"),
        ("Was heißt bitte?", "Was heißt?"),
        ("请假怎么办理？", "假怎么办理？"),
        ("怎么退掉三张票？", "怎么退掉两张票？"),
        ("x" * 2001 + "?", "x" * 2001),
    ],
)
def test_what_may_change_an_answer_is_no_rule(stored: str, asked: str) -> None:
    """Other words, acronyms, and symbols that mean something go to the verifier."""
    assert not same_words(stored, asked)


def choose(decide: Decide, near: list[tuple[str, float]], most: int = 0) -> Shortlist | None:
    return shortlist(decide, SAME, near, most)


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Why does my bicycle squeak?", "why does my bycicle sqeuak"),
        ("Comment changer la chaîne de mon vélo ?", "coment changer la chaine de mon velo"),
    ],
)
def test_a_question_that_differs_in_slips_only_is_served_by_rule(stored: str, asked: str) -> None:
    """However far apart the slips put their vectors, and before a model that reads English would refuse it."""
    decide = decide_by(semantic(min_similarity=0.4), Always(VETOED), screening=True, languages=("en", "fr"))
    assert decide(stored, asked, 0.45) == Verdict(1.0, "", "rule")


def test_the_best_of_the_candidates_without_a_veto_is_chosen() -> None:
    """A veto on the nearest leaves the next ones their chance; where all have one, the nearest's is told."""
    decide = decide_by(semantic())
    assert choose(decide, [(SPAIN, 0.99), (ITALY, 0.95), (ITALY, 0.9)]) == Shortlist(
        1, Verdict(0.95, "", "guards"), vetoed=("entities 0.990",)
    )
    chosen = choose(decide, [(SPAIN, 0.99), ("What is the capital of France?", 0.98)])
    assert chosen is not None
    assert chosen.place == 0
    assert chosen.verdict.refused
    assert choose(decide, []) is None


def test_nothing_is_read_after_a_candidate_of_the_same_words() -> None:
    """It cannot be beaten."""
    read: list[str] = []

    def decide(stored: str, asked: str, cosine: float) -> Verdict:
        read.append(stored)
        return Verdict(1.0, "", "rule") if stored == ITALY else Verdict(0.5, "", "verifier")

    near = [("Capital of Italy?", 0.97), (ITALY, 0.95), (SPAIN, 0.9)]
    assert choose(decide, near, 2) == Shortlist(1, Verdict(1.0, "", "rule"))
    assert read == ["Capital of Italy?", ITALY]


def test_no_more_than_three_candidates_without_a_veto_are_read() -> None:
    """Vetoed ones do not count."""
    read: list[str] = []

    def decide(stored: str, asked: str, cosine: float) -> Verdict:
        read.append(stored)
        return Verdict(0.5, "guard: order" if stored == "b" else "", "verifier")

    chosen = choose(decide, [(text, 0.9) for text in "abcde"], 2)
    assert chosen == Shortlist(0, Verdict(0.5, "", "verifier"), (Doubtful(0, 0.9), Doubtful(2, 0.9)), ("order 0.900",))
    assert read == ["a", "b", "c", "d"]


def test_a_cross_encoder_gets_what_the_verifier_leaves_open() -> None:
    """The likeliest first, and no more than wanted: nothing vetoed, nothing plainly different. Its highest wins."""
    scores = {"a b c": 0.3, "d e f": 0.6, "g h i": 0.001, "j k l": 0.5}

    class Known(Always):
        def score(
            self, stored: str, asked: str, cosine: float, guards: Collection[str], *, screening: bool = False
        ) -> Verdict:
            return Verdict(scores.get(stored, 0.9), "roles" if stored not in scores else "")

    decide = decide_by(semantic(), Known(Verdict(0.0)), screening=True)
    near = [("vetoed, all of it", 0.99), *((text, 0.95) for text in scores)]
    chosen = choose(decide, near, 2)
    assert chosen == Shortlist(2, Verdict(0.6, "", "verifier"), doubtful(2, 4), ("roles 0.990",))
    assert settled(chosen, [0.2, 0.7], Blend(0.8, 0.0)) == Shortlist(4, Verdict(0.7, "", "cross_encoder", 0.7))
    assert choose(decide, near, 5) == chosen._replace(doubtful=doubtful(2, 4, 1))
    alone = choose(decide, near[3:4], 2)
    assert alone == Shortlist(0, Verdict(0.001, "similarity", "verifier"))


def doubtful(*places: int) -> tuple[Doubtful, ...]:
    return tuple(Doubtful(place, 0.95) for place in places)


def test_the_threshold_without_labels_is_that_of_what_scores() -> None:
    """The policy's comes before the model's own; a model that states none serves nothing but what is certain."""
    of_model = {"screening": True, "strict": 0.8}
    assert default_threshold(semantic(), Always(Verdict(0.99)), **of_model) == 0.8
    assert default_threshold(semantic(cross_encoder={"min_score": 0.6}), **of_model) == 0.6
    assert default_threshold(semantic(), screening=True) == 1.0


OTHER_SCRIPTS = [
    ("怎么开启手机的蓝牙功能？", "怎么关闭手机的蓝牙功能？"),
    ("通知をオンにする方法は？", "通知をオフにする方法は？"),
    ("كيف أفعّل الإشعارات؟", "كيف أعطّل الإشعارات؟"),
    ("เปิดการแจ้งเตือนอย่างไร", "ปิดการแจ้งเตือนอย่างไร"),
    ("Как включить уведомления?", "Как отключить уведомления?"),
    ("알림을 켜는 방법은?", "알림을 끄는 방법은?"),
    ("What does 开启 mean?", "What does 关闭 mean?"),
    ("How do I set the alarm to ٣?", "How do I set the alarm to ٤?"),
]


@pytest.mark.parametrize(("stored", "asked"), OTHER_SCRIPTS)
def test_a_script_that_the_model_does_not_list_is_refused(stored: str, asked: str) -> None:
    """Whatever the score, with a cross-encoder, without one, and without a verifier; one side of the pair is enough."""
    sure = Always(Verdict(0.99))
    ways = [
        decide_by(semantic()),
        decide_by(semantic(guards=[])),
        decide_by(semantic(), sure),
        decide_by(semantic(), sure, screening=True),
    ]
    for decide in ways:
        for pair in ((stored, asked), (ITALY, asked), (stored, ITALY)):
            assert decide(*pair, 0.99).refused.startswith("guard: ")
        assert decide(stored, stored, 0.99).refused == ""
    assert [decide(stored, asked, 0.99).refused for decide in ways[2:]] == ["guard: script"] * 2


def test_the_same_words_are_served_in_any_script() -> None:
    """Case, spaces and punctuation change nothing that a model would have to read."""
    decide = decide_by(semantic(), Always(Verdict(0.0)), screening=True)
    assert decide("Как включить уведомления?", "как включить  уведомления", 0.99) == Verdict(1.0, "", "rule")


def test_a_script_on_the_data_sheet_is_left_to_its_model() -> None:
    """The cross-encoder's list counts where one reads; the verifier, where it decides alone, knows English."""
    stored, asked = "怎么打开通知？", "通知怎么打开才好？"
    reads = decide_by(semantic(), Always(Verdict(0.99)), screening=True, scripts=("Latin", "Han"), languages=("zh",))
    assert reads(stored, asked, 0.99).refused == ""
    alone = decide_by(semantic(), Always(Verdict(0.99), scripts=("Latin", "Han")))
    assert alone(stored, asked, 0.99).refused == "guard: language"
    assert alone("Wie ändere ich das?", "Wie kann ich das ändern?", 0.99).refused == "guard: language"


@pytest.mark.parametrize(
    ("stored", "asked", "refused"),
    [
        ("Wie ändere ich mein Passwort?", "Wo kann ich das Passwort ändern?", ""),
        ("Wie ändere ich mein Passwort?", "Hur ändrar jag mitt lösenord?", "guard: language"),
        ("Hur ändrar jag mitt lösenord?", "Hur byter man sitt lösenord?", "guard: language"),
        ("三个月内可以退货吗？30天", "60天内可以退货吗？", "guard: numbers"),
        ("怎么把PDF转成Word？", "怎么把Word转成PDF？", "guard: order"),
        ("怎么打开PDF？", "怎么打开JPG？", "guard: entities"),
        ("Liebt der Hund die Katze in dem Haus?", "Liebt die Katze der Hund in dem Haus?", "guard: order"),
        ("孔子对老子有什么影响？", "老子对孔子有什么影响？", "guard: order"),
        ("iPhone 12怎么重启？", "如何重启iPhone 12？", ""),
        ("كم يساوي ٥ كيلو؟", "كم يساوي 5 كيلو بالضبط؟", ""),
    ],
)
def test_questions_in_other_languages_are_left_to_a_model_that_lists_them(
    stored: str, asked: str, refused: str
) -> None:
    """But for other numbers, and for other words in Latin letters or in another order."""
    scripts = ("Latin", "Han", "Arabic")
    languages = ("en", "de", "zh", "ar")
    decide = decide_by(semantic(), Always(VETOED), screening=True, scripts=scripts, languages=languages)
    assert decide(stored, asked, 0.9).refused == refused


def test_a_question_in_english_beside_one_in_another_language_is_read_as_english() -> None:
    """What is told wrongly is compared by the stricter rules."""
    decide = decide_by(semantic(), Always(VETOED), screening=True, languages=("en", "de"))
    assert decide("Wie ändere ich mein Passwort?", "How do I change my password?", 0.9).refused == "guard: asked"


@pytest.mark.parametrize("ending", [" please", ", thanks!", " thank you.", "? Thx", " please, thank you!"])
def test_a_polite_ending_is_no_other_question(ending: str) -> None:
    """However many polite words end a question, with whatever punctuation."""
    assert same_words(f"How do I reset my password{ending}", "how do i reset my password?")
