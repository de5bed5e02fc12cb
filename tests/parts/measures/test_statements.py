"""Two answers compared by what each of their statements says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from cache import shipped_cross_encoder
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.hit_audits.label_errors import AS_THEY_ARE, LabelErrors
from gateway.parts.measures.statements import StatementComparer, statements


@dataclass
class Reader:
    """A pair model that knows which statements say the same, and is sure that all others do not."""

    same: Collection[frozenset[str]] = ()
    scripts: Collection[str] = ("Latin", "Han")
    languages: Collection[str] = ("en", "zh", "de")
    same_answer: float | None = 0.8
    other_answer: float = 0.2
    label_errors: LabelErrors = AS_THEY_ARE
    asked: list[tuple[str, str]] = field(default_factory=list)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return 0.9 for those that say the same, and 0.1 for others."""
        self.asked += pairs
        return [0.9 if frozenset(pair) in self.same else 0.1 for pair in pairs]


@pytest.fixture(scope="module")
def shipped() -> StatementComparer:
    return StatementComparer(CrossEncoder.load(shipped_cross_encoder()))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Sure! Open Settings. Then tap Sound.", ["Open Settings.", "Then tap Sound."]),
        ("It costs 3.50 at Dr. J. Smith's. Pay there.", ["It costs 3.50 at Dr.", "J. Smith's.", "Pay there."]),
        ("Do:\n\n1. Open **it**.\n2. Tap Sound\n- or Alarm", ["Do:", "Open **it**.", "Tap Sound", "or Alarm"]),
        ("打开设置。选择通知！然后开启？", ["打开设置。", "选择通知！", "然后开启？"]),
        ("सेटिंग्स खोलें। सूचनाएँ चुनें।", ["सेटिंग्स खोलें।", "सूचनाएँ चुनें।"]),
        ("Run it:\n```\nls -l\n```\nDone.", ["Run it:", "Done."]),
        ("...\n---", []),
    ],
)  # fmt: skip
def test_an_answer_is_sentences_and_items(answer: str, found: list[str]) -> None:
    """Without what says nothing about the question, and without code."""
    assert [one.text for one in statements(answer)] == found


def test_answers_are_the_same_when_each_statement_has_a_counterpart() -> None:
    """In either of them: one that the model calls the same, in both orders, or one that has its words."""
    reader = Reader([frozenset(("打开设置。", "先进入设置页面。"))])
    comparer = StatementComparer(reader)
    assert comparer.compare("打开设置。选择通知。", "选择通知。先进入设置页面。") == "same"
    assert ("打开设置。", "先进入设置页面。") in reader.asked and ("先进入设置页面。", "打开设置。") in reader.asked
    assert comparer.compare("打开设置。选择通知。", "先进入设置页面。") == "unknown"
    assert comparer.compare("先进入设置页面。", "打开设置。选择通知。") == "unknown"


def test_a_statement_that_denies_another_makes_the_answers_different() -> None:
    """In almost the same words, where the model is sure; not where an answer only says more."""
    comparer = StatementComparer(Reader())
    assert comparer.compare("打开设置，选择通知，然后开启即可。", "打开设置，选择通知，然后关闭即可。") == "different"
    assert comparer.compare("Es kostet fünf Euro im Monat.", "Es kostet zwölf Euro im Monat.") == "different"
    assert comparer.compare("打开设置，选择通知，然后开启即可。", "请联系客服。") == "unknown"
    both = "Sie zahlen mit der Karte im Laden.\nSie zahlen mit der Uhr im Laden."
    assert comparer.compare(both, "Sie zahlen mit der Karte im Laden.") == "unknown"
    unsure = StatementComparer(Reader(other_answer=0.05))
    assert unsure.compare("打开设置，选择通知，然后开启即可。", "打开设置，选择通知，然后关闭即可。") == "unknown"


def test_steps_in_another_order_are_not_the_same() -> None:
    """Of a list with numbers; of any other list they are."""
    comparer = StatementComparer(Reader())
    assert comparer.compare("1. Rinse the rice.\n2. Boil the pot.", "1. Boil the pot.\n2. Rinse the rice.") == "unknown"
    assert comparer.compare("- Rinse the rice.\n- Boil the pot.", "- Boil the pot.\n- Rinse the rice.") == "same"


def test_other_numbers_are_never_the_same() -> None:
    """Whatever the model says, in any language."""
    one, other = "退款会在5个工作日内到账。", "您会在10个工作日内收到退款。"
    assert StatementComparer(Reader([frozenset((one, other))])).compare(one, other) == "unknown"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Откройте настройки.", "Откройте меню настроек."),
        ("Abra los ajustes.", "Entre en los ajustes."),
        ("Run `a`.\n```\nrm -r a\n```", "Run `a`.\n```\nrm -r b\n```"),
        ("\n".join(f"- Item {at} of it." for at in range(20)), "\n".join(f"* Item {at} of it." for at in range(20))),
        ("...", "---"),
    ],
)
def test_what_the_model_cannot_read_is_unknown(shipped: StatementComparer, one: str, other: str) -> None:
    """Another script or language than its data sheet lists, code that differs, a long answer, and one without words."""
    assert shipped.compare(one, other) == "unknown"


def test_a_language_must_be_on_the_data_sheet() -> None:
    """A script that the model reads is not enough."""
    pair = "Se abre el menú de la aplicación.", "Se abre el menú de la aplicación"
    assert StatementComparer(Reader(languages=("en", "es"))).compare(*pair) == "same"
    assert StatementComparer(Reader(languages=("en", "zh"))).compare(*pair) == "unknown"


def test_a_model_without_a_threshold_calls_nothing_the_same() -> None:
    """But what has the same words."""
    one, other = "打开设置。", "先进入设置页面。"
    comparer = StatementComparer(Reader([frozenset((one, other))], same_answer=None))
    assert comparer.compare(one, other) == "unknown"
    assert comparer.compare(one, "打开设置！") == "same"


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ("The jacket should be hand washed.", "Wash the jacket by hand.", "same"),
        ("Choose the person and click Add.", "Choose the person and click Remove.", "different"),
        ("The refund takes five days.", "The refund takes 5 days.", "same"),
        ("The refund takes five days.", "The refund takes ten days.", "different"),
        ("The refund takes five days.", "In ten days you get the refund.", "unknown"),
    ],
)
def test_the_model_that_ships_reads_english_statements(
    shipped: StatementComparer, one: str, other: str, verdict: str
) -> None:
    """Other words for the same, an opposite, and other numbers."""
    assert shipped.compare(one, other) == verdict
