"""The exit codes of every command, and the lines of `--help` that say them.

The same as of `diff` and `kubectl diff`, so that a script can tell "it found something" from "it could not look".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """How a command ended. argparse's own code for a wrong command line is 2 as well."""

    OK = 0
    FINDINGS = 1
    NOT_DONE = 2
    INTERRUPTED = 130


HELP: Final = """exit codes:
  0    done, nothing to report
  1    done, and there are findings: problems, differences, a target that is missed
  2    could not be done: a wrong command line, config or input, or something that does not answer
  130  stopped by Ctrl-C or SIGTERM before it was done"""
