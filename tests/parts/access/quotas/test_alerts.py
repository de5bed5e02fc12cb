"""Alerts of budgets, over a real store and to a real receiver."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from cache.store.base import Command, NoStore, Store
from cache.store.redis_store import RedisStore
from gateway.parts.access.quotas import alerts
from gateway.parts.access.quotas.accounts import Account, Window
from gateway.parts.access.quotas.alerts import MARK, BudgetAlerts, signed, webhook_key
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from tests.gateway.telemetry.conftest import server, store
from tests.support.wait import SLACK

__all__ = ["server", "store"]

SECRET = f"whsec_{base64.b64encode(b'a key of twenty-four byte').decode()}"
ACCOUNT = "key:k_1/usd/2026-11@UTC"


class Receiver:
    """An HTTP server that keeps what it is sent and answers with `statuses` in turn, then 204; 0 hangs."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.released = threading.Event()
        self.endless = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.statuses.pop(0) if receiver.statuses else 204
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                if not status:
                    receiver.released.wait(30)
                self.send_response(status or 204)
                self.end_headers()
                if receiver.endless:
                    with contextlib.suppress(OSError):
                        while not receiver.released.is_set():
                            self.wfile.write(b"x" * 65536)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def shares(self) -> list[float]:
        return [orjson.loads(body)["data"]["share"] for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.released.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


class Worker:
    """What one worker runs, with one budget of `limit` dollars."""

    def __init__(self, store: Store, url: str) -> None:
        self.told: Counter[str] = Counter()
        self.store = store
        self.alerts = BudgetAlerts(
            store,
            lambda word: self.told.update([word]),
            shares=(0.5, 0.8, 1.0),
            webhook=url,
            secret=webhook_key(SECRET),
            every_s=0.02,
            pauses_s=(0.05, 0.2),
        )

    async def spends(self, usd: float, limit: float = 10.0) -> None:
        """Have so much spent of the budget, by the store's counter too, which is read again now and then."""
        account = Account("key", "k_1", "usd", round(limit * 1e9), Window("2026-11@UTC", 0.0, time.time() + 1000))
        assert account.name == ACCOUNT
        if isinstance(self.store, RedisStore):
            key = f"{ACCOUNT_PREFIX}{ACCOUNT}".encode()
            await self.store.ask([Command((b"HSET", key, b"spent", b"%d" % round(usd * 1e9)))])
        self.alerts.note(account, round(usd * 1e9))


@pytest.fixture(autouse=True)
async def _nothing_told(store: RedisStore) -> None:
    for key in (
        f"{MARK}{ACCOUNT}",
        f"{ACCOUNT_PREFIX}{ACCOUNT}",
        "{tierline:traces}:alerts:due",
        "{tierline:traces}:alerts:texts",
    ):
        await store.delete(key)


async def becomes(true: Any) -> None:
    async with asyncio.timeout(10 * SLACK):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("with_store", [True, False])
async def test_each_share_is_told_once(store: RedisStore, receiver: Receiver, *, with_store: bool) -> None:
    """By one of two workers, to a receiver that fails at first, and not again by one that starts later."""
    receiver.statuses = [500, 503]
    shared: Store = store if with_store else NoStore()
    workers = [Worker(shared, receiver.url) for _ in range(2 if with_store else 1)]
    for one in workers:
        one.alerts.start()
    for spent in (4.9, 5.0, 8.5, 10.2):
        for one in workers:
            await one.spends(spent)
        await asyncio.sleep(0.1)
    await becomes(lambda: sum(one.told["delivered"] for one in workers) == 3)
    if with_store:
        workers.append(Worker(store, receiver.url))
        await workers[-1].spends(10.2)
        workers[-1].alerts.start()
    await asyncio.sleep(0.2)
    for one in workers:
        await one.alerts.aclose()
    assert sorted(receiver.shares())[-5:] and Counter(receiver.shares()).total() == 5
    assert sum(one.told["raised"] for one in workers) == 3 and sum(one.told["failed"] for one in workers) == 2
    by_id = {headers["webhook-id"]: orjson.loads(body)["data"]["share"] for headers, body in receiver.got}
    assert sorted(by_id.values()) == [0.5, 0.8, 1.0]
    if with_store:
        assert await store.ask(
            [Command((b"EXISTS", b"{tierline:traces}:alerts:due", b"{tierline:traces}:alerts:texts"))]
        ) == [0]


async def test_what_a_killed_worker_had_is_sent_by_another(
    store: RedisStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had taken the alert, and never heard whether it came: the other sends it under the same id."""
    monkeypatch.setattr(alerts, "_CLAIM_S", 0.5)
    receiver.statuses = [0]
    killed, other = Worker(store, receiver.url), Worker(store, receiver.url)
    await killed.spends(5.0)
    killed.alerts.start()
    await becomes(lambda: receiver.got)
    await killed.alerts.aclose()
    other.alerts.start()
    await becomes(lambda: other.told["delivered"] == 1)
    await other.alerts.aclose()
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1 and len(receiver.got) == 2


async def test_a_budget_that_is_raised_or_reset_is_told_anew(store: RedisStore, receiver: Receiver) -> None:
    """Half of a larger budget is another half; and after a reset, which deletes the mark, the same half is new."""
    worker = Worker(store, receiver.url)
    worker.alerts.start()
    await worker.spends(6.0)
    await becomes(lambda: worker.told["delivered"] == 1)
    await worker.spends(6.0, 12.0)
    await becomes(lambda: worker.told["delivered"] == 2)
    await worker.spends(0.0)
    await store.delete(f"{MARK}{ACCOUNT}")
    await asyncio.sleep(0.1)
    await worker.spends(6.0)
    await becomes(lambda: worker.told["delivered"] == 3)
    await worker.alerts.aclose()
    assert receiver.shares() == [0.5] * 3


async def test_a_store_that_is_away_is_waited_for(server: Any, store: RedisStore, receiver: Receiver) -> None:
    """What is reached meanwhile is told when it is back."""
    worker = Worker(store, receiver.url)
    await worker.spends(9.0)
    server.freeze()
    worker.alerts.start()
    await asyncio.sleep(0.3)
    server.thaw()
    await becomes(lambda: worker.told["delivered"] == 2)
    await worker.alerts.aclose()
    assert sorted(receiver.shares()) == [0.5, 0.8]


async def test_a_receiver_that_wants_no_more_gets_no_more(store: RedisStore, receiver: Receiver) -> None:
    """Which it says with status 410."""
    receiver.statuses = [410]
    worker = Worker(store, receiver.url)
    await worker.spends(5.0)
    worker.alerts.start()
    await becomes(lambda: worker.told["given_up"] == 1)
    await asyncio.sleep(0.3)
    await worker.alerts.aclose()
    assert len(receiver.got) == 1


async def test_a_receiver_that_talks_on_is_not_listened_to(store: RedisStore, receiver: Receiver) -> None:
    """Its status is all that is read: a reply without an end would fill the worker's memory."""
    receiver.endless, receiver.statuses = True, [200]
    worker = Worker(store, receiver.url)
    await worker.spends(5.0)
    worker.alerts.start()
    await becomes(lambda: worker.told["delivered"] == 1)
    await worker.alerts.aclose()


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """Base64 of the HMAC-SHA256 of id, time and text with dots between, by the key that the secret holds in base64:

    the example of the published libraries comes out."""
    key = webhook_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', key, 1614265330.9)
    assert headers["webhook-timestamp"] == "1614265330"
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert webhook_key("plain words") == b"plain words"


async def test_what_other_workers_spend_is_seen(store: RedisStore, receiver: Receiver) -> None:
    """A worker that has no more requests of a budget still tells, as it reads the counter again."""
    worker = Worker(store, receiver.url)
    worker.alerts.start()
    key = f"{ACCOUNT_PREFIX}{ACCOUNT}".encode()
    await worker.spends(6.0)
    await becomes(lambda: worker.told["delivered"] == 1)
    await store.ask([Command((b"HSET", key, b"spent", b"9000000000"))])
    await becomes(lambda: worker.told["delivered"] == 2)
    await worker.alerts.aclose()
    await store.delete(key.decode())
    assert receiver.shares() == [0.5, 0.8]
