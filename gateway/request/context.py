"""What is known of one request on arrival, and the client that waits for its answer.

The fields of a `RequestContext` never change; what happens goes into its trace and ledger. An ASGI server does not
cancel a handler when its client disconnects: the application would have to await `http.disconnect` in a task beside it.
The gateway's own server calls the `Client` instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gateway.keys.records import ANYBODY, Caller
from policies.value_type import value_type
from routing.cascade import Left
from routing.confidence.calls import NOTHING_OFFERED, CallRules, call_rules
from routing.features import PROVIDERS_TOOLS

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.keys.open_models import OpenModels
    from gateway.request.limits import HeldLimits
    from gateway.request.options import RequestOptions
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Trace
    from policies.model import Policy
    from routing.decide import Clamp
    from routing.features import Features


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
        return Left(self.deadline - now, ttft)

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
    """Methods of its connection that a `Client` calls; `server.http_protocol.ReplyCycle` implements it."""

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
