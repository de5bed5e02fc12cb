"""Heads fitted to made-up answers of which it is known what they tell."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gateway.cli.commands import CommandError
from gateway.parts.fit.commands import fit_train
from gateway.parts.fit.curves import Floats, auroc, calibration_error
from gateway.parts.fit.datasets import DataError, Example, LabelledAnswer
from gateway.parts.fit.folds import folds_of
from gateway.parts.fit.metrics import apgr
from gateway.parts.fit.training.answer_heads import fit_head, orders_of, save_head
from gateway.parts.fit.training.confidence import fit_and_judge, judge_left_out
from gateway.parts.fit.training.scorers import FEW_LABELS
from gateway.parts.heads.head import ConfidenceHead
from routing.confidence.judge import Evidence
from tests.support.extras import needs

pytestmark = needs("sklearn", "fitting needs scikit-learn (the extra `train`)")

DIMENSION = 16


def silent(stage: str, done: int, total: int) -> None:
    """Shows nothing."""


def answers(n: int, *, dataset: str = "quiz", seed: int = 0, topic: float = 0.0) -> tuple[list[Example], Floats]:
    """n answered prompts. P(small right) rises with the log-probability; `topic` is how much the vector says besides.

    The prompts of a data set lie around a corner of their own.
    """
    rng = np.random.default_rng([seed, *dataset.encode()])
    logprob = -rng.exponential(0.6, n)
    corner = np.random.default_rng(list(dataset.encode())).normal(size=DIMENSION)
    vectors = corner / np.linalg.norm(corner) + 0.15 * rng.normal(size=(n, DIMENSION))
    side = np.sign(vectors[:, 0] - np.median(vectors[:, 0]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    small = rng.random(n) < 1 / (1 + np.exp(-(1.2 + 2.0 * logprob)))
    large = rng.random(n) < np.clip(0.8 + topic * side, 0.02, 0.98)
    examples = [
        Example(
            f"{dataset} {i}",
            dataset,
            dataset,
            (LabelledAnswer(float(a), confidence=c, tok_out=1), LabelledAnswer(float(b))),
        )
        for i, (a, b, c) in enumerate(zip(small, large, logprob.tolist(), strict=True))
    ]
    return examples, vectors


def worth(examples: list[Example], gain: Floats) -> float:
    """The APGR of ranking by this gain, less the raw log-probability's."""
    small, large = np.array([e.small for e in examples]), np.array([e.large for e in examples])
    raw = np.array([-(e.answers[0].confidence or 0.0) for e in examples])
    return apgr(gain, small, large) - apgr(raw, small, large)


def right(examples: list[Example]) -> Floats:
    return np.array([example.small for example in examples])


def test_what_the_prompt_tells_besides_improves_the_order() -> None:
    """Where some prompts are lost on the large model too, the order by expected gain beats the raw log-probability."""
    examples, vectors = answers(900, topic=0.35)
    judged = judge_left_out(examples, vectors, folds_of(900, 5, 0), silent)
    assert worth(examples, judged.gain) > 0.02
    assert calibration_error(judged.p_right, right(examples)) < 0.06


def test_where_nothing_more_is_to_be_learned_the_order_hardly_changes() -> None:
    """On prompts whose vectors say nothing, the head keeps to the raw log-probability's order, or next to it."""
    differences = []
    for seed in range(4):
        examples, vectors = answers(500, seed=seed)
        judged = judge_left_out(examples, vectors, folds_of(500, 5, seed), silent)
        differences.append(worth(examples, judged.gain))
    assert min(differences) > -0.01
    assert np.mean(differences) > -0.005


@pytest.mark.parametrize("labels", [20, 100, 200])
def test_few_labels_calibrate_and_leave_the_order_alone(labels: int) -> None:
    """With a few labels the order is exactly the raw log-probability's, and the probabilities are already true."""
    examples, vectors = answers(1500, topic=0.3)
    judged = fit_and_judge(examples[:labels], vectors[:labels], examples[labels:], vectors[labels:])
    assert worth(examples[labels:], judged.gain) == pytest.approx(0.0, abs=1e-9)
    if labels >= 100:
        assert calibration_error(judged.p_right, right(examples[labels:])) < 0.1


