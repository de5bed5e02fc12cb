"""Cross-encoders small enough to be made in a test: a real graph, a real tokenizer, weights set by hand.

    folder = write_cross_encoder(tmp_path / "model")
    CrossEncoder.load(folder).score("capital of Italy", "Italy capital of")    # near 1: the same words

Every word has an axis of its own. The logit rises with the cosine of what each text has on them, so texts of the same
words score near 1, texts with no word in common near 0, and texts that share half of theirs 0.5 at about 0.75. Others
are unknown tokens.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "a", "what", "is", "the", "of", "capital", "question", "another", "italy", "france", "rome", "now", "please",
    "which", "city", "and", "?", ",",
)  # fmt: skip
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_STEEP, _EVEN = 40.0, 0.75


def write_cross_encoder(
    folder: Path,
    labels: list[str] | None = None,
    *,
    nested: bool = True,
    longest: int = 64,
    strict: float | None = None,
    **config: Any,
) -> Path:
    """Writes the folder as sentence-transformers would, and returns it. `labels`: one logit for each; None: one.

    Of several labels the last has the logit, the others 0. `strict`: the threshold on the data sheet; None: no sheet.
    """
    graph = folder / "onnx" / "model.onnx" if nested else folder / "model.onnx"
    graph.parent.mkdir(parents=True)
    save(_model(len(labels) if labels else 1), graph)
    _tokenizer().save(str(folder / "tokenizer.json"))
    named = {"id2label": {str(i): name for i, name in enumerate(labels)}} if labels else {}
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": longest, **named, **config}))
    if strict is not None:
        sheet = {"strict": strict, "sha256": hashlib.sha256(graph.read_bytes()).hexdigest()}
        (folder / "sheet.json").write_text(json.dumps(sheet))
    return folder


def _tokenizer() -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(_SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace("'", "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def _model(labels: int) -> Any:
    size = len(_SPECIAL) + len(WORDS)
    axes = np.eye(size, dtype=np.float32)
    axes[[0, 2, 3]] = 0.0
    constants: dict[str, Any] = {
        "axes": axes,
        "one": np.float32(1),
        "steep": np.float32(_STEEP),
        "even": np.float32(_EVEN),
        "tiny": np.float32(1e-6),
        "last": np.array([1], np.int64),
    }
    if labels > 1:
        constants["zeros"] = np.zeros((1, labels - 1), np.float32)
    node = helper.make_node
    nodes = [
        node("Gather", ["axes", "input_ids"], ["words"]),
        node("Cast", ["token_type_ids"], ["second"], to=TensorProto.FLOAT),
        node("Sub", ["one", "second"], ["first"]),
        *(
            step
            for side in ("first", "second")
            for step in (
                node("Unsqueeze", [side, "last"], [f"{side}.row"]),
                node("MatMul", [f"{side}.row", "words"], [f"{side}.sum"]),
                node("ReduceL2", [f"{side}.sum", "width"], [f"{side}.length"], keepdims=1),
                node("Add", [f"{side}.length", "tiny"], [f"{side}.safe"]),
                node("Div", [f"{side}.sum", f"{side}.safe"], [f"{side}.unit"]),
            )
        ),
        node("Mul", ["first.unit", "second.unit"], ["products"]),
        node("ReduceSum", ["products", "width"], ["cosine"], keepdims=0),
        node("Sub", ["cosine", "even"], ["above"]),
        node("Mul", ["above", "steep"], ["logit"]),
        *(
            [node("MatMul", ["logit", "zeros"], ["others"]), node("Concat", ["others", "logit"], ["logits"], axis=1)]
            if labels > 1
            else [node("Identity", ["logit"], ["logits"])]
        ),
    ]
    constants["width"] = np.array([2], np.int64)
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    shape = ["batch", "tokens"]
    graph = helper.make_graph(
        nodes,
        "tiny-cross-encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in inputs],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", labels])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
