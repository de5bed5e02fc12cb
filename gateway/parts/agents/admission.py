"""Let chats in: count them with their session, and shorten what they send, where their policy says so.

The last request of a session is told to conclude: no more tools, and an instruction to finish behind the system text,
in the client's own form as well, which a backend of its dialect is sent. Such an answer is neither read from the cache
nor stored in it.

Count what sessions use, and say which request is a session's last (a policy's `session`). See `SessionCaps`.

A session's counts are one hash in the store, of the surface and the session's name, which a request reads and raises in
one round trip before anything else is done for it; what it cost is added once its reply is out. Each worker remembers
the counts it saw last and goes on from them by itself while the store does not answer: then the caps hold per worker,
and the trace says so. Only requests of surfaces with `session` come here.

A request that is refused is taken off the count again. One that ends while its worker dies stays without its cost, but
counts as under way: a session may then be told to conclude earlier, never later.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from cache.store.base import Command, StoreUnavailable
from gateway.errors import RateLimited
from gateway.parts.agents.policy import AgentSections
from gateway.parts.agents.shortening import with_shorter_input
from gateway.parts.agents.turns import Recent
from gateway.request.options import CacheControl
from gateway.telemetry import names
from policies.quantities import dollars, write_duration

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cache.store.base import Store
    from gateway.dialects.native import Native
    from gateway.parts.agents.history import HistorySummaries
    from gateway.parts.agents.policy import InputRules, SessionCaps
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger

log = logging.getLogger("tierline.sessions")

_KEY: Final = "tierline:session"
_REST_S: Final = 86400.0
_MOST: Final = 8192
"""Sessions that a worker remembers, for when the store does not answer."""
_PER_DOLLAR: Final = 1_000_000_000
_ENTER_S: Final = 0.25
"""Longest wait for the store, in seconds: a cap is worth more of it than a lookup, and its breaker ends long ones."""
_LIMIT_S: Final = 1.0
_ENTER: Final = Path(__file__).with_name("enter_session.lua").read_bytes()
Cap = Literal["calls", "usd", "time"]
Outcome = Literal["open", "last", "over"]
Counted = Callable[[str, Cap, Outcome], None]


class SessionLimitReached(RateLimited):
    """429: a session has used up what the `session` section of its surface's policy allows it."""

    code: str = "session_limit_reached"
    refuses = True


@dataclass(slots=True)
class Used:
    """What a session has used so far, the request in question included in `calls`."""

    calls: int
    done: int
    """Of them, those whose cost is in `usd`."""
    usd: float
    elapsed_s: float


def verdict(caps: SessionCaps, used: Used) -> tuple[Outcome, Cap]:
    """Return whether a request is over a session's caps or its last, and by which; `open` if neither.

    It is the last if with it, those under way and their mean cost, or with the usual time until the next one, a cap is
    reached.
    """
    if caps.calls is not None and used.calls > caps.calls:
        return "over", "calls"
    if caps.usd is not None and used.usd >= caps.usd:
        return "over", "usd"
    if caps.time is not None and used.elapsed_s >= caps.time:
        return "over", "time"
    if caps.on_cap == "conclude":
        if caps.calls is not None and used.calls == caps.calls:
            return "last", "calls"
        expected = (used.calls - used.done) * used.usd / used.done if used.done else 0.0
        if caps.usd is not None and used.usd + expected >= caps.usd:
            return "last", "usd"
        between = used.elapsed_s / (used.calls - 1) if used.calls > 1 else 0.0
        if caps.time is not None and used.elapsed_s + between >= caps.time:
            return "last", "time"
    return "open", "calls"


@dataclass(slots=True)
class _Remembered:
    """A session's counts as this worker saw them last; `first_at` is in `time.monotonic()` seconds."""

    calls: int
    done: int
    usd: float
    first_at: float
    missed: int = 0
    """Of `calls`, those that the store was not told of: it is with the next request."""


