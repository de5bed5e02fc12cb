"""The commands of `tierline`, one module each, with `add_parser(subparsers)` and `run(args) -> int`, the exit code."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what was asked. The message is one clear line; the exit code is `code`."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
