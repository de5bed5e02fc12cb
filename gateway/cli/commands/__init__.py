"""Find the commands of `tierline`: a few are here, each other one is in the `commands` folder of its part.

A command is a module with `add_parser(subparsers)` and `run(args)` -> exit code.
"""

from __future__ import annotations

import gc
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.exit_codes import Exit
from gateway.parts import standard


class CommandError(Exception):
    """Raised to end a command with `message` on stderr and the exit code `code`."""

    def __init__(self, message: str, code: Exit = Exit.NOT_DONE) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile, and rarely afterwards: importing makes 200,000 objects and hardly any garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # else the next object has all of them scanned
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


@cache
def help_texts() -> Mapping[str, Mapping[str, Any]]:
    """Return what `--help` says of each command and subcommand, in the order of their lists: see help.toml.

    Those of parts come last. Commands that need a part which this installation lacks are left out.
    """
    folders = [Path(__file__).parents[1], *(part.folder for part in standard.PARTS if part.installed and part.commands)]
    texts = [tomllib.loads((folder / "help.toml").read_text("utf-8")) for folder in folders]
    left = {name: text for some in texts for name, text in some.items() if standard.part_missing_for(name) is None}
    with_actions = {name.split()[0] for name in left if " " in name}
    return {name: text for name, text in left.items() if name in with_actions or "of_actions" not in text}


def command_module(name: str) -> ModuleType:
    """Import the module of a command, such as `usage` or `policy test`, of this folder or of a part."""
    return import_module(standard.module_of_command(name) or f"{__name__}.{name.replace(' ', '.')}")
