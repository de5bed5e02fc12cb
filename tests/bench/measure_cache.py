"""Evaluate how often the semantic cache serves right and wrong answers: `python -m tests.bench.measure_cache`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.table import Table

from cache import shipped_cross_encoder
from cache.planning.plan import CachePlan, Planner
from cache.semantic.decision import decide_by, default_threshold
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.text.normalized_question import gist
from cache.text.pair_features import features, leftover
from gateway.cli.flags import add_json_flag, whole
from gateway.config.schema import Limits
from gateway.encoders import load_embedder
from gateway.errors import InvalidRequest
from gateway.parts.encoders.blend import Blend
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.encoders.turns import TurnScorer, turn_by_turn
from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.fit.datasets import DataError, Json, LabelledPair, Messages, read_pairs, sampled
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.flags import add_embedding_flag, add_seed_flag, add_state_flag, options_of, share_number
from gateway.parts.hit_audits.control import RiskControl, calibrated
from gateway.report import OnProgress, Report, table
from gateway.request.body import ChatBodies
from policies.caching import SemanticCache
from policies.loader import SHIPPED, read_policy
from policies.model import Policy
from routing.embedder import EmbedderKind
from routing.features import features_of
from tests.bench.cache_gates import PLAIN, count_gates, gates_of, table_of_gates
from tests.bench.cache_stream import Rates, Stream, StreamGate, Truth, halves, near_neighbours, rates
from tools import command
from tools.cache_stages import Asked, ServedPairs, Stages, best_within, score_pairs, served_of, share_shown

BASELINES = (0.80, 0.90, 0.95)
MOST_WRONG = 0.01
_TENANT = "evaluation"


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Either `pairs`, each tested by itself, or `stream`, whose questions are asked one after another.

    `limit` is the number of random pairs to use, 0 for all. `threshold` is fixed, or `max_error` sets it; without both
    it is the shipped one. `artefact` is the verifier's folder, None for the shipped one; `cross_encoder` is `default`
    for the shipped one, `none`, or a folder. `gates` counts what each rule stops instead.
    """

    pairs: Path | None
    stream: Path | None
    threshold: float | None
    max_error: float | None
    artefact: Path | None
    cross_encoder: str
    policy: Path
    embedding: EmbedderKind
    group: str | None
    gates: bool
    limit: int
    seed: int
    state: Path


@dataclass(frozen=True, slots=True)
class CacheUnderTest:
    """The cache under test: its policy and rules, its verifier, its stages, and its default threshold."""

    policy: Policy
    semantic: SemanticCache
    verifier: Verifier | None
    stages: Stages
    threshold: float
    cross_encoder: CrossEncoder | None


def evaluate_cache(
    options: CacheOptions, conversation: Callable[[list[Any]], tuple[Json, ...]], on_progress: OnProgress
) -> Report:
    """Measure the cache on labelled pairs. `conversation` checks a list of messages, or raises ValueError.

    Raises DataError, ConfigError, VerifierError, CrossEncoderError, EmbedderUnavailable.
    """
    if options.threshold is not None and not math.isfinite(options.threshold):
        raise DataError("--threshold must be a finite number")
    embedder = Remembered(load_embedder(options.embedding, options.state), on_progress)
    cache = load_cache(options, embedder.name)
    embedder.vectors = None if cache.cross_encoder is None else cache.cross_encoder.vectors
    every = read_group(options.pairs or options.stream or Path(), options.group, conversation)
    pairs = sampled(every, options.limit, options.seed)
    requests = PlannedRequests(cache.policy, embedder, by_turns=cache.stages.candidates > 0)
    asked = [(requests.asked(pair.a), requests.asked(pair.b)) for pair in pairs]
    if options.gates:
        return _gates(options, cache, pairs, embedder)
    if options.pairs:
        return _pairs(options, cache, pairs, asked, embedder, on_progress)
    return _stream(options, cache, every, pairs, asked, embedder, on_progress)


