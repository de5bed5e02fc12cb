"""Run `tierline eval route | cascade | robustness | cache`: measure each on labelled data, with intervals."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, get_args

import orjson

from cache.semantic.cross_encoder import CrossEncoderError
from cache.semantic.verifier import VerifierError
from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import (
    Subparsers,
    add_command,
    add_json_flag,
    add_seed_flag,
    add_state_flag,
    options_of,
    share_number,
    whole,
)
from gateway.config.schema import Limits
from gateway.errors import InvalidRequest
from gateway.exit_codes import Exit
from gateway.fit.datasets import DataError
from gateway.fit.evaluation.cascade import DRAWS, CascadeOptions, evaluate_cascade
from gateway.fit.evaluation.route import RouteOptions, evaluate_route
from gateway.fit.libraries import LibraryMissing
from gateway.progress import OnProgress, progress
from gateway.report import Report, show
from gateway.request.body import ChatBodies
from policies.loader import SHIPPED
from routing.difficulty.model import ArtefactError
from routing.embedding.embedder import EmbedderKind, EmbedderUnavailable
from tools.measure_cache import CacheOptions, evaluate_cache
from tools.measure_robustness import RobustnessOptions, evaluate_robustness

_ENCODERS = get_args(EmbedderKind)
_FAILURES = (DataError, LibraryMissing, ArtefactError, VerifierError, CrossEncoderError, EmbedderUnavailable, OSError)

_EXAMPLES = """examples:
  tierline eval route --data mmlu.jsonl.gz --small mixtral-8x7b --large gpt-4-1106
                              choosing a model before any answer (the difficulty classifier)
  tierline eval cascade --data trivia.jsonl.gz --small llama-8b --large gpt-4o --calibration 200
                              judging the small model's answer first (the confidence head)
  tierline eval robustness --pairs paraphrases.jsonl.gz
                              whether rephrased questions go to the same tier
  tierline eval cache --pairs traps.jsonl.gz
                              what the semantic cache serves, over labelled pairs of questions
  tierline eval cache --stream questions.jsonl.gz --max-error 0.01
                              the same over a stream of questions

`tierline eval route --help` (and so on) describes the options and the figures of each."""

_ROWS = """A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1,
"confidence"?, "cost_usd"?}}}.

Each method scores the prompts; those with the highest scores go to the large model. Its curve is the accuracy at every
share of large calls.
  APGR             average performance gap recovered: the share of the accuracy gap between the two models that is
                   recovered, averaged over all shares of large calls
  CPT50, CPT80     call-performance threshold: least share of large calls that recovers 50% or 80% of the gap
  calls for 95%    least share of large calls that reaches 95% of the large model's accuracy; likewise for 99%
  small / large    share of prompts that each answers at that 95%; with costs in the data also dollars, and the share
                   saved compared with always asking the large model
  ECE              expected calibration error of P(small is right), in ten bins of equal count
Intervals are the central 95% of 1,000 bootstrap resamples of the prompts. The fits are not repeated for each resample,
so an interval does not show how much they would vary with other training data."""

_ROUTE = f"""examples:
  tierline eval route --data mmlu.jsonl.gz                        5-fold, for the file's worst and best model
  tierline eval route --data mmlu.jsonl.gz --group-out            hold out whole groups
  tierline eval route --data mmlu.jsonl.gz --labels 1500          fit each fold to 1,500 labels only
  tierline eval route --data gsm8k.jsonl.gz --fit mmlu.jsonl.gz   train on one file, test on another
  tierline eval route --data mine.jsonl --artefact static         test the classifier shipped with Tierline
  tierline eval route --data mine.jsonl --plot curve.png --json   draw the curves, print JSON

{_ROWS}"""

_CASCADE = f"""examples:
  tierline eval cascade --data trivia.jsonl.gz --small llama-8b --large gpt-4o    5-fold cross-validation
  tierline eval cascade --data trivia.jsonl.gz --calibration 200                  fit to 200 labels of the file
  tierline eval cascade --data trivia.jsonl.gz --fit mmlu.jsonl.gz medmcqa.jsonl.gz
                                                    fit on other files only
  tierline eval cascade --data a.jsonl.gz b.jsonl.gz --group-out --plot curve.png
                                                    hold out whole groups, draw the curves

The small model is always asked first, and its cost is counted for every prompt; answers of low confidence are replaced
by the large model's. `raw logprob` uses the answer's mean log-probability as the confidence. --calibration draws its
labels {DRAWS} times, tests on all other prompts, and prints means over the draws.

