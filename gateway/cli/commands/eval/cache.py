"""Run `tierline eval cache`: measure how often the semantic cache serves right and wrong answers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

import numpy as np

from cache.risk.control import RiskControl, calibrated
from cache.semantic.decision import Decide, decide_by, default_threshold
from cache.semantic.verifier import Verifier, VerifierError, shipped_verifier
from cache.text.normalized_question import gist
from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import seed_number, share_number
from gateway.cli.commands.eval import _cache_report as report
from gateway.cli.commands.eval._cache_rows import CacheRow, Requests, read_rows
from gateway.cli.commands.eval._cross_encoder import add_cross_encoder_flag, with_cross_encoder
from gateway.cli.commands.eval._data import whole
from gateway.cli.commands.eval._embedding import Remembered
from gateway.exit_codes import Exit
from offline.datasets import DataError
from offline.evaluation.neighbours import near_neighbours
from offline.evaluation.pairs import Asked, score_pairs
from offline.evaluation.served import Flags, Floats, best_within, served_of
from offline.evaluation.stream import Rates, Stream, StreamGate, halves, rates
from offline.evaluation.truth import Truth
from offline.progress import OnProgress, progress
from policies.caching import SemanticCache
from policies.loader import SHIPPED, read_policy
from policies.model import Policy
from routing.embedding.embedder import EmbedderKind, load_embedder

BASELINES = (0.80, 0.90, 0.95)
MOST_WRONG = 0.01
_SURFACE = "chat.yaml"

_EXAMPLES = """examples:
  tierline eval cache --pairs traps.jsonl.gz                      rates of right and wrong hits, by group of pairs
  tierline eval cache --pairs traps.jsonl.gz --group negation --threshold 0.93
                                                                  one group, at a fixed threshold
  tierline eval cache --pairs mine.jsonl --max-error 0.01         at a threshold calibrated on half of the pairs
  tierline eval cache --stream questions.jsonl.gz --max-error 0.01 --json
                                                                  questions as a stream, as the gateway gets them
  tierline eval cache --pairs mine.jsonl --policy policies/batch.yaml --embedding minilm
                                                                  with another policy and encoder

A row is a line of JSON: {"a", "b", "same_answer", "group"?}; a and b are each a question or a list of messages.
--pairs: `a` has been answered and stored; then `b` is asked. --stream: the questions of all pairs are asked in random
order, those of several pairs several times, while the cache fills up; a hit on another question is wrong unless a
label, or a chain of labels, says that both have the same answer.
  served        of the pairs with same_answer true, the share that the cache answers
  wrong         of the pairs with same_answer false, the share that the cache answers
  precision     of the answers that the cache gives, the share that is right
  best at 1%    the most that any threshold would serve with at most 1% wrong, chosen on these same pairs
  hit rate, repeats, error   hits, hits on an identical request, and wrong hits, as shares of a stream's requests
`ours` decides as the gateway does: equal history, system prompt and tools; a question that needs no context; then
score,
guards and verifier. The cosine baselines compare only the last user texts. Intervals are Wilson's, 95%."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cache` to the subcommands of `tierline eval`."""
    parser = subparsers.add_parser(
        "cache",
        help="measure the semantic cache: right and wrong hits",
        description="Measure the semantic cache on labelled pairs of questions, against a plain cosine threshold.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--pairs", type=Path, metavar="FILE", help="labelled pairs, each tested by itself: JSON lines, plain or .gz"
    )
    source.add_argument(
        "--stream", type=Path, metavar="FILE", help="labelled pairs whose questions are asked one after another"
    )
    gate = parser.add_mutually_exclusive_group()
    gate.add_argument(
        "--threshold", type=float, metavar="SCORE", help="lowest score that is served (default: the verifier's)"
    )
    gate.add_argument(
        "--max-error",
        type=share_number,
        metavar="SHARE",
        help="with --pairs: calibrate the threshold to this share of wrong hits on the other half of the pairs; "
        "with --stream: let the controller keep wrong hits below this share of all requests",
    )
    parser.add_argument("--artefact", type=Path, metavar="DIR", help="the verifier's folder (default: the shipped one)")
    add_cross_encoder_flag(parser)
    parser.add_argument(
        "--policy",
        type=Path,
        default=SHIPPED / _SURFACE,
        metavar="FILE",
        help="the policy whose cache settings to use (default: the shipped chat.yaml)",
    )
    parser.add_argument(
        "--embedding", choices=get_args(EmbedderKind), default="static", help="the text encoder (default: static)"
    )
    parser.add_argument("--group", metavar="NAME", help="use only the pairs of this group")
    parser.add_argument(
        "--limit", type=whole(0), default=0, metavar="N", help="use N random pairs; 0 for all (default: 0)"
    )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="N", help="random seed of samples and orders (default: 0)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.set_defaults(evaluate=evaluate)


@dataclass(frozen=True, slots=True)
class _Cache:
    """The cache under test: its policy and rules, its decision on one candidate, and its default threshold."""

    policy: Policy
    semantic: SemanticCache
    decide: Decide
    threshold: float


def evaluate(args: argparse.Namespace) -> int:
    """Measure the cache on the given pairs, and print the figures."""
    if args.threshold is not None and not math.isfinite(args.threshold):
        raise CommandError("--threshold must be a finite number")
    cache = _cache(args)
    rows = read_rows(args.pairs or args.stream, args.group, args.limit, args.seed)
    with progress() as on_progress:
        embedder = Remembered(load_embedder(args.embedding, args.state), on_progress)
        requests = Requests(cache.policy, embedder)
        asked = [(requests.asked(row.a), requests.asked(row.b)) for row in rows]
        run = _pairs if args.pairs else _stream
        result = run(args, cache, rows, asked, embedder, on_progress)
    report.show(result, args)
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
    """Load the verifier; None if the policy uses none. Raises CommandError."""
    if semantic.verify == "none":
        if args.artefact is not None:
            raise CommandError(f"--artefact: {args.policy} has `verify: none`, so no verifier is used")
        return None
    try:
        # Thousands of questions are compared many times here, so cache their analysis without a limit.
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
    """Measure each pair by itself."""
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
    """Return the cosine of each pair's last user texts."""
    texts = list(dict.fromkeys(one.text for pair in asked for one in pair))
    vectors, places = embedder.embed(texts), {text: place for place, text in enumerate(texts)}
    a, b = (np.array([places[pair[side].text] for pair in asked]) for side in (0, 1))
    cosines: Floats = np.einsum("ij,ij->i", vectors[a], vectors[b]).astype(np.float64)
    return cosines


def _thresholds(args: argparse.Namespace, cache: _Cache, scores: Floats, same: Flags) -> Floats:
    """Return each pair's threshold: one for all, or with --max-error one calibrated on the other half of the pairs."""
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
    """Measure the pairs' requests in random order."""
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
    facts = [f"{len(requests):,} requests, {embedder.name}, {cache.policy.label}", _threshold_in_words(cache, control)]
    facts.append(f"of {ours.wrong.sum():,} wrong hits {ours.unlabelled.sum():,} are on pairs that have no label")
    return report.StreamReport(rates(ours), halves(ours), baselines, facts)


def _threshold_in_words(cache: _Cache, control: RiskControl | None) -> str:
    if control is None:
        return f"threshold {cache.threshold:.4f}, fixed"
    return (
        f"threshold {cache.threshold:.4f} at first, {control.threshold:.4f} at the end, from {control.labels:,} labels"
    )
