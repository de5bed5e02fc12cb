"""Provide the seam `otlp` (`gateway.seams`): the exporters that the environment asks for, and no others.

Without an endpoint, opentelemetry (12 MB of memory) is not imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.parts.otlp.metrics import OtlpMetrics
    from gateway.parts.otlp.spans import Dropped, OtlpSpans

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_{}_ENDPOINT")


def spans(dropped: Dropped) -> OtlpSpans | None:
    """Return what exports spans; None where no endpoint is set for them. Raises OtlpUnavailable."""
    if not _is_asked_for("TRACES"):
        return None
    from gateway.parts.otlp.spans import OtlpSpans

    return OtlpSpans(dropped)


def meter(dropped: Dropped) -> OtlpMetrics | None:
    """Return what exports metrics; None where no endpoint is set for them. Raises OtlpUnavailable."""
    if not _is_asked_for("METRICS"):
        return None
    from gateway.parts.otlp.metrics import OtlpMetrics

    return OtlpMetrics(dropped)


def _is_asked_for(signal: str) -> bool:
    """Return whether the environment sets an endpoint for a signal, and switches neither it nor all of them off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    ends = any(os.environ.get(name.format(signal)) for name in _ENDPOINTS)
    return ends and os.environ.get(f"OTEL_{signal}_EXPORTER", "").lower() != "none"
