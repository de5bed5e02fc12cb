"""Train a torch model step by step: one schedule of rates, and checkpoints from which a stopped run goes on."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gateway.parts.encoders.minilm_graph import HEADS
from gateway.parts.fit.libraries import LibraryMissing

if TYPE_CHECKING:
    import torch

WEIGHTS = "weights.safetensors"
"""Weights in 32 bits, to go on training from; serving does not need them."""
_WARMUP = 0.07  # share of the work at which the rate is highest
_LEAST = 0.01  # of the highest rate, at the end
_KEPT_EVERY_S = 60.0


def add_device_flag(parser: argparse.ArgumentParser) -> None:
    """Add --device to a tool that uses torch."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to train (default: a GPU if there is one)",
    )


def chosen_device(wanted: str) -> str:
    """Return `cpu` or `cuda`; `auto` is a GPU if there is one. Raises LibraryMissing without it for `cuda`."""
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise LibraryMissing("--device cuda: torch finds no such device here; use --device cpu")
    return wanted


def half_precision(device: str) -> Any:
    """Return a block in which a GPU multiplies in bfloat16. CPUs stay at 32 bits: many have no such instructions.

    Without them torch imitates them, which took over twenty minutes for what takes one.
    """
    import torch

    return torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu")


def bert_of(weights: Mapping[str, NDArray[np.float32]], dropout: float) -> Any:
    """Return BertForSequenceClassification with one logit and these weights, in its names and of MiniLM's width."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    words, width = weights["bert.embeddings.word_embeddings.weight"].shape
    layers = 1 + max(int(name.split(".")[3]) for name in weights if name.startswith("bert.encoder.layer."))
    config = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=layers, num_attention_heads=HEADS,
        intermediate_size=4 * width, num_labels=1,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    return model


def weights_of(model: Any) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a model in 32 bits."""
    return {name: value.detach().float().cpu().numpy() for name, value in model.state_dict().items()}


class Training:
    """AdamW over a model whose word vectors have a rate of their own.

    `done` is how much of the work is done, in the caller's units. A run that was stopped goes on from `checkpoint`, if
    that was made by the same `recipe`.
    """

    def __init__(self, model: Any, rates: tuple[float, float], checkpoint: Path, recipe: Mapping[str, Any]) -> None:
        """Take the highest rates of all weights and of the word vectors, and restore the checkpoint. Raises OSError."""
        import torch

        words = model.get_input_embeddings().weight
        rest = [parameter for parameter in model.parameters() if parameter is not words]
        groups = [
            {"params": [words], "lr": rates[1], "weight_decay": 0.0},
            {"params": [parameter for parameter in rest if parameter.dim() > 1], "lr": rates[0], "weight_decay": 0.01},
            {"params": [parameter for parameter in rest if parameter.dim() <= 1], "lr": rates[0], "weight_decay": 0.0},
        ]
        self.done = 0
        self._model = model
        self._rates = [rates[1], rates[0], rates[0]]
        self._optimizer = torch.optim.AdamW(groups, fused=True, betas=(0.9, 0.98))
        self._checkpoint = checkpoint
        self._recipe = dict(recipe)
        self._kept_at = time.monotonic()
        if checkpoint.is_file():
            kept = torch.load(checkpoint, weights_only=True)
            if kept["recipe"] == self._recipe:
                model.load_state_dict(kept["model"])
                self._optimizer.load_state_dict(kept["optimizer"])
                self.done = int(kept["done"])
        model.train()

    def step(self, loss: torch.Tensor, share: float) -> None:
        """Change the weights by the gradient of `loss`, where the share `share` of the work is done."""
        import torch

        factor = max(_LEAST, min(1.0, (share + 1e-3) / _WARMUP, 1.0 - share))
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def keep(self, done: int) -> None:
        """Say how much is done; write a checkpoint, at most once a minute."""
        import torch

        self.done = done
        if time.monotonic() - self._kept_at < _KEPT_EVERY_S:
            return
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._checkpoint.with_suffix(".partial")
        torch.save({"recipe": self._recipe, "done": done, **state}, scratch)
        scratch.replace(self._checkpoint)
        self._kept_at = time.monotonic()