def read_group(
    path: Path, group: str | None, conversation: Callable[[list[Any]], tuple[Json, ...]]
) -> list[LabelledPair]:
    """Return the pairs of a file, of one group if given. Raises DataError if there are none."""
    pairs = read_pairs(path, conversation)
    if not pairs:
        raise DataError(f"{path}: no rows")
    if group is None:
        return pairs
    chosen = [pair for pair in pairs if _group_of(pair) == group]
    if not chosen:
        raise DataError(f"{path}: no group {group!r}; there are: {', '.join(sorted({*map(_group_of, pairs)}))}")
    return chosen


def _group_of(pair: LabelledPair) -> str:
    return pair.group or pair.dataset or "all"


def load_cache(options: CacheOptions, encoder: str) -> CacheUnderTest:
    """Return the cache under test, of which the vectors are this encoder's."""
    policy = read_policy(options.policy)[0]
    semantic = policy.cache.semantic
    if semantic is None:
        raise DataError(f"{options.policy}: the surface {policy.surface} has no semantic cache")
    verifier: Verifier | None = None
    if semantic.verify != "none":
        # Thousands of questions are compared many times here, so cache their analysis without a limit.
        analysed = lru_cache(maxsize=None)(gist.__wrapped__)
        verifier = Verifier.load(options.artefact or shipped_verifier(options.embedding), analysed)
    elif options.artefact is not None:
        raise DataError(f"--artefact: {options.policy} has `verify: none`, so no verifier is used")
    model = _cross_encoder(options, semantic)
    if model is None:
        decide = turn_by_turn(decide_by(semantic, verifier), semantic)
    else:
        made_for = {"scripts": model.scripts, "languages": model.languages}
        decide = turn_by_turn(decide_by(semantic, verifier, screening=True, **made_for), semantic)
    stated = None if model is None else model.strict
    unknown = model is not None and stated is None and semantic.cross_encoder.min_score is None
    if unknown and options.threshold is None:
        raise DataError(f"{options.cross_encoder}: no sheet.json states its threshold; name one with --threshold")
    strict = default_threshold(semantic, verifier, screening=model is not None, strict=stated)
    threshold = strict if options.threshold is None else options.threshold
    stages = Stages(decide)
    if model is not None:
        blend = Blend(strict, model.cosine_weights.get(encoder, 0.0))
        stages = Stages(decide, TurnScorer(model), semantic.cross_encoder.candidates, blend)
    return CacheUnderTest(policy, semantic, verifier, stages, threshold, model)


def _cross_encoder(options: CacheOptions, semantic: SemanticCache) -> CrossEncoder | None:
    """Return the model under test; None where the policy asks none, or none is wanted."""
    if semantic.verify != "default":
        if options.cross_encoder not in ("default", "none"):
            raise DataError(f"--cross-encoder: {options.policy} has `verify: {semantic.verify}`, so none is used")
        return None
    if options.cross_encoder == "none":
        return None
    folder = shipped_cross_encoder() if options.cross_encoder == "default" else Path(options.cross_encoder)
    return CrossEncoder.load(folder, threads=os.cpu_count() or 1)


class PlannedRequests:
    """Plan the texts of pairs as requests of one tenant to one surface, as the gateway plans requests."""

    def __init__(self, policy: Policy, embedder: Remembered, *, by_turns: bool) -> None:
        self._policy = policy
        name = f"{embedder.name}/{embedder.dimension}"
        self._planner = Planner(b"", name, embedder.whole_chars, {}, lambda owner, surface: 0, by_turns=by_turns)
        self._questions: dict[str, Asked] = {}

    def asked(self, messages: Messages) -> Asked:
        """Return the planned request of one side of a pair."""
        if not isinstance(messages, str):
            return self._planned(list(messages))
        question = self._questions.get(messages)
        if question is None:
            question = self._questions[messages] = self._planned([{"role": "user", "content": messages}])
        return question

    def _planned(self, messages: list[Json]) -> Asked:
        plan = self.plan(messages)
        return Asked.of(plan, plan.facts.text)

    def plan(self, messages: list[Json]) -> CachePlan:
        """Return the cache's plan of a request with these messages."""
        body = {"model": self._policy.surface, "messages": messages}
        return self._planner.plan(body, self._policy, _TENANT, features_of(body), model=self._policy.surface)