def test_another_domain_keeps_the_order_of_the_raw_logprob() -> None:
    """Answers to prompts unlike all that was fitted are ranked by their log-probability alone."""
    fitted, vectors = answers(600, topic=0.35)
    others, elsewhere = answers(400, dataset="law", topic=-0.35)
    judged = fit_and_judge(fitted, vectors, others, elsewhere)
    assert worth(others, judged.gain) == pytest.approx(0.0, abs=0.003)
    assert ((judged.p_right > 0) & (judged.p_right < 1)).all()


def test_a_data_set_without_labels_keeps_the_raw_order_however_like_it_looks() -> None:
    """Its prompts lie among those of a fitted one, but what makes them hard is the reverse: carried heads lose."""
    fitted, vectors = answers(900, topic=0.35)
    reverse, alike = answers(900, seed=1, topic=-0.35)
    unknown = [replace(example, dataset="law") for example in reverse]
    judged = fit_and_judge(fitted, vectors, unknown, alike)
    raw = np.array([-(example.answers[0].confidence or 0.0) for example in unknown])
    assert (np.argsort(judged.gain, kind="stable") == np.argsort(raw, kind="stable")).all()
    assert (np.diff(judged.p_right[np.argsort(-raw)]) >= 0).all()
    assert worth(unknown, fit_and_judge(fitted, vectors, unknown, alike, carried=True).gain) < -0.02


def test_each_task_has_a_log_probability_scale_of_its_own() -> None:
    """Two tasks whose log-probabilities mean different things are ranked together better than by the raw ones."""
    examples, vectors = answers(500)
    shifted, other = answers(500, dataset="law")
    shifted = [
        Example(
            e.prompt, e.dataset, e.group, (LabelledAnswer(e.small, (e.answers[0].confidence or 0) - 3.0), e.answers[1])
        )
        for e in shifted
    ]
    both = examples + shifted
    judged = judge_left_out(both, np.vstack([vectors, other]), folds_of(1000, 5, 0), silent)
    assert worth(both, judged.gain) > 0.02
    assert calibration_error(judged.p_right, right(both)) < 0.06


def test_equal_data_gives_equal_judgements() -> None:
    """Nothing in a fit depends on chance."""
    examples, vectors = answers(400, topic=0.2)
    one, two = (fit_and_judge(examples[:350], vectors[:350], examples[350:], vectors[350:]) for _ in range(2))
    assert np.array_equal(one.p_right, two.p_right)
    assert np.array_equal(one.gain, two.gain)


@pytest.mark.parametrize("small", [0.0, 1.0])
def test_a_model_always_right_or_always_wrong_has_a_probability_short_of_certain(small: float) -> None:
    """Labels of one kind only are no proof of the other's absence."""
    examples, vectors = answers(60)
    same = [Example(e.prompt, e.dataset, e.group, (LabelledAnswer(small, -0.5), e.answers[1])) for e in examples]
    judged = fit_and_judge(same[:50], vectors[:50], same[50:], vectors[50:])
    assert ((judged.p_right > 0) & (judged.p_right < 1)).all()
    assert (abs(judged.p_right - small) < 0.1).all()


def test_answers_without_log_probabilities_are_an_error_that_counts_them() -> None:
    """A head cannot be fitted to answers that carry no evidence; the message says how many there are."""
    examples, vectors = answers(50)
    examples[3] = Example("p", "quiz", "quiz", (LabelledAnswer(1.0), LabelledAnswer(1.0)))
    with pytest.raises(DataError, match="1 of 50"):
        judge_left_out(examples, vectors, folds_of(50, 5, 0), silent)


def written(n: int, *, seed: int = 0, tokens: int = 30, alternatives: int = 0) -> list[LabelledAnswer]:
    """n answers with log-probabilities, each one more likely right the surer its first token is, whatever the rest.

    With alternatives it is instead the first token's margin over the next that tells.
    """
    rng = np.random.default_rng(seed)
    made = []
    for length in rng.integers(1, tokens, n).tolist():
        logprobs = -rng.exponential(0.8, length)
        top = [sorted(row, reverse=True) for row in (-rng.exponential(1.0, (length, alternatives))).tolist()]
        tells = 3.0 * (top[0][0] - top[0][1]) - 4.0 if alternatives else 1.5 + 3.0 * logprobs[0]
        made.append(
            LabelledAnswer(
                float(rng.random() < 1 / (1 + np.exp(-tells))),
                confidence=float(logprobs.mean()),
                logprobs=tuple(logprobs.tolist()),
                finish_reason="stop",
                top_logprobs=tuple(map(tuple, top)) if alternatives else None,
                text="some words",
            )
        )
    return made


