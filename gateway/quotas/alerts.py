"""Tell an operator, once each, that a share of a budget is spent: by a webhook as Standard Webhooks defines them.

Each worker looks each second at the budgets it spends from. A share that is reached is raised by a script: once for all
workers, restarts included, as long as the window lasts and the budget is the same.

    {tierline:traces}:alert:ACCOUNT    limit and greatest share that was told of; a reset of the budget deletes it
    {tierline:traces}:alerts:due       sorted set   id of an alert -> when it is sent, or sent again
    {tierline:traces}:alerts:texts     hash         id -> JSON, and how often it was tried

Whoever sends one first puts its time off, so that no other worker does meanwhile; one that is killed leaves it to the
others. It is deleted once the receiver has answered 2xx; until then it is sent with growing pauses, for three days. The
receiver knows one that comes twice by its `webhook-id`. Without a store all this is in memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.quotas.terms import NANO, OwnerKind

if TYPE_CHECKING:
    import httpx2

_log: Final = logging.getLogger("tierline.alerts")

MARK: Final = "{tierline:traces}:alert:"
"""Prefix of the key that says what was told of an account."""
_DUE: Final = b"{tierline:traces}:alerts:due"
_TEXTS: Final = b"{tierline:traces}:alerts:texts"
_SCRIPT: Final = Path(__file__).with_name("alerts.lua").read_bytes()
_LIMIT_S: Final = 1.0
_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_CLAIM_S: Final = 30.0
_PAUSES_S: Final = (5.0, 3600.0)
"""Pause after the first failure, which quadruples, and the longest."""
_GIVE_UP_S: Final = 3 * 86400.0
_SLICE: Final = 500
_GONE: Final = 410
"""A receiver's answer that it wants no more."""


class BudgetState(NamedTuple):
    """What is spent of a budget in one window. Money is in nanodollars."""

    account: str
    kind: OwnerKind
    name: str
    window: str
    spent: int
    limit: int
    ends: float | None
    """Unix seconds; None for a budget that does not end."""


