"""The tokens of a request, estimated and bounded by the kinds of its bytes."""

from __future__ import annotations

import timeit
from typing import Any

import pytest

from routing.features import (
    estimated_tokens,
    features_of,
    field_needing,
    most_tokens,
    room_needed,
    text_in_context,
)

# Article 1 of the Universal Declaration of Human Rights, and its tokens by the tokenizer of SmolLM2-135M-Instruct, as
# llama.cpp's /tokenize counts them.
COUNTED = {
    "english": (
        "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience "
        "and should act towards one another in a spirit of brotherhood.",
        32,
    ),
    "german": (
        "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
        "und sollen einander im Geist der Brüderlichkeit begegnen.",
        60,
    ),
    "polish": (
        "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i "
        "sumieniem i powinni postępować wobec innych w duchu braterstwa.",
        81,
    ),
    "swahili": (
        "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa. Wote wamejaliwa akili na dhamiri, hivyo yapasa "
        "watendeane kindugu.",
        50,
    ),
    "vietnamese": (
        "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. Mọi con người đều được tạo "
        "hoá ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình anh em.",
        151,
    ),
    "russian": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
        "должны поступать в отношении друг друга в духе братства.",
        116,
    ),
    "arabic": (
        "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن يعامل بعضهم بعضا بروح "
        "الإخاء.",
        101,
    ),
    "hindi": (
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन "
        "प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
        199,
    ),
    "chinese": ("人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。", 74),
    "japanese": (
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを"
        "授けられており、互いに同胞の精神をもって行動しなければならない。",
        151,
    ),
    "korean": (
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 "
        "부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
        192,
    ),
    "digits": ("3141592653589793238462643383279502884197169399375105820974944592", 64),
}


