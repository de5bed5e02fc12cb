"""Support `tierline eval cache --cross-encoder`: the cache's decisions with the cross-encoder that a policy may use."""

from __future__ import annotations

import argparse
from pathlib import Path

from cache.semantic.cross_encoder import CrossEncoder, CrossEncoderError, consulting
from cache.semantic.decision import Decide
from gateway.cli.commands import CommandError
from policies.caching import CrossEncoderRules as Rule
from policies.caching import SemanticCache

_AS_THE_SCORE = Rule(min_score=0.5, decides="score")


def add_cross_encoder_flag(parser: argparse.ArgumentParser) -> None:
    """Add --cross-encoder to a command."""
    parser.add_argument(
        "--cross-encoder",
        type=Path,
        metavar="PATH",
        help="with --pairs: the folder of a cross-encoder, as sentence-transformers exports it; used as the policy "
        "says, or if it says nothing, in place of the verifier's score",
    )


def with_cross_encoder(
    args: argparse.Namespace, semantic: SemanticCache, decide: Decide
) -> tuple[SemanticCache, Decide]:
    """Return the cache's rules and its decision function, with the cross-encoder of --cross-encoder if given.

    Raises CommandError if it cannot be loaded, does not fit the other options, or is needed and not given.
    """
    if args.cross_encoder is None:
        if semantic.cross_encoder is not None:
            raise CommandError(f"{args.policy} uses a cross-encoder; name its folder with --cross-encoder")
        return semantic, decide
    if args.stream is not None:
        # In a stream every neighbour would have to be scored, not only the best as in the gateway: that takes hours.
        raise CommandError("--cross-encoder works with --pairs only")
    rule = semantic.cross_encoder or _AS_THE_SCORE
    try:
        scorer = CrossEncoder.load(args.cross_encoder)
    except CrossEncoderError as error:
        raise CommandError(str(error)) from None
    return semantic.model_copy(update={"cross_encoder": rule}), consulting(decide, rule, scorer)
