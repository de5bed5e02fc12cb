"""Provide the seam `redaction`, of which `gateway.config.schema` declares what checks the config's keys."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from gateway.parts.redaction.redactor import Hook, TextRedactor

if TYPE_CHECKING:
    from gateway.steps import Core


def build_redactor(core: Core) -> TextRedactor | None:
    """Return what redacts a worker's captured texts; None where the config asks for nothing."""
    config = core.deployment.telemetry
    if not config.redact and config.redact_with is None:
        return None
    hook = None if config.redact_with is None else hook_of(config.redact_with)
    return TextRedactor(config.redact, hook, dropped=core.metrics.telemetry_dropped)


def check_pattern(pattern: str) -> None:
    """Check a regular expression of `telemetry.redact`. Raises ValueError."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def check_hook(name: str) -> None:
    """Check `telemetry.redact_with`. Raises ValueError."""
    hook_of(name)


def hook_of(name: str) -> Hook:
    """Return the function that `module:function` names. Raises ValueError, whose message ends a sentence."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} is not of the form module:function")
    try:
        hook = getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001  (importing somebody else's module may raise anything)
        raise ValueError(f"{name!r} cannot be imported: {error}") from None
    if not callable(hook):
        raise ValueError(f"{name!r} is no function")
    return hook  # type: ignore[no-any-return]
