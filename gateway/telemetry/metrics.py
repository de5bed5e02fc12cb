"""Count nothing: stand in for the part that counts requests, where it is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace

FIRST_BYTE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper bounds of the times to a reply's first byte, in seconds."""
Joined = Literal["livesum", "livemax", "livemin"]
"""How the values of several workers become one."""


class Metrics:
    """What a worker counts, by methods for the event loop's thread. This class does nothing; a part's does."""

    observe: Callable[[Trace, Ledger], None] | None = None
    """Counts one finished request, after its reply."""
    count_waiting: Callable[[], Iterator[None]] | None = None
    """Counts the requests that are over and were not counted yet, some at each step: before anything is shown."""
    first_bytes: tuple[list[float], list[float]] | None = None
    """Take the times to the replies to connections' first requests, and to later ones: the number of requests in each
    of FIRST_BYTE_BUCKETS and beyond, and the sum of their seconds."""

    def policy_reloaded(self, ok: bool) -> None:
        """Count a policy reload; `ok` says whether it took effect or was refused."""

    def warmed(self, backend: str, outcome: str) -> None:
        """Count a finished keep-warm request."""

    def spent_beside(self, surface: str, part: str, dollars: float) -> None:
        """Count US dollars of calls that no client pays for; `part` says what they were made for."""

    def telemetry_dropped(self, reason: str, count: int = 1) -> None:
        """Count `count` lost traces; `reason` is one of a fixed set of words."""

    def counting(self, name: str, text: str, *labels: str) -> Callable[..., None]:
        """Define a counter of a part, and return what adds to it: `add(*values of the labels, amount=1)`."""
        return _ignore

    def gauging(self, name: str, text: str, joined: Joined, *labels: str) -> Callable[..., None]:
        """Define a gauge of a part, and return what sets it: `put(value, *values of the labels)`."""
        return _ignore

    def watch(self, read: Callable[[], None]) -> None:
        """Call `read`, which sets gauges, whenever they are shown, and every few seconds with several workers."""

    def render(self) -> bytes:
        """Return what was counted, as `/metrics` shows it."""
        return b""

    def start(self, steps: Any) -> None:
        """Count this process as a serving worker, and watch what its `gateway.steps.Steps` say of themselves."""

    def flush(self) -> None:
        """Take over what was counted since the last call, all at once."""
        for _ in self.flush_slices():
            pass

    def flush_slices(self) -> Iterator[None]:
        """Take over what was counted since the last call, a millisecond's worth at each step; telemetry calls this."""
        return iter(())

    def stop(self) -> None:
        """Stop what `start` began."""


def _ignore(*_: object, amount: float = 1) -> None:
    pass
