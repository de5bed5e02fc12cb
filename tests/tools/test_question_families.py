"""Pairs from families of questions: which are the same, and what a broken file says."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gateway.parts.fit.datasets import DataError
from tools.question_families import FamilyPair, family_pairs, read_families

FAMILIES = """
[slots]
city = ["Paris", "Lyon", "Rome"]
service = ["Netflix", "Spotify"]
body = ["World Bank | WB", "Red Cross | RC"]
[[family]]
name = "trains"
[[family.intent]]
name = "fare"
ask = ["What does the train from {city_1} to {city_2} cost?", "train fare {city_1} to {city_2}"]
[[family.intent]]
name = "distance"
symmetric = true
ask = ["How far is {city_1} from {city_2}?", "distance between {city_1} and {city_2}"]
[[family]]
name = "bodies"
[[family.intent]]
name = "seat"
ask = ["Where does the {body} have its main office?"]
[[family.intent]]
name = "head"
ask = ["Who is at the head of the {body}?", "{body} president"]
[[family]]
name = "plan"
[[family.intent]]
name = "cancel"
ask = ["How do I cancel {service}?", "I want to stop paying for {service}, what do I do?"]
[[family.intent]]
name = "pause"
ask = ["Can I pause {service} for a while?", "How do I put {service} on hold?"]
"""


ALIKE = ("wording", "distant", "directed", "typed", "reworded")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[FamilyPair]:
    folder = tmp_path_factory.mktemp("families")
    (folder / "mine.toml").write_text(FAMILIES)
    return list(family_pairs(read_families(folder), 3000, Random(1)))


def of_kind(pairs: list[FamilyPair], kind: str) -> list[FamilyPair]:
    """Return the pairs of a kind; there must be some."""
    chosen = [pair for pair in pairs if pair.group == kind]
    assert chosen
    return chosen


def cities(text: str) -> list[str]:
    """Return the cities of a text in their order; none where a typo hides one."""
    found = sorted((text.lower().find(city), city) for city in ("paris", "lyon", "rome"))
    return [city for at, city in found if at >= 0]


def test_wordings_of_one_intent_are_the_same_and_two_intents_are_not(pairs: list[FamilyPair]) -> None:
    """The label follows from how the pair was made, whatever was added to the texts."""
    assert all(pair.same_answer for kind in ALIKE for pair in of_kind(pairs, kind))
    assert not any(
        pair.same_answer
        for kind in ("intent", "value", "changed", "elsewhere", "swapped")
        for pair in of_kind(pairs, kind)
    )
    assert all(pair.a.lower() != pair.b.lower() for pair in of_kind(pairs, "value"))
    assert 0.4 < sum(pair.same_answer for pair in pairs) / len(pairs) < 0.6


def test_a_swap_keeps_the_question_only_where_the_intent_says_so(pairs: list[FamilyPair]) -> None:
    """The fare from Paris to Rome is not that from Rome to Paris; the distance is."""
    for kind, words in (("swapped", ("fare", "train")), ("swapped, same", ("distance", "far"))):
        swapped = of_kind(pairs, kind)
        assert sum(any(word in pair.a.lower() for word in words) for pair in swapped) > 0.8 * len(swapped)
        both = [(cities(pair.a), cities(pair.b)) for pair in swapped]
        readable = [(one, other) for one, other in both if len(one) == len(other) == 2]
        assert readable
        assert all(one == other[::-1] for one, other in readable)


def test_the_direction_is_kept_in_other_words(pairs: list[FamilyPair]) -> None:
    """Besides swapped pairs there are some with the same two cities in the same roles."""
    both = [(cities(pair.a), cities(pair.b)) for pair in of_kind(pairs, "directed") if "from" in pair.a + pair.b]
    readable = [(one, other) for one, other in both if len(one) == len(other) == 2]
    assert readable
    assert all(one == other for one, other in readable)


def test_two_names_of_one_value_ask_for_the_same(pairs: list[FamilyPair]) -> None:
    """An abbreviation is no other value, and what stands between two names is never seen."""
    texts = [(pair.a.casefold(), pair.b.casefold(), pair.same_answer) for pair in pairs]
    valued = [{text.casefold()[: text.find(" its")] for text in (pair.a, pair.b)} for pair in of_kind(pairs, "value")]
    assert not any("|" in text for one, other, _ in texts for text in (one, other))
    full, short, other = "where does the world bank have", "where does the wb have", "where does the red cross have"
    begins = {(frozenset(text[: text.find(" its")] for text in pair[:2]), pair[2]) for pair in texts}
    assert (frozenset({full, short}), True) in begins
    assert {full, short} not in valued
    assert (frozenset({full, other}), False) in begins


def test_a_distant_wording_is_one_of_those_with_the_fewest_words_in_common(tmp_path: Path) -> None:
    """Of the other wordings the two farthest are drawn from."""
    asks = ["how do I get to work on my own", "how do I get to work alone", "riding by myself", "solo trips, please"]
    rows = "".join(f'[[family.intent]]\nname = "{n}"\nask = {asks if n == "a" else []}\n' for n in "ab")
    (tmp_path / "mine.toml").write_text(f'[[family]]\nname = "f"\n{rows}')
    made = of_kind(list(family_pairs(read_families(tmp_path), 500, Random(1))), "distant")
    assert not any("own" in text[0] and "alone" in text[1] for pair in made for text in ((pair.a, pair.b),))


def test_a_file_of_more_weight_gives_more_pairs(tmp_path: Path) -> None:
    """Of two like files the one of weight 3 gives three quarters of the pairs."""
    (tmp_path / "light.toml").write_text(FAMILIES)
    (tmp_path / "heavy.toml").write_text(f"weight = 3\n{FAMILIES}")
    families = [pair.family for pair in family_pairs(read_families(tmp_path), 2000, Random(1))]
    assert 0.70 < sum(name.startswith("heavy") for name in families) / len(families) < 0.80


def test_a_small_change_is_made_in_short_questions_only(tmp_path: Path) -> None:
    """In a story around a question another number changes nothing."""
    story, short = "It rained for 30 days. How do I dry a wall?", "How do I dry 30 walls?"
    (tmp_path / "mine.toml").write_text(
        f'[[family]]\nname = "f"\n[[family.intent]]\nname = "a"\nask = ["{story}"]\n'
        f'[[family.intent]]\nname = "b"\nask = ["{short}"]\n'
    )
    changed = of_kind(list(family_pairs(read_families(tmp_path), 1000, Random(1))), "changed")
    assert not any("rained" in pair.a.casefold() for pair in changed)


def test_two_slots_of_one_name_get_two_values(pairs: list[FamilyPair]) -> None:
    """No train goes from a city to itself."""
    fares = [cities(text) for pair in pairs for text in (pair.a, pair.b) if "train fare" in text.lower()]
    assert fares
    assert all(len(found) == len(set(found)) for found in fares)


def test_a_seed_gives_the_same_pairs_again(tmp_path: Path) -> None:
    """Training can be made again."""
    (tmp_path / "mine.toml").write_text(FAMILIES)
    families = read_families(tmp_path)
    assert list(family_pairs(families, 200, Random(7))) == list(family_pairs(families, 200, Random(7)))
    assert list(family_pairs(families, 200, Random(7))) != list(family_pairs(families, 200, Random(8)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[family]]\nname = 'a'\n[[family.intent]]\nask = ['b']", "name missing"),
        ("[[family]]\nname = 'a'\n[[family.intent]]\nname = 'b'\nask = ['c {d}']", "too few values of the slot 'd'"),
        (
            "[slots]\nd = ['1', '2']\n[[family]]\nname = 'a'\n[[family.intent]]\nname = 'b'\n"
            "ask = ['{d_1} {d_2} {d_3}']",
            "too few values of the slot 'd'",
        ),
        ("[[family]]\nname = 'a'\nintent = []\n[[family]]\nname = 'a'\nintent = []", "'mine: a' occurs twice"),
        ("family = 3", "not iterable"),
        ("[[family]", "mine.toml"),
        ("", "family missing"),
    ],
)
def test_a_broken_file_is_named_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    """Whoever writes families sees which file is wrong, and why."""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(DataError, match=reason) as raised:
        read_families(tmp_path)
    assert "mine.toml" in str(raised.value)


def test_a_folder_without_families_is_an_error(tmp_path: Path) -> None:
    """A wrong path is not taken for no families."""
    with pytest.raises(DataError, match=r"no \*\.toml"):
        read_families(tmp_path)


def test_an_opposite_is_the_most_likely_other_value_and_a_language_has_its_own_greetings(tmp_path: Path) -> None:
    """A value written as `a <> b` becomes the other of the two mostly, and never what asks for the same."""
    (tmp_path / "zh").mkdir()
    (tmp_path / "zh" / "phone.toml").write_text(
        """
language = "zh"
before = ["你好，"]
[slots]
turn = ["打开 <> 关闭", "启用 <> 禁用", "静音", "重置"]
[[family]]
name = "通知"
[[family.intent]]
name = "turn"
ask = ["怎么{turn}通知？", "我想{turn}通知，怎么做？"]
""",
        encoding="utf-8",
    )
    (tmp_path / "mine.toml").write_text(FAMILIES)
    families = read_families(tmp_path)
    pairs = [pair for pair in family_pairs(families, 4000, Random(2)) if pair.family == "zh/phone: 通知"]
    changed = [pair for pair in of_kind(pairs, "value") if "打开" in pair.a + pair.b]
    opposed = [pair for pair in changed if "关闭" in pair.a + pair.b]
    assert len(opposed) > len(changed) / 2
    assert not any(pair.same_answer for pair in changed)
    assert any(text.startswith("你好，") for pair in pairs for text in (pair.a, pair.b))
    assert len(pairs) > 4000 / 4  # three in five are in other languages, and not all kinds are there
