"""Make a change in the store by a script, and find out whether it was made where the reply does not say.

A reply may be lost after the script has run: the server stops for a moment, or waits for its disk. So the script leaves
its result under a name of its own for a minute, and whoever has no reply reads that. Where there is none either, the
same reading forbids the script to run later. So a change was made, or it was not and will not be; only a store that
answers nothing any more leaves that open, and ChangeUnknown says so.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from cache.store.base import Command, Store, StoreUnavailable

_LIMIT_S: Final = 1.0
_DURABLE_S: Final = 3.0
"""How long a change may wait until the store has it on disk; one that syncs once a second takes up to two."""
_LOOKS_S: Final = (0.0, 0.3, 1.2, 2.5)
"""Waits before each look for the result of a change whose reply was lost."""
_BEFORE: Final = b"""
local token = KEYS[#KEYS]
if redis.call('EXISTS', token) == 1 then return redis.error_reply('ERR this change was given up') end
local function change()
"""
_AFTER: Final = b"""
end
local reply = change()
redis.call('SET', token, cjson.encode({reply}), 'PX', 60000)
return reply
"""
_NOT_MADE: Final = b"not made"


class ChangeUnknown(StoreUnavailable):
    """Nobody knows whether a change was made: the store answered nothing any more after it was sent."""

    def __init__(self, down: StoreUnavailable) -> None:
        super().__init__(down.reason, "it is not known whether the change was made; look at what there is before again")


class Settled(NamedTuple):
    """The result of a change that was made. Of strings in the reply there is text where it came late, else bytes.

    `on_disk`: True if the store has it on its disk; False if it keeps nothing there; None if that is not known.
    """

    reply: Any
    on_disk: bool | None


async def settled_change(
    store: Store, script: bytes, keys: Sequence[bytes], words: Sequence[bytes], *, durable: bool = False
) -> Settled:
    """Run a script that changes something; with `durable`, wait until the store has it on its disk, if it can tell.

    All keys are in one slot, of the hash tag of the first. Raises StoreUnavailable if the change was not made and will
    not be, ChangeUnknown if nobody knows.
    """
    tag = keys[0].partition(b"{")[2].partition(b"}")[0] or keys[0]
    token = b"tierline:{%b}:change:%b" % (tag, secrets.token_hex(8).encode())
    whole = (b"EVAL", _BEFORE + script + _AFTER, b"%d" % (len(keys) + 1), *keys, token, *words)
    # The wait is about the writes of its own connection. It has no key, so it cannot follow the script in a cluster.
    waits = durable and store.state().nodes <= 1
    wait = Command((b"WAITAOF", b"1", b"0", b"%d" % (_DURABLE_S * 1000)), optional=True)
    try:
        limit_s = _LIMIT_S + (_DURABLE_S if waits else 0.0)
        reply, *waited = await store.ask([Command(whole), *([wait] if waits else [])], limit_s)
    except StoreUnavailable as down:
        return Settled(await _result(store, token, down), None)
    return Settled(reply, _on_disk(waited[0]) if waits else None)


def _on_disk(waited: Any) -> bool | None:
    """Return what a reply to WAITAOF says. Servers before Redis 7.2 have no such command, and some forbid it."""
    if isinstance(waited, Exception):
        return False if "appendonly is disabled" in str(waited) else None
    return True if waited[0] else None


async def _result(store: Store, token: bytes, down: StoreUnavailable) -> Any:
    for wait_s in _LOOKS_S:
        await asyncio.sleep(wait_s)
        forbid = Command((b"SET", token, _NOT_MADE, b"NX", b"PX", b"600000"))
        try:
            _, result = await store.ask([forbid, Command((b"GET", token))], _LIMIT_S)
        except StoreUnavailable as error:
            down = error
            continue
        if result == _NOT_MADE:
            raise StoreUnavailable(down.reason, "nothing was changed") from None
        return orjson.loads(result)[0]
    raise ChangeUnknown(down) from None
