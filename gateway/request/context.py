"""Represent one request, its waiting client and its reply as values.

The fields of a `RequestContext` never change; what happens goes into its trace and ledger. An ASGI server does not
cancel a handler when its client disconnects: the application would have to await `http.disconnect` in a task beside it.
The gateway's own server calls the `Client` instead. A `Reply` may come from a backend, the cache, or an identical
request in flight. What the steps of a request ask of its sender's limits is here too (`HeldLimits`, `CallerLimits`);
the part that provides `limits` has them.

REPLY_HEADERS is the one list of the headers that replies have; the OpenAPI document is made of it.
"""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from gateway.caller import ANYBODY, Caller
from gateway.telemetry.ledger import ChargedAccounts
from policies.value_type import from_fields, value_type
from routing.cascade import Left
from routing.confidence.calls import NOTHING_OFFERED, CallRules, call_rules
from routing.features import PROVIDERS_TOOLS

if TYPE_CHECKING:
    from cache.write import PendingWrite
    from gateway.caller import OpenModels
    from gateway.dialects.native import Native
    from gateway.request.options import RequestOptions
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace
    from policies.model import Policy
    from policies.steering import Spent
    from routing.decide import Clamp
    from routing.features import Features

_left: Final = from_fields(Left)


@value_type
class RequestContext:
    """One request. `body` is the client's body with the policy's output limits applied.

    `deadline` and `ttft_deadline` are in `time.monotonic()` seconds. `policy` is the version in force when the request
    arrived; a reload does not change it.
    """

    request_id: str
    tenant: str
    policy: Policy
    body: Mapping[str, Any]
    features: Features
    options: RequestOptions
    clamp: Clamp | None
    """Lowest and highest tier that the request allows; None for all tiers of its surface."""
    own_limit: bool
    """Whether the token limit in `body` is the client's own, not the policy's."""
    deadline: float
    trace: Trace
    ledger: Ledger
    client: Client
    large: bool = False
    """Whether the body is so large that work on all of it must run in a thread (`gateway.off_loop`)."""
    native: Native | None = None
    """The request's own form, if its client does not speak chat completions; `body` is its translation then."""
    ttft_deadline: float | None = None
    """Deadline of a stream's first token, in `time.monotonic()` seconds; None if neither policy nor client sets one."""
    caller: Caller = ANYBODY
    hold: HeldLimits | None = None
    """What it holds of its owners' limits; None where nothing limits it."""
    models: OpenModels | None = None
    """The models that may answer, where the key's `models` close some; None for all."""
    conversation: object | None = None
    """What the router's `ConversationAdvisor` knows of its turns before; None if that is nothing."""

    def ladder(self) -> tuple[str, ...]:
        """Return the configured tiers of its surface that the request allows, cheapest first."""
        return self.policy.ladder if self.clamp is None else self.clamp.of(self.policy)

    def allowed_tiers(self) -> frozenset[str] | None:
        """Return the tiers whose stored answers may serve the request; None for any tier's."""
        if self.clamp is None:
            return None
        return frozenset(self.ladder()).difference(() if self.models is None else self.models.partly)

    def is_classified(self) -> bool:
        """Return whether the classifier's result can change where the request is sent."""
        return self.policy.route.classifier != "none" and len(self.ladder()) > 1

    def budget_s(self) -> float:
        """Return the seconds left until the deadline; negative once it has passed."""
        return self.deadline - time.monotonic()

    def left(self) -> Left:
        """Return the seconds left until the deadline and until the first token is due."""
        now = time.monotonic()
        ttft = None if self.ttft_deadline is None else self.ttft_deadline - now
        return _left((self.deadline - now, ttft))

    def tpot_s(self) -> float | None:
        """Return the most seconds per output token that the policy (p99) or the client wants of a stream, if any."""
        if not self.features.stream:
            return None
        limits = [limit for limit in (self.policy.slo.tpot.p99, self.options.tpot_s) if limit]
        return min(limits) if limits else None

    def call_rules(self) -> CallRules | None:
        """Return the tool calls that the request allows; None if its policy does not ask for that check."""
        if "tool_calls" not in self.policy.escalate.when.invalid:
            return None
        further = self.features.further
        # The provider's own tools are not among those of a chat-completions body.
        more_tools = bool(further) and not further.isdisjoint(PROVIDERS_TOOLS)
        if not self.features.has_tools and not more_tools:
            return NOTHING_OFFERED
        return call_rules(self.body, more_tools=more_tools)

    def affinity(self) -> int:
        """Return the affinity key for sticky selection: the number of the conversation's name. Never 0."""
        return int(self.ledger.conversation or "0", 16) or 1


class ClientGone(Exception):
    """Raised when the client disconnected before it had sent its whole request."""


