"""Whose fault a failed call is. Only an endpoint's own faults may make it rest, for it rests for everybody.

never called (every endpoint was full)       nobody's
a 4xx of the caller's making                 the caller's: the endpoint is well
more than the model can hold                 nobody's: the endpoint is well
a text that goes round in circles            nobody's: it is how the model writes
the request's deadline, tokens still coming  the request's
the time we gave it ran out                  the endpoint's, if it was silent for longer than its own `patience`;
                                             else ours: a hurried surface, or client, must not harm the others
anything else                                the endpoint's
"""

from __future__ import annotations

from gateway.backends.base import BackendError, BadStatus, ContextExceeded, Degenerate, Saturated, TimedOut


class BudgetSpent(TimedOut):
    """The time that the request could give this call ran out, `waited_s` seconds after it began."""

    def __init__(self, waited_s: float) -> None:
        super().__init__("nothing in time")
        self.waited_s = waited_s


class DeadlinePassed(TimedOut):
    """The request's own deadline passed while its stream went on."""

    error_type = "deadline_exceeded"


def is_endpoints_fault(error: BackendError, patience_s: float) -> bool:
    """Whether the endpoint that gave this error is to blame for it; see the module's docstring."""
    if isinstance(error, Saturated | DeadlinePassed | Degenerate | ContextExceeded):
        return False
    if isinstance(error, BadStatus):
        return not error.callers_fault
    if isinstance(error, BudgetSpent):
        return error.waited_s >= patience_s
    return True
