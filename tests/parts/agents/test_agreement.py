"""How far two answers say the same."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from cache import shipped_cross_encoder
from gateway.parts.agents.agreement import ComparedAnswer, TextComparer, agreement_of, similarity, texts_compared
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.measures.likeness import AgreementScore, AnswerLikeness
from policies.model import UNCALIBRATED_BELOW


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The answer is Rome.", "answer is:  rome"),
        ("A", "A."),
        ('{"a": 1, "b": [2]}', '{ "b": [2], "a": 1 }'),
        ("", " "),
        ("Здравствуй, мир", "здравствуй мир!"),
    ],
)
def test_form_makes_no_difference(one: str, other: str) -> None:
    """Case, punctuation, articles and the order of a JSON object's keys."""
    assert similarity(one, other) == similarity(other, one) == 1.0


@pytest.mark.parametrize(("one", "other"), [("Rome", "Milan"), ("A", "B"), ("42", "43"), ("Rome", ""), ("?", "!")])
def test_nothing_in_common_is_no_agreement(one: str, other: str) -> None:
    """Other words, other numbers, or an answer and none."""
    assert similarity(one, other) == 0.0


def test_the_last_number_is_half_of_it() -> None:
    """Reasoning in other words that comes to the same number agrees more than the same words with another number."""
    same_result = similarity("6 times 7 makes 42", "Multiplying the two we get 42.")
    same_words = similarity("She pays 12 dollars", "She pays 13 dollars")
    assert same_result > 0.5 > same_words > 0.0
    assert similarity("It is -5", "It is 5") == 0.5
    assert similarity("1,200.00", "1200") >= 0.5


def test_answers_of_several_samples_are_averaged() -> None:
    """And without a sample, or where none can be compared, there is no evidence."""
    rome, samples = ComparedAnswer("Rome"), [ComparedAnswer("rome."), ComparedAnswer("Milan")]
    assert agreement_of(rome, samples, similarity) == 0.5
    assert agreement_of(rome, [], similarity) is None
    assert agreement_of(rome, samples, lambda one, other: 0.9 if other == "rome." else None) == 0.9
    assert agreement_of(rome, samples, lambda one, other: None) is None


@pytest.fixture(scope="module")
def shipped() -> TextComparer:
    return TextComparer(AnswerLikeness(CrossEncoder.load(shipped_cross_encoder())))


def test_texts_are_compared_by_the_pair_model_and_within_their_time(shipped: TextComparer) -> None:
    """By words alone where these are sure, which takes no time, or where the model would be late."""
    asked = "What is the capital of Australia?"
    pairs = [
        ("Canberra.", "The capital of Australia is Canberra."),
        ("Canberra.", "canberra"),
        ("In 1945.", "In 1946."),
    ]

    async def compared(limit_s: float) -> list[AgreementScore]:
        return await shipped.compare(pairs, asked, limit_s)

    asyncio.run(compared(5.0))  # the model is warm then
    near, same, other = asyncio.run(compared(5.0))
    assert near.by == "pair_model" and near.score is not None and near.score >= UNCALIBRATED_BELOW
    assert (same, other) == (AgreementScore(1.0, "words"), AgreementScore(0.0, "words"))
    late, same, other = asyncio.run(compared(0.0))
    assert late.score is None and (same.score, other.score) == (1.0, 0.0)


def test_the_event_loop_goes_on_while_answers_are_compared() -> None:
    """And what comes too late is no signal."""

    class Slow(AnswerLikeness):
        def compare(self, one: str, other: str, question: str = "") -> AgreementScore:
            time.sleep(0.4)
            return AgreementScore(1.0, "pair_model")

    async def compared() -> tuple[float, AgreementScore]:
        began = time.monotonic()
        [said] = await TextComparer(Slow(None)).compare([("It froze.", "There was ice.")], "", 0.05)
        return time.monotonic() - began, said

    took_s, said = asyncio.run(compared())
    assert took_s < 0.3 and said == AgreementScore(None, "the cross-encoder is late")


def test_json_of_any_depth_can_be_compared() -> None:
    """What is nested too deep to be put in order is compared as text."""
    deep = '{"a":' * 600 + "1" + "}" * 600
    assert similarity(deep, deep) == 1.0


READ = ("read", '{"path": "a.py", "lines": 20}')


@pytest.mark.parametrize(
    ("other", "agreement"),
    [
        (ComparedAnswer("I look at it.", [("read", '{"lines": 20, "path": "a.py"}')]), 1.0),
        (ComparedAnswer("", [("read", '{"path": "a.py"}')]), 0.5),
        (ComparedAnswer("", [("read", '{"path": "b/c.ts", "lines": 20}')]), 0.5),
        (ComparedAnswer("Let me see.", [("list", READ[1])]), 0.0),
        (ComparedAnswer("Let me see.", [READ, ("list", "{}")]), 0.5),
        (ComparedAnswer("Let me see."), 0.0),
    ],
    ids=["same", "an argument less", "another file", "another tool", "one call more", "no call"],
)
def test_of_answers_that_call_tools_the_calls_are_compared(other: ComparedAnswer, agreement: float) -> None:
    """What is said around them is not."""
    assert agreement_of(ComparedAnswer("Let me see.", [READ]), [other], similarity) == agreement
    assert agreement_of(other, [ComparedAnswer("Let me see.", [READ])], similarity) == agreement


