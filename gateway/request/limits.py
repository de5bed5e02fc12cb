"""Say what the steps of a request ask of its sender's limits. The part that provides `limits` has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from gateway.keys.records import Caller
    from gateway.request.context import RequestContext
    from gateway.request.reply import Header
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace
    from policies.model import Policy
    from policies.steering import Spent

HeaderStyle = Literal["openai", "anthropic"]
"""Whose headers tell a client how its limits stand."""


class HeldLimits(Protocol):
    """What one request holds of the limits of those who send it. Settle it once, whatever becomes of the request.

    What is async may wait for others, and raises ApiError where the request is not let in.
    """

    @property
    def has_budget(self) -> bool:
        """Whether its money is limited."""

    async def enter(self, tokens: int, renew: Callable[[], Awaitable[Caller]] | None = None) -> None:
        """Count a request of so many tokens. `renew` finds its caller again while it waits."""

    def enter_chat(
        self, request: RequestContext, renew: Callable[[], Awaitable[Caller]], *, counted: bool
    ) -> Awaitable[None]:
        """Count a chat; `counted`: but for its tokens it was counted with the handshake of its connection."""

    def is_tight(self, policy: Policy) -> bool:
        """Return whether so much of its money is spent that it is steered to less."""

    async def before_routing(self, request: RequestContext) -> None:
        """Wait while others go first: the chat had no stored answer, and is about to be routed."""

    def spent(self, policy: Policy) -> Spent | None:
        """Return how much of its money is spent, and what the policy makes of it; None where it is not limited."""

    def whose(self) -> str:
        """Return whose budget is the tightest, in words."""

    def reserve_now(self, request: RequestContext, tiers: Sequence[str]) -> bool:
        """Return whether a chat may call these tiers at once, without waiting."""

    async def before_calls(self, request: RequestContext, tiers: Sequence[str], *, races: bool) -> None:
        """Reserve what a chat costs that is answered by these tiers; `races`: it may call several at once."""

    async def reserve(self, usd: float | None, what: str) -> None:
        """Reserve this cost in US dollars of what is no chat; None for a price nobody states."""

    def headers(self, style: HeaderStyle) -> list[Header]:
        """Return the headers that tell the client how its limits stand."""

    def settle(self, ledger: Ledger) -> None:
        """Replace what is held by what the finished request used, and note the accounts that it is charged to.

        `ledger.accounts` are their names. The script that appends the record to the store adds the charge to each, in
        the same step.
        """

    def end(self) -> None:
        """Give back all that is held by a request that used nothing."""


class CallerLimits(Protocol):
    """The limits of one worker's callers."""

    @property
    def worker(self) -> str:
        """Name under which this worker counts in the store."""

    @property
    def unknown_usd(self) -> float:
        """What a call is charged whose price nobody states, in US dollars."""

    def start(self) -> Awaitable[None]:
        """Begin to count, once the store is there and before any record is written."""

    def aclose(self) -> Awaitable[None]:
        """Give back what is leased, once all records are written."""

    def hold(self, caller: Caller, trace: Trace, ledger: Ledger) -> HeldLimits | None:
        """Return what a request will hold, which has not entered; None where nothing limits its caller."""

    def owed(self, request: RequestContext, tier: str) -> int:
        """Return the completion tokens that a call is charged whose answer is never known."""

    def learner(self, request: RequestContext, tiers: Sequence[str]) -> Callable[[Ledger], None]:
        """Return what is told of a finished chat that nothing limits, whose calls raced each other."""

    def written(self, charges: Iterable[tuple[str, int]]) -> None:
        """Say that the store has added these nanodollars to these accounts, with their records."""

    def notes(self) -> Sequence[str]:
        """Return what is wrong with the counts, for `/readyz`."""
