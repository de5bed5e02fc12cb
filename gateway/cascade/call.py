"""Make one call to a backend, and settle all that its end settles: the slot, the hop in the trace, the charge.

A call sends no higher limit of the reply than the model takes: it is lowered before the call by what is known, after a
refusal by what that says. Many servers refuse a request whose prompt and limit together exceed the context, though the
limit says only what a reply may not exceed. Agents ask for 32,000 tokens with every step, and policies add a limit of
their own; so whoever's limit it is, it is lowered to the room beside the prompt, and `x-tierline-output-limit` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import orjson

from gateway.accounting import charge
from gateway.backends.base import (
    BackendError,
    BackendRequest,
    BadStatus,
    BudgetSpent,
    Completion,
    EventStream,
    LengthRefused,
)
from gateway.caller import in_tenants_space
from gateway.cascade.fields import with_set_fields
from gateway.chat.stream_state import StreamState
from gateway.chat.usage import Usage, hide_cache, usage_of
from gateway.telemetry import names
from routing.features import estimated_tokens, limit_of, limited, room_needed, within

if TYPE_CHECKING:
    from gateway.backends.server_forms import PromptCacheAsk
    from gateway.dialects.native import Native
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint, Slot


ONE_HOUR: Final = "1h"
"""The longest time that Anthropic keeps a prompt; writing it costs more."""
FIVE_MINUTES: Final = "5m"

CallOutcome = Literal["answered", "rejected", "lost", "cancelled", "fault"] | BackendError
"""How a call ended.

