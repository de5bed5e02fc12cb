"""Kinds of labelled prompts: which a prompt is of, what its request holds, and labels of several levels."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from gateway.parts.fit.datasets import Example, LabelledAnswer
from gateway.parts.fit.kinds import features_of_example, kind_of, plain_requests
from gateway.parts.fit.training.difficulty_heads import tools_requests
from gateway.parts.fit.training.table import ranked
from routing.difficulty.model import KINDS, TOOLS
from routing.difficulty.text_statistics import COUNTS


def example(dataset: str, group: str = "g", kind: str = "") -> Example:
    return Example("a prompt", dataset, group, (LabelledAnswer(0), LabelledAnswer(1)), kind)


def test_a_prompt_is_of_the_kind_that_its_row_or_the_user_or_its_data_set_says() -> None:
    """In this order; an unknown data set is a kind of its own."""
    named = {"qlora_oa": "code", "mine": "chat"}
    assert kind_of(example("qlora_oa", kind="maths"), named) == "maths"
    assert kind_of(example("qlora_oa"), named) == "code"
    assert kind_of(example("mine"), named) == "chat"
    assert kind_of(example("qlora_oa")) == "chat"
    assert kind_of(example("mine")) == "mine"


@pytest.mark.parametrize(
    ("dataset", "group", "kind"),
    [
        ("routerdc_7b", "mmlu_test", "choices"),
        ("routerdc_7b", "arc_challenge_train", "choices"),
        ("routerdc_7b", "MATH_prealgebra", "maths"),
        ("routerdc_7b", "humaneval_train", "code"),
        ("bfcl", "simple", "tools"),
        ("livecodebench", "leetcode/easy", "code"),
    ],
)
def test_public_data_sets_are_of_one_of_the_kinds(dataset: str, group: str, kind: str) -> None:
    """A data set of several kinds is told apart by its groups."""
    assert kind_of(example(dataset, group)) == kind
    assert kind in KINDS


def test_a_group_says_what_the_request_holds() -> None:
    """BFCL's groups give the tools, which are not in the prompt; a later turn of OpenAssistant's is the second."""
    several = features_of_example(example("bfcl", "parallel_multiple_function"))
    assert (several.has_tools, several.tools > 1, several.parallel_tools) == (True, True, True)
    assert not features_of_example(example("mine", "parallel_multiple_function")).has_tools
    assert [features_of_example(example("qlora_oa", group)).turns for group in ("en", "en+")] == [1, 2]


def test_labels_of_two_levels_are_brought_to_one() -> None:
    """A strict judge and a lenient one that order prompts alike give the same targets, and equal ones share theirs."""
    strict = np.array([[0.0, 0.9], [0.1, 0.9], [0.1, 0.9], [0.2, 0.9]])
    lenient = np.array([[0.6, 0.9], [0.7, 0.9], [0.7, 0.9], [0.9, 0.9]])
    assert ranked(strict)[:, 0].tolist() == ranked(lenient)[:, 0].tolist() == [0.125, 0.5, 0.5, 0.875]
    assert ranked(strict)[:, 1] == pytest.approx(np.full(4, 0.9))


def test_requests_with_tools_are_compared_with_made_up_ones() -> None:
    """All have a tool, and some ask for several calls at once."""
    counts = dict(zip(COUNTS, tools_requests().T, strict=True))
    assert counts["log_tools"].min() == pytest.approx(np.log1p(1))
    assert 0 < counts["parallel_tools"].mean() < 0.5


def test_plain_requests_are_of_every_labelled_kind_and_easy_or_hard() -> None:
    """The cheap tier is assumed to fail the hard ones, and none of them is among those that tests ask."""
    made = plain_requests(3)
    assert {(one.kind, one.group) for one in made} == {
        (kind, level) for kind in KINDS if kind != TOOLS for level in ("easy", "hard")
    }
    assert len({one.prompt for one in made}) == len(made)
    for one in made:
        small, middle, large = (answer.correct for answer in one.answers)
        assert small < middle < large
        assert (large - small > 0.5) == (one.group == "hard")
    asked = Path(__file__).parents[2] / "routing" / "difficulty" / "plain_kinds.toml"
    assert not {one.prompt for one in made} & {
        text for some in tomllib.loads(asked.read_text()).values() for text in some
    }