@pytest.mark.long
def test_a_head_learns_what_the_mean_hides() -> None:
    """With labels enough, a head over all features tells right from wrong better than the mean log-probability."""
    head = fit_head(written(700), "tiny", 0, silent)
    whole = head.metrics["parts"]["whole"]
    assert whole["head"]["auroc"] > whole["raw"]["auroc"] + 0.05
    assert whole["head"]["ece"] < 0.08
    sure, unsure = ([-0.05, -1.0, -1.0, -1.0], [-3.0, -0.02, -0.02, -0.02])
    judge = ConfidenceHead.of("tiny", head.numbers)
    high, low = (judge.p_right(Evidence("a", logprobs=tokens, finish_reason="stop")) for tokens in (sure, unsure))
    assert high is not None and low is not None
    assert high > low + 0.2


@pytest.mark.parametrize(
    "reverse", [pytest.param(False, marks=pytest.mark.long, id="holds elsewhere"), pytest.param(True, id="here alone")]
)
def test_what_is_learned_is_used_only_if_it_holds_on_sets_left_out(reverse: bool) -> None:
    """A sign that means the reverse in another data set is not used, however well it tells within those fitted."""
    some, others = written(420), written(180, seed=1)
    if reverse:
        others = [replace(answer, correct=1.0 - answer.correct) for answer in others]
    head = fit_head([*some, *others], "tiny", 0, silent, sets=["quiz"] * 420 + ["law"] * 180)
    whole = head.metrics["parts"]["whole"]
    assert len(head.numbers["scorers"]["whole"]) == (1 if reverse else 2)
    assert whole["order"] == ("raw" if reverse else "head")
    assert {"quiz", "law", "short", "long"} >= set(whole["left_out"]) - {"middling"}
    assert ("law" in whole["left_out"]) and (whole["left_out"]["law"]["minus_raw"] < -0.1) == reverse
    assert whole["left_out"]["law"]["auroc"].keys() == {"head", "raw", "length"}
    lines = " ".join(orders_of(head.metrics))
    assert ("whole: AUROC minus the raw one on answers left out: quiz" in lines) or "law" in lines
    assert ("the raw order is kept" in lines) or not reverse


def test_a_head_is_measured_on_sets_that_it_never_saw() -> None:
    """Each set has figures with intervals, beside the raw value's and the length's; the numbers stay as they were."""
    some, law = written(150), written(120, seed=1)
    all_wrong = [replace(answer, correct=0.0) for answer in law]
    head = fit_head(some, "tiny", 0, silent, others={"law": law, "lost": all_wrong})
    assert head.numbers == fit_head(some, "tiny", 0, silent).numbers
    ((name, figures),) = head.metrics["never_fitted"].items()
    assert (name, figures["n"]) == ("law", 120)
    value, low, high = figures["auroc"]["head"]
    assert low < value < high
    assert figures["auroc"]["raw"] == figures["auroc"]["head"] != figures["auroc"]["length"]


def test_few_labels_give_a_head_in_the_order_of_the_mean() -> None:
    """Up to 200 labels, a surer mean never has the lower probability, whatever else the tokens say."""
    judge = ConfidenceHead.of("tiny", fit_head(written(FEW_LABELS), "tiny", 0, silent).numbers)
    rng = np.random.default_rng(5)
    evidence = [Evidence("a", logprobs=(-rng.exponential(0.8, 6)).tolist()) for _ in range(50)]
    said = [judge.p_right(some) or 0.0 for some in sorted(evidence, key=lambda some: sum(some.logprobs or ()))]
    assert said == sorted(said)


@pytest.mark.long
def test_each_prefix_long_enough_in_the_data_has_a_scorer() -> None:
    """Answers of at most 29 tokens make heads for 8, 16 and 24 first tokens, and none for 48."""
    head = fit_head(written(500), "tiny", 0, silent)
    assert set(head.numbers["scorers"]) == {"whole", "8", "16", "24"}
    assert head.metrics["parts"]["24"]["n"] < head.metrics["parts"]["8"]["n"] < 500


