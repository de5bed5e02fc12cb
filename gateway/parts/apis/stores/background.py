"""Know the responses that run in the background (`background: true`), and tell other workers of them by the store.

A run is a kept response of the status `in_progress` from its beginning, and of another at its end, whatever it is. So
any worker can show it. Beside it the worker renews a lease: without one, the worker has ended before the response did,
and it is shown as failed. A worker that is asked to cancel another's run leaves a note in the store, which that one
looks for as it renews its leases. The events of a stream are appended to one in the store, for clients that come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cache.store.base import Command, NoStore, Release, Store, StoreUnavailable
from gateway.caching.batches import BatchTask
from gateway.errors import RateLimited, retry_after
from gateway.parts.apis.stores.kept_responses import KeptResponse, KeptResponses

log = logging.getLogger("tierline.background")

Json = dict[str, Any]

UNFINISHED: Final = frozenset({"queued", "in_progress"})
_BEAT_S: Final = 2.0
_LEASE_S: Final = 15.0
_NOTE_S: Final = 60.0
_EVENTS_S: Final = 600.0
"""How long the events of a stream can be read again after the last of them, and beyond the run's deadline."""
_MOST_EVENT_BYTES: Final = 8 << 20
_LINGER_S: Final = 0.02
_LIMIT_S: Final = 0.5
_PAGE: Final = 500
_LOOK_S: Final = 0.1
_LOOKS: Final = 30
"""How often another worker's run is looked at after it was asked to end, and the last events of one that has."""
_APPEND: Final = b"""
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
for i = 2, #ARGV do redis.call('XADD', KEYS[1], '*', 'v', ARGV[i]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
"""Append events (after a time to live in milliseconds) to a stream, unless their response (the second key) is gone."""
_GONE: Final = "The gateway's process that made this response has ended before it was done. Send the request again."
_UNREAD: Final = "Further events of this response are not kept. Read it without `stream`."


@dataclass(slots=True, eq=False)
class BackgroundRun:
    """One response that this worker makes in the background; `cancel` ends it, as cancelled.

    `events_s`: how many seconds its events are kept after each; 0 for a run that is no stream.
    """

    tenant: str
    id: str
    lease: Release
    cancel: Callable[[], Awaitable[None]]
    events_s: float = 0.0
    unsent: list[bytes] = field(default_factory=list)
    size: int = 0


class BackgroundRuns(BatchTask[BackgroundRun]):
    """The responses that run in the background in one worker. Methods raise ApiError."""

    def __init__(self, kept: KeptResponses, store: Store, most: int) -> None:
        """`most`: how many responses of one tenant may run in this worker at once."""
        super().__init__("tierline.background", _LINGER_S)
        self._kept = kept
        self._store = store
        self._most = most
        self._runs: dict[str, BackgroundRun] = {}
        self._of: Counter[str] = Counter()
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to renew leases and to send events."""
        super().start()
        if not isinstance(self._store, NoStore):
            self._beating = asyncio.create_task(self._beat(), name="tierline.background.leases")

    async def aclose(self) -> None:
        """Send what is left of the events, within a time limit, and stop."""
        if self._beating is not None:
            self._beating.cancel()
        await super().aclose()

    # --- the worker's own runs ----------------------------------------------------------------------------------------

    async def begin(
        self, tenant: str, response: Json, given: Sequence[Json], ttl_s: float, cancel: Callable[[], Awaitable[None]]
    ) -> BackgroundRun:
        """Keep a response as one that runs here; `cancel` ends it. RateLimited if too many of the tenant's do."""
        if self._of[tenant] >= self._most:
            raise RateLimited(
                f"{self._most} responses of this key's tenant run in the background already (responses.background). "
                "Wait for one of them to end, or cancel it.",
                code="too_many_background_responses",
                headers=retry_after(5),
            )
        lease = Release(self._kept.lease_of(tenant, response["id"]), secrets.token_bytes(8))
        run = BackgroundRun(tenant, response["id"], lease, cancel)
        self._of[tenant] += 1
        self._runs[run.id] = run
        try:
            await self._kept.keep_now(tenant, response, given, ttl_s, _renewal(lease))
        except BaseException:
            self.end(run)
            raise
        self._kept.leases[run.id] = lease  # goes when the response's end is kept
        return run

    def end(self, run: BackgroundRun) -> None:
        """Forget a run."""
        del self._runs[run.id]
        self._kept.leases.pop(run.id, None)
        self._of[run.tenant] -= 1
        if not self._of[run.tenant]:
            del self._of[run.tenant]

    async def open_events(self, run: BackgroundRun, first: bytes, budget_s: float) -> None:
        """Begin the stream of a run's events, for up to `budget_s` seconds; its first are in the store on return."""
        run.events_s = budget_s + _EVENTS_S
        with self._kept.answering():
            await self._append(run, _split(first))

    def publish(self, run: BackgroundRun, data: bytes) -> None:
        """Append events to a run's stream, soon; those beyond the limit of bytes are not kept."""
        run.size += len(data)
        if run.events_s and run.size <= _MOST_EVENT_BYTES:
            run.unsent += _split(data)
            self._add(run)

    async def _finish(self, batch: list[BackgroundRun]) -> None:
        for run in dict.fromkeys(batch):
            events, run.unsent = run.unsent, []
            try:
                if events:
                    await self._append(run, events)
            except StoreUnavailable as down:
                run.size = _MOST_EVENT_BYTES  # what follows a gap would be taken for what follows the last event
                log.warning("events of %s are not kept: the store does not answer (%s)", run.id, down.reason)

    async def _append(self, run: BackgroundRun, events: Sequence[bytes]) -> None:
        """Append events, but for a response that was deleted: this worker may hear of its end after its client."""
        lease = run.lease.lease
        keys = (f"{lease}:events".encode(), self._kept.key_of(run.tenant, run.id).encode())
        words = (b"EVAL", _APPEND, b"2", *keys, b"%d" % round(1000 * run.events_s), *events)
        await self._store.ask([Command(words)], _LIMIT_S)

    async def _beat(self) -> None:
        """Renew the leases of this worker's runs, and cancel those that another worker was asked to cancel."""
        while True:
            await asyncio.sleep(_BEAT_S)
            runs = list(self._runs.values())
            if not runs:
                continue
            notes = [Command((b"EXISTS", _note(run.lease.lease))) for run in runs]
            with contextlib.suppress(StoreUnavailable):
                noted = await self._store.ask([*notes, *(_renewal(run.lease) for run in runs)], _LIMIT_S)
                asked = [run for run, note in zip(runs, noted, strict=False) if note and run.id in self._runs]
                await asyncio.gather(*(run.cancel() for run in asked), return_exceptions=True)

    # --- anybody's runs -----------------------------------------------------------------------------------------------

    async def current(self, response: KeptResponse) -> KeptResponse:
        """Return a kept response as it is now: as failed, if its worker has ended."""
        if response.response["status"] not in UNFINISHED or response.id in self._runs:
            return response
        lease = self._kept.lease_of(response.tenant, response.id)
        (held,) = await self._ask(Command((b"EXISTS", lease.encode())))
        # The response's end is written before its lease goes, so it is read after.
        response = await self._kept.find(response.tenant, response.id) or response
        if held or response.response["status"] not in UNFINISHED:
            return response
        failed = {**response.response, "status": "failed", "error": {"code": "server_error", "message": _GONE}}
        return KeptResponse(response.tenant, failed, response.given, response.before)

    async def cancel(self, response: KeptResponse) -> KeptResponse:
        """Cancel a response, wherever it runs, and return it as it is then; the same if it has ended already."""
        response = await self.current(response)
        if response.response["status"] not in UNFINISHED:
            return response
        if (run := self._runs.get(response.id)) is not None:
            await run.cancel()
            return await self._kept.find(response.tenant, response.id) or response
        lease = self._kept.lease_of(response.tenant, response.id)
        await self._ask(Command((b"SET", _note(lease), b"1", b"PX", b"%d" % round(1000 * _NOTE_S))))
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            response = await self.current(response)
            if response.response["status"] not in UNFINISHED:
                break
        return response

    async def delete(self, found: KeptResponse) -> None:
        """Delete a response that is at its end, with its events: nothing is appended to them after it."""
        events = Command((b"DEL", self._events_of(found.tenant, found.id).encode()))
        await self._kept.delete(found.tenant, found.id, *([events] if found.response.get("background") else ()))

    async def events(self, response: KeptResponse, after: int) -> AsyncIterator[bytes] | None:
        """Return the events of a response's stream with numbers above `after`; None if none of them is kept."""
        page = await self._page(response, "0")
        return self._events(response, after, page) if page else None

    async def _events(self, response: KeptResponse, after: int, page: list[tuple[str, bytes]]) -> AsyncIterator[bytes]:
        last_id, number, looks = "0", -1, _LOOKS
        while True:
            for event_id, event in page:
                last_id, body = event_id, orjson.loads(event[event.index(b"\ndata: ") + 7 :])
                number = body["sequence_number"]
                if number > after:
                    yield event
                if body.get("response", {}).get("status", "in_progress") not in UNFINISHED:
                    return
            if not page:
                await asyncio.sleep(_LOOK_S)
                response = await self.current(response)
                looks -= response.response["status"] not in UNFINISHED  # its last events may come a little later
                if not looks:
                    break
            page = await self._page(response, last_id)
        kind = "error"
        members: Json = {"code": "server_error", "message": _UNREAD, "param": None}
        if response.response["status"] == "failed":
            kind, members = "response.failed", {"response": response.response}
        yield b"event: %b\ndata: %b\n\n" % (
            kind.encode(),
            orjson.dumps({"type": kind, "sequence_number": number + 1, **members}),
        )

    async def _page(self, response: KeptResponse, last_id: str) -> list[tuple[str, bytes]]:
        with self._kept.answering():
            return await self._store.after(self._events_of(response.tenant, response.id), last_id, _PAGE, 0)

    async def _ask(self, command: Command) -> list[Any]:
        with self._kept.answering():
            return await self._store.ask([command], _LIMIT_S)

    def _events_of(self, tenant: str, response_id: str) -> str:
        return f"{self._kept.lease_of(tenant, response_id)}:events"


def _renewal(lease: Release) -> Command:
    return Command((b"SET", lease.lease.encode(), lease.holder, b"PX", b"%d" % round(1000 * _LEASE_S)))


def _note(lease: str) -> bytes:
    return f"{lease}:cancel".encode()


def _split(data: bytes) -> list[bytes]:
    """Return the single events of a piece of a stream, without comments."""
    return [part[part.index(b"event: ") :] + b"\n\n" for part in data.split(b"\n\n") if b"event: " in part]
