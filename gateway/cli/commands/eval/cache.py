"""`tierline eval cache`: how often the cache serves what it should, and how often what it should not."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

import numpy as np

from cache.offline.evaluation.figures import Flags, Floats, best_within, served_of
from cache.offline.evaluation.neighbours import near_neighbours
from cache.offline.evaluation.pairs import Asked, score_pairs
from cache.offline.evaluation.stream import Rates, Stream, StreamGate, halves, rates
from cache.offline.evaluation.truth import Truth
from cache.risk.control import RiskControl, calibrated
from cache.semantic.decision import Decide, decide_by, default_threshold
from cache.semantic.verifier import Verifier, VerifierError, shipped_verifier
from cache.text.normalized_question import gist
from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import seed_number, share_number
from gateway.cli.commands._progress import OnProgress, progress
from gateway.cli.commands.eval import _cache_report as report
from gateway.cli.commands.eval._cache_rows import CacheRow, Requests, read_rows
from gateway.cli.commands.eval._cross_encoder import add_cross_encoder_flag, with_cross_encoder
from gateway.cli.commands.eval._data import whole
from gateway.cli.commands.eval._embedding import Remembered
from gateway.exit_codes import Exit
from policies.caching import SemanticCache
from policies.loader import SHIPPED, read_policy
from policies.model import Policy
from routing.embedding.embedder import EmbedderKind, load_embedder
from routing.offline.dataset import DataError

BASELINES = (0.80, 0.90, 0.95)
MOST_WRONG = 0.01
_SURFACE = "chat.yaml"

_EXAMPLES = """examples:
  tierline eval cache --pairs traps.jsonl.gz                      each group: served where right, served where wrong
  tierline eval cache --pairs traps.jsonl.gz --group negation --threshold 0.93
  tierline eval cache --pairs mine.jsonl --max-error 0.01         at the threshold that half of the pairs calls for
  tierline eval cache --stream questions.jsonl.gz --max-error 0.01 --json
  tierline eval cache --pairs mine.jsonl --policy policies/batch.yaml --embedding minilm

A row is a line of JSON: {"a", "b", "same_answer", "group"?}; a and b are a question each, or a list of messages.
--pairs: `a` was asked, answered and kept; then `b` is asked. --stream: all the pairs' questions are asked in an order
of chance, those of several pairs several times, and the cache fills up; a hit on another question that no label (nor
several together) says to want the same answer is wrong.
  served        of the pairs with same_answer true, the share that the cache answers
  wrong         of the pairs with same_answer false, the share that it answers all the same
  precision     of what it answers, the share that is right
  best at 1%    the most that any threshold would serve at 1% wrong or less, chosen on these very pairs
  hit rate, repeats, error   hits, those on the very same request, and wrong hits, among all requests of a stream
