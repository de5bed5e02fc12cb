"""A classifier of one's own: fitted on top of the shipped one, measured on later conversations, served like any."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.learning.labels import OwnLabels, chosen_labels, held_out
from gateway.parts.fit.learning.measured import head_figures
from gateway.parts.fit.learning.own_artefact import save_own
from gateway.parts.fit.learning.own_fit import MOST_STORED, fit_own
from gateway.report import silent
from routing.difficulty.model import (
    NEIGHBOURS_FORMAT,
    OWN_FORMAT,
    SHEET_FILE,
    ArtefactError,
    DifficultyModel,
    shipped_artefact,
)
from routing.difficulty.text_statistics import counts_of, tokenise
from routing.embedder import StaticEmbedder, bounded
from routing.features import features_of_text
from tests.support.strange_models import Language

LANGUAGE = Language.made(7, words=50)
KINDS = 5


@pytest.fixture(scope="module")
def embedder() -> StaticEmbedder:
    return StaticEmbedder.load()


@pytest.fixture(scope="module")
def shipped(embedder: StaticEmbedder) -> DifficultyModel:
    return DifficultyModel.load(shipped_artefact("static"), embedder)


def labels_of(count: int, embedder: StaticEmbedder, model: DifficultyModel) -> tuple[OwnLabels, list[str]]:
    """Judged prompts of the strange language, and their texts."""
    chance = random.Random(3)
    prompts = [LANGUAGE.prompt(chance) for _ in range(count)]
    vectors, features = embedder.embed(prompts), [features_of_text(prompt) for prompt in prompts]
    rated = [model.assess(vector, one) for vector, one in zip(vectors, features, strict=True)]
    labels = OwnLabels(
        np.array([f"req_{i}" for i in range(count)]),
        np.array(["default"] * count),
        np.arange(count, dtype=np.float64),
        np.arange(count) // 2,
        np.array([[LANGUAGE.is_right(prompt, model) for model in (0, 1)] for prompt in prompts], np.float64),
        np.array([one.p_right for one in rated]),
        np.array([one.in_domain for one in rated]),
        vectors.astype(np.float64),
        np.array([counts_of(one, tokenise(bounded(one.text))) for one in features], np.float64),
        np.array(["chat"] * count),
    )
    return labels, prompts


@pytest.fixture(scope="module")
def labelled(embedder: StaticEmbedder, shipped: DifficultyModel) -> tuple[OwnLabels, list[str]]:
    return labels_of(360, embedder, shipped)


def test_it_ranks_what_the_shipped_classifier_cannot(
    labelled: tuple[OwnLabels, list[str]], embedder: StaticEmbedder, shipped: DifficultyModel, tmp_path: Path
) -> None:
    """On later conversations, none of which it was fitted to; served from its artefact it says the very same."""
    labels, prompts = labelled
    held = held_out(labels)
    assert not set(labels.conversation[held]) & set(labels.conversation[~held])
    assert labels.at[~held].max() < labels.at[held].min() and 0.25 < held.mean() < 0.35
    fitted = fit_own(labels.take(~held), KINDS, 0, silent)
    figures = head_figures(labels.take(held), fitted.heads, 0, labels.take(~held))
    assert figures.verdict == "" and figures.labels == held.sum()
    assert figures.own.apgr.value > 0.6 > 0.56 > figures.other.apgr.value
    assert figures.own.auroc.value > 0.65 and figures.own.ece.hi < 0.2
    folder = save_own(shipped_artefact("static"), fitted.heads, tmp_path, "chat", {"what": "a test"})
    served = DifficultyModel.load(folder, embedder)
    assert served.version != shipped.version and folder.name == f"chat-{served.version}"
    expected = fitted.heads.p_right(labels.vectors, labels.counts, labels.p_right, labels.in_domain)
    near = fitted.heads.near(labels.vectors)
    assert near.mean() > 0.95
    for i in np.flatnonzero(near)[::40]:
        rated = served.assess(embedder.embed([prompts[i]])[0], features_of_text(prompts[i]))
        assert rated.in_domain and rated.p_right == pytest.approx(expected[i], abs=1e-4)
        assert rated.quantile is not None and rated.kind in served.kinds
    far = "What is the capital of France, and since when?"
    vector = embedder.embed([far])[0]
    assert not fitted.heads.near(vector)
    assert served.assess(vector, features_of_text(far)).p_right == shipped.assess(vector, features_of_text(far)).p_right
    again = save_own(folder, fitted.heads, tmp_path, "chat", {"what": "a test"})
    assert again == folder, "its own heads are replaced, not stacked"


def test_without_anything_to_learn_it_is_not_better(labelled: tuple[OwnLabels, list[str]]) -> None:
    """Labels that have nothing to do with the prompts give no better classifier, and its verdict says so."""
    labels = labelled[0].take(np.arange(180))
    shuffled = replace(labels, right=np.random.default_rng(1).permutation(labels.right))
    held = held_out(shuffled)
    fitted = fit_own(shuffled.take(~held), KINDS, 0, silent)
    assert "may be chance" in head_figures(shuffled.take(held), fitted.heads, 0, shuffled.take(~held)).verdict
    equal = replace(labels, right=np.ones_like(labels.right))
    fitted = fit_own(equal.take(~held), KINDS, 0, silent)
    assert "nothing to route for" in head_figures(equal.take(held), fitted.heads, 0, equal.take(~held)).verdict


def test_few_labels_are_refused() -> None:
    """With the number that there is, and why others do not count."""
    answer = {"tier": "local", "adequate": 1.0}
    row = {
        "surface": "chat", "judged_at": 1.0, "small": answer, "strong": {**answer, "tier": "hosted"},
        "classifier": "old", "embedder": "e", "counts": [],
    }  # fmt: skip
    with pytest.raises(DataError, match=r"chat has 0 labels .* at least 100 .*; 3 rated by another classifier"):
        chosen_labels([row] * 3, "chat", ("local", "hosted"), "new", "e")


def test_a_damaged_artefact_is_not_loaded(
    labelled: tuple[OwnLabels, list[str]], embedder: StaticEmbedder, tmp_path: Path
) -> None:
    """Its hash covers the own heads too."""
    labels, _ = labelled
    heads = fit_own(labels.take(np.arange(120)), KINDS, 0, silent).heads
    folder = save_own(shipped_artefact("static"), heads, tmp_path, "chat", {})
    file = folder / "difficulty.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtefactError, match="the SHA-256 differs"):
        DifficultyModel.load(folder, embedder)


@pytest.mark.parametrize("kind", ["ridge", "neighbours"])
def test_each_kind_serves_from_its_artefact_what_it_was_fitted_to(
    kind: str, labelled: tuple[OwnLabels, list[str]], embedder: StaticEmbedder, tmp_path: Path
) -> None:
    """One request at a time it says what the fit says of all, and ranks later conversations above chance."""
    labels, prompts = labelled
    held = held_out(labels)
    fitted = fit_own(labels.take(~held), KINDS, 0, silent, [kind])
    assert fitted.kind == kind and set(fitted.losses) == {kind}
    figures = head_figures(labels.take(held), fitted.heads, 0, labels.take(~held))
    assert figures.own.apgr.value > 0.56 and figures.own.ece.value < 0.2
    folder = save_own(shipped_artefact("static"), fitted.heads, tmp_path, "chat", {"what": "a test"})
    sheet = json.loads((folder / SHEET_FILE).read_bytes())
    assert sheet["format"] == (NEIGHBOURS_FORMAT if kind == "neighbours" else OWN_FORMAT)
    served = DifficultyModel.load(folder, embedder)
    expected = fitted.heads.p_right(labels.vectors, labels.counts, labels.p_right, labels.in_domain)
    near = np.flatnonzero(fitted.heads.near(labels.vectors))[:40]
    assert len(near) == 40
    for row in near.tolist():
        vector = labels.vectors[row].astype(np.float32)
        assert served.assess(vector, features_of_text(prompts[row])).p_right == pytest.approx(expected[row], abs=1e-4)
    again = save_own(folder, fitted.heads, tmp_path / "again", "chat", {"what": "on top of one's own"})
    assert again.name == folder.name


def test_neighbours_are_stored_of_so_many_labels_alone(labelled: tuple[OwnLabels, list[str]]) -> None:
    """Of more labels than a request is compared with on the hot path, only heads of fixed size are fitted."""
    labels, _ = labelled
    many = labels.take(np.arange(MOST_STORED + 1) % len(labels))
    fitted = fit_own(replace(many, vectors=many.vectors[:, :4]), KINDS, 0, silent, ["ridge", "neighbours"])
    assert fitted.kind == "ridge" and "neighbours" not in fitted.losses


def test_what_a_table_of_sources_knows_claims_nothing(labelled: tuple[OwnLabels, list[str]]) -> None:
    """Outcomes that hang on the source alone: the head ranks them, the table as well, and nothing is proposed."""
    labels, _ = labelled
    hard = np.random.default_rng(1).random(len(labels)) < 0.5
    vectors = labels.vectors.copy()
    vectors[:, 0] = np.where(hard, 3.0, -3.0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    right = np.stack([np.where(hard, 0.0, 1.0), np.ones(len(labels))], axis=1)
    right[::10, 0] = 1 - right[::10, 0]
    source = np.where(hard, "maths", "chat")
    apart = replace(labels, vectors=vectors, right=right, source=source)
    held = held_out(apart)
    fitted = fit_own(apart.take(~held), KINDS, 0, silent)
    figures = head_figures(apart.take(held), fitted.heads, 0, apart.take(~held))
    assert figures.own.apgr.lo > 0.6 and figures.apgr_gain.lo > 0
    assert "a table of sources" in figures.verdict
