"""Decide whose hops are recorded: a share of all traces, and every request that is worth a look.

Head sampling (the config's `telemetry.sample`) is known when a request begins: the low 64 bits of its trace id are
below a bound, so every service that samples at the same rate keeps the same traces. Tail sampling looks at the outcome.
Both are about hops and their spans alone: every request has its ledger record and its routing decision, on which money,
replay and what-if depend.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from gateway.telemetry.ledger import CLIENT_LEFT, UNCOUNTED

if TYPE_CHECKING:
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace

HEAD: Final = "head"
_SERVER_ERROR: Final = 500
_OK: Final = 200
_NOTABLE: Final = frozenset({"escalated", "degraded", "fallback", "hedged"})
"""Values of `x-tierline-path` for requests that took more than one tier, call or try."""
_MEDIANS: Final = "_p50"
"""How the names of objectives end that half of all requests miss when all is well."""


def bound_of(share: float) -> int:
    """Return the bound for the low 64 bits of a trace id that keeps this share, 0..1, of all traces."""
    return round(share * (1 << 64))


def environment_sampler() -> tuple[bool, int]:
    """Return what OTEL_TRACES_SAMPLER says of exports, as the SDK reads it.

    They are whether a caller's sampled flag decides, and the bound for the low 64 bits of the ids of other traces.
    """
    given = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    name, bound = given.removeprefix("parentbased_"), bound_of(1.0)
    if name == "traceidratio":
        with contextlib.suppress(ValueError):
            if 0 <= (share := float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", ""))) <= 1:
                bound = bound_of(share)
    return name != given, 0 if name == "always_off" else bound


def kept_for(trace: Trace, ledger: Ledger) -> str:
    """Return why a finished request's hops are recorded; '' if they are not.

    head                                       by chance, as the rate says
    error                                      the gateway failed, or a stream broke off
    escalated, degraded, fallback, hedged      its path
    canary, shadow, playground                 it helps to compare two policies
    slow                                       it missed an objective of its surface, other than a median
    """
    if trace.sampled:
        return HEAD
    error = ledger.error
    if ledger.status >= _SERVER_ERROR or (ledger.status == _OK and error is not None and error not in CLIENT_LEFT):
        return "error"
    if ledger.path in _NOTABLE:
        return ledger.path
    if ledger.arm:
        return ledger.arm if ledger.arm in UNCOUNTED else "canary"
    missed = ledger.slo is not None and any(not met for name, met in ledger.slo.items() if not name.endswith(_MEDIANS))
    return "slow" if missed else ""