{_ROWS}"""

_ROBUSTNESS = """examples:
  tierline eval robustness --pairs paraphrases.jsonl.gz
                              with the shipped classifier, on 5,000 random pairs
  tierline eval robustness --pairs paraphrases.jsonl.gz --artefact my-classifier --limit 0
                              with your own classifier, on all pairs
  tierline eval robustness --pairs paraphrases.jsonl.gz --policy policies/chat.yaml
                              also under the start rules of a policy

A row is a line of JSON: {"id", "dataset", "group", "a", "b", "same_answer"}; pairs with same_answer true are used.
Thresholds on p_adequate are set so that the small tier gets 20 to 80% of the pairs' texts; for each, the command prints
the share of pairs whose texts go to the same tier. `same tier` in the JSON is the best of those at which each tier gets
at least a fifth of the texts. Intervals are the central 95% of 1,000 bootstrap resamples of the pairs."""

_CACHE = """examples:
  tierline eval cache --pairs traps.jsonl.gz                      rates of right and wrong hits, by group of pairs
  tierline eval cache --pairs traps.jsonl.gz --group negation --threshold 0.93
                                                                  one group, at a fixed threshold
  tierline eval cache --pairs mine.jsonl --max-error 0.01         at a threshold calibrated on half of the pairs
  tierline eval cache --stream questions.jsonl.gz --max-error 0.01 --json
                                                                  questions as a stream, as the gateway gets them
  tierline eval cache --pairs mine.jsonl --policy policies/batch.yaml --embedding minilm
                                                                  with another policy and encoder
  tierline eval cache --pairs mine.jsonl --gates                  what each rule stops that holds at any score

A row is a line of JSON: {"a", "b", "same_answer", "group"?}; a and b are each a question or a list of messages.
--pairs: `a` has been answered and stored; then `b` is asked. --stream: the questions of all pairs are asked in random
order, those of several pairs several times, while the cache fills up; a hit on another question is wrong unless a
label, or a chain of labels, of the file (with --limit, of all of it) says that both have the same answer.
  served        of the pairs with same_answer true, the share that the cache answers
  wrong         of the pairs with same_answer false, the share that the cache answers
  precision     of the answers that the cache gives, the share that is right
  best at 1%    the most that any threshold would serve with at most 1% wrong, chosen on these same pairs
  hit rate, error   hits and wrong hits, as shares of a stream's requests, also of each half of the stream
  repeats, by meaning   hits on an identical request, and all other hits, likewise
`ours` decides as the gateway does: equal system prompt and tools, each turn of the history alike; then
guards and verifier, and the cross-encoder for what they leave open. `decided by` says how often each stage settled a
pair. The cosine baselines compare what is embedded: the user texts. Intervals are Wilson's, 95%."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `eval` and its subcommands to the command line."""
    parser = add_command(
        subparsers,
        "eval",
        "measure routing and the semantic cache on labelled data",
        "Measure routing and the semantic cache on labelled data, with 95% intervals.",
        _EXAMPLES,
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="route | cascade | robustness | cache")
    for add in (_add_route, _add_cascade, _add_robustness, _add_cache):
        add(what)


def run(args: argparse.Namespace) -> int:
    """Run the chosen evaluation and print its report. Raises CommandError and ConfigError."""
    try:
        with progress() as on_progress:
            report: Report = args.evaluate(args, on_progress)
    except _FAILURES as error:
        raise CommandError(str(error)) from None
    show(report, as_json=args.json)
    if report.draw_picture is not None:
        try:
            report.draw_picture()
        except OSError as error:
            raise CommandError(f"the picture cannot be written: {error}") from None
    return Exit.OK


def _add_route(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "route",
        "measure the difficulty classifier: choosing a model before any answer",
        "Measure the difficulty classifier against the baselines, on prompts that it was not fitted on.",
        _ROUTE,
    )
    _add_data_flags(parser)
    tested = parser.add_mutually_exclusive_group()
    tested.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    tested.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    tested.add_argument("--fit", type=Path, nargs="+", metavar="FILE", help="fit on these files, test on --data")
    tested.add_argument(
        "--artefact",
        metavar="PATH",
        help="test a trained classifier: its folder, or 'static' or 'minilm' for a shipped one",
    )
    parser.add_argument("--labels", type=whole(20), metavar="N", help="fit on only N random labels, at least 20")
    parser.add_argument("--embedding", choices=_ENCODERS, help="the text encoder (default: static, or the artefact's)")
    parser.set_defaults(evaluate=lambda args, watch: evaluate_route(options_of(RouteOptions, args), watch))


