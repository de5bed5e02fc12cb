"""Changes whose replies are lost, over real servers: made or not made, and never told wrongly."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from cache.store.base import Command, StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.parts.access import settled_change as settled
from gateway.parts.access.settled_change import ChangeUnknown, settled_change
from tests.support.store import UNHURRIED, LocalStore, local_store

SCRIPT = b"""
local function changed() return redis.call('INCRBY', KEYS[1], ARGV[1]) end
if ARGV[2] == 'refused' then return {0, 'why'} end
return changed()
"""
KEYS = (b"tierline:{keys}:number",)


class Flaky(RedisStore):
    """A store that loses so many replies, or commands before they reach the server."""

    loses_replies = 0
    loses_commands = 0
    lost: Sequence[Command] = ()

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        if self.loses_commands:
            self.loses_commands -= 1
            self.lost = commands
            raise StoreUnavailable("timeout")
        replies = await super().ask(commands, limit_s)
        if self.loses_replies:
            self.loses_replies -= 1
            raise StoreUnavailable("timeout")
        return replies


@pytest.fixture
async def flaky(store: LocalStore) -> AsyncIterator[Flaky]:
    """Give a client of the store that loses nothing yet."""
    opened = Flaky.from_url(store.url, slack=UNHURRIED)
    assert isinstance(opened, Flaky)
    await opened.delete(KEYS[0].decode())
    yield opened
    await opened.aclose()


async def number_in(store: RedisStore) -> int:
    return int(await store.get(KEYS[0].decode()) or 0)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_change_is_made_once(flaky: Flaky, durable: bool) -> None:
    """A server without an append-only file says so."""
    made = await settled_change(flaky, SCRIPT, KEYS, (b"5", b""), durable=durable)
    assert made == (5, False if durable else None)


@pytest.mark.parametrize(("words", "reply"), [((b"5", b""), 5), ((b"5", b"refused"), [0, "why"])])
async def test_a_change_whose_reply_is_lost_is_told_as_it_was_made(
    flaky: Flaky, words: tuple[bytes, ...], reply: Any
) -> None:
    """Also where the first look for its result is lost."""
    flaky.loses_replies = 2
    assert (await settled_change(flaky, SCRIPT, KEYS, words, durable=True)).reply == reply
    assert await number_in(flaky) == (5 if reply == 5 else 0)


async def test_a_change_that_did_not_reach_the_server_is_not_made_later_either(flaky: Flaky) -> None:
    """Its packet may arrive after it was said that nothing was changed."""
    flaky.loses_commands = 1
    with pytest.raises(StoreUnavailable, match="nothing was changed") as refused:
        await settled_change(flaky, SCRIPT, KEYS, (b"5", b""))
    assert not isinstance(refused.value, ChangeUnknown)
    with pytest.raises(StoreUnavailable):
        await flaky.ask(flaky.lost)
    assert await number_in(flaky) == 0


async def test_of_a_store_that_is_gone_nobody_knows(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "_LOOKS_S", (0.0, 0.01))
    flaky.loses_replies = 100
    with pytest.raises(ChangeUnknown, match="not known whether"):
        await settled_change(flaky, SCRIPT, KEYS, (b"5", b""))


ON_DISK = "--appendonly yes --appendfsync always"


@pytest.mark.parametrize(
    ("options", "on_disk"),
    [
        (ON_DISK, True),
        (f"{ON_DISK} --rename-command WAITAOF HIDDEN", None),
        (f"{ON_DISK} --user default on nopass ~* &* +@all -waitaof", None),
    ],
)
async def test_a_server_that_does_not_know_the_command_that_waits_makes_the_change(
    options: str, on_disk: bool | None
) -> None:
    """Whether it is on the disk is not known then."""
    with local_store(options) as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        assert await settled_change(store, SCRIPT, KEYS, (b"5", b""), durable=True) == (5, on_disk)
        await store.aclose()


async def test_a_redis_before_7_2_makes_the_change() -> None:
    """Debian 12 has 7.0."""
    server = old_redis()
    try:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        assert await settled_change(store, SCRIPT, KEYS, (b"5", b""), durable=True) == (5, None)
        await store.aclose()
    finally:
        server.close()


def old_redis() -> LocalStore:
    """Start the machine's own Redis, with an append-only file; skip the test where there is none, or a newer one."""
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("there is no redis-server on this machine")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"v=(\d+)\.(\d+)", version)
    if number is None or (int(number[1]), int(number[2])) >= (7, 2):
        pytest.skip(f"the redis-server of this machine knows WAITAOF: {version.strip()}")
    server = LocalStore("--appendonly yes", command=(path,))
    server.start()
    return server
