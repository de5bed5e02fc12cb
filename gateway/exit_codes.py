"""Define the exit codes of every command, and the lines of `--help` that explain them.

They are those of `diff` and `kubectl diff`, so that a script can tell findings from a failure.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """Exit code of a command. argparse's own code for a wrong command line is 2 as well."""

    OK = 0
    FINDINGS = 1
    NOT_DONE = 2
    INTERRUPTED = 130


HELP: Final = """exit codes: 0 done; 1 done, with findings (problems, differences,
a target that is missed); 2 not done (a wrong command line, config or input, or
a service that does not answer); 130 stopped by Ctrl-C or SIGTERM"""
