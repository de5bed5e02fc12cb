"""Decide whether a failed call is the endpoint's fault. Only then may it be ejected, which affects all requests.

never called (every endpoint was full)                    no
a 4xx that the caller caused                              no
a prompt longer than the model's context                  no
a text that repeats itself                                no: the model wrote it
the request's deadline passed while tokens still arrived  no
the time that the request gave the call ran out           yes, if the backend was silent for its config's `patience`;
                                                          else no: short timeouts of one client or surface must not
                                                          eject a backend for all others
anything else                                             yes
"""

from __future__ import annotations

from gateway.backends.base import BackendError, BadStatus, ContextExceeded, Degenerate, Saturated, TimedOut


class BudgetSpent(TimedOut):
    """Raised when the time that the request could give this call ran out, `waited_s` seconds after it began."""

    def __init__(self, waited_s: float) -> None:
        super().__init__("no answer within the call's time limit")
        self.waited_s = waited_s


class DeadlinePassed(TimedOut):
    """Raised when the request's own deadline passed while its stream went on."""

    error_type = "deadline_exceeded"


def is_endpoints_fault(error: BackendError, patience_s: float) -> bool:
    """Return whether `error` counts against its endpoint, by the table in the module's docstring."""
    if isinstance(error, Saturated | DeadlinePassed | Degenerate | ContextExceeded):
        return False
    if isinstance(error, BadStatus):
        return not error.callers_fault
    if isinstance(error, BudgetSpent):
        return error.waited_s >= patience_s
    return True
