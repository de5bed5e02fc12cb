"""Run `tierline eval route | cascade | robustness | cache`: measure each on labelled data, with intervals."""

from __future__ import annotations

import argparse

from gateway.cli.commands import CommandError

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


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `eval` and its subcommands to the command line."""
    parser = subparsers.add_parser(
        "eval",
        help="measure routing and the semantic cache on labelled data",
        description="Measure routing and the semantic cache on labelled data, with 95% intervals.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from gateway.cli.commands.eval import cache, cascade, robustness, route

    what = parser.add_subparsers(dest="what", required=True, metavar="route | cascade | robustness | cache")
    for module in (route, cascade, robustness, cache):
        module.add_parser(what)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen evaluation; return the exit code. Raises CommandError."""
    from offline.datasets import DataError
    from routing.difficulty.model import ArtefactError
    from routing.embedding.embedder import EmbedderUnavailable

    try:
        return int(args.evaluate(args))
    except (DataError, ArtefactError, EmbedderUnavailable, OSError) as error:
        raise CommandError(str(error)) from None