@pytest.mark.long
def test_alternatives_are_used_only_where_they_help_and_every_token_has_them() -> None:
    """The head asks for as many alternatives as all of its labelled answers had, and for none that tell it nothing."""
    telling = written(600, tokens=7, alternatives=3)
    head = fit_head(telling, "tiny", 0, silent)
    assert head.numbers["alternatives"] == 3
    assert head.metrics["parts"]["whole"]["head"]["auroc"] > 0.7
    assert fit_head(telling + written(10, tokens=7), "tiny", 0, silent).numbers["alternatives"] == 0
    assert fit_head(telling[:60], "tiny", 0, silent).numbers["alternatives"] == 0


@pytest.mark.long
def test_a_classifier_that_knows_more_moves_the_head() -> None:
    """A prior that tells right answers from wrong gets a weight; one that tells nothing, or none, gets none."""
    answered = written(500, tokens=7)
    telling = [0.8 if answer.correct else 0.3 for answer in answered]
    noise = np.random.default_rng(1).uniform(0.2, 0.8, len(answered)).tolist()
    some = [prior if number % 2 else None for number, prior in enumerate(telling)]
    weights = [
        fit_head(answered, "tiny", 0, silent, priors).numbers["prior"]["weight"]
        for priors in (telling, some, noise, [None] * 500, None)
    ]
    assert weights[0] > 0.5
    assert weights[1] > 0.5
    assert weights[2:] == [0.0, 0.0, 0.0]


def test_mean_log_probabilities_alone_make_a_head_of_whole_answers() -> None:
    """Rows that say one log-probability for an answer are enough to calibrate whole answers, and no streams."""
    answered = [example.answers[0] for example in answers(300)[0]]
    head = fit_head(answered, "tiny", 0, silent)
    assert list(head.numbers["scorers"]) == ["whole"]
    judge = ConfidenceHead.of("tiny", head.numbers)
    said = np.array([judge.p_right(Evidence("a", logprobs=[a.confidence or 0.0])) for a in answered], np.float64)
    assert calibration_error(said, np.array([a.correct for a in answered])) < 0.09


def test_a_written_head_is_the_fitted_one(tmp_path: Path) -> None:
    """What is written loads under the version its numbers have, and judges as it did before."""
    head = fit_head(written(250), "tiny", 0, silent)
    digest = save_head(head, tmp_path / "deep" / "tiny.json", {"notes": ["made up"]})
    loaded = ConfidenceHead.load(tmp_path / "deep" / "tiny.json")
    assert (loaded.model, loaded.version, loaded.alternatives) == ("tiny", digest[:12], 0)
    assert loaded == ConfidenceHead.of("tiny", head.numbers)
    sheet = json.loads((tmp_path / "deep" / "tiny.json").read_text())
    assert sheet["notes"] == ["made up"]
    assert sheet["measured"]["parts"]["whole"]["n"] == 250


def test_a_head_needs_right_and_wrong_answers() -> None:
    """Answers that are nearly all wrong are refused with a message that counts them."""
    wrong = [LabelledAnswer(0.0, -0.5, logprobs=(-0.5,)) for _ in range(50)]
    with pytest.raises(DataError, match="0 of 50 answers"):
        fit_head(wrong, "tiny", 0, silent)
    with pytest.raises(DataError, match="0 of 0 answers"):
        fit_head([LabelledAnswer(1.0)] * 20, "tiny", 0, silent)