def body(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("script", COUNTED)
def test_the_bound_holds_in_every_script(script: str) -> None:
    """It is never less than what a small model's tokenizer counts, and for prose less than two and a half times it."""
    text, counted = COUNTED[script]
    assert counted <= most_tokens(text) < 2.5 * counted


@pytest.mark.parametrize("script", COUNTED)
def test_a_prompt_that_fills_the_context_does_not_fit(script: str) -> None:
    """Four thousand tokens of any script, with room for a reply, are more than a context of 4,096."""
    text, counted = COUNTED[script]
    assert room_needed(body(text * (4000 // counted))) > 4096


def test_the_estimate_knows_scripts() -> None:
    """English has a token in four characters, Chinese one a character; a rule on tokens_in sees the difference."""
    assert estimated_tokens("word" * 100) == 100
    assert estimated_tokens("人" * 100) == 100
    assert estimated_tokens("人" * 1_000_000) == 1_000_000
    assert features_of(body("人" * 100)).approx_tokens == 104
    assert features_of(body("word" * 100)).approx_tokens == 104


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 1256},
        {"max_completion_tokens": 1256},
        {"max_tokens": 3, "max_completion_tokens": 1256},
        {"tools": [{"type": "function", "function": {"name": "f", "description": "1" * 1000}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n" * 3000}}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "1" * 1000}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "1" * 1000}}]}]},
        {"messages": [{"role": "user", "content": ""}] * 150},
    ],
    ids=["max_tokens", "completion", "the larger", "tools", "schema", "parts", "image", "tool calls", "messages"],
)
def test_what_takes_room(more: dict[str, Any]) -> None:
    """The reply, the tools, a schema, parts, images, tool calls and every further message add what they may take."""
    assert room_needed(body() | more) >= room_needed(body()) + 990


def test_a_reply_of_no_tokens_needs_no_room() -> None:
    """A limit of 0 is a limit, and none is given a reply of usual length."""
    assert room_needed(body(max_tokens=0)) + 256 == room_needed(body())


@pytest.mark.parametrize("character", ["a", " ", "A", "я", "人"])
@pytest.mark.parametrize("messages", [1, 400])
def test_more_than_is_asked_about_is_not_counted_to_its_end(character: str, messages: int) -> None:
    """It comes to more than that all the same, by however much; what fits is counted exactly."""
    long = body() | {"messages": [{"role": "user", "content": character * (40_000 // messages)}] * messages}
    assert 4096 < room_needed(long, 4096) <= room_needed(long)
    assert room_needed(long, room_needed(long)) == room_needed(long)


def test_a_body_of_megabytes_is_not_read_through() -> None:
    """Once it is plain that it does not fit, its length costs nothing."""
    huge = body("人" * 1_000_000)
    counted, read = (
        min(timeit.repeat(one, number=1, repeat=5))
        for one in (lambda: room_needed(huge, 4096), lambda: most_tokens(huge["messages"][0]["content"]))
    )
    assert counted < read / 20


@pytest.mark.parametrize("text", ["The quick brown fox jumps over it. " * 229, "昨天晚上我们沿着河边散步了很久" * 534])
def test_no_character_is_looked_at_one_by_one(text: str) -> None:
    """Counting is cheaper than the cheapest loop of Python's over a text, several times."""
    counted, looped = (
        min(timeit.repeat(one, number=5, repeat=20))
        for one in (lambda: room_needed(body(text)), lambda: sum(not one.isascii() for one in text))
    )
    assert counted < looped


URL = "https://files.example/a.pdf"
FETCHED = {"type": "file", "file": {"file_data": URL, "filename": "a.pdf"}}


@pytest.mark.parametrize(
    ("more", "needed"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, {"audio"}),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}]}, {"files"}),
        ({"messages": [{"role": "user", "content": [FETCHED]}]}, {"file_urls"}),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": URL}}]}]}, {"file_urls"}),
        ({"messages": [{"role": "user", "content": [FETCHED, {"type": "file"}]}]}, {"files", "file_urls"}),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "mp3"}}, {"audio"}),
        ({"modalities": ["text"]}, set()),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, {"audio"}),
        ({"messages": [{"role": "assistant", "content": "a", "audio": None}]}, set()),
        ({"web_search_options": {}}, {"web_search"}),
        ({"n": 2}, {"n"}),
        ({"n": 1, "background": False, "service_tier": "auto"}, set()),
        ({"n": None, "background": None, "service_tier": None}, set()),
        ({"background": True, "n": 3}, {"background", "n"}),
        ({"service_tier": "default"}, set()),
        ({"service_tier": "standard_only"}, set()),
        ({"service_tier": "flex"}, {"service_tier_flex"}),
        ({"service_tier": "priority"}, {"service_tier_priority"}),
        ({"service_tier": "fast"}, {"service_tier_priority"}),
        ({"service_tier": "scale"}, {"service_tier_other"}),
        ({"service_tier": {"of": 1}}, set()),
        ({"store": True, "prompt_cache_key": "k"}, set()),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, set()),
    ],
)
def test_what_few_requests_need(more: dict[str, Any], needed: set[str]) -> None:
    """It is found in the messages, or in the output that is asked for; a value that asks for nothing needs nothing."""
    assert features_of(body() | more).further == needed