class SessionCounts:
    """The sessions of one worker: call `enter` with each request of a surface that has caps."""

    def __init__(self, store: Store, counted: Counted, clock: Callable[[], float] = time.monotonic) -> None:
        """`counted` gets the surface, the cap and the outcome of each request that is a session's last, or over."""
        self._store = store
        self._counted = counted
        self._clock = clock
        self._seen: Recent[_Remembered] = Recent(_MOST)
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self, request: RequestContext, caps: SessionCaps) -> RequestContext:
        """Count a request; return it, told to conclude if it is the last. Raises SessionLimitReached if it is over."""
        policy, ledger = request.policy, request.ledger
        hop = request.trace.begin(names.SESSION)
        key, rest_s = f"{_KEY}:{policy.surface}:{ledger.session}", math.ceil(max(_REST_S, caps.time or 0.0))
        used, counted_by = await self._used(key, rest_s)
        outcome, cap = verdict(caps, used)
        attributes = hop.attributes
        attributes |= {
            names.SESSION_CALLS: used.calls, names.SESSION_USD: round(used.usd, 9),
            names.SESSION_TIME: round(used.elapsed_s, 3), names.SESSION_OUTCOME: outcome,
        }  # fmt: skip
        told = {"open": [], "last": [f"told to conclude by session.{cap}"], "over": [f"refused by session.{cap}"]}[
            outcome
        ]
        if reason := ", ".join([*told, *counted_by]):
            attributes[names.REASON] = reason
        request.trace.then(lambda ledger: self._leave(key, rest_s, ledger, refused=outcome == "over"))
        if outcome == "open":
            hop.end()
            return request
        self._counted(policy.surface, cap, outcome)
        attributes[names.CLAUSE], attributes[names.CLAUSE_LINE] = f"session.{cap}", policy.lines[f"session.{cap}"]
        if outcome == "over":
            hop.end(SessionLimitReached.code)
            raise SessionLimitReached(
                f"This session has used up what surface {policy.surface!r} allows it: {_said(cap, caps, used)} "
                f"(session.{cap}). Begin a new session; whoever runs the gateway can raise the cap.",
                headers=((b"x-should-retry", b"false"),),
            )
        hop.end()
        return concluded(request)

    async def aclose(self) -> None:
        """Wait for the costs that are on their way to the store."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _used(self, key: str, rest_s: int) -> tuple[Used, list[str]]:
        """Return a session's counts with one more request, and a word if the store did not count them."""
        now, number = self._clock(), hash(key)
        seen = self._seen.get(number) or _Remembered(0, 0, 0.0, now)
        self._seen.put(number, seen)
        seen.calls += 1
        told, seen.missed = seen.missed + 1, 0
        words = (b"EVAL", _ENTER, b"1", key.encode(), b"%d" % rest_s, b"%d" % told)
        try:
            [[calls, done, nanodollars, elapsed_s]] = await self._store.ask([Command(words)], _ENTER_S)
        except StoreUnavailable as error:
            seen.missed += told
            used = Used(seen.calls, seen.done, seen.usd, now - seen.first_at)
            return used, [f"counted by this worker alone: store {error.reason}"]
        used = Used(calls, done, int(nanodollars) / _PER_DOLLAR, float(elapsed_s))
        seen.calls, seen.done, seen.usd, seen.first_at = used.calls, used.done, used.usd, now - used.elapsed_s
        return used, []

    def _leave(self, key: str, rest_s: int, ledger: Ledger, *, refused: bool) -> None:
        if (seen := self._seen.get(hash(key))) is not None:
            seen.calls -= refused
            seen.done += not refused
            seen.usd += ledger.cost_usd
        task = asyncio.ensure_future(self._settle(key, rest_s, ledger.cost_usd, refused=refused))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, key: str, rest_s: int, usd: float, *, refused: bool) -> None:
        name = key.encode()
        changes = ((b"calls", -1),) if refused else ((b"done", 1), (b"nanousd", math.ceil(usd * _PER_DOLLAR)))
        commands = [Command((b"HINCRBY", name, field, b"%d" % change)) for field, change in changes]
        commands.append(Command((b"EXPIRE", name, b"%d" % rest_s)))  # it may have been evicted meanwhile
        try:
            await self._store.ask(commands, _LIMIT_S)
        except StoreUnavailable as error:
            log.debug("the cost of a request was not added to its session: %s", error)


