"""Measure the CPU time of deciding on a pair that the pair model judges, beside the commit of `tests/bench/cost-base`.

Both trees decide on the same pairs, one by one, in processes that take turns; each uses one thread, and the time is the
process' own. What counts is what both let the pair model judge. This file is also what runs in each tree: it reads
pairs from its standard input and writes milliseconds and whether each was judged.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_ROUNDS: Final = 5
_WARM: Final = 20
"""Pairs that are decided before the measured ones."""
_JUDGED: Final = "cross_encoder"


class PairCost(NamedTuple):
    """CPU time per pair judged, ms, of this tree and of the base; the median of the rounds' ratios and their range."""

    ms: float
    base_ms: float
    ratio: float
    least: float
    most: float
    pairs: int
    base: str


def compare_pair_cost(pairs: Sequence[tuple[str, str]]) -> PairCost:
    """Return what a pair costs in both trees. Raises NoBuild, and OSError where a tree cannot decide."""
    from tests.bench.builds import base_commit, packed

    with tempfile.TemporaryDirectory(prefix="tierline-pairs-") as folder:
        builds = packed(Path(folder), "new", None), packed(Path(folder), "base", base_commit())
        rounds: list[list[list[float | None]]] = [
            [measured(build.tree, build.env(), pairs) for build in builds] for _ in range(_ROUNDS)
        ]
        judged = [at for at in range(len(pairs)) if all(of[at] is not None for each in rounds for of in each)]
        if not judged:
            raise OSError("no pair is judged by the pair models of both trees")
        sums = [[sum(of[at] or 0.0 for at in judged) / len(judged) for of in each] for each in rounds]
        ratios = [new / base for new, base in sums]
        new, base = (statistics.median(each[side] for each in sums) for side in (0, 1))
        ratio = statistics.median(ratios)
        return PairCost(new, base, ratio, min(ratios), max(ratios), len(judged), builds[1].commit)


def measured(tree: Path, env: dict[str, str], pairs: Sequence[tuple[str, str]]) -> list[float | None]:
    """Return the milliseconds of each pair in this tree; None for one that its pair model does not judge."""
    command = [sys.executable, "-P", str(Path(__file__).resolve())]
    done = subprocess.run(
        command, cwd=tree, env=env | {"OMP_NUM_THREADS": "1"}, input=json.dumps(pairs), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"{tree.name}: {done.stderr.strip()[-500:]}")
    rows: list[float | None] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _decide_all(pairs: Sequence[tuple[str, str]]) -> list[float | None]:
    """Return each pair's milliseconds of CPU, by the packages of the tree that runs; None for one not judged."""
    import argparse

    from gateway.encoders import load_embedder
    from gateway.parts.fit.embedding import Remembered
    from gateway.parts.fit.flags import add_embedding_flag, add_state_flag
    from gateway.report import silent
    from gateway.seams import read_other_languages
    from policies.loader import SHIPPED
    from tests.bench.measure_cache import CacheOptions, PlannedRequests, load_cache, pair_cosines
    from tools.cache_stages import score_pairs

    one_core: Any = lambda: 1  # noqa: E731
    os.cpu_count = one_core  # which is what the model's number of threads is taken from
    read_other_languages()
    parser = argparse.ArgumentParser()
    add_embedding_flag(parser)
    add_state_flag(parser)
    args = parser.parse_args([])
    policy = SHIPPED / "chat.yaml"
    options = CacheOptions(
        None, None, None, None, None, "default", policy, args.embedding, None, False, 0, 0, args.state
    )
    embedder = Remembered(load_embedder(args.embedding, args.state), silent)
    cache = load_cache(options, embedder.name)
    embedder.vectors = None if cache.cross_encoder is None else cache.cross_encoder.vectors
    requests = PlannedRequests(cache.policy, embedder, by_turns=cache.stages.candidates > 0)
    asked = [(requests.asked(a), requests.asked(b)) for a, b in pairs]
    cosines = pair_cosines(asked, embedder)
    warm = [(requests.asked(f"{a} (first)"), requests.asked(f"{b} (first)")) for a, b in pairs[:_WARM]]
    score_pairs(warm, pair_cosines(warm, embedder), cache.stages, silent)
    rows: list[float | None] = []
    for at in range(len(asked)):
        began = time.process_time()
        _, (decided,) = score_pairs(asked[at : at + 1], cosines[at : at + 1], cache.stages, silent)
        spent = 1000 * (time.process_time() - began)
        rows.append(spent if decided.startswith(_JUDGED) else None)
    return rows


if __name__ == "__main__":
    print(json.dumps(_decide_all([(a, b) for a, b in json.load(sys.stdin)])))
