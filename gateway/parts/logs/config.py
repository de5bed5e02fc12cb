"""Define the config of the log."""

from __future__ import annotations

from typing import Final, Literal

from gateway.config.sections import Sections
from policies.validation import Section


class LogConfig(Section):
    """Log on stderr. `requests` adds a line for each finished request, at any level."""

    format: Literal["text", "json"] = "text"
    requests: bool = False
    level: Literal["info", "warning", "error"] = "warning"


class LogSections(Sections):
    """The config's section `log`."""

    log: LogConfig = LogConfig()


SECTIONS: Final = LogSections