class AlertOutbox:
    """Alerts that are to be sent, in the store, or in memory where there is none."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._told: dict[str, tuple[int, int]] = {}
        self._local: dict[str, list[Any]] | None = {} if store.state().status == "unconfigured" else None
        """In memory: when each alert is due, its text, and how often it was tried."""

    async def add(self, state: BudgetState, share: float, text: bytes) -> bool:
        """Add the alert of a share that is spent, unless it was; return whether it is new. Raises StoreUnavailable."""
        now, thousandths = self._clock(), round(share * 1000)
        alert = (
            f"budget_{hashlib.sha256(f'{state.account} {state.limit} {thousandths} {now}'.encode()).hexdigest()[:24]}"
        )
        if self._local is not None:
            limit, told = self._told.get(state.account, (-1, 0))
            if limit == state.limit and told >= thousandths:
                return False
            self._told[state.account] = state.limit, thousandths
            if text:
                self._local[alert] = [now, text, 0]
            return True
        lifetime = 0 if state.ends is None else max(int(state.ends - now) + 86400, 86400)
        words = (b"%d" % state.limit, b"%d" % thousandths, b"%d" % lifetime, alert.encode(), b"%f" % now, text)
        return bool(await self._run(f"{MARK}{state.account}", b"raise", *words))

    async def take(self) -> tuple[str, bytes, int] | None:
        """Return one that is due, and how often it was taken with this time; nobody else gets it for a while."""
        now = self._clock()
        if self._local is not None:
            for alert, one in self._local.items():
                if one[0] <= now:
                    one[0], one[2] = now + _CLAIM_S, one[2] + 1
                    return alert, one[1], one[2]
            return None
        found = await self._run(MARK, b"take", b"%f" % now, b"%f" % (now + _CLAIM_S))
        return (found[0].decode(), found[1], int(found[2])) if found else None

    async def end(self, alert: str) -> None:
        """Delete one. Raises StoreUnavailable."""
        if self._local is not None:
            self._local.pop(alert, None)
            return
        fields = (alert.encode(), b"tries " + alert.encode())
        await self._store.ask([Command((b"ZREM", _DUE, fields[0])), Command((b"HDEL", _TEXTS, *fields))], _LIMIT_S)

    async def put_off(self, alert: str, pause_s: float) -> None:
        """Have one sent again after a pause. Raises StoreUnavailable."""
        due = self._clock() + pause_s
        if self._local is not None:
            self._local[alert][0] = due
            return
        await self._store.ask([Command((b"ZADD", _DUE, b"XX", b"%f" % due, alert.encode()))], _LIMIT_S)

    async def _run(self, mark: str, *words: bytes) -> Any:
        [found] = await self._store.ask(
            [Command((b"EVAL", _SCRIPT, b"3", mark.encode(), _DUE, _TEXTS, *words))], _LIMIT_S
        )
        return found


class BudgetAlerts:
    """Raise and send the alerts of one worker. Start and close it on the worker's event loop."""

    def __init__(
        self,
        outbox: AlertOutbox,
        states: Callable[[], Iterable[BudgetState]],
        told: Callable[[str], None],
        *,
        shares: Sequence[float],
        webhook: str,
        secret: bytes,
        every_s: float = _EVERY_S,
        pauses_s: tuple[float, float] = _PAUSES_S,
    ) -> None:
        """`states` are the budgets that this worker spends from; `told` counts what came of an alert, by a word.

        `secret` is as `key_of` returns it. Without a `webhook` alerts are only counted.
        """
        self._outbox = outbox
        self._states = states
        self._told = told
        self._shares = tuple(sorted(shares))
        self._webhook = webhook
        self._secret = secret
        self._every_s = every_s
        self._pauses_s = pauses_s
        self._known: dict[str, tuple[int, float]] = {}
        """By account, its limit and the greatest share that was raised, so that the store is asked once."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look and to send."""
        self._tasks.append(asyncio.create_task(self._look(), name="tierline.alerts"))
        if self._webhook:
            self._tasks.append(asyncio.create_task(self._deliver(), name="tierline.webhook"))

    async def aclose(self) -> None:
        """Stop. What was not sent stays for the next worker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            with contextlib.suppress(StoreUnavailable):  # what was not raised is raised by the next look
                await self.raise_reached()

    async def raise_reached(self) -> None:
        """Raise what the budgets have reached. Raises StoreUnavailable."""
        known: dict[str, tuple[int, float]] = {}
        for number, state in enumerate(self._states(), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            reached = [share for share in self._shares if state.spent >= share * state.limit > 0]
            if not reached:
                continue
            limit, before = self._known.get(state.account, (0, 0.0))
            for share in reached:
                is_new = limit != state.limit or share > before
                if is_new and await self._outbox.add(state, share, self._text(state, share)):
                    self._told("raised")
            known[state.account] = state.limit, reached[-1]
        self._known = known

    def _text(self, state: BudgetState, share: float) -> bytes:
        """Return the alert as JSON; nothing where nobody is to be sent it."""
        if not self._webhook:
            return b""
        ends = None if state.ends is None else datetime.fromtimestamp(state.ends, UTC).isoformat()
        data = {
            "account": state.account, "owner": {"kind": state.kind, "name": state.name}, "window": state.window,
            "share": share, "spent_usd": state.spent / NANO, "limit_usd": state.limit / NANO, "ends": ends,
        }  # fmt: skip
        return orjson.dumps({"type": "budget.reached", "timestamp": datetime.now(UTC).isoformat(), "data": data})

    async def _deliver(self) -> None:
        import httpx2  # 20 MB, for workers with a webhook alone

        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            while True:
                try:
                    taken = await self._outbox.take()
                    if taken is not None:
                        await self._send(client, *taken)
                        continue
                except StoreUnavailable:
                    pass
                await asyncio.sleep(self._every_s)

    async def _send(self, client: httpx2.AsyncClient, alert: str, text: bytes, tries: int) -> None:
        """Send one alert, and delete it, or put it off. Raises StoreUnavailable."""
        import httpx2

        try:
            reply = await client.post(
                self._webhook, content=text, headers=signed(alert, text, self._secret, time.time())
            )
            status, why = reply.status_code, f"status {reply.status_code}"
        except httpx2.HTTPError as error:
            status, why = 0, f"{type(error).__name__}: {error}"
        if 200 <= status < 300:
            self._told("delivered")
            await self._outbox.end(alert)
            return
        first, longest = self._pauses_s
        pause_s = min(first * 4 ** (tries - 1), longest)
        if status == _GONE or tries * longest > _GIVE_UP_S:
            self._told("given_up")
            _log.error("alert %s is given up after %d tries: %s; it said %s", alert, tries, why, text.decode())
            await self._outbox.end(alert)
            return
        self._told("failed")
        _log.warning("alert %s was not taken (%s); it is sent again in %.0f s", alert, why, pause_s)
        await self._outbox.put_off(alert, pause_s)


def key_of(secret: str) -> bytes:
    """Return the key of a webhook's secret: what follows `whsec_` in base64, else the text itself."""
    if secret.startswith("whsec_"):
        with contextlib.suppress(binascii.Error):
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    return secret.encode()


def signed(message: str, text: bytes, key: bytes, at_s: float) -> dict[str, str]:
    """Return the headers of a webhook: its id, its time in Unix seconds, and the HMAC-SHA256 of both and its text."""
    at = str(int(at_s))
    digest = hmac.digest(key, b".".join((message.encode(), at.encode(), text)), "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
