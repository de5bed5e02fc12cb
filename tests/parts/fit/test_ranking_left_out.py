"""What is left out of the fits decides which kinds have a domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gateway.parts.fit.datasets import Example, LabelledAnswer
from gateway.parts.fit.figures import Interval
from gateway.parts.fit.training.difficulty import Recipe, measure_left_out, train
from gateway.parts.fit.training.ranking_left_out import LeftOut, What, may_claim, ranks_within
from routing.embedder import Vectors
from tests.support.extras import needs

pytestmark = needs("sklearn", "the train extra is not installed")


class NoVectors:
    """An encoder made for these tests, to which all texts are the same: only their words differ."""

    name = "none"
    dimension = 2
    whole_chars = 1000

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.tile(np.array([1, 0], np.float32), (len(texts), 1))


def row(dataset: str, what: What, low: float, ahead: float) -> LeftOut:
    figure = Interval(low + 0.02, low, low + 0.04)
    return LeftOut(dataset, "chat", what, 500, figure, figure, Interval(ahead, ahead - 0.02, ahead + 0.02), 0.0)


@pytest.mark.parametrize(
    ("rows", "claimed"),
    [
        ([row("a", "set", 0.56, 0.05), row("b", "set", 0.53, 0.03)], True),
        ([row("a", "set", 0.56, 0.05), row("b", "set", 0.52, 0.05)], False),
        ([row("a", "set", 0.56, 0.05), row("b", "set", 0.56, 0.02)], False),
        ([row("a", "set", 0.40, -0.1), row("a", "groups", 0.56, 0.05)], True),
        ([row("a", "set", 0.56, 0.05)], False),
        ([row("a", "groups", 0.51, 0.05)], False),
        ([row("mine", "prompts", 0.56, -0.1)], True),
        ([row("mine", "prompts", 0.51, 0.1)], False),
        ([row("mine", "prompts", 0.56, 0), row("a", "set", 0.4, 0)], True),
        ([], False),
    ],
)
def test_a_kind_has_a_domain_by_the_worst_of_what_was_left_out(rows: list[LeftOut], claimed: bool) -> None:
    """Sets where there are several, else groups; a single one of one group never; one's own by held-out prompts."""
    assert may_claim(rows) is claimed


def examples(dataset: str, groups: Sequence[str], hard: str, easy: str, seed: int) -> list[Example]:
    """Prompts of 12 words, of which those with the word `hard` gain by the strong model, as a rule."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(240):
        is_hard = rng.random() < 0.5
        words = [*rng.choice(FILLERS, 11), hard if is_hard else easy]
        right = rng.random() < (0.1 if is_hard else 0.9)
        answers = LabelledAnswer(float(right)), LabelledAnswer(float(rng.random() < 0.95))
        made.append(Example(" ".join(words), dataset, groups[index % len(groups)], answers))
    return made


FILLERS = [f"word{number}" for number in range(30)]


def test_only_what_holds_for_a_set_that_was_left_out_is_claimed() -> None:
    """Maths sets agree on what is hard; of two exams each is the other's opposite, though both rank themselves well."""
    data = [
        *examples("routellm_gsm8k", ["one"], "deep", "flat", 1),
        *examples("mmlu_pro", ["math"], "deep", "flat", 2),
        *examples("routerbench_arc_challenge", ["one"], "tall", "tiny", 3),
        *examples("routerbench_winograde", ["one"], "tiny", "tall", 4),
    ]
    found = measure_left_out(data, NoVectors(), Recipe(folds=2, centroids=2), lambda *_: None)
    assert found.kinds == ("maths",)
    by_set = {(one.dataset, one.what): one for one in found.rows}
    assert by_set["mmlu_pro", "set"].apgr.lo > 0.6
    assert by_set["routerbench_winograde", "set"].apgr.hi < 0.5
    assert by_set["routerbench_winograde", "set"].claimed == 0
    sheet = train(data, NoVectors(), Recipe(folds=2, centroids=2), lambda *_: None).metrics
    assert {name: kind.get("domain") for name, kind in sheet["kinds"].items()}["choices"] is False
    assert sheet["kinds"]["maths"]["domain"] is True
    assert sheet["left_out"] == [one.as_json() for one in found.rows]


def test_a_table_of_languages_is_no_ranking() -> None:
    """Prompts of a set of several languages must be ranked within each; what only tells these apart has no domain."""
    language = np.array([0, 0, 1, 1, 0, 1, 2])
    assert ranks_within(language, np.array([0.1, 0.3, 5.0, 9.0, 0.3, 5.0, 7.0])).tolist() == pytest.approx(
        [1 / 6, 2 / 3, 1 / 3, 5 / 6, 2 / 3, 1 / 3, 1 / 2]
    )
    good = Interval(0.6, 0.57, 0.63)
    row = LeftOut("qlora_oa", "chat", "groups", 500, good, good, Interval(0.05, 0.03, 0.07), 0.0)
    assert row.holds and "within" not in row.as_json()
    by_language = replace(row, within=Interval(0.51, 0.49, 0.53))
    assert not by_language.holds and not may_claim([by_language])
    assert by_language.as_json()["within"] == [0.51, 0.49, 0.53]
    assert replace(row, within=good).holds
