"""Provide the seam `logs` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.parts.logs.config import LogSections
from gateway.parts.logs.logs import configure, dropped_lines, log_request
from gateway.parts.logs.metrics import count_dropped

if TYPE_CHECKING:
    from gateway.config.schema import Deployment
    from gateway.steps import Core
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace


def configure_logging(deployment: Deployment) -> None:
    """Send this process's log to stderr; do nothing if a log handler is already set."""
    configure(deployment.of(LogSections).log)


def build_request_log(core: Core) -> Callable[[Trace, Ledger], None] | None:
    """Return what logs a line for each finished request; None where the config asks for none."""
    count_dropped(core.metrics, dropped_lines)
    return log_request if core.deployment.of(LogSections).log.requests else None
