"""The bench of the audit's labels, on answers of known standing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache.risk.comparison import ALIKE
from routing.embedding.embedder import load_embedder
from tests.bench.answers import Pair, conversational, errors, judged, main, truthful, written
from tests.support.upstream import Reply, Upstream


def test_labels_are_mostly_right_where_the_threshold_is(tmp_path: Path) -> None:
    """On our own answers good hits are called wrong, and wrong ones good, in fewer than a quarter of the cases."""
    (found,) = errors(list(written()), load_embedder("static", tmp_path), (ALIKE["static"],))[1:]
    assert found.f.n == 44
    assert found.m.n == 4 * 44
    assert found.f.value is not None
    assert found.m.value is not None
    assert max(found.f.value, found.m.value) < 0.25


def test_equal_answers_are_the_same_and_contradictions_are_not(tmp_path: Path) -> None:
    """Whatever the vectors say."""
    pairs = [Pair("Is it safe?", ("Yes.", "Yes."), True), Pair("Is it safe?", ("Yes.", "No."), False)]
    alone, strict = errors(pairs, load_embedder("static", tmp_path), (0.99,))
    assert (alone.f.value, alone.m.value) == (0.0, 0.0)
    assert (strict.f.value, strict.m.value) == (0.0, 0.0)


def test_a_file_of_answers_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `--ask` writes it, with one line for each threshold, or one JSON object."""
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"question": "Is it safe?", "answers": ["Yes.", "No."], "same_answer": False}) + "\n")
    assert main([str(file), "--state", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["alike"] == ALIKE["static"]
    assert found["errors"][0]["m"] == {"value": 0.0, "lo": 0.0, "hi": pytest.approx(0.79, abs=0.01), "n": 1}
    assert main([str(file), "--state", str(tmp_path)]) == 0
    assert f"cosine {ALIKE['static']:.2f}" in capsys.readouterr().out


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
