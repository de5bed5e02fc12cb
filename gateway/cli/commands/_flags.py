"""Define the options that several commands share, and make a Launch from them."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from gateway.config.launch import Launch


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add --config and --policies to a command."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the config file (default: the one shipped)")
    parser.add_argument("--policies", type=Path, metavar="DIR", help="the folder of policies (default: those shipped)")


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add --host, --port, --config, --policies and --workers to a command."""
    parser.add_argument("--host", metavar="ADDRESS", help="the address to listen on (default: the config's, 127.0.0.1)")
    parser.add_argument("--port", type=_port, metavar="N", help="the port to listen on (default: the config's, 8787)")
    add_config_flags(parser)
    parser.add_argument(
        "--workers", type=_workers, default=1, metavar="N", help="number of gateway processes (default: 1)"
    )


def launch_of(args: argparse.Namespace) -> Launch:
    """Return the Launch of these options; fields without an option keep their defaults."""
    return Launch(**{field.name: getattr(args, field.name) for field in fields(Launch) if field.name in args})


def seed_number(text: str) -> int:
    """Parse --seed: 0 to 2**32 - 1, the range that both numpy and scikit-learn accept."""
    return _whole(text, 0, (1 << 32) - 1)


def share_number(text: str) -> float:
    """Parse a share above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


def _port(text: str) -> int:
    return _whole(text, 0, 65535)


def _workers(text: str) -> int:
    return _whole(text, 1, 256)


def _whole(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)
