"""Let in WebSockets: they are checked as requests are, and count among their sender's while they are open.

handshake   load, sender and key as of any request; it counts against the key's limits as the first request that the
            connection will send, and against the most connections of one sender (`limits.sockets`)
open        what it holds counts among the bytes of bodies, in its sender's share
each second its key is checked again: one that was revoked, disabled or has expired ends the connection
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.errors import ApiError, LimitReached, Overloaded, Unauthorized, retry_after
from gateway.request.load_shedding import BodyClaim
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace

if TYPE_CHECKING:
    from gateway.caller import Caller, LoopbackGuard
    from gateway.config.schema import Limits
    from gateway.request.context import CallerLimits
    from gateway.request.load_shedding import LoadShedder
    from gateway.steps import Authenticator

_CHECKED_EACH_S: Final = 1.0


class OpenConnection:
    """One connection that was let in. Close it once."""

    __slots__ = ("_door", "_headers", "claim", "first", "on_refused", "refused")

    def __init__(self, door: Door, headers: Mapping[bytes, bytes], claim: BodyClaim) -> None:
        self._door = door
        self._headers = headers
        self.claim = claim
        """What it holds of the room for bodies."""
        self.first = True
        """Whether its next request was counted with the handshake."""
        self.refused: Unauthorized | None = None
        """Why its key is valid no more; None while it is."""
        self.on_refused: Callable[[], None] = lambda: None
        """Called when its key is valid no more."""

    async def check(self, authenticator: Authenticator) -> None:
        """Find out whether its key is still valid; while nobody can say, it is."""
        if self.refused is None:
            with contextlib.suppress(Overloaded):
                try:
                    await authenticator.find(self._headers)
                except Unauthorized as error:
                    self.refused = error
                    self.on_refused()

    def close(self) -> None:
        """Remove the connection from the counts of its sender."""
        self.claim.release()
        self._door.leave(self)


class Door:
    """Decide whether connections and requests of one worker are let in, and count those that are open."""

    def __init__(
        self,
        gate: LoadShedder,
        guard: LoopbackGuard,
        authenticator: Authenticator,
        counts: CallerLimits | None,
        limits: Limits,
    ) -> None:
        self._gate = gate
        self._guard = guard
        self._authenticator = authenticator
        self._counts = counts
        self._most = max(1, limits.connections // 2)
        self._most_of_sender = limits.sockets
        self._open: dict[OpenConnection, None] = {}
        self._by_sender: Counter[str] = Counter()
        self._checking: asyncio.Task[None] | None = None

    async def enter(self, headers: Mapping[bytes, bytes]) -> OpenConnection:
        """Let a connection in by the headers of its handshake. Raises ApiError."""
        self._gate.check()
        self._guard.check(headers)
        caller = await self._authenticator.find(headers)
        self._check_room(caller.sender)
        connection = OpenConnection(self, headers, BodyClaim(self._gate.bodies, caller.sender))
        self._open[connection] = None
        self._by_sender[caller.sender] += 1
        try:
            await self._count(caller)
        except ApiError:
            connection.close()
            raise
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_keys(), name="tierline.door")
        return connection

    def leave(self, connection: OpenConnection) -> None:
        """Count a connection no more."""
        if connection in self._open:
            del self._open[connection]
            self._by_sender[connection.claim.sender] -= 1
            self._by_sender += Counter()  # without those that have none

    def _check_room(self, sender: str) -> None:
        if sender and self._by_sender[sender] >= self._most_of_sender:
            message = f"This key has {self._most_of_sender} WebSockets open, as many as it may (limits.sockets)."
            raise LimitReached(message, headers=retry_after(60))
        if len(self._open) >= self._most:
            message = "Half of the connections that this gateway may have open (limits.connections) are WebSockets."
            raise Overloaded(message, headers=retry_after(1))

    async def _count(self, caller: Caller) -> None:
        """Count a request of the caller, one of no tokens that has ended. Raises ApiError if it has had too many."""
        counts = self._counts
        hold = None if counts is None else counts.hold(caller, Trace(names.REQUEST), Ledger("", caller.tenant))
        if hold is not None:
            await hold.enter(0)
            hold.end()

    async def _check_keys(self) -> None:
        try:
            while self._open:
                await asyncio.sleep(_CHECKED_EACH_S)
                for connection in list(self._open):
                    await connection.check(self._authenticator)
        finally:
            self._checking = None