def _add_cascade(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "cascade",
        "measure the confidence head: judging the small model's answer",
        "Measure the confidence head against the raw log-probability and other baselines.",
        _CASCADE,
    )
    _add_data_flags(parser)
    parser.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    parser.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    parser.add_argument(
        "--calibration", type=whole(20), metavar="N", help="fit on N random labels, at least 20; test on the others"
    )
    parser.add_argument(
        "--fit", type=Path, nargs="+", metavar="FILE", help="fit on these files (and on the labels of --calibration)"
    )
    parser.add_argument(
        "--prefix",
        action="store_true",
        help="also judge by the first 8, 16, 24, 48 tokens (needs logprobs in the data)",
    )
    parser.add_argument("--embedding", choices=_ENCODERS, default="static", help="the text encoder (default: static)")
    parser.set_defaults(evaluate=lambda args, watch: evaluate_cascade(options_of(CascadeOptions, args), watch))


def _add_robustness(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "robustness",
        "measure how often a rephrased question goes to the same tier",
        "Measure how often two texts that ask the same go to the same tier.",
        _ROBUSTNESS,
    )
    parser.add_argument(
        "--pairs", type=Path, required=True, metavar="FILE", help="labelled pairs: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--artefact",
        default="static",
        metavar="PATH",
        help="the classifier: its folder, or 'static' (default) or 'minilm' for a shipped one",
    )
    parser.add_argument("--embedding", choices=_ENCODERS, help="the text encoder (default: the artefact's)")
    parser.add_argument(
        "--limit", type=whole(0), default=5000, metavar="N", help="use N random pairs; 0 for all (default: 5000)"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="also measure agreement under this policy's start rules"
    )
    add_seed_flag(parser, " of the sample and the resamples")
    add_state_flag(parser)
    add_json_flag(parser)
    parser.set_defaults(evaluate=lambda args, watch: evaluate_robustness(options_of(RobustnessOptions, args), watch))


def _add_cache(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "cache",
        "measure the semantic cache: right and wrong hits",
        "Measure the semantic cache on labelled pairs of questions, against a plain cosine threshold.",
        _CACHE,
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
        "--threshold", type=float, metavar="SCORE", help="lowest score that is served (default: the shipped model's)"
    )
    gate.add_argument(
        "--max-error",
        type=share_number,
        metavar="SHARE",
        help="with --pairs: calibrate the threshold to this share of wrong hits on the other half of the pairs; "
        "with --stream: let the controller keep wrong hits below this share of all requests",
    )
    parser.add_argument("--artefact", type=Path, metavar="DIR", help="the verifier's folder (default: the shipped one)")
    parser.add_argument(
        "--cross-encoder",
        default="default",
        metavar="PATH",
        help="the cross-encoder: its folder, as sentence-transformers exports it, 'default' for the shipped one, or "
        "'none' to measure the verifier alone (default: default)",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        default=SHIPPED / "chat.yaml",
        metavar="FILE",
        help="the policy whose cache settings to use (default: the shipped chat.yaml)",
    )
    parser.add_argument("--embedding", choices=_ENCODERS, default="static", help="the text encoder (default: static)")
    parser.add_argument("--group", metavar="NAME", help="use only the pairs of this group")
    parser.add_argument(
        "--gates", action="store_true", help="count what each rule stops that holds at any score (with --pairs)"
    )
    parser.add_argument(
        "--limit", type=whole(0), default=0, metavar="N", help="use N random pairs; 0 for all (default: 0)"
    )
    add_seed_flag(parser, " of samples and orders")
    add_state_flag(parser)
    add_json_flag(parser)
    parser.set_defaults(evaluate=_evaluate_cache)


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add --data, --small, --large and the other options that evaluations on labelled prompts share."""
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled prompts: JSON lines, plain or .gz"
    )
    for role, default in (("small", "worst"), ("large", "best")):
        parser.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"the {role} model, or several as one, `A+B`, as right as they are on average; of several names, the "
            f"first that a file has (default: the file's {default})",
        )
    add_seed_flag(parser, " of folds, draws and resamples")
    add_state_flag(parser)
    add_json_flag(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves to this file (needs matplotlib)")


def _evaluate_cache(args: argparse.Namespace, on_progress: OnProgress) -> Report:
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