@pytest.mark.parametrize(
    ("begun", "agreement"),
    [
        (ComparedAnswer("Let me"), None),
        (ComparedAnswer("Let me", [("read", "")]), 1.0),
        (ComparedAnswer("Let me", [("read", '{"path": "a.py", "li')]), 1.0),
        (ComparedAnswer("Let me", [("read", '{"path": "z.py", "li')]), 0.0),
        (ComparedAnswer("Let me", [("read", '{"path":"z.py","li')]), 0.0),
        (ComparedAnswer("Let me", [("read", '{"lines": 20, "path": "a.')]), 1.0),
        (ComparedAnswer("Let me", [("read", '{"path": "a.py", "lines": ')]), 1.0),
        (ComparedAnswer("Let me", [("list", '{"pa')]), 0.0),
    ],
    ids=[
        "no call yet",
        "its name",
        "its beginning",
        "another file",
        "another file, without spaces",
        "another order",
        "a value to come",
        "another tool",
    ],  # fmt: skip,
)
def test_of_a_call_that_is_still_written_the_beginnings_are_compared(
    begun: ComparedAnswer, agreement: float | None
) -> None:
    """Before a draft calls anything it may still do what a sample does that calls something."""
    assert agreement_of(begun, [ComparedAnswer("I look at it.", [READ])], similarity, complete=False) == agreement


def test_a_call_that_was_cut_off_is_compared_as_text() -> None:
    """Its arguments are no JSON."""
    cut = ComparedAnswer("", [("write", '{"text": "one two three')])
    whole = ComparedAnswer("", [("write", '{"text": "one two three four"}')])
    assert agreement_of(whole, [cut], similarity) == pytest.approx(0.89, abs=0.01)


def _calls(*calls: tuple[str, object]) -> ComparedAnswer:
    return ComparedAnswer("", [(name, json.dumps(arguments)) for name, arguments in calls])


def _reads(*paths: str) -> ComparedAnswer:
    return _calls(*(("read", {"path": path}) for path in paths))


def test_of_a_longer_answer_so_much_is_compared_as_a_sample_has_that_was_cut() -> None:
    """A stream may be held longer than its sample was allowed to go on."""
    answer = ComparedAnswer("The capital of Italy is Rome, a city on the Tiber.")
    cut = ComparedAnswer("The capital of Italy is Rome, a ci", cut=True)
    assert texts_compared(answer, [cut], complete=False) == [("The capital of Italy is Rome, a",) * 2]
    assert texts_compared(answer, [cut], complete=True) == [("The capital of Italy is Rome, a",) * 2]
    ended = cut._replace(text="The capital of Italy is Rome.", cut=False)
    assert texts_compared(answer, [ended], complete=True) == [(answer.text, ended.text)]


@pytest.mark.parametrize(
    ("one", "other", "agreement"),
    [
        (_reads("a", "b"), _reads("b", "a"), 1),
        (_reads("a", "b"), _reads("b", "c"), 0.5),
        (_reads("src/a.py"), _reads("src/b.py"), 0),
        (_reads("./src/caf\u00e9.py"), _reads("src/cafe\u0301.py"), 1),
        (_reads("/work/src/a.py"), _reads("src/a.py"), 1),
        (_calls(("ask", {"q": "巴黎天气"})), _calls(("ask", {"q": "天气巴黎"})), 1),
        (_calls(("ask", {"q": "Paris"})), _calls(("ask", {"q": "paris, france"})), pytest.approx(2 / 3)),
        (_calls(("pay", {"id": "ord-a1-77"})), _calls(("pay", {"id": "ord-b2-77"})), 0),
        (_calls(("pay", {"usd": 20})), _calls(("pay", {"usd": 20.0})), 1),
        (_calls(("plan", [{"do": "fix it", "s": 1}])), _calls(("plan", [{"do": "fix", "s": 1}])), pytest.approx(5 / 6)),
    ],
    ids=[
        "another order", "one is another", "another file", "the same file", "from the root", "words without spaces",
        "a name and more", "another id", "a float", "nested",
    ],
)  # fmt: skip
def test_calls_agree_by_what_they_would_do(one: ComparedAnswer, other: ComparedAnswer, agreement: float) -> None:
    """Not by the order of parallel calls or the form of a value; and a path or an id is the same, or it is not."""
    assert agreement_of(one, [other], similarity) == agreement_of(other, [one], similarity) == agreement


def test_what_is_written_without_spaces_has_words_too() -> None:
    """Chinese answers agree by their characters, and of one that is still written the beginning is compared."""
    assert similarity("法国的首都是巴黎", "巴黎是法国的首都。") == 1.0
    assert similarity("首都是巴黎", "答案:里昂") == 0.0
    assert (
        agreement_of(
            ComparedAnswer("法国的首都是巴"), [ComparedAnswer("法国的首都是巴黎。")], similarity, complete=False
        )
        == 1.0
    )


@pytest.mark.parametrize(
    ("begun", "sample", "agreement"),
    [
        (ComparedAnswer("Let"), ComparedAnswer("Let me see."), None),
        (ComparedAnswer("", [("add", "[1, 2, 3")]), ComparedAnswer("", [("add", "[1, 2, 3]")]), 1.0),
        (ComparedAnswer("", [("add", '{"to": "a b')]), ComparedAnswer("", [("add", "[1]")]), 0.0),
    ],
    ids=["not one word yet", "no object, and not ended", "an object and a list"],
)
def test_what_cannot_be_read_yet_is_compared_as_text(
    begun: ComparedAnswer, sample: ComparedAnswer, agreement: float | None
) -> None:
    """Or not at all, where not one word of it is certain."""
    assert agreement_of(begun, [sample], similarity, complete=False) == agreement


def test_lists_are_compared_by_their_places() -> None:
    """A list that is longer has something that the other lacks."""
    one, other = ComparedAnswer("", [("add", '{"n": [1, 2]}')]), ComparedAnswer("", [("add", '{"n": [1, 2, 3, 4]}')])
    assert agreement_of(one, [other], similarity) == 0.5