def _pairs(
    options: CacheOptions,
    cache: CacheUnderTest,
    pairs: Sequence[LabelledPair],
    asked: Sequence[tuple[Asked, Asked]],
    embedder: Remembered,
    on_progress: OnProgress,
) -> Report:
    """Measure each pair by itself."""
    same = np.array([pair.same_answer for pair in pairs])
    cosines = pair_cosines(asked, embedder)
    scores, decided = score_pairs(asked, cosines, cache.stages, on_progress)
    thresholds = _thresholds(options, cache, scores, same)
    out = scores >= thresholds
    names = np.array([_group_of(pair) for pair in pairs])
    groups = {str(name): served_of(out[names == name], same[names == name]) for name in dict.fromkeys(names.tolist())}
    baselines = {f"cosine_{at:.2f}": served_of(cosines >= at - 1e-6, same) for at in BASELINES}
    best, at = best_within(scores, same, MOST_WRONG)
    facts = [
        f"{len(pairs):,} pairs, {embedder.name}, {cache.policy.label}",
        f"threshold {', '.join(f'{t:.4f}' for t in dict.fromkeys(thresholds.tolist()))}; best at 1%: {at:.4f}",
    ]
    every = served_of(out, same)
    methods = table("", "same", "served", "different", "wrong", "precision")
    for name, one in {"ours": every, **baselines}.items():
        methods.add_row(name.replace("_", " "), *_cells(one), str(one.precision))
    lines: list[str | Table] = [methods, f"best at 1% wrong: {best} served", ""]
    if len(groups) > 1:
        by_group = table("group", "same", "served", "different", "wrong")
        for name, one in groups.items():
            by_group.add_row(name, *_cells(one))
        lines += [by_group, ""]
    stages = {
        name: (
            share_shown(sum(one == name for one, yes in zip(decided, same, strict=True) if yes), int(same.sum())),
            share_shown(
                sum(one == name for one, yes in zip(decided, same, strict=True) if not yes), int((~same).sum())
            ),
        )
        for name in sorted(set(decided))
    }
    by_stage = table("decided by", "of the same", "of the different")
    for name, (of_same, of_different) in stages.items():
        by_stage.add_row(name.replace("_", " "), str(of_same), str(of_different))
    lines += [by_stage, ""]
    values = {
        "all": _values(every),
        "groups": {name: _values(one) for name, one in groups.items()},
        "baselines": {name: _values(baseline) for name, baseline in baselines.items()},
        "best_at_1pct": best.as_json(),
        "stages": {
            name: {"same": one.as_json(), "different": other.as_json()} for name, (one, other) in stages.items()
        },
    }
    return Report(values, lines, facts)


def _gates(options: CacheOptions, cache: CacheUnderTest, pairs: Sequence[LabelledPair], embedder: Remembered) -> Report:
    """Count what each rule stops that holds at any score, over the pairs of single questions."""
    if options.pairs is None:
        raise DataError("--gates works with --pairs only")
    rows = [(pair.a, pair.b, pair.same_answer) for pair in pairs if isinstance(pair.a, str) and isinstance(pair.b, str)]
    if not rows:
        raise DataError(f"{options.pairs}: it contains no pair of questions")
    questions, same = [(a, b) for a, b, _ in rows], np.array([wanted for _, _, wanted in rows])
    vectors = embedder.embed([text for pair in questions for text in pair])
    scores = cosines = np.einsum("ij,ij->i", vectors[0::2], vectors[1::2]).astype(np.float64)
    screening = cache.stages.candidates > 0
    gates = [
        gates_of(a, b, cosine, cache.semantic.min_similarity, screening=screening)
        for (a, b), cosine in zip(questions, cosines.tolist(), strict=True)
    ]
    if cache.verifier is not None:
        alone = partial(score_alone, cache.verifier)
        scores = np.array([alone(a, b, cosine) for (a, b), cosine in zip(questions, cosines.tolist(), strict=True)])
    if screening:
        plain = scores < cache.semantic.cross_encoder.ask_from
        gates = [each | {PLAIN} if no else each for each, no in zip(gates, plain.tolist(), strict=True)]
        read = zip(cache.stages.scores(questions), cosines.tolist(), strict=True)
        scores = np.array([cache.stages.blend.score(score, cosine) for score, cosine in read])
    counted = count_gates(gates, scores >= cache.threshold, same)
    facts = [f"{len(rows):,} pairs, {embedder.name}, {cache.policy.label}, threshold {cache.threshold:.4f}"]
    facts.append("alone: its score would serve the pair, and no other gate stops it")
    values = {name: asdict(one) for name, one in counted.items()}
    return Report({"gates": values}, [table_of_gates(counted, gates, same), ""], facts)


