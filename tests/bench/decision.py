"""Measure what a routing decision costs before any model is called: the text's vector, its features, its difficulty.

    python -m tests.bench.decision --data D/routellm_mmlu.jsonl.gz [--embedding static|minilm] [--prompts 2000]

Times are CPU time of the one thread, in us: on a machine that does other work they change less than a clock's. Each
prompt is judged once, after 200 others, so a word's tokens are there only if it occurred before.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from gateway.encoders import load_embedder
from gateway.parts.fit.datasets import read_rows, sampled
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.features import features_of
from tests.bench.command import bench_parser

_WARM = 200


def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's docstring."""
    parser = bench_parser("decision", __doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="rows with a prompt each")
    parser.add_argument("--embedding", choices=["static", "minilm"], default="static")
    parser.add_argument("--prompts", type=int, default=2_000)
    options = parser.parse_args(arguments)
    prompts = [row.prompt for row in sampled(read_rows(options.data), _WARM + options.prompts, seed=7)]
    with tempfile.TemporaryDirectory() as folder:
        embedder = load_embedder(options.embedding, Path(folder))
    classifier = DifficultyModel.load(shipped_artefact(options.embedding), embedder)
    took = []
    for prompt in prompts:
        body = {"messages": [{"role": "user", "content": prompt}]}
        began = time.thread_time()
        features = features_of(body)
        vector = embedder.embed((prompt,))[0]
        embedded = time.thread_time()
        classifier.assess(vector, features)
        took.append((embedded - began, time.thread_time() - embedded))
    times = np.array(took[_WARM:]) * 1e6
    print(f"{len(times):,} prompts, {options.embedding} vectors; us of CPU time")
    for name, column in (("embedding", times[:, 0]), ("difficulty", times[:, 1]), ("decision", times.sum(axis=1))):
        p50, p95, p99 = np.quantile(column, [0.5, 0.95, 0.99])
        print(f"{name:11s} p50 {p50:6.0f}  p95 {p95:6.0f}  p99 {p99:6.0f}")


if __name__ == "__main__":
    main()