def test_a_backend_without_log_probabilities_gets_a_head_over_agreement() -> None:
    """Where answers carry only the agreement of a second sample, that is calibrated, and never falls in it."""
    rng = np.random.default_rng(3)
    agreement = rng.uniform(0, 1, 300)
    right = rng.random(300) < 0.2 + 0.6 * agreement
    answered = [LabelledAnswer(float(y), agreement=a) for y, a in zip(right, agreement.tolist(), strict=True)]
    head = fit_head(answered, "tiny", 0, silent)
    assert list(head.numbers["scorers"]) == ["agreement"]
    assert head.metrics["parts"]["agreement"]["head"]["ece"] < 0.1
    judge = ConfidenceHead.of("tiny", head.numbers)
    said = [
        judge.p_right(Evidence("a", verified={"agreement": a}), by="agreement") or 0.0
        for a in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert said == sorted(said)
    assert said[0] < 0.4 < 0.6 < said[-1]
    assert judge.p_right(Evidence("a")) is None


def test_a_judge_that_is_nearly_always_sure_is_calibrated_by_its_logit() -> None:
    """Between .99 and .99999 lies what it knows: its probability as it stands would be taken for one value."""
    rng = np.random.default_rng(5)
    logits = rng.normal(7.0, 3.0, 1200)
    right = rng.random(1200) < 1 / (1 + np.exp(-(logits - 7.0)))
    words = 1 / (1 + np.exp(-logits))
    answered = [LabelledAnswer(float(y), judge=w) for y, w in zip(right, words.tolist(), strict=True)]
    head = ConfidenceHead.of("tiny", fit_head(answered[:200], "tiny", 0, silent).numbers)
    said = [head.p_right(Evidence("a", verified={"judge": w}), by="judge") for w in words[200:].tolist()]
    assert calibration_error(np.array(said, np.float64), right[200:].astype(np.float64)) < 0.06


def test_a_classifier_is_weighed_in_beside_a_judge_too() -> None:
    """It need not come by log-probabilities: of two drafts judged alike the easier one is surer."""
    rng = np.random.default_rng(6)
    priors, words = rng.uniform(0.1, 0.9, 600), rng.uniform(0.3, 0.7, 600)
    right = rng.random(600) < priors
    answered = [LabelledAnswer(float(y), judge=w) for y, w in zip(right, words.tolist(), strict=True)]
    head = fit_head(answered, "tiny", 0, silent, priors.tolist())
    assert head.numbers["prior"]["weight"] > 0.5


def test_auroc_counts_pairs() -> None:
    """It is the share of pairs in which the right answer scores higher, ties being half."""
    assert auroc(np.array([0.1, 0.2, 0.2, 0.9]), np.array([0.0, 1.0, 0.0, 1.0])) == pytest.approx(3.5 / 4)
    assert np.isnan(auroc(np.array([0.1, 0.2]), np.array([1.0, 1.0])))


def command(*words: str) -> int:
    """What `tierline fit train confidence` does with these words."""
    parser = argparse.ArgumentParser()
    fit_train.add_options(parser)
    return fit_train.run(parser.parse_args(["confidence", *words]))


def rows_of(path: Path, made: list[LabelledAnswer]) -> Path:
    lines = [
        {
            "id": str(number),
            "dataset": "quiz",
            "group": "quiz",
            "prompt": "why?",
            "models": {"tiny": {"correct": a.correct, "logprobs": a.logprobs, "finish_reason": a.finish_reason}},
        }
        for number, a in enumerate(made)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_the_command_writes_a_head_and_says_how_good_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object with the figures of every part, and the artefact names what it was fitted to."""
    data, out = rows_of(tmp_path / "rows.jsonl", written(120)), tmp_path / "tiny.json"
    assert command("--data", str(data), "--model", "tiny", "--out", str(out), "--calibration", "100", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["labels"] == 100
    assert set(report["parts"]) == {"whole", "8", "16"} | ({"24"} & set(report["parts"]))
    assert ConfidenceHead.load(out).version == report["version"]
    sheet = json.loads(out.read_text())
    assert sheet["trained_on"][0]["answers"] == 120
    assert sheet["command"].endswith("--calibration 100")


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--model", "other"), "no answer of other; it has those of tiny"), (("--calibration", "500"), "there are 120")],
)
def test_the_command_says_in_one_line_what_is_missing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """A model that no row has, or more labels than there are, is one clear error."""
    data = rows_of(tmp_path / "rows.jsonl", written(120))
    with pytest.raises(CommandError, match=said):
        command("--data", str(data), "--model", "tiny", "--out", str(tmp_path / "tiny.json"), *words)


def test_a_few_answers_that_pass_for_a_known_task_do_not_bring_its_order() -> None:
    """Where most of what looks like a task is not of it, all of it keeps the raw log-probability's order."""
    fitted, vectors = answers(600, topic=0.35)
    known, near = answers(60, topic=0.35, seed=7)
    others, far = answers(340, dataset="law")
    mixed, both = known + others, np.vstack([near, far])
    judged = fit_and_judge(fitted, vectors, mixed, both)
    assert worth(mixed, judged.gain) == pytest.approx(0.0, abs=1e-9)
