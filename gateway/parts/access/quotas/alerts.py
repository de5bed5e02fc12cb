"""Tell an operator, once each, that a share of a budget is spent: by a webhook as Standard Webhooks defines them.

Each worker looks each second at the budgets that it spends from. A share that is reached is raised by a script: once
for all workers, restarts included, as long as the window lasts and the budget is the same.

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
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.parts.access.quotas.accounts import MARK, Account
from gateway.parts.access.quotas.terms import OwnerKind
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from policies.quantities import NANO

if TYPE_CHECKING:
    import httpx2

_log: Final = logging.getLogger("tierline.alerts")

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
_REFRESH: Final = 10
"""Every so many looks, what others may have changed is read again."""
_MOST: Final = 20_000
"""Budgets that a worker watches; beyond, the one that it met first is left to other workers."""
_GONE: Final = 410
"""A receiver's answer that it wants no more."""


class BudgetState(NamedTuple):
    """What is spent of a budget, in nanodollars."""

    account: Account
    spent: int

    @property
    def share(self) -> float:
        """Share that is spent; of a budget of nothing 1.0 if anything is."""
        return self.spent / self.account.limit if self.account.limit else float(self.spent > 0)


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
        alert = f"budget_{secrets.token_hex(12)}"
        if self._local is not None:
            limit, told = self._told.get(state.account.name, (-1, 0))
            if limit == state.account.limit and told >= thousandths:
                return False
            self._told[state.account.name] = state.account.limit, thousandths
            if text:
                self._local[alert] = [now, text, 0]
            return True
        ends = state.account.ends
        lifetime = 0 if ends is None else max(int(ends - now) + 86400, 86400)
        words = (b"%d" % state.account.limit, b"%d" % thousandths, b"%d" % lifetime, alert.encode(), b"%f" % now, text)
        return bool(await self._run(f"{MARK}{state.account.name}", b"raise", *words))

    async def take(self) -> tuple[str, bytes, int] | None:
        """Return an alert that is due: its name, its text, how often it was taken. Nobody else gets it for a while."""
        now = self._clock()
        if self._local is not None:
            for alert, state in self._local.items():
                if state[0] <= now:
                    state[0], state[2] = now + _CLAIM_S, state[2] + 1
                    return alert, state[1], state[2]
            return None
        found = await self._run(MARK, b"take", b"%f" % now, b"%f" % (now + _CLAIM_S))
        return (found[0].decode(), found[1], int(found[2])) if found else None

    async def end(self, alert: str) -> None:
        """Delete an alert. Raises StoreUnavailable."""
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
        store: Store,
        told: Callable[[str], None],
        *,
        shares: Sequence[float],
        webhook: str = "",
        secret: bytes = b"",
        every_s: float = _EVERY_S,
        pauses_s: tuple[float, float] = _PAUSES_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`told` counts what came of an alert, by a word. `secret` is as `webhook_key` returns it.

        Without a `webhook` alerts are only counted.
        """
        self._store = store
        self._outbox = AlertOutbox(store, clock)
        self._told = told
        self._shares = tuple(sorted(shares))
        self._webhook = webhook
        self._secret = secret
        self._every_s = every_s
        self._pauses_s = pauses_s
        self._clock = clock
        self._states: dict[str, BudgetState] = {}
        self._noted = asyncio.Event()
        """Set when a budget is spent from while none was."""
        self._known: dict[str, tuple[int, float]] = {}
        """By account, its limit and the greatest share that was raised, so that the store is asked once."""
        self._looks = 0
        self._client: httpx2.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def note(self, account: Account, spent: int) -> None:
        """Remember how much of a budget is spent, in nanodollars, for the next `look`."""
        if not self._states:
            self._noted.set()
        if account.name not in self._states and len(self._states) >= _MOST:
            self._states.pop(next(iter(self._states)))
        self._states[account.name] = BudgetState(account, spent)

    def states(self) -> Iterable[BudgetState]:
        """Return the budgets that this worker spent from, in windows that run now."""
        now = self._clock()
        return [state for state in self._states.values() if (state.account.ends or now) >= now]

    def highest(self) -> Mapping[str, float]:
        """Return the highest share that is spent, by each kind of owner."""
        highest: dict[str, float] = dict.fromkeys(get_args(OwnerKind), 0.0)
        for state in self.states():
            highest[state.account.kind] = max(highest[state.account.kind], state.share)
        return highest

    def start(self) -> None:
        """Begin to look and to send."""
        works = [self._look_at_spent, *([self._send_due] if self._webhook else [])]
        self._tasks = [asyncio.create_task(self._repeat(work), name="tierline.alerts") for work in works]

    async def aclose(self) -> None:
        """Stop. What was not sent stays for the next worker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await work()
            except StoreUnavailable:  # what was not raised, or not sent, is so the next time
                pass
            except Exception:  # noqa: BLE001  (a receiver that replies oddly must not end the task)
                _log.exception("alerts of budgets failed; trying on")

    async def _look_at_spent(self) -> None:
        await self.look()
        if not self._states:
            self._noted.clear()
            await self._noted.wait()

    async def look(self) -> None:
        """Raise an alert for each share of a budget that is newly reached. Raises StoreUnavailable."""
        self._looks += 1
        self._states = {state.account.name: state for state in self.states()}
        if self._looks % _REFRESH == 0:
            await self._refresh()
        known: dict[str, tuple[int, float]] = {}
        for number, state in enumerate(list(self._states.values()), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            name, limit = state.account.name, state.account.limit
            reached = [share for share in self._shares if state.spent >= share * limit > 0]
            if not reached:
                continue
            before = self._known.get(name, (0, 0.0))
            for share in reached:
                is_new = before[0] != limit or share > before[1]
                if is_new and await self._outbox.add(state, share, self._text(state, share)):
                    self._told("raised")
            known[name] = limit, reached[-1]
        self._known = known

    async def _refresh(self) -> None:
        """Read again what is spent of budgets of which much is: they may have been reset, or others spend them."""
        least = min(self._shares, default=1.0)
        much = [state.account for state in self._states.values() if state.share >= least]
        if not much or self._store.state().status == "unconfigured":
            return
        asked = [Command((b"HGET", f"{ACCOUNT_PREFIX}{account.name}".encode(), b"spent")) for account in much[:_SLICE]]
        for account, spent in zip(much, await self._store.ask(asked, _LIMIT_S), strict=False):
            self.note(account, int(spent or 0))

    def _text(self, state: BudgetState, share: float) -> bytes:
        """Return the alert as JSON; nothing where nobody is to be sent it."""
        if not self._webhook:
            return b""
        account, ends = state.account, state.account.ends
        data = {
            "account": account.name, "owner": {"kind": account.kind, "name": account.owner},
            "window": account.window.name if account.window else "", "share": share, "spent_usd": state.spent / NANO,
            "limit_usd": account.limit / NANO, "ends": ends and datetime.fromtimestamp(ends, UTC).isoformat(),
        }  # fmt: skip
        return orjson.dumps({"type": "budget.reached", "timestamp": datetime.now(UTC).isoformat(), "data": data})

    async def _send_due(self) -> None:
        """Send all alerts that are due. Raises StoreUnavailable."""
        while (taken := await self._outbox.take()) is not None:
            await self._send(*taken)

    async def _send(self, alert: str, text: bytes, tries: int) -> None:
        """Send one alert, and delete it, or put it off. Raises StoreUnavailable."""
        import httpx2  # 20 MB, for workers with a webhook alone

        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=ssl.create_default_context())
        headers = signed(alert, text, self._secret, time.time())
        try:
            async with self._client.stream("POST", self._webhook, content=text, headers=headers) as reply:
                status = reply.status_code  # what else it says is not read, however long it is
            why = f"status {status}"
        except httpx2.HTTPError as error:
            status, why = 0, f"{type(error).__name__}: {error}"
        first, longest = self._pauses_s
        if 200 <= status < 300:
            self._told("delivered")
            await self._outbox.end(alert)
        elif status == _GONE or tries * longest > _GIVE_UP_S:
            self._told("given_up")
            _log.error("alert %s is given up after %d tries: %s; it said %s", alert, tries, why, text.decode())
            await self._outbox.end(alert)
        else:
            self._told("failed")
            pause_s = min(first * 4 ** (tries - 1), longest)
            _log.warning("alert %s was not taken (%s); it is sent again in %.0f s", alert, why, pause_s)
            await self._outbox.put_off(alert, pause_s)


def webhook_key(secret: str) -> bytes:
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