def _said(cap: Cap, caps: SessionCaps, used: Used) -> str:
    if cap == "calls":
        return f"{caps.calls} requests"
    if cap == "usd":
        return f"{dollars(used.usd)} of {dollars(caps.usd or 0.0)}"
    return f"{write_duration(round(used.elapsed_s))} of {write_duration(caps.time or 0.0)}"


class AgentAdmission:
    """The `Admission` (`gateway.steps`) of one worker's agents: one layer, for policies with one of its keys."""

    name: Final = "sessions and shorter input"
    keys: Final = ("session", "input")

    def __init__(self, sessions: SessionCounts, histories: HistorySummaries) -> None:
        self.sessions = sessions
        self.histories = histories

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """Return the request, told to conclude if it is its session's last. Raises SessionLimitReached."""
        policy = request.policy
        if not isinstance(policy, AgentSections):
            return None
        caps = None if request.options.cache.only_if_cached else policy.session
        return self._enter(request, caps, policy.input)

    async def _enter(
        self, request: RequestContext, caps: SessionCaps | None, rules: InputRules | None
    ) -> RequestContext:
        if caps is not None:
            request = await self.sessions.enter(request, caps)
        if rules is not None:
            request = await with_shorter_input(await self.histories.shortened(request, rules), rules)
        return request

    async def aclose(self) -> None:
        """Give up summaries that are being made, and wait for the costs that are on their way to the store."""
        await self.histories.aclose()
        await self.sessions.aclose()


CONCLUDE: Final = (
    "This is the last answer of this session: its limit is reached. Call no more tools. From what you have found so "
    "far, give your final answer now: what is done, what was found, and what is left to do."
)
_SYSTEM: Final = ("system", "developer")


def concluded(request: RequestContext) -> RequestContext:
    """Return a request that asks for its session's last answer."""
    body = {**request.body, **_without_calls(request.body)}
    messages = list(body["messages"])
    last = next((at for at, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages)) - 1
    if last < 0:
        messages.insert(0, {"role": "system", "content": CONCLUDE})
    else:
        messages[last] = {**messages[last], "content": _with_more(messages[last].get("content"))}
    body["messages"] = messages
    native = None if request.native is None else _native(request.native, added=last < 0)
    options = replace(request.options, cache=CacheControl(read=False, write=False))
    return replace(request, body=body, native=native, options=options)


def _without_calls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that forbid calls; none where there are no tools, as backends refuse them then."""
    members: dict[str, Any] = {"tool_choice": "none"} if body.get("tools") else {}
    return members | {"function_call": "none"} if body.get("functions") else members


def _with_more(content: Any) -> Any:
    """Return a content with the instruction behind it."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": CONCLUDE}]
    return f"{content}\n\n{CONCLUDE}" if content else CONCLUDE


def _native(native: Native, *, added: bool) -> Native:
    """Return the client's own form; `added`: its translation has got a message at the beginning."""
    body = dict(native.body)
    if native.dialect == "messages":
        body["system"] = _with_more(body.get("system"))
        if body.get("tools"):
            body["tool_choice"] = {"type": "none"}
    elif native.dialect == "responses":
        body["instructions"] = _with_more(body.get("instructions"))
        if body.get("tools"):
            body["tool_choice"] = "none"
    if not added:
        return replace(native, body=body)
    return replace(native, body=body, paths=[native.front, *native.paths], messages=native.messages + 1)
