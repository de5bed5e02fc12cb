"""`tierline eval route | cascade | robustness | cache`: what each is worth on labelled data, and how sure that is."""

from __future__ import annotations

import argparse

from gateway.cli.commands import CommandError

_EXAMPLES = """examples:
  tierline eval route --data mmlu.jsonl.gz --small mixtral-8x7b --large gpt-4-1106
  tierline eval cascade --data trivia.jsonl.gz --small llama-8b --large gpt-4o --calibration 200
  tierline eval robustness --pairs paraphrases.jsonl.gz
  tierline eval cache --pairs traps.jsonl.gz
  tierline eval cache --stream questions.jsonl.gz --max-error 0.01

`tierline eval WHAT --help` says more of each."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `eval` and what it evaluates to the command line."""
    parser = subparsers.add_parser(
        "eval",
        help="measure what routing and the cache are worth on labelled data",
        description="Measures what routing and the cache are worth on labelled data, with 95% intervals.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from gateway.cli.commands.eval import cache, cascade, robustness, route

    what = parser.add_subparsers(dest="what", required=True, metavar="route | cascade | robustness | cache")
    for module in (route, cascade, robustness, cache):
        module.add_parser(what)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluates what was asked for."""
    from routing.difficulty.model import ArtefactError
    from routing.embedding.embedder import EmbedderUnavailable
    from routing.offline.dataset import DataError

    try:
        return int(args.evaluate(args))
    except (DataError, ArtefactError, EmbedderUnavailable, OSError) as error:
        raise CommandError(str(error)) from None
