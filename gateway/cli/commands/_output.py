"""Print results on stdout: JSON objects, and a console for tables; every command's output goes through here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import orjson
from rich.console import Console


def print_json(value: Mapping[str, Any]) -> None:
    """Print one indented JSON object on stdout."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def console_of_stdout(width: int = 120) -> Console:
    """Return a console on stdout: as wide as the terminal, or `width` columns if stdout is not one."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)