answered      its whole answer has come, good or not
rejected      its beginning was judged and rejected
lost          another call of the same request was faster
cancelled     its request was cancelled
fault         the gateway itself failed; the endpoint is not to blame
BackendError  it gave no whole answer; `gateway.tiers.slot` decides whether the endpoint is to blame
"""


class BackendCall:
    """Make one call and settle it: opened once, fed its usage, closed exactly once with an outcome.

    The call gives its slot the verdict, books the charge and ends its hop; nothing else does. As a context manager it
    is closed however its block ends, unless `keep_open` was called; then the owner closes it. Later closes do nothing.
    """

    __slots__ = (
        "_closed", "_hides_cache", "_kept_open", "_ledger", "_opened", "_request", "_settled", "cost_usd", "dropped",
        "has_begun", "hop", "owes", "slot", "source", "state", "tokens_in", "usage",
    )  # fmt: skip

    source: EventStream
    """The stream of the call, once `open` has returned."""

    def __init__(
        self, ledger: Ledger, slot: Slot, hop: Hop, tokens_in: int, owes: Callable[[str], int] | None = None
    ) -> None:
        """Prepare a call that is charged to `ledger`.

        `tokens_in` is the estimated length of the prompt, used if the backend reports no usage. `hop` may have begun
        before the call had its slot; it ends with the call. `owes` returns, by the name of the tier, the completion
        tokens that it is charged where its answer is never known: it was sent, so somebody makes it, and bills it.
        """
        self.slot = slot
        self.hop = hop
        self.tokens_in = tokens_in
        self.owes = owes
        self._opened = False
        self.state = _NO_STREAM
        """State of the stream so far, from which tokens and usage are read."""
        self.usage: Usage | None = None
        """Usage of a whole answer; None if the backend reported none."""
        self.dropped: tuple[str, ...] = ()
        """Paths of the client's fields that the backend was not sent."""
        self.has_begun = False
        """Whether the first token of a stream has come."""
        self.cost_usd = 0.0
        """Charge in US dollars; 0 until the call is settled."""
        endpoint, attributes = slot.endpoint, hop.attributes
        attributes.update(endpoint.described)
        if slot.queued_s:
            attributes[names.QUEUE] = round(slot.queued_s * 1000, 2)
        hop.load = (endpoint.in_flight, endpoint.capacity, endpoint.queue.size, endpoint.breaker.ejection)
        self._ledger = ledger
        self._hides_cache = ledger.tenant not in endpoint.unshared
        self._settled = False
        self._kept_open = False
        self._closed = False
        self._request: BackendRequest | None = None

    async def complete(self, backend_request: BackendRequest) -> Completion:
        """Return the whole answer, booked as answered. Raises BackendError."""
        self._request = backend_request
        completion = await self.slot.endpoint.backend.complete(backend_request)
        if (ask := backend_request.prompt_cache) is not None:
            self._note_prompt_cache(ask)
        self.usage = completion.usage or usage_of(completion.value)
        self.dropped = completion.dropped
        self._settle("answered")
        if self._hides_cache and hide_cache(completion.value):
            completion = completion._replace(raw=orjson.dumps(completion.value))
        return completion

    async def open(self, backend_request: BackendRequest, state: StreamState) -> EventStream:
        """Return the answer as a stream once the response headers have come. Raises BackendError.

        The reader must add every chunk to `state`, from which the call takes its tokens and its usage.
        """
        self.state, self._request = state, backend_request
        state.hides_cache = self._hides_cache
        self.source = await self.slot.endpoint.backend.stream(backend_request)
        if (ask := backend_request.prompt_cache) is not None:
            self._note_prompt_cache(ask)
        self._opened = True
        self.dropped = self.source.dropped
        return self.source

    def _note_prompt_cache(self, ask: PromptCacheAsk) -> None:
        if ask.added:
            self.hop.attributes[names.PROMPT_CACHE] = ask.added

    def note_first_token(self) -> None:
        """Record, once, that the first token has come and how long it took since the call was made."""
        if not self.has_begun:
            self.has_begun = True
            self.slot.began()
            self.hop.attributes[names.TTFT] = round((self.hop.seconds - self.slot.queued_s) * 1000, 2)

    def answered(self) -> None:
        """Settle the call for a whole answer: free the slot and charge it; the hop stays open for the judge."""
        if not self._settled:
            self._settle("answered")

    def keep_open(self) -> None:
        """Keep the call open when its block ends without an error: the stream that reads on closes it."""
        self._kept_open = True

    def close(self, outcome: CallOutcome, stream_end: str = "") -> None:
        """End the call with this outcome; only the first close counts.

        `stream_end` is the value for the trace of how a stream to a client ended.
        """
        if self._closed:
            return
        self._closed = True
        if not self._settled:
            self._settle(outcome)
        attributes = self.hop.attributes
        if stream_end:
            attributes[names.STREAM_END] = stream_end
            if outcome == "answered" and self._opened and not self.source.done_seen:
                attributes[names.DONE_SYNTHESISED] = True
        if isinstance(outcome, BackendError):
            if isinstance(outcome, BadStatus):
                attributes[names.UPSTREAM_STATUS] = outcome.status
                attributes[names.BLAME] = outcome.blame
                asked = {} if self._request is None else self._request.body
                refusals = self.slot.endpoint.refusals
                if refusals is not None and outcome.about_the_request and (words := refusals.words(outcome, asked)):
                    attributes[names.UPSTREAM_WORDS] = words
            self.hop.end(outcome.error_type)
        elif outcome == "fault":
            self.hop.end("internal_error")
        else:
            self.hop.end("cancelled" if outcome == "cancelled" and not stream_end else None)

    def used(self) -> Usage:
        """Return the usage that the backend reported, else our own count, marked as estimated."""
        usage = self.usage or self.state.usage or self.state.prompt_usage
        if usage is None:
            return Usage(self.tokens_in, self.state.tokens, estimated=True)
        if usage.estimated:  # of the two counts, one was not told
            tokens_in, tokens_out = usage.tokens_in or self.tokens_in, usage.tokens_out or self.state.tokens
            usage = replace(usage, tokens_in=tokens_in, tokens_out=tokens_out)
        if usage.tokens_cache_write and usage.tokens_hour_write is None and self._asked_for_an_hour():
            usage = replace(usage, tokens_hour_write=usage.tokens_cache_write)
        return usage

    def _asked_for_an_hour(self) -> bool:
        """Return whether the provider was asked to keep a part of the prompt for an hour."""
        if (sent := self._request) is None:
            return False
        if (ask := sent.prompt_cache) is not None and ask.added and ask.control.get("ttl") == ONE_HOUR:
            return True
        return lifetime_asked(sent.body, sent.native) == ONE_HOUR

    def _settle(self, outcome: CallOutcome) -> None:
        self._settled = True
        if self._opened:
            self.source.close()
        used = self.used()
        begun = self.state.prompt_usage is not None and self.state.tokens > 0  # what it told was of its beginning
        if used.estimated and (begun or outcome not in ("answered", "rejected")):
            used = self._cut_short(used)
        if isinstance(outcome, BackendError):
            self.slot.failed(outcome)
        elif outcome in ("answered", "rejected"):
            self.slot.succeeded(used.tokens_out)
            if outcome == "answered" and self.owes is not None:
                endpoint = self.slot.endpoint
                endpoint.mean_out += (used.tokens_out - endpoint.mean_out) * (_NEWEST if endpoint.mean_out else 1.0)
        elif outcome == "lost":
            self.slot.lost()
        else:
            self.slot.free()
        if outcome == "answered" or self._is_charged(outcome):
            endpoint = self.slot.endpoint
            hides = self._hides_cache
            self.cost_usd = charge(self._ledger, self.hop, endpoint.config.price, used, hides_cache=hides)

    def _cut_short(self, used: Usage) -> Usage:
        """Return what a call is charged whose answer was not read to its end: what came of it, or else what it owes."""
        if self.state.tokens:  # a chunk may hold more than one token
            return replace(used, tokens_out=max(used.tokens_out, int(estimated_tokens(self.state.text))))
        owes = self.owes(self.slot.endpoint.tier) if self.owes is not None else 0
        return replace(used, tokens_out=max(used.tokens_out, owes))

    def _is_charged(self, outcome: CallOutcome) -> bool:
        """Return whether the call is charged: a backend that fails before its first token normally charges nothing."""
        if self._kept_open or self.state.tokens or (self.state.usage or self.state.prompt_usage) is not None:
            return True
        if isinstance(outcome, BackendError):
            # It was given up, and may be answered all the same.
            return isinstance(outcome, BudgetSpent)
        return outcome != "fault"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if not self._kept_open:
                self.close("answered")
        elif isinstance(error, BackendError):
            self.close(error)
        elif isinstance(error, asyncio.CancelledError):
            self.close("cancelled")
        else:
            self.close("fault")


