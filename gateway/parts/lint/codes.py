"""Say what the codes of findings in policies mean: `tierline policy lint` and `tierline check` show them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

Severity = Literal["error", "warning"]


class Code(NamedTuple):
    """What a code stands for: a title, how bad it is, and why it matters."""

    title: str
    severity: Severity
    reason: str


CODES: Final[Mapping[str, Code]] = {
    code: Code(**what)
    for code, what in tomllib.loads(Path(__file__).with_name("codes.toml").read_text("utf-8")).items()
}
"""Every code, of codes.toml."""


def is_error(code: str) -> bool:
    """Return whether findings with this code are errors; a problem without a code is one."""
    return code not in CODES or CODES[code].severity == "error"
