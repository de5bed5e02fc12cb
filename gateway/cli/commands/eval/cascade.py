"""Run `tierline eval cascade`: measure asking the small model first and judging its answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from gateway.cli.commands._labelled import Labelled, read_labelled
from gateway.cli.commands.eval import _report
from gateway.cli.commands.eval._data import ROWS, add_data_flags, read_others, whole
from gateway.cli.commands.eval._embedding import Remembered
from gateway.exit_codes import Exit
from offline.datasets import DataError, Example
from offline.evaluation import parts
from offline.evaluation.baselines import bounds, by_length, by_table
from offline.evaluation.figures import Draw, Method, Outcomes
from offline.evaluation.parts import Round
from offline.evaluation.picture import draw_picture
from offline.evaluation.prefix import PREFIXES, after
from offline.progress import OnProgress, progress
from routing.embedding.embedder import EmbedderKind, Vectors, load_embedder

if TYPE_CHECKING:
    from offline.training.confidence import JudgedPair

DRAWS = 5

_EXAMPLES = f"""examples:
  tierline eval cascade --data trivia.jsonl.gz --small llama-8b --large gpt-4o    5-fold cross-validation
  tierline eval cascade --data trivia.jsonl.gz --calibration 200                  fit to 200 labels of the file
  tierline eval cascade --data trivia.jsonl.gz --fit mmlu.jsonl.gz medmcqa.jsonl.gz
                                                    fit on other files only
  tierline eval cascade --data a.jsonl.gz b.jsonl.gz --group-out --plot curve.png
                                                    hold out whole groups, draw the curves

The small model is always asked first, and its cost is counted for every prompt; answers of low confidence are replaced
by the large model's. `raw logprob` uses the answer's mean log-probability as the confidence. --calibration draws its
labels {DRAWS} times, tests on all other prompts, and prints means over the draws.