def _cells(one: ServedPairs) -> list[str]:
    return [f"{one.served.n:,}", str(one.served), f"{one.wrong.n:,}", str(one.wrong)]


def _values(of: ServedPairs | Rates) -> dict[str, Any]:
    return {field.name: getattr(of, field.name).as_json() for field in fields(of)}


def pair_cosines(asked: Sequence[tuple[Asked, Asked]], embedder: Remembered) -> Floats:
    """Return the cosine of each pair's last user texts."""
    texts = list(dict.fromkeys(one.text for pair in asked for one in pair))
    vectors, places = embedder.embed(texts), {text: place for place, text in enumerate(texts)}
    a, b = (np.array([places[pair[side].text] for pair in asked]) for side in (0, 1))
    cosines: Floats = np.einsum("ij,ij->i", vectors[a], vectors[b]).astype(np.float64)
    return cosines


def _thresholds(options: CacheOptions, cache: CacheUnderTest, scores: Floats, same: Flags) -> Floats:
    """Return each pair's threshold: one for all, or with --max-error one calibrated on the other half of the pairs."""
    if options.max_error is None:
        return np.full(len(scores), cache.threshold)
    half = np.random.default_rng(options.seed).permutation(len(scores)) % 2 == 0
    made = np.zeros(len(scores))
    for own in (half, ~half):
        others = ~own & ~same
        made[own] = calibrated(scores[others], np.ones(int(others.sum()), np.bool_), options.max_error)
    return made


def _stream(
    options: CacheOptions,
    cache: CacheUnderTest,
    known: Sequence[LabelledPair],
    pairs: Sequence[LabelledPair],
    asked: Sequence[tuple[Asked, Asked]],
    embedder: Remembered,
    on_progress: OnProgress,
) -> Report:
    """Measure the requests of `pairs` in random order, with the labels of all pairs `known`."""
    both = [one for pair in asked for one in pair]
    requests = [both[i] for i in np.random.default_rng(options.seed).permutation(len(both))]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(request.key for request in requests))}
    truth = _truth(known, pairs, [(numbers[a.key], numbers[b.key]) for a, b in asked])
    texts = list(dict.fromkeys(request.text for request in requests))
    places = {text: place for place, text in enumerate(texts)}
    least = min(*BASELINES, cache.semantic.min_similarity)
    neighbours = near_neighbours(embedder.embed(texts), least, on_progress)
    stream = Stream(
        requests,
        [numbers[request.key] for request in requests],
        [places[request.text] for request in requests],
        neighbours,
        truth,
    )
    control = None if options.max_error is None else RiskControl(options.max_error, cache.threshold)
    gate = StreamGate(cache.threshold, control, options.seed)
    ours = stream.served_by(cache.stages, gate, on_progress)
    baselines = {f"cosine_{at:.2f}": rates(stream.served_by_cosine(at - 1e-6)) for at in BASELINES}
    facts = [f"{len(requests):,} requests, {embedder.name}, {cache.policy.label}", _threshold_in_words(cache, control)]
    facts.append(f"of {ours.wrong.sum():,} wrong hits {ours.unlabelled.sum():,} are on pairs that have no label")
    every, (first, second) = rates(ours), halves(ours)
    shown = table("", "requests", "hit rate", "repeats", "by meaning", "error", "precision")
    for name, one in {"ours": every, "first half": first, "second half": second, **baselines}.items():
        figures = (one.hit_rate, one.repeats, one.by_meaning, one.error, one.precision)
        shown.add_row(name.replace("_", " "), f"{one.hit_rate.n:,}", *map(str, figures))
    values = {
        **_values(every),
        "halves": [_values(first), _values(second)],
        "baselines": {name: _values(baseline) for name, baseline in baselines.items()},
    }
    return Report(values, [shown, ""], facts)