def backend_request(
    request: RequestContext,
    hop: Hop,
    body: Mapping[str, Any],
    *,
    ask_logprobs: bool = False,
    alternatives: int = 1,
    own: bool = False,
    endpoint: Endpoint,
) -> BackendRequest:
    """Return what a call for this request sends to `endpoint`: `body`, as a part of the trace's `hop`.

    `own`: it is the gateway's question, and not the client's.
    """
    asked = BackendRequest(
        body,
        ask_logprobs=ask_logprobs,
        traceparent=request.trace.traceparent(hop),
        tracestate=request.trace.tracestate,
        alternatives=alternatives,
        large=request.large and not own,
        native=None if own else request.native,
    )
    if endpoint.config.sets_fields or request.policy.sets_fields:
        asked = with_set_fields(asked, endpoint, None if own else request.policy, hop)
    if not own and (request.features.has_tools or request.body["messages"][-1]["role"] == "tool"):
        asked = replace(asked, conversation=_remembered(request))
    if endpoint.config.slo_headers and not own:
        asked = replace(asked, headers=_slo_headers(request))
    facts = endpoint.config.prompt_cache
    features, tokens = request.features, request.features.approx_tokens
    if facts is not None and not own and request.policy.prompt_cache != "off" and facts.worth(tokens, features.tools):
        # Requests with one key meet one cache: those of a conversation whose client names it or has tools, which is an
        # agent; else all of the surface, as they share its system text.
        ledger, long = request.ledger, request.policy.prompt_cache == "long"
        agent = features.has_tools and request.body.get("tool_choice") in (None, "auto")
        told = agent or ledger.session != ledger.conversation
        key = in_tenants_space(ledger.tenant, ledger.conversation if told else f"/{ledger.surface}")
        asked = replace(asked, prompt_cache=facts.ask(key, goes_on=told or features.turns > 1, long=long))
    return asked


def _remembered(request: RequestContext) -> str:
    """Return the conversation whose reasoning is remembered; '' where the client wants nothing to be kept."""
    if not request.options.cache.write:
        return ""
    return in_tenants_space(request.caller.owner, request.ledger.conversation)