@pytest.mark.parametrize(
    ("capability", "more", "path"),
    [
        ("audio", {"modalities": ["audio"]}, "modalities"),
        ("audio", {"audio": {"voice": "a"}}, "audio"),
        ("audio", {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ("service_tier_flex", {"service_tier": "flex"}, "service_tier"),
        ("n", {"n": 2}, "n"),
        ("json", {"response_format": {"type": "json_object"}}, "response_format"),
        ("tools", {"functions": [{"name": "f"}]}, "functions"),
        ("tools", {"tools": [{"type": "function"}]}, "tools"),
        ("hosted_tools", {}, "messages"),
    ],
)
def test_the_field_that_needs_a_capability(capability: str, more: dict[str, Any], path: str) -> None:
    """An error names it by its path."""
    assert field_needing(capability, body() | more) == path


def test_the_part_that_needs_a_capability() -> None:
    """Of several parts, the first of the kind is named."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "file"}, {"type": "input_audio"}, FETCHED]
    messages = [{"role": "user", "content": [FETCHED]}, {"role": "user", "content": parts}]
    asked = ("vision", "files", "audio", "file_urls")
    named = {name: field_needing(name, body() | {"messages": messages}) for name in asked}
    assert named == {
        "file_urls": "messages[0].content[0]",
        "vision": "messages[1].content[1]",
        "files": "messages[1].content[2]",
        "audio": "messages[1].content[3]",
    }


PROOF = "Prove that every bounded sequence in R^n has a convergent subsequence, with a rigorous argument."
PERU = "Which city is the capital of Peru, by the way?"


@pytest.mark.parametrize(
    "last",
    [
        "yes", "go on", "why?", "ok do it", "What about the second step?", "can you double-check that?",
        "and now for n = 3?", "Thanks! And does it hold in a Hilbert space?", "Continue from the previous line, please",
        "ok, and the second one?", "are you sure about this step of the argument?", "now in Python", "yes, please",
        "再来一次", "继续", "好的,请再检查一遍这个证明的最后一步", "続けて", "もう一度確認してください",
        "계속", "ja, bitte weiter", "Kannst du das bitte noch einmal in Ruhe prüfen?", "sigue", "¿y el segundo?", "да",
        "а можно ещё раз проверить это?",
        "نعم", "هل أنت متأكد من هذه الخطوة؟",
    ],
)  # fmt: skip
def test_a_message_that_hangs_on_another_is_rated_as_that(last: str) -> None:
    """As the latest that says enough itself; short ones in between, and what was asked before it, have no part."""
    assert text_in_context([PROOF, last]) == PROOF
    assert text_in_context([PERU, PROOF, "yes", "go on", last]) == PROOF
    assert text_in_context([PROOF, PERU, last]) == PERU


@pytest.mark.parametrize(
    "last",
    [
        "Ok, now what is the capital of Peru?", "Thanks! Which day comes after Tuesday?", "Tell me a joke", "Thanks!",
        "thanks a lot", "秘鲁的首都是哪座城市?", "谢谢!", "讲个笑话", "ペルーの首都はどの都市ですか?",
        "ありがとうございます", "Wer ist Goethe?", "Vielen Dank!", "¡Muchas gracias!", "¿Cuál es la capital de Perú?",
        "Спасибо!", "شكرا جزيلا", "Hi, how are you?",
    ],
)  # fmt: skip
def test_a_new_topic_is_rated_by_itself(last: str) -> None:
    """However short it is, and whatever interjections come before it: so are thanks, which ask for nothing."""
    assert text_in_context([PROOF, "go on", last]) == ""


@pytest.mark.parametrize("turns", [[PROOF, PERU], [PROOF, PROOF * 2], ["hi", "yes"], ["yes"]])
def test_a_message_that_says_enough_is_rated_alone(turns: list[str]) -> None:
    """So is a first one, and one without anything to hang on; one too far back is forgotten."""
    assert text_in_context(turns) == ""
    assert text_in_context([PROOF, *["go on"] * 16]) == PROOF
    assert text_in_context([PROOF, *["go on"] * 17]) == ""
    assert text_in_context(["And prove that it holds for all n.", "yes", "why?"]).startswith("And prove")


def test_the_rated_text_is_the_last_users_unless_it_hangs_on_another() -> None:
    """Of a whole request; its other features are those of all messages."""
    talk = [{"role": "user", "content": PROOF}, {"role": "assistant", "content": "Let x be."}]
    last = {"role": "user", "content": [{"type": "text", "text": "why?"}]}
    alone, features = features_of({"messages": talk[:1]}), features_of({"messages": [*talk, last]})
    assert (alone.rated_text, alone.as_rated) == (PROOF, alone)
    assert (features.text, features.rated_text, features.turns) == ("why?", PROOF, 2)
    assert features.as_rated == features._replace(text=features.rated_text, in_context="")