def _truth(known: Sequence[LabelledPair], pairs: Sequence[LabelledPair], numbered: Sequence[tuple[int, int]]) -> Truth:
    """Return what the labels of the pairs `known` say of the requests of `pairs`, which are `numbered`.

    Two requests of a sample are often joined by pairs outside it, so those count too.
    """
    numbers: dict[str, int] = {}
    for pair, (one, other) in zip(pairs, numbered, strict=True):
        numbers[_name_of(pair.a)], numbers[_name_of(pair.b)] = one, other
    count = 1 + max(max(pair) for pair in numbered)
    labels = []
    for pair in known:
        for side in (_name_of(pair.a), _name_of(pair.b)):
            if side not in numbers:
                numbers[side], count = count, count + 1
        labels.append((numbers[_name_of(pair.a)], numbers[_name_of(pair.b)], pair.same_answer))
    return Truth(count, labels)


def _name_of(messages: Messages) -> str:
    return messages if isinstance(messages, str) else json.dumps(messages)


def _threshold_in_words(cache: CacheUnderTest, control: RiskControl | None) -> str:
    if control is None:
        return f"threshold {cache.threshold:.4f}, fixed"
    return (
        f"threshold {cache.threshold:.4f} at first, {control.threshold:.4f} at the end, from {control.labels:,} labels"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the cache on pairs or a stream and print the figures."""
    parser = command.parser("measure_cache", "tests.bench")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pairs", type=Path, metavar="FILE")
    source.add_argument("--stream", type=Path, metavar="FILE")
    gate = parser.add_mutually_exclusive_group()
    gate.add_argument("--threshold", type=float, metavar="SCORE")
    gate.add_argument("--max-error", type=share_number, metavar="SHARE")
    parser.add_argument("--artefact", type=Path, metavar="DIR")
    parser.add_argument("--cross-encoder", default="default", metavar="PATH")
    parser.add_argument("--policy", type=Path, default=SHIPPED / "chat.yaml", metavar="FILE")
    add_embedding_flag(parser)
    parser.add_argument("--group", metavar="NAME")
    parser.add_argument("--gates", action="store_true")
    parser.add_argument("--limit", type=whole(0), default=0, metavar="N")
    add_seed_flag(parser, " of samples and orders")
    add_state_flag(parser)
    add_json_flag(parser)
    return command.run(parser, _measure, argv)


def _measure(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    conversation = partial(_conversation, ChatBodies(Limits()))
    return evaluate_cache(options_of(CacheOptions, args), conversation, on_progress)


def _conversation(bodies: ChatBodies, messages: list[Any]) -> tuple[dict[str, Any], ...]:
    """Return the messages as the gateway would accept them in a request. Raises ValueError."""
    try:
        return tuple(bodies.parse(orjson.dumps({"model": "m", "messages": messages}))["messages"])
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    except orjson.JSONEncodeError as error:
        raise ValueError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())


def score_alone(verifier: Verifier, stored: str, asked: str, cosine: float) -> float:
    """Return a pair's score without any veto, 0..1, to measure what vetoes add; 0 if a text cannot be parsed."""
    a, b = verifier._read(stored), verifier._read(asked)
    if not a.words or not b.words:
        return 0.0
    numbers = features(a, b, leftover(a, b), cosine, verifier._table)
    return verifier._calibrated(verifier._trees.margin(np.array(numbers)))
