"""Hold one call's place among those that an endpoint carries at a time, and judge how the call went.

Only a failure that is the endpoint's own fault may eject it, because that affects all requests:

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

from typing import TYPE_CHECKING

from gateway.backends.base import (
    BackendError,
    BadStatus,
    BudgetSpent,
    ContextExceeded,
    DeadlinePassed,
    Degenerate,
    Saturated,
)
from gateway.tiers.queue import SlotRequest

if TYPE_CHECKING:
    from gateway.tiers.endpoint import Endpoint


class Slot:
    """Hold a place for one call, and tell the endpoint how the call went.

    The verdict is `gateway.cascade.call.BackendCall`'s to give: `succeeded`, `failed`, `lost` or `free`. The first one
    ends the slot; later ones change nothing. `queued_s` is how long the request waited in line for the slot. Latencies
    are counted from `called_at`, after that.
    """

    __slots__ = ("_first_at", "_over", "_probe", "_retry", "ask", "called_at", "endpoint", "queued_s")

    def __init__(
        self, endpoint: Endpoint, ask: SlotRequest, now: float, queued_s: float, *, probe: bool, retry: bool
    ) -> None:
        self.endpoint = endpoint
        self.ask = ask
        self.called_at = now
        self.queued_s = queued_s
        self._first_at: float | None = None
        self._over = False
        self._probe = probe
        self._retry = retry

    @property
    def has_begun(self) -> bool:
        """Whether the first token of a stream has come."""
        return self._first_at is not None

    def began(self) -> None:
        """Note the first token of a stream: the endpoint answers. Whether the call succeeds is seen at its end."""
        if self._over or self._first_at is not None:
            return
        self._first_at = self.endpoint.now()
        self.endpoint.began(self.called_at, self.ask.tokens_in, self._first_at)

    def succeeded(self, tokens_out: int | None = None) -> None:
        """End it with a whole answer, good or not; `tokens_out` are a stream's, for its pace."""
        if self._over:
            return
        now = self.endpoint.now()
        if self._first_at is None:
            self.endpoint.answered(self.called_at, self.ask.tokens_in, now)
        elif tokens_out is not None and tokens_out > 1:
            self.endpoint.latency.observe_pace((now - self._first_at) / (tokens_out - 1), now)
        self.endpoint.well_again(self.called_at, now, retry=self._retry)
        self._end(now)

    def failed(self, error: BackendError) -> None:
        """End it without a whole answer. Whether the endpoint is to blame: see the module's docstring."""
        if self._over:
            return
        now = self.endpoint.now()
        if self.ask.stream and self._first_at is None and isinstance(error, BudgetSpent):
            self._observe_silence(now)  # whoever is to blame: it would have taken longer
        if _is_endpoints_fault(error, self.endpoint.config.patience):
            self.endpoint.failed(error, self.called_at, now, retry=self._retry)
        elif isinstance(error, BadStatus):
            self.endpoint.well_again(self.called_at, now, retry=self._retry)
        self._end(now)

    def lost(self) -> None:
        """End it because another call was faster: if no first token had come by now, that is noted as a latency."""
        if self._over:
            return
        now = self.endpoint.now()
        if self._first_at is None:
            self._observe_silence(now)
        self._end(now)

    def free(self) -> None:
        """End it without a verdict: the call was cancelled, or never made."""
        if not self._over:
            self._end(self.endpoint.now())

    def _observe_silence(self, now: float) -> None:
        self.endpoint.latency.observe_ttft(self.ask.tokens_in, now - self.called_at, now, censored=True)

    def _end(self, now: float) -> None:
        self._over = True
        self.endpoint.leave(self.called_at, now, batch=self.ask.priority == "batch", probe=self._probe)


def _is_endpoints_fault(error: BackendError, patience_s: float) -> bool:
    """Return whether `error` counts against its endpoint, by the table in the module's docstring."""
    if isinstance(error, Saturated | DeadlinePassed | Degenerate | ContextExceeded):
        return False
    if isinstance(error, BadStatus):
        return not error.callers_fault
    if isinstance(error, BudgetSpent):
        return error.waited_s >= patience_s
    return True
