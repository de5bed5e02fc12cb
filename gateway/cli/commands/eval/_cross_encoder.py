"""`tierline eval cache --cross-encoder`: the cache's decisions with the second opinion that a policy may ask for."""

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
    """--cross-encoder."""
    parser.add_argument(
        "--cross-encoder",
        type=Path,
        metavar="PATH",
        help="--pairs: a folder as sentence-transformers exports it, asked as the policy says, or else as the score",
    )


def with_cross_encoder(
    args: argparse.Namespace, semantic: SemanticCache, decide: Decide
) -> tuple[SemanticCache, Decide]:
    """The rules of the cache, and how it decides, with its cross-encoder where there is one. Raises CommandError."""
    if args.cross_encoder is None:
        if semantic.cross_encoder is not None:
            raise CommandError(f"{args.policy} asks a cross-encoder; name its folder with --cross-encoder")
        return semantic, decide
    if args.stream is not None:
        # It is asked for the best of several neighbours only, and a stream would take hours.
        raise CommandError("--cross-encoder goes with --pairs")
    rule = semantic.cross_encoder or _AS_THE_SCORE
    try:
        scorer = CrossEncoder.load(args.cross_encoder)
    except CrossEncoderError as error:
        raise CommandError(str(error)) from None
    return semantic.model_copy(update={"cross_encoder": rule}), consulting(decide, rule, scorer)
