"""Reply with a stored answer: as JSON or as the stream it would have been, at no cost.

The stored answer is sent unchanged, but for its id and its time, which are each reply's own: what counts answers by
their ids takes equal ones for one request. A stream has the whole text in one chunk.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any, Final

import orjson

from cache.planning.plan import DENIED
from gateway.accounting import replayed
from gateway.chat.completions import DONE_EVENT, chunks_of, completion_text, wants_usage
from gateway.request.reply import Header, Reply
from gateway.telemetry import names

if TYPE_CHECKING:
    from cache.entry import CacheEntry, Hit, Lookup
    from gateway.request.context import Client, RequestContext
    from gateway.telemetry.trace import Hop

_LOOK_AGAIN_S: Final = 0.01
_HEAD: Final = re.compile(rb'\{"id":"(?:[^"\\]|\\.)*+","created":\d++')
"""What stored answers begin with."""
_END: Final = b": x-tierline-cost-usd=0 x-tierline-attempts=0\n" + DONE_EVENT


def replay_hit(request: RequestContext, hit: Hit) -> Reply:
    """Return the reply of a hit; record in the ledger the hit and the model that gave the answer."""
    ledger, entry = request.ledger, hit.entry
    ledger.path = f"cache-{hit.kind}"
    ledger.tier, ledger.backend, ledger.model = entry.tier, entry.backend, entry.model
    ledger.confidence = entry.confidence
    if request.trace.captures:
        request.trace.answer = partial(_text_of, entry)
    if entry.dropped:  # fields that are not part of an answer's key may have been another request's alone
        ledger.dropped = tuple([name for name in entry.dropped if name not in DENIED or name in request.body])
    ledger.similarity = hit.similarity
    replayed(request.ledger, entry.body)
    extra: tuple[Header, ...] = ((b"age", b"%d" % hit.age_s), (b"x-tierline-cache-entry", hit.entry_id.encode()))
    if not request.features.stream:
        return Reply(body=as_new(entry.body), extra=extra)
    # A live stream's cost is known only at its end; a replay's is known now.
    extra += ((b"x-tierline-cost-usd", ledger.cost_shown.encode()),)
    include_usage = wants_usage(request.body)
    request.client.watch()
    return Reply(events=_events(entry, request.client, include_usage=include_usage), extra=extra)


def as_new(body: bytes) -> bytes:
    """Return a stored completion with a new id and the time of now; only its beginning is read, where both are."""
    head = b'{"id":"chatcmpl-%b","created":%d' % (urandom(16).hex().encode(), time.time())
    if (found := _HEAD.match(body)) is not None:
        return head + body[found.end() :]
    value = orjson.loads(body)  # stored by an earlier version
    return orjson.dumps({**value, **orjson.loads(head + b"}")})


def _text_of(entry: CacheEntry) -> str:
    return completion_text(orjson.loads(entry.body))


def hit_attributes(hit: Hit) -> dict[str, Any]:
    """Return the attributes of a hit's hop, by which a client's feedback finds the answer and its score again."""
    attributes: dict[str, Any] = {
        names.CACHE_ENTRY: hit.entry_id,
        names.CACHE_AGE: round(hit.age_s, 1),
        names.CACHE_CREATED: hit.entry.created_at,
    }
    if hit.score is not None:
        attributes[names.CACHE_SCORE] = hit.score
    return attributes


def end_lookup(hop: Hop, lookup: Lookup) -> Hit | None:
    """End a lookup's hop with its outcome, and with the stored answer's attributes if there is one; return that."""
    hop.attributes[names.CACHE_OUTCOME] = lookup.outcome
    if lookup.reason:
        hop.attributes[names.CACHE_REASON] = lookup.reason
    if lookup.hit is not None:
        hop.attributes.update(hit_attributes(lookup.hit))
    hop.end()
    return lookup.hit


async def _events(entry: CacheEntry, client: Client, *, include_usage: bool) -> AsyncGenerator[bytes]:
    """Yield the events of a stored answer."""
    stall = StallWatch(client)
    try:
        for chunk in chunks_of(orjson.loads(as_new(entry.body))):
            if not chunk["choices"] and not include_usage:
                continue
            stall.since = time.monotonic()
            yield b"data: " + orjson.dumps(chunk) + b"\n\n"
            stall.since = 0.0
        stall.since = time.monotonic()
        yield _END
    finally:
        stall.stop()


class StallWatch:
    """Drop a client that leaves sent data unread for `client.stall_s` seconds.

    The stream sets `since` itself: to `time.monotonic()` before each event that it yields, and to 0 after it.
    """

    __slots__ = ("_client", "_overdue", "_timer", "since")

    def __init__(self, client: Client) -> None:
        self.since = 0.0
        self._client = client
        self._overdue = 0.0
        self._timer = asyncio.get_running_loop().call_later(client.stall_s, self._check)

    def stop(self) -> None:
        """End the watch; safe to call twice."""
        self._timer.cancel()

    def _check(self) -> None:
        client = self._client
        left_s = client.stall_s - (time.monotonic() - self.since if self.since else 0.0)
        if left_s <= 0:
            if self._overdue == self.since:
                client.drop()
                return
            # An event loop that was itself held up may not have seen yet that the client has read: look once more.
            self._overdue, left_s = self.since, _LOOK_AGAIN_S
        self._timer = asyncio.get_running_loop().call_later(left_s, self._check)