class ClientConnection(Protocol):
    """A client's connection, as far as a `Client` needs it; `server.http_protocol.ReplyCycle` implements it."""

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` once if the client disconnects before the reply has ended; None cancels that."""


class Client:
    """Watch the client of one request; when it disconnects, set `gone` and cancel the task that answers it."""

    __slots__ = ("_answering", "_connection", "absent", "gone", "on_left", "stall_s")

    def __init__(self, connection: ClientConnection | None, stall_s: float) -> None:
        """Watch a connection; None for a client in this process, which never disconnects.

        `stall_s` is how many seconds the client may leave sent data unread before it is dropped.
        """
        self._connection = connection
        self.stall_s = stall_s
        self._answering: asyncio.Task[Any] | None = None
        self.gone = False
        """Whether the client has left and the task that answers it was cancelled."""
        self.absent = False
        """Whether the client has left and the task continues for other requests that share its answer."""
        self.on_left: Callable[[], bool] | None = None
        """Called when the client disconnects; True lets the task continue, because other requests share its answer."""

    def watch(self) -> None:
        """Begin to watch for the running task. Call it before the first step that is worth cancelling."""
        if self._answering is None:
            self._answering = asyncio.current_task()
            if self._connection is not None:
                self._connection.when_gone(self._left)

    def detach(self) -> None:
        """Go on without the client: from now on its leaving does not end the running task, but `drop` does."""
        if self._connection is not None:
            self._connection.when_gone(None)
        self._connection, self._answering = None, asyncio.current_task()

    def drop(self) -> None:
        """Treat the client as disconnected: it has not read what it was sent for too long."""
        self._left()

    def unwatch(self) -> None:
        """Stop watching."""
        if self._connection is not None:
            self._connection.when_gone(None)
        # Break the reference cycle between this object and its task: garbage collections pause every stream. What the
        # server holds for the request is freed too, while its record and its cache write still wait.
        self._answering = self.on_left = self._connection = None

    def _left(self) -> None:
        if self.on_left is not None and self.on_left():
            self.absent = True
            return
        self.gone = True
        if self._answering is not None:
            self._answering.cancel()


Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What a header of a reply says.

    `text` describes it; empty for what belongs to HTTP. `at`: the operations whose replies may have it, all of them,
    those that answer or pass on, one of the two, or errors. `known`: when its value is known where a stream's head is
    sent early: then, in the stream's last comment with the others that were late, or with the answer's cost.
    """

    text: str = ""
    at: Literal["all", "calls", "answers", "passed", "errors"] = "answers"
    known: Literal["early", "late", "last"] = "last"


REPLY_HEADERS: Final[Mapping[bytes, ReplyHeader]] = {
    name.encode(): ReplyHeader(**what)
    for name, what in tomllib.loads(Path(__file__).with_name("reply_headers.toml").read_text("utf-8")).items()
}


class Source(Protocol):
    """Source of a stream's events. `end` is `done`, or the reason why the stream ended early."""

    end: str

    def close(self) -> None:
        """End the source; safe to call twice."""


class SharedAnswer(Protocol):
    """An answer that other workers read from its flight until it is in the store."""

    lease: str
    """Key of the lease under which the answer was made, '' if there is none: the write deletes it."""

    def stored(self, *, written: bool) -> None:
        """Release the answer, once; `written`: it is in the store, and its lease deleted."""


class AnswerEnd:
    """Announce the end of an answer that several requests read, so that it may outlast its own client."""

    __slots__ = ("_then", "over", "shared", "write")

    def __init__(self) -> None:
        self.over = False
        self.write: PendingWrite | None = None
        self.shared: SharedAnswer | None = None
        self._then: Callable[[], None] | None = None

    def end(self, write: PendingWrite | None, shared: SharedAnswer | None = None) -> None:
        """End the answer, once: `write` is its cache write, if any, and `shared` is to be released after that."""
        self.over, self.write, self.shared = True, write, shared
        if self._then is not None:
            self._then()

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the answer ends."""
        self._then = callback


@dataclass(slots=True)
class Reply:
    """An answer ready to send: `body`, or `events` for a stream. `write` is the cache write of a complete answer."""

    body: bytes = b""
    events: AsyncGenerator[bytes] | None = None
    write: PendingWrite | None = None
    extra: tuple[Header, ...] = ()
    stream: Source | None = None
    """The source of the events, if they are still being made; it must be closed however the reply goes."""
    pass_on: Callable[[Callable[[bytes], bool]], None] | None = None
    """Has what of the events needs no look sent as soon as it comes (`LiveStream.pass_on`); None where somebody else
    reads or changes them."""
    shared_end: AnswerEnd | None = None
    """Set if other requests read this answer too; its `write` is known at that end, not at this reply's."""

    def is_whole(self) -> bool:
        """Return whether the answer is complete; for a stream, as far as this reply has read it."""
        return self.stream is None or self.stream.end == "done"


STILL_ALIVE: Final = b": the model is at work\n"
"""A comment in a stream of events, for a client that has heard nothing for QUIET_S: with one newline, as openai-python
takes a blank line for the end of an event."""
_SIGNS: Final = (b"event: ping\n", b"event: response.in_progress\n")
"""How the events begin by which Anthropic's API and the Responses API show it (`StreamWriter.alive`)."""
QUIET_S: Final = 2.0
"""Time in seconds without a word to a client after which it is shown that the stream lives, if the backend says so."""


def is_sign_of_life(event: bytes) -> bool:
    """Return whether an encoded event only shows that the stream lives: a comment, or what an API has for that."""
    return (event.startswith(b":") and b"\ndata: " not in event) or event.startswith(_SIGNS)


def is_error_event(event: bytes) -> bool:
    """Return whether an encoded event of a stream is an error; no chunk begins with that key."""
    return event.startswith(b'data: {"error":')


HeaderStyle = Literal["openai", "anthropic"]
"""Whose headers tell a client how its limits stand."""


class HeldLimits(Protocol):
    """What one request holds of the limits of those who send it. Settle it once, whatever becomes of the request.

    What is async may wait for others, and raises ApiError where the request is not let in.
    """

    @property
    def has_budget(self) -> bool:
        """Whether the request's money is limited by a budget."""

    async def enter(self, tokens: int, renew: Callable[[], Awaitable[Caller]] | None = None) -> None:
        """Count a request of so many tokens. `renew` finds its caller again while it waits."""

    def enter_chat(
        self, request: RequestContext, renew: Callable[[], Awaitable[Caller]], *, counted: bool
    ) -> Awaitable[None]:
        """Count a chat; `counted`: but for its tokens it was counted with the handshake of its connection."""

    def is_tight(self, policy: Policy) -> bool:
        """Return whether so much of a budget is spent that the policy steers the request to cheaper tiers."""

    async def before_routing(self, request: RequestContext) -> None:
        """Wait while other requests of a nearly spent budget go first: the chat had no hit, and is to be routed."""

    def spent(self, policy: Policy) -> Spent | None:
        """Return how much of the tightest budget is spent, and what the policy does then; None without a budget."""

    def whose(self) -> str:
        """Return whose budget is the tightest, in words."""

    def reserve_now(self, request: RequestContext, tiers: Sequence[str]) -> bool:
        """Return whether a chat may call these tiers at once, without waiting."""

    async def before_calls(self, request: RequestContext, tiers: Sequence[str], *, races: bool) -> None:
        """Reserve the expected cost of a chat that these tiers may answer; with `races`, of several at once."""

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


class CallerLimits(ChargedAccounts, Protocol):
    """The limits and budgets that the requests of one worker's callers count against."""

    @property
    def unknown_usd(self) -> float:
        """What a call is charged whose price nobody states, in US dollars."""

    def start(self) -> Awaitable[None]:
        """Begin to count, once the store is there and before any record is written."""

    def aclose(self) -> Awaitable[None]:
        """Give back what is leased, once all records are written."""

    def hold(self, caller: Caller, trace: Trace, ledger: Ledger) -> HeldLimits | None:
        """Return the limits that a request of this caller counts against, not entered yet; None without any."""

    def owed(self, request: RequestContext, tier: str) -> int:
        """Return the completion tokens that a call of this tier is charged if its answer is never known."""

    def learner(self, request: RequestContext, tiers: Sequence[str]) -> Callable[[Ledger], None]:
        """Return what learns from the ledger of a finished chat without limits, whose calls raced each other."""

    def notes(self) -> Sequence[str]:
        """Return what is wrong with the counts, for `/readyz`."""


class LivingStream(Protocol):
    """What begins a stream in another API than chat completions."""

    def begin(self) -> bytes:
        """Begin the stream before anything of its answer is known; return its first events, b'' if there are none."""

    def alive(self) -> bytes:
        """Return an event that shows, after `begin`, that the connection works; b'' if the API has none."""


class EarlyHead(Protocol):
    """Sends the head of one stream before its answer, if that takes long; the part that provides `early_heads`."""

    async def stopped(self) -> bool:
        """Stop after any message being sent has gone out; return whether the head was sent."""

    def abandon(self) -> None:
        """Stop at once: the client has disconnected."""

    def events(self, events: AsyncGenerator[bytes], extra: Sequence[Header] = ()) -> AsyncGenerator[bytes]:
        """Yield the answer's events, adapted to follow the early head; `extra` are headers that it did not have."""

    async def fail(self, error_event: bytes) -> None:
        """Send the error's event as the last, after a comment with the late headers, and end the response."""
