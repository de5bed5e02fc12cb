"""Define options that commands which fit and measure share, and make values from parsed options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from gateway.cli.flags import whole

T = TypeVar("T")


def add_seed_flag(parser: argparse.ArgumentParser, of: str = "; the result depends on it") -> None:
    """Add --seed: 0 to 2**32 - 1, the range that both numpy and scikit-learn accept."""
    parser.add_argument(
        "--seed", type=whole(0, (1 << 32) - 1), default=0, metavar="N", help=f"random seed{of} (default: 0)"
    )


def add_state_flag(parser: argparse.ArgumentParser) -> None:
    """Add --state to a command that encodes texts."""
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )


def add_embedding_flag(parser: argparse.ArgumentParser) -> None:
    """Add --embedding, the text encoder to use, to a command."""
    parser.add_argument(
        "--embedding", choices=("static", "minilm"), default="static", help="the text encoder (default: static)"
    )


def add_note_flag(parser: argparse.ArgumentParser) -> None:
    """Add --note to a command that writes a data sheet."""
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a remark for the data sheet; repeatable"
    )


def options_of(kind: type[T], args: argparse.Namespace) -> T:
    """Return the dataclass `kind`, each field from the option of its name."""
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def share_number(text: str) -> float:
    """Parse a share above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value
