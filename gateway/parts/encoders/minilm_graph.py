"""Build all-MiniLM-L6-v2 as an ONNX graph directly from its safetensors, without torch or an exporter.

    tokens -> embeddings -> 6 x (attention, feed-forward) -> mean over the real tokens -> norm 1

`build_pair_scorer` builds a model of the same kind that was fine-tuned to read two texts and has one logit:

    tokens of both -> embeddings -> layers, the last for the first token alone -> tanh layer -> logit

Attention and the embedding layer are ONNX Runtime's own fused operators (`com.microsoft`). The layer norms are not:
on a CPU its fused SkipLayerNormalization is five times slower than an addition and a LayerNormalization.
Whoever changes this file must raise _GRAPH_VERSION in minilm.py, so that cached graphs are rebuilt.
Source of the architecture: BERT (Devlin et al. 2019), with the sizes of the model's `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

LAYERS, HEADS, HIDDEN = 6, 12, 384
_EPSILON = 1e-12
_FUSED = "com.microsoft"

Weights = Mapping[str, NDArray[np.float32]]


def build(weights: Weights) -> ModelProto:
    """Build the graph: `input_ids`, `attention_mask` (int32, batch x tokens) to `vectors` (float32, batch x 384).

    Padding is on the right. Raises KeyError for another model's weights.
    """
    graph = _Graph(weights)
    hidden = graph.embeddings()
    for layer in range(LAYERS):
        hidden = graph.layer(f"encoder.layer.{layer}", hidden)
    graph.pool(hidden)
    shape = ["batch", "tokens"]
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            "all-minilm-l6-v2",
            [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name in ("input_ids", "attention_mask")],
            [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", HIDDEN])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(_FUSED, 1)],
        ir_version=10,
    )


def build_pair_scorer(weights: Weights) -> ModelProto:
    """Build the graph of a cross-encoder: `input_ids`, `attention_mask`, `token_type_ids` to `logits` (batch x 1).

    `weights` has the names of `BertForSequenceClassification`; the number of layers is read from them. Padding is on
    the right.
    """
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    bert = {name.removeprefix("bert."): value for name, value in weights.items()}
    layers = 1 + max(int(name.split(".")[2]) for name in bert if name.startswith("encoder.layer."))
    graph = _Graph(bert)
    hidden = graph.embeddings(segments="token_type_ids")
    for layer in range(layers):
        hidden = graph.layer(f"encoder.layer.{layer}", hidden, first_only=layer == layers - 1)
    graph.score(hidden)
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            "cross-encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "tokens"]) for name in inputs],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(_FUSED, 1)],
        ir_version=10,
    )


class _Graph:
    """Collect nodes and constants. Each method adds some and returns the name of the tensor that they produce."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._weights = weights

    def embeddings(self, segments: str = "") -> str:
        """Add the embeddings. `segments` names the input with each token's segment; '' where there is only one."""
        word, position, kind = (
            self._weights[f"embeddings.{part}_embeddings.weight"] for part in ("word", "position", "token_type")
        )
        norm = "embeddings.LayerNorm"
        # A single segment's vector is added to every position's here instead of at each run.
        positions = position if segments else position + kind[0]
        inputs = ["input_ids", segments, self._constant("words", word), self._constant("positions", positions)]
        inputs.append(self._constant("segments", kind) if segments else "")
        inputs += [self._weight(f"{norm}.weight"), self._weight(f"{norm}.bias"), "attention_mask"]
        self._node("EmbedLayerNormalization", inputs, ["embedded", "lengths"], fused=True, epsilon=_EPSILON)
        return "embedded"

    def layer(self, prefix: str, hidden: str, first_only: bool = False) -> str:
        """Add a layer; with `first_only` all after its attention is computed for the first token alone."""
        attended = self._attention(f"{prefix}.attention.self", hidden)
        if first_only:
            attended, hidden = (self._first(name) for name in (attended, hidden))
        hidden = self._dense_residual(f"{prefix}.attention.output", attended, hidden)
        inner = self._node(
            "BiasGelu",
            [self._product(f"{prefix}.intermediate.dense", hidden), self._weight(f"{prefix}.intermediate.dense.bias")],
            [f"{prefix}.inner"],
            fused=True,
        )
        return self._dense_residual(f"{prefix}.output", inner, hidden)

    def pool(self, hidden: str) -> None:
        """Add pooling: the sum over the real tokens, scaled to norm 1 (it has the same direction as their mean)."""
        mask = self._node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT)
        axis = self._constant("axis", np.array([1], np.int64))
        row = self._node("Unsqueeze", [mask, axis], ["mask.row"])
        total = self._node("Squeeze", [self._node("MatMul", [row, hidden], ["sum.row"]), axis], ["sum"])
        self._node("LpNormalization", [total], ["vectors"], axis=-1, p=2)

    def score(self, hidden: str) -> None:
        """Add the head: a tanh layer over the first token's vector, then the logit."""
        pooled = self._product("pooler.dense", hidden)
        pooled = self._node("Add", [pooled, self._weight("pooler.dense.bias")], ["pooled.sum"])
        pooled = self._node("Tanh", [pooled], ["pooled"])
        logit = self._product("classifier", pooled)
        self._node("Add", [logit, self._weight("classifier.bias")], ["logits"])

    def _first(self, hidden: str) -> str:
        """Add the choice of the first token's vector, shape (batch, hidden)."""
        return self._node(
            "Gather", [hidden, self._constant(f"{hidden}.at", np.array(0, np.int64))], [f"{hidden}.first"], axis=1
        )

    def _attention(self, prefix: str, hidden: str) -> str:
        parts = [f"{prefix}.{part}" for part in ("query", "key", "value")]
        weight = np.concatenate([self._weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([self._weights[f"{part}.bias"] for part in parts])
        inputs = [hidden, self._constant(f"{prefix}.weight", weight), self._constant(f"{prefix}.bias", bias), "lengths"]
        return self._node("Attention", inputs, [f"{prefix}.attended"], fused=True, num_heads=HEADS)

    def _dense_residual(self, prefix: str, inner: str, residual: str) -> str:
        product = self._product(f"{prefix}.dense", inner)
        dense = self._node("Add", [product, self._weight(f"{prefix}.dense.bias")], [f"{prefix}.biased"])
        total = self._node("Add", [dense, residual], [f"{prefix}.total"])
        norm = [self._weight(f"{prefix}.LayerNorm.{part}") for part in ("weight", "bias")]
        return self._node("LayerNormalization", [total, *norm], [f"{prefix}.out"], axis=-1, epsilon=_EPSILON)

    def _product(self, prefix: str, hidden: str) -> str:
        weight = self._constant(f"{prefix}.weight", self._weights[f"{prefix}.weight"].T)
        return self._node("MatMul", [hidden, weight], [f"{prefix}.product"])

    def _weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def _node(self, kind: str, inputs: list[str], outputs: list[str], fused: bool = False, **attributes: Any) -> str:
        domain = _FUSED if fused else ""
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]
