"""How much work a request asks for: what it hangs on, and what it must not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from routing.difficulty.effort import ARTEFACT, SHEET_FILE, WEIGHTS_FILE, EffortError, EffortHead, effort_head
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.difficulty.text_statistics import tokenise
from routing.embedder import StaticEmbedder
from routing.features import features_of_text
from tools.effort_texts import read_frames

PAIRS = {
    "Prove that the sum of two odd numbers is even.": "Who proved that the sum of two odd numbers is even?",
    "Design a lock that two strangers can share.": "What do you call the person who repairs a lock?",
    "Beweise, dass jede Primzahl über zwei ungerade ist.": "Wie heißt die kleinste Primzahl, und ist sie gerade?",
    "Diseña un plan de riego y justifica cada paso.": "¿Cómo se dice plan de riego en inglés, por favor?",
    "证明奇数的平方仍是奇数。": "奇数用英语怎么说？",
    "सिद्ध कीजिए कि विषम संख्या का वर्ग विषम है।": "विषम संख्या को अंग्रेज़ी में क्या कहते हैं?",
}
"""A request that asks for work, and one about the same that does not."""


def rate(text: str) -> float:
    rated = effort_head().rate(tokenise(text))
    assert rated is not None
    return rated


@pytest.mark.parametrize("hard", list(PAIRS))
def test_the_work_counts_and_not_the_subject(hard: str) -> None:
    """Who proved something is a look-up."""
    assert rate(PAIRS[hard]) < 0.5 < rate(hard)


@pytest.mark.parametrize("text", [*list(PAIRS)[:4], *list(PAIRS.values())[:4]])
def test_neither_case_nor_the_last_stop_counts(text: str) -> None:
    """A text in capitals without its full stop is rated the very same."""
    assert rate(text.rstrip(".?").upper()) == rate(text) == rate(text.lower() + " !")


@pytest.mark.parametrize("hard", [*PAIRS, *PAIRS.values()])
def test_politeness_hardly_counts(hard: str) -> None:
    """Frames move a rating by little: their words weigh nothing, and in scripts without spaces they are left out."""
    language = (
        {"B": "de", "W": "de", "D": "en"}.get(hard[0], "en") if hard.isascii() or "ü" in hard or "ß" in hard else ""
    )
    frames = read_frames()
    for frame in frames[language].fitted if language else ():
        assert rate(frame.replace("{}", hard)) == pytest.approx(rate(hard), abs=0.1), frame
    if hard == "证明奇数的平方仍是奇数。":
        for frame in ("你好！{}", "{}请用一句话回答。"):
            assert rate(frame.replace("{}", hard)) == pytest.approx(rate(hard), abs=0.1), frame


def test_a_text_of_nothing_but_politeness_asks_for_none() -> None:
    """And of one in which no word is known nothing is said."""
    assert rate("Hello, thank you very much please") < 0.1
    assert rate("你好！") == 0.0
    for text in ("", "...", "\U0001f44d", "ωφξ ψζθ χγλ"):
        assert effort_head().rate(tokenise(text)) is None


def test_length_alone_moves_little() -> None:
    """A look-up in a long story stays one, and so does a proof that is asked for in three words."""
    story = "My daughter is doing a quiz for school and is stuck, and dinner is getting cold. "
    assert rate(story + "What is the capital of Kenya?") < 0.3
    assert rate("Prove Wilson's theorem.") > 0.7


def test_of_a_long_text_both_ends_are_read() -> None:
    """However long the text or a word in it: what is asked stands at an end, and nothing is slow."""
    page = "The committee met on Tuesday and the minutes were approved without a vote by those present. " * 60
    asks = "Prove that every quorum intersects, and derive the smallest size that is safe. " * 3
    assert rate(asks + page + asks) > rate(page)
    middle = "x" * 4000 + " " + "y" * 4000
    assert rate(f"{asks} {middle} {asks}") == pytest.approx(rate(f"{asks} {asks}"), abs=0.05)
    assert rate("证明勾股定理。" * 80) > 0.5 > rate("法国的首都是哪里？" * 80)
    for word in ("prove", "capital"):
        assert 0 <= rate(f"{word} " * 4000) <= 1


def test_it_is_known_in_and_out_of_the_domain() -> None:
    """Every difficulty has it, but for images, whose content is not in the text."""
    embedder = StaticEmbedder.load()
    model = DifficultyModel.load(shipped_artefact("static"), embedder)
    text = "What is the capital of Kenya?"
    vector, features = embedder.embed((text,))[0], features_of_text(text)
    assert model.assess(vector, features).effort == rate(text)
    assert model.assess(vector, features._replace(has_images=True)).effort is None
    assert model.assess(vector, features._replace(text="yes", in_context=text)).effort == rate(text)
    assert replace(model, effort=EffortHead(np.zeros(8, np.int8), 1.0, 0.0, {"words": [], "frames": []})).assess(
        vector, features
    ).effort is None  # fmt: skip


def test_an_artefact_that_is_not_its_own_is_refused(tmp_path: Path) -> None:
    """One that is damaged, or lacks a part, names the file and the command that makes it again."""
    folder = Path(shutil.copytree(ARTEFACT, tmp_path / "effort"))
    assert EffortHead.load(folder).version == effort_head().version
    weights = folder / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(EffortError, match="sha256"):
        EffortHead.load(folder)
    sheet = folder / SHEET_FILE
    sheet.write_text(json.dumps({"bits": 3}))
    with pytest.raises(EffortError, match=r"tools\.train_effort"):
        EffortHead.load(folder)