`ours` decides as the gateway does: equal history, system prompt and tools; a question that stands alone; then score,
guards and verifier. The cosine baselines look at the last user text alone. Intervals are Wilson's, 95%."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `eval cache`."""
    parser = subparsers.add_parser(
        "cache",
        help="what the semantic cache serves, rightly and wrongly",
        description="Measures the semantic cache on labelled pairs of questions, against a plain cosine threshold.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pairs", type=Path, metavar="FILE", help="each pair by itself: JSON lines, or .gz of them")
    source.add_argument("--stream", type=Path, metavar="FILE", help="the pairs' questions, one after the other")
    gate = parser.add_mutually_exclusive_group()
    gate.add_argument("--threshold", type=float, metavar="X", help="serve from this score on (default: the shipped)")
    gate.add_argument(
        "--max-error",
        type=share_number,
        metavar="E",
        help="--pairs: a threshold calibrated for that share wrong, on the other half of the pairs; "
        "--stream: of all requests, kept by the controller while they come",
    )
    parser.add_argument("--artefact", type=Path, metavar="PATH", help="the verifier's folder (default: the shipped)")
    add_cross_encoder_flag(parser)
    parser.add_argument(
        "--policy",
        type=Path,
        default=SHIPPED / _SURFACE,
        metavar="FILE",
        help="whose cache (default: the shipped chat)",
    )
    parser.add_argument("--embedding", choices=get_args(EmbedderKind), default="static", help="default: static")
    parser.add_argument("--group", metavar="NAME", help="the pairs of this group only")
    parser.add_argument(
        "--limit", type=whole(0), default=0, metavar="N", help="so many pairs, at random (default: all)"
    )
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of every draw (default: 0)")
    parser.add_argument("--state", type=Path, default=Path(".state"), metavar="DIR", help="where the encoder is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(evaluate=evaluate)


@dataclass(frozen=True, slots=True)
class _Cache:
    """The cache under test: its policy, how it decides on one candidate, and from which score on by default."""

    policy: Policy
    semantic: SemanticCache
    decide: Decide
    threshold: float


def evaluate(args: argparse.Namespace) -> int:
    """Prints what the cache is worth on the given pairs."""
    if args.threshold is not None and not math.isfinite(args.threshold):
        raise CommandError("--threshold is a finite number")
    cache = _cache(args)
    rows = read_rows(args.pairs or args.stream, args.group, args.limit, args.seed)
    with progress() as on_progress:
        embedder = Remembered(load_embedder(args.embedding, args.state), on_progress)
        requests = Requests(cache.policy, embedder)
        asked = [(requests.asked(row.a), requests.asked(row.b)) for row in rows]
        run = _pairs if args.pairs else _stream
        found = run(args, cache, rows, asked, embedder, on_progress)
    report.show(found, args)
    return Exit.OK


def _cache(args: argparse.Namespace) -> _Cache:
    policy = read_policy(args.policy)[0]
    semantic = policy.cache.semantic
    if semantic is None:
        raise DataError(f"{args.policy}: the surface {policy.surface} has no semantic cache")
    verifier = _verifier(args, semantic)
    semantic, decide = with_cross_encoder(args, semantic, decide_by(semantic, verifier))
    threshold = default_threshold(semantic, verifier) if args.threshold is None else args.threshold
    return _Cache(policy, semantic, decide, threshold)


def _verifier(args: argparse.Namespace, semantic: SemanticCache) -> Verifier | None:
    """The verifier that would judge under this policy."""
    if semantic.verify == "none":
        if args.artefact is not None:
            raise CommandError(f"--artefact: {args.policy} says `verify: none`, so no verifier is asked")
        return None
    try:
        # Thousands of questions are compared again and again here, and memory is no matter.
        return Verifier.load(
            args.artefact or shipped_verifier(args.embedding), lru_cache(maxsize=None)(gist.__wrapped__)
        )
    except VerifierError as error:
        raise CommandError(str(error)) from None


def _pairs(
    args: argparse.Namespace,
    cache: _Cache,
    rows: Sequence[CacheRow],
    asked: Sequence[tuple[Asked, Asked]],
    embedder: Remembered,
    on_progress: OnProgress,
) -> report.PairsReport:
    """Each pair by itself."""
    same = np.array([row.same for row in rows])
    cosines = _cosines(asked, embedder)
    on_progress("deciding", 0, len(rows))
    scores = score_pairs(asked, cosines, cache.decide)
    on_progress("deciding", len(rows), len(rows))
    thresholds = _thresholds(args, cache, scores, same)
    out = scores >= thresholds
    names = np.array([row.group for row in rows])
    groups = {str(name): served_of(out[names == name], same[names == name]) for name in dict.fromkeys(names.tolist())}
    baselines = {f"cosine_{at:.2f}": served_of(cosines >= at - 1e-6, same) for at in BASELINES}
    best, at = best_within(scores, same, MOST_WRONG)
    facts = [
        f"{len(rows):,} pairs, {embedder.name}, {cache.policy.label}",
        f"threshold {', '.join(f'{t:.4f}' for t in dict.fromkeys(thresholds.tolist()))}; best at 1%: {at:.4f}",
    ]
    return report.PairsReport(served_of(out, same), groups, baselines, best, facts)


def _cosines(asked: Sequence[tuple[Asked, Asked]], embedder: Remembered) -> Floats:
    """Of each pair's last user texts."""
    texts = list(dict.fromkeys(one.text for pair in asked for one in pair))
    vectors, places = embedder.embed(texts), {text: place for place, text in enumerate(texts)}
    a, b = (np.array([places[pair[side].text] for pair in asked]) for side in (0, 1))
    cosines: Floats = np.einsum("ij,ij->i", vectors[a], vectors[b]).astype(np.float64)
    return cosines


def _thresholds(args: argparse.Namespace, cache: _Cache, scores: Floats, same: Flags) -> Floats:
    """The threshold of each pair: one for all, or with --max-error that which the other half of the pairs calls for."""
    if args.max_error is None:
        return np.full(len(scores), cache.threshold)
    half = np.random.default_rng(args.seed).permutation(len(scores)) % 2 == 0
    made = np.zeros(len(scores))
    for own in (half, ~half):
        others = ~own & ~same
        made[own] = calibrated(scores[others], np.ones(int(others.sum()), np.bool_), args.max_error)
    return made


def _stream(
    args: argparse.Namespace,
    cache: _Cache,
    rows: Sequence[CacheRow],
    asked: Sequence[tuple[Asked, Asked]],
    embedder: Remembered,
    on_progress: OnProgress,
) -> report.StreamReport:
    """The pairs' requests in an order of chance."""
    every = [one for pair in asked for one in pair]
    requests = [every[i] for i in np.random.default_rng(args.seed).permutation(len(every))]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(one.key for one in requests))}
    labels = [(numbers[a.key], numbers[b.key], row.same) for row, (a, b) in zip(rows, asked, strict=True)]
    texts = list(dict.fromkeys(one.text for one in requests))
    places = {text: place for place, text in enumerate(texts)}
    least = min(*BASELINES, cache.semantic.min_similarity)
    neighbours = near_neighbours(embedder.embed(texts), least, lambda *done: on_progress("comparing", *done))
    stream = Stream(
        requests,
        [numbers[one.key] for one in requests],
        [places[one.text] for one in requests],
        neighbours,
        Truth(len(numbers), labels),
    )
    control = None if args.max_error is None else RiskControl(args.max_error, cache.threshold)
    gate = StreamGate(cache.threshold, control, args.seed)
    ours = stream.served_by(cache.decide, gate, lambda *done: on_progress("serving", *done))
    baselines: Mapping[str, Rates] = {f"cosine_{at:.2f}": rates(stream.served_by_cosine(at - 1e-6)) for at in BASELINES}
    facts = [f"{len(requests):,} requests, {embedder.name}, {cache.policy.label}", _said(cache, control)]
    facts.append(f"of {ours.wrong.sum():,} wrong hits {ours.unlabelled.sum():,} are on pairs that have no label")
    return report.StreamReport(rates(ours), halves(ours), baselines, facts)


def _said(cache: _Cache, control: RiskControl | None) -> str:
    if control is None:
        return f"threshold {cache.threshold:.4f}, fixed"
    return (
        f"threshold {cache.threshold:.4f} at first, {control.threshold:.4f} at the end, from {control.labels:,} labels"
    )
