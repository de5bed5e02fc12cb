"""The commands of `tierline`, one module each, with `add_parser(subparsers)` and `run(args) -> int`, the exit code."""

from __future__ import annotations

from gateway.exit_codes import Exit


class CommandError(Exception):
    """Ends a command with one clear line on stderr: what could not be done, or another reason to end with `code`."""

    def __init__(self, message: str, code: Exit = Exit.NOT_DONE) -> None:
        super().__init__(message)
        self.code = code