{ROWS}"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cascade` to the subcommands of `tierline eval`."""
    parser = subparsers.add_parser(
        "cascade",
        help="measure the confidence head: judging the small model's answer",
        description="Measure the confidence head against the raw log-probability and other baselines.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_data_flags(parser)
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
    parser.add_argument(
        "--embedding", choices=get_args(EmbedderKind), default="static", help="the text encoder (default: static)"
    )
    parser.set_defaults(evaluate=evaluate)


@dataclass(frozen=True, slots=True)
class _Table:
    """Prompts and their embeddings, `vectors` of shape (prompts, dimension)."""

    examples: list[Example]
    vectors: Vectors

    def take(self, rows: Sequence[int]) -> _Table:
        return _Table([self.examples[row] for row in rows], self.vectors[list(rows)])

    def after(self, tokens: int) -> _Table:
        return _Table(after(self.examples, tokens), self.vectors)

    def joined(self, other: _Table) -> _Table:
        return _Table(self.examples + other.examples, np.concatenate([self.vectors, other.vectors]))


def evaluate(args: argparse.Namespace) -> int:
    """Judge every answer of the small model by every method, and print the figures of each method."""
    _report.require_libraries(args, fits=True)
    if args.group_out and (args.fit or args.calibration):
        raise DataError("--group-out holds out parts of --data; remove it with --fit or --calibration")
    data = read_labelled(args.data, args.small, args.large)
    others = read_others(args, data)
    for some in (data, others):
        _check_confidence(some)
    with progress() as on_progress:
        embedder = Remembered(load_embedder(args.embedding, args.state), on_progress)
        tables = _tabulated(data.examples, embedder), _tabulated(others.examples, embedder)
        draws = list(_draws(args, *tables, on_progress))
        prefixes = {
            tokens: list(_draws(args, tables[0].after(tokens), tables[1].after(tokens), on_progress))
            for tokens in (PREFIXES if args.prefix else ())
        }
        title = f"{_report.named(data)}; {_how(args)}"
        facts = {**_facts(args, draws, others), "embedding": embedder.name, "seed": args.seed}
        report = _report.measured(title, data, draws, facts, _notes(args), on_progress, prefixes)
    _report.show(report, args)
    if args.plot:
        draw_picture(args.plot, title, Outcomes.of(data.examples), draws, args.seed)
    return Exit.OK


def _tabulated(examples: list[Example], embedder: Remembered) -> _Table:
    return _Table(examples, embedder.embed([example.prompt for example in examples]))


def _check_confidence(data: Labelled) -> None:
    without = sum(example.answers[0].confidence is None for example in data.examples)
    if without:
        raise DataError(
            f"{without} of {len(data.examples)} rows have no confidence (and no logprobs) for {data.pair()[0]}: "
            "a cascade judges answers by their log-probabilities; use `tierline eval route`, or collect them"
        )


def _draws(args: argparse.Namespace, data: _Table, others: _Table, on_progress: OnProgress) -> Iterator[Draw]:
    """Yield what was tested together: all prompts, or for each draw of calibration labels all the other prompts."""
    from offline.training.confidence import cross_validate, fit_and_judge

    n = len(data.examples)
    if not args.fit and not args.calibration:
        fold = parts.by_group(data.examples, args.seed) if args.group_out else parts.by_prompt(n, args.folds, args.seed)
        judged = cross_validate(data.examples, data.vectors, fold, on_progress)
        yield _draw(data, others, parts.whole(fold)[0], judged)
        return
    rounds = parts.whole(np.zeros(n, np.int64))
    if args.calibration:
        rounds = parts.calibrations(n, args.calibration, DRAWS, args.seed)
    for number, one in enumerate(rounds):
        on_progress("fitting", number, len(rounds))
        fitted, held = data.take(one.rows[~one.held].tolist()).joined(others), data.take(one.rows[one.held].tolist())
        judged = fit_and_judge(fitted.examples, fitted.vectors, held.examples, held.vectors)
        yield _draw(data, others, one, judged)
    on_progress("fitting", len(rounds), len(rounds))


def _draw(data: _Table, others: _Table, one: Round, judged: JudgedPair) -> Draw:
    """Return every method's scores of the round's held-out prompts; `judged` are ours.

    The table of groups is fitted on the same labels as ours.
    """
    rows = one.rows[one.held]
    held = data.take(rows.tolist()).examples
    seen = data.take(one.rows.tolist()).joined(others).examples
    fold = np.concatenate([one.fold, np.full(len(others.examples), parts.NEVER_HELD, np.int64)])
    outcomes = Outcomes.of(held)
    table = by_table(seen, Outcomes.of(seen), fold)[fold != parts.NEVER_HELD]
    groups = Method("groups", table[:, 0], table[:, 1])
    logprob = np.array([example.answers[0].confidence for example in held], np.float64)
    raw = Method("raw_logprob", -logprob, np.exp(np.minimum(0.0, logprob)))
    ours = Method("ours", np.asarray(judged.gain, np.float64), np.asarray(judged.p_right, np.float64))
    return Draw(rows, (*bounds(outcomes), by_length(held), groups, raw, ours), cascade=True)


def _how(args: argparse.Namespace) -> str:
    if args.group_out:
        return "whole groups held out"
    if not args.fit and not args.calibration:
        return f"{args.folds}-fold by prompt"
    labels = f"{args.calibration:,} labels of its own, {DRAWS} draws" if args.calibration else ""
    files = ", ".join(path.name for path in args.fit) if args.fit else ""
    return f"fitted on {' and '.join(filter(None, (files, labels)))}"


def _facts(args: argparse.Namespace, draws: Sequence[Draw], others: Labelled) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if args.calibration:
        facts |= {"calibration": args.calibration, "draws": len(draws), "tested": len(draws[0].rows)}
    if args.fit:
        facts["fit"] = others.sources
    if not facts:
        facts = {"folds": args.folds, "group_out": args.group_out}
    return facts


def _notes(args: argparse.Namespace) -> list[str]:
    notes = ["the small model is asked first and paid for every prompt"]
    if args.calibration:
        notes.append(f"means over {DRAWS} draws of {args.calibration:,} labels, each tested on all the other prompts")
    return notes
