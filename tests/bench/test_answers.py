"""The bench of the audit's labels, on answers of known standing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache import shipped_cross_encoder
from gateway.encoders import load_embedder
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.hit_audits.comparison import ALIKE, AnswerComparer
from tests.bench.answers import Pair, conversational, judged, labels, main, opposites, truthful, written
from tests.support.upstream import Reply, Upstream


@pytest.fixture(scope="module")
def comparer(tmp_path_factory: pytest.TempPathFactory) -> AnswerComparer:
    """The comparison as an audit makes it."""
    scorer = CrossEncoder.load(shipped_cross_encoder())
    return AnswerComparer(load_embedder("static", tmp_path_factory.mktemp("state")).embed, scorer)


@pytest.mark.long
def test_good_hits_are_rarely_called_wrong_and_wrong_ones_hardly_ever_good(comparer: AnswerComparer) -> None:
    """On our own answers: a share of the wrong ones is called different, and most have no label."""
    found = labels(list(written()), comparer)
    assert (found.alike.same.n, found.apart.same.n) == (44, 4 * 44)
    alike, apart = ([one.value or 0.0 for one in (of.same, of.different)] for of in (found.alike, found.apart))
    assert alike[1] < 0.05
    assert apart[0] < 0.02
    assert apart[1] > 0.2


@pytest.mark.parametrize("reads", [pytest.param(True, marks=pytest.mark.long), False])
def test_opposite_answers_are_not_called_the_same(comparer: AnswerComparer, reads: bool) -> None:
    """In any language, with a cross-encoder and without; with it a good share of English answers keeps its label."""
    by_language = opposites()
    assert len(by_language) == 13
    found = {name: labels(pairs, comparer if reads else AnswerComparer()) for name, pairs in by_language.items()}
    assert all((one.apart.same.value or 0.0) <= 0.02 for one in found.values())
    assert (found["en"].alike.same.value or 0.0) >= (0.1 if reads else 0.0)


def test_equal_answers_are_the_same_and_contradictions_are_not() -> None:
    """Whatever else compares them."""
    pairs = [Pair("Is it safe?", ("Yes.", "Yes."), True), Pair("Is it safe?", ("Yes.", "No."), False)]
    found = labels(pairs, AnswerComparer())
    assert (found.alike.same.value, found.apart.different.value) == (1.0, 1.0)


def test_a_file_of_answers_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `--ask` writes it, with two lines for each set, or one JSON object."""
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"question": "Is it safe?", "answers": ["Yes.", "No."], "same_answer": False}) + "\n")
    flags = ["--state", str(tmp_path), "--cross-encoder", "none"]
    assert main([str(file), *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["alike"] == ALIKE["static"]
    of = found["sets"][str(file)]["apart"]
    assert of["different"] == {"value": 1.0, "lo": pytest.approx(0.21, abs=0.01), "hi": 1.0, "n": 1}
    assert main(["--opposites", *flags]) == 0
    shown = capsys.readouterr().out
    assert f"cosine {ALIKE['static']:.2f}, cross-encoder none" in shown
    assert len(shown.splitlines()) == 1 + 2 * 14


def test_the_public_sets_are_read_as_the_docstring_says(tmp_path: Path) -> None:
    """Answers that say nothing, and two that are equal, make no pair."""
    facts = [
        {
            "Question": "Is it?",
            "Best answer": "Yes, it is.",
            "True answers": ["Yes, it is.", "It is."],
            "False answers": ["No."],
        },
        {"Question": "Who?", "Best answer": "I have no comment.", "True answers": ["Ann."], "False answers": ["Bob."]},
        {
            "Question": "Why?",
            "Best answer": "So.",
            "True answers": ["So.", "I have no comment."],
            "False answers": ["No."],
        },
    ]
    (tmp_path / "facts").write_text(json.dumps({"examples": facts}))
    assert list(truthful(tmp_path / "facts")) == [
        Pair("Is it?", ("Yes, it is.", "It is."), True),
        Pair("Is it?", ("Yes, it is.", "No."), False),
    ]

    def turns(*texts: str) -> list[dict[str, str]]:
        return [{"input_text": text} for text in texts]

    stories = [
        {
            "questions": turns("Who?", "Where?"),
            "answers": turns("Ann", "Rome"),
            "additional_answers": {"0": turns("Ann Lee", "there")},
        },
        {
            "questions": turns("Who?", "Where?"),
            "answers": turns("Ann", "Rome"),
            "additional_answers": {"0": turns("ann", "there")},
        },
        {"questions": turns("Who?", "Where?"), "answers": turns("Ann", "Rome")},
    ]
    (tmp_path / "stories").write_text(json.dumps({"data": stories}))
    assert list(conversational(tmp_path / "stories")) == [
        Pair("Who?", ("Ann", "Ann Lee"), True),
        Pair("Who?", ("Rome", "Ann Lee"), False),
        Pair("Who?", ("Rome", "ann"), False),
    ]


async def test_a_judge_is_measured_by_what_it_says() -> None:
    """Its errors both ways and its silences; what the guards settle is not asked."""
    pairs = [
        Pair("Is it warm there?", ("It is warm.", "You will like it."), True),
        Pair("Is it warm there?", ("It is warm.", "It is freezing."), False),
        Pair("Is it warm there?", ("It is warm.", "Quite so."), True),
        Pair("Is it warm there?", ("Yes.", "No."), False),
    ]
    with Upstream() as upstream:
        upstream.queue(Reply(text="SAME"), Reply(text="SAME"), Reply(text="Hard to say."))
        found = await judged(pairs, upstream.url, "large")
    assert (found.f.value, found.f.n) == (0.0, 1)
    assert (found.m.value, found.m.n) == (0.5, 2)
    assert (found.silent.value, found.silent.n) == (pytest.approx(1 / 3), 3)
