"""Hold the commands of `tierline`, a module each with `add_parser(subparsers)` and `run(args)` -> exit code."""

from __future__ import annotations

from gateway.exit_codes import Exit


class CommandError(Exception):
    """Raised to end a command with `message` on stderr and the exit code `code`."""

    def __init__(self, message: str, code: Exit = Exit.NOT_DONE) -> None:
        super().__init__(message)
        self.code = code