def lifetime_asked(body: Mapping[str, Any], native: Native | None) -> str:
    """Return how long the markers of a request ask to keep its prompt: `1h`, `5m`, or '' without any marker.

    Markers stand beside the fields of a body of chat completions or of the Messages API, in tools, in the system text,
    in messages, in their parts, and in parts of tools' results.
    """
    found = ""
    for holder in _may_be_marked(body if native is None else {**body, **native.body}):
        control = holder.get("cache_control")
        if type(control) is dict:
            if control.get("ttl") == ONE_HOUR:
                return ONE_HOUR
            found = FIVE_MINUTES
    return found


def _may_be_marked(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield body
    for name in ("tools", "system", "messages"):
        for tool in _dicts(body.get(name)):
            yield tool
            if type(function := tool.get("function")) is dict:
                yield function
            for part in _dicts(tool.get("content")):
                yield part
                yield from _dicts(part.get("content"))


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if type(item) is dict) if type(value) is list else iter(())


def _slo_headers(request: RequestContext) -> dict[str, str]:
    """Return llm-d's headers: milliseconds left until a stream's first token is due, and for each token after it."""
    headers: dict[str, str] = {}
    if (first_s := request.left().ttft_s) is not None and first_s > 0:
        headers["x-llm-d-slo-ttft-ms"] = f"{first_s * 1000:.0f}"
    if (pace_s := request.tpot_s()) is not None:
        headers["x-llm-d-slo-tpot-ms"] = f"{pace_s * 1000:g}"
    return headers


_NEWEST: Final = 0.05
"""Weight of the newest answer in what those of an endpoint have on average."""
_NO_STREAM: Final = StreamState()
"""The state of a call that opens no stream. Nothing is ever added to it."""


MOST_LOWERED: Final = 3
"""How often a call is made again with a lower limit: some servers count a prompt only as far as they must."""
_LEAST: Final = 16
"""Tokens of a reply below which a call is not made again: another tier has more room."""
_TEMPLATE: Final = 64
_WITHOUT_LIMIT: Final = {"max_completion_tokens": 0, "max_tokens": 0}


def fitted(request: RequestContext, endpoint: Endpoint) -> Mapping[str, Any]:
    """Return the request's body with its token limit lowered to what the endpoint takes; note the limit if it was.

    A limit of the policy's leaves room for the longest that the prompt may be, as counted by us. The client's own is
    lowered only where the prompt as estimated leaves less: if the server counts more, it says so, see `lowered`.
    """
    lengths, body = endpoint.lengths, request.body
    most, limit = lengths.output, limit_of(body)
    if lengths.context is not None and limit is not None and 2 * limit > lengths.context:
        if request.own_limit:
            left = lengths.context - _estimated(request)
        else:
            left = max(1, lengths.context - room_needed({**body, **_WITHOUT_LIMIT}))
        if left > 0:
            most = left if most is None else min(most, left)
    if most is None or (lower := within(body, most)) is body:
        return body
    request.trace.root.attributes[names.OUTPUT_LIMIT] = most
    return lower


def lowered(
    request: RequestContext, endpoint: Endpoint, asked: BackendRequest, refusal: LengthRefused
) -> BackendRequest | None:
    """Return the call to make after a refusal, with a lower limit of the reply; None if no limit would help.

    The endpoint learns the lengths that the refusal names.
    """
    lengths = refusal.lengths
    endpoint.lengths.learn(lengths.context, lengths.output)
    limit = limit_of(asked.body)
    most = lengths.output
    if lengths.context is not None and (limit is not None or lengths.reply is not None):
        prompt = lengths.prompt
        if prompt is None or lengths.at_least:
            prompt = max(prompt or 0, _estimated(request))
        room = lengths.context - prompt
        if limit is not None and lengths.at_least:
            room = min(room, limit // 2)
        most = room if most is None else min(most, room)
    if most is None or most < _LEAST or (limit is not None and most >= limit):
        return None
    request.trace.root.attributes[names.OUTPUT_LIMIT] = most
    return replace(asked, body=limited(asked.body, most))


def _estimated(request: RequestContext) -> int:
    """Return the estimated tokens of a prompt with its tools, somewhat more than are likely."""
    body = request.body
    tools = room_needed({**_WITHOUT_LIMIT, "messages": [], "tools": body["tools"]}) if body.get("tools") else 0
    return request.features.approx_tokens * 9 // 8 + tools + _TEMPLATE
