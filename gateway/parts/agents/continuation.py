"""Continue a committed stream that broke with another call, before the client notices the break.

The policy's choice (`escalate.stream.on_break`):
    continue   another backend gets the text so far, in the way it can take it (`gateway.parts.agents.continuation`)
    error      no other call is made
A stream of which the client has no text yet (its role, at most) is simply requested once more, from any backend.

In order: another endpoint of the tier, the stronger tiers, the weaker ones. A model that repeats itself would do so at
another endpoint too, and one whose context is full holds no more there, so after that its tier is left out.

How a backend gets the beginning depends on its config (`continuation`):
    prefill                 the text is an assistant message at the end, and the model takes it as its own beginning
                            (llama.cpp's server, Anthropic's API)
    continue_final_message  the same, and two fields of vLLM's own request it
    prompt                  the text is an assistant message, and a user message asks for the rest
A model that goes on with a text often repeats its last words: `Overlap` finds them, and `fit_to_text` leaves them out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.backends.base import (
    ALIVE,
    BackendError,
    BackendRequest,
    BudgetSpent,
    ContextExceeded,
    DeadlinePassed,
    Degenerate,
    Event,
    Saturated,
    Truncated,
)
from gateway.cascade.call import BackendCall, backend_request
from gateway.cascade.protocols import Continued
from gateway.chat.completions import says_more_than_text
from gateway.chat.stream_state import StreamState
from gateway.telemetry import names
from gateway.tiers.slot import Slot, SlotRequest
from routing.confidence.judge import loop_period
from routing.decide import needs
from routing.features import room_needed

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint, Tier
    from routing.cascade import Attempt


Way = Literal["prefill", "continue_final_message", "prompt"]

GO_ON: Final = (
    "Your answer broke off there. Go on from exactly where it stopped, in the middle of a word if need be. "
    "Write only what comes next: repeat nothing, and say nothing about the interruption."
)
_WORD: Final = re.compile(r"\S+")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_LONGEST: Final = 80
_LEAST: Final = 12
"""Shortest repetition in characters that is dropped; a shorter one is as likely to be intended."""
_ONLY_FIRST: Final = frozenset(("role", "reasoning_content", "reasoning"))
"""Members of a delta that only the first half of an answer has: its role and its reasoning."""


def continuing_body(body: Mapping[str, Any], text: str, tokens: int, way: Way) -> dict[str, Any]:
    """Return the body that asks for the rest of an answer of which the client has `text`, this many tokens long."""
    changed = dict(body)
    for name in _LIMITS:
        if type(limit := body.get(name)) is int:
            changed[name] = max(1, limit - tokens)
    if way == "prompt":
        changed["messages"] = [*_with_beginning(body["messages"], text), {"role": "user", "content": GO_ON}]
        return changed
    # White space at the end is refused by some backends (Anthropic), trimmed by chat templates, and tokenised badly.
    changed["messages"] = _with_beginning(body["messages"], text.rstrip())
    if way == "continue_final_message":
        changed |= {"add_generation_prompt": False, "continue_final_message": True}
        # vLLM's grammar would require the first bracket again; llama.cpp feeds the beginning through its grammar.
        changed.pop("response_format", None)
    return changed


def _with_beginning(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the messages with the beginning of the answer added, joined to one that the client itself began."""
    last = messages[-1]
    if last.get("role") == "assistant" and isinstance(last.get("content"), str):
        return [*messages[:-1], {**last, "content": last["content"] + text}]
    return [*messages, {"role": "assistant", "content": text}]


def without_loop(text: str) -> str:
    """Return a text up to the end of its loop's first round, so that the next model does not continue the loop."""
    matches = list(_WORD.finditer(text))
    words = [match.group() for match in matches]
    for end in (len(words), len(words) - 1):  # the last word may not be whole
        if period := loop_period(words[:end]):
            at = end - period
            while at > 0 and words[at - 1] == words[at - 1 + period]:
                at -= 1
            return text[: matches[at + period - 1].end()]
    return text


class Overlap:
    """Hold back the beginning of the second half while it may repeat the end, or all, of the first.

    The end is the last 80 characters. A whole first half is repeated by servers that send the given beginning before
    their own text (llama.cpp does, though not in streams). Usually one token is held, because the next one seldom fits
    either. The longest repetition of at least twelve characters is dropped, or of only white space: a beginning is sent
    without the white space at its end, which tokenizers handle badly, so the model generates it again.
    """

    __slots__ = ("_before", "_held", "_tail", "open")

    def __init__(self, before: str) -> None:
        self._before = before.rstrip()
        self._tail = before[-_LONGEST:]
        self._held = ""
        self.open = bool(before)

    def feed(self, piece: str) -> str:
        """Add a piece of the second half; return the text that may be sent now."""
        if not self.open:
            return piece
        self._held += piece
        return "" if self._may_repeat() else self.close()

    def close(self) -> str:
        """Stop searching; return the held text without the repetition."""
        held, self._held, self.open = self._held, "", False
        if len(self._before) >= _LEAST and held.startswith(self._before):
            return held[len(self._before) :]
        for length in range(min(len(held), len(self._tail)), 0, -1):
            repeated = held[:length]
            if (length >= _LEAST or repeated.isspace()) and self._tail.endswith(repeated):
                return held[length:]
        return held

    def _may_repeat(self) -> bool:
        """Return whether the held text may be the beginning of a repetition, or a repetition that continues."""
        held = self._held
        if len(held) < len(self._before) and self._before.startswith(held):
            return True
        # It must occur in the tail, early enough that the rest of the tail can still follow.
        start = self._tail.find(held, 0, -1)
        while start >= 0:
            rest = self._tail[start:]
            if len(rest) >= _LEAST or rest.isspace():
                return True
            start = self._tail.find(held, start + 1, -1)
        return False


def fit_to_text(chunk: dict[str, Any], overlap: Overlap) -> bool:
    """Remove role, reasoning and repetition from a chunk of the second half; return whether anything is left."""
    left = False
    for choice in chunk["choices"]:
        delta = choice["delta"] = {
            name: value for name, value in (choice.get("delta") or {}).items() if name not in _ONLY_FIRST
        }
        finish = choice.get("finish_reason")
        if overlap.open:
            content = delta.get("content")
            content_left = overlap.feed(content) if isinstance(content, str) else ""
            if finish or says_more_than_text(delta):
                content_left += overlap.close()
            if content_left or "content" in delta:
                delta["content"] = content_left
        left = left or bool(finish) or any(delta.values())
    return left


_MOST_CALLS: Final = 2
_LEAST_S: Final = 0.05
How = Way | Literal["afresh"]


@dataclass(frozen=True, slots=True)
class Broken:
    """A committed stream that broke."""

    error: BackendError
    attempt: Attempt
    call: BackendCall


@dataclass(frozen=True, slots=True)
class Successors:
    """Open the calls that continue broken streams: a `gateway.cascade.protocols.StreamSuccessor`."""

    tiers: Mapping[str, Tier]

    async def take_over(
        self, request: RequestContext, error: BackendError, attempt: Attempt, call: BackendCall
    ) -> Continued | None:
        """Return a call that continues the stream of `call`, which `error` broke; None if none can."""
        return await _Successor(request, self.tiers, Broken(error, attempt, call)).take_over()


@dataclass(frozen=True, slots=True)
class _Successor:
    """Open the call that continues one request's broken stream."""

    request: RequestContext
    tiers: Mapping[str, Tier]
    broken: Broken

    async def take_over(self) -> Continued | None:
        request, broken = self.request, self.broken
        if not _may_go_on(request, broken):
            return None
        avoid: set[Endpoint] = {broken.call.slot.endpoint}
        calls = 0
        for name in self._tiers_for(broken):
            if not self._fits(name):
                continue
            while calls < _MOST_CALLS and request.budget_s() > _LEAST_S:
                slot = await self._slot(name, broken, avoid)
                if slot is None:
                    break
                calls += 1
                avoid.add(slot.endpoint)
                if (continued := await self._open(name, slot, broken)) is not None:
                    return continued
        return None

    def _tiers_for(self, broken: Broken) -> Iterator[str]:
        request = self.request
        ladder = request.ladder()
        at = ladder.index(broken.attempt.tier)
        stronger, weaker = ladder[at + 1 :], ladder[:at][::-1]
        same = () if isinstance(broken.error, Degenerate | ContextExceeded) else (broken.attempt.tier,)
        return iter((*same, *stronger, *weaker))

    def _fits(self, name: str) -> bool:
        """Return whether the tier can serve the request, and is expected to begin in time."""
        features = self.request.features
        health = self.tiers[name].health(features.approx_tokens)
        if health.unavailable and not health.failing:
            return False
        forecast = health.forecast
        if forecast is not None and forecast.known and forecast.ttft_s > self.request.budget_s():
            return False
        room = room_needed(self.request.body, health.context) if health.context else 0
        return not health.unfit_for(needs(features), room)

    async def _slot(self, name: str, broken: Broken, avoid: set[Endpoint]) -> Slot | None:
        """Return a slot at an endpoint of this tier that can continue, after a wait as for any attempt; or None."""
        tier, load = self.tiers[name], self.request.policy.load
        ruled_out = avoid | {endpoint for endpoint in tier.endpoints if self._how(broken, endpoint) is None}
        if ruled_out.issuperset(tier.endpoints) or not tier.may_retry(ruled_out):
            return None
        ask = SlotRequest(
            surface=self.request.policy.surface,
            priority=load.priority,
            wait_s=min(load.max_wait, self.request.budget_s()),
            max_waiting=load.max_waiting,
            tokens_in=self.request.features.approx_tokens + broken.call.state.text_tokens,
            stream=True,
            models=None if self.request.models is None else self.request.models.by_tier[name],
        )
        try:
            slot = await tier.acquire(ask, ruled_out)
        except Saturated:
            return None
        if slot.endpoint not in ruled_out:
            return slot
        slot.free()  # no call was made with it
        return None

    def _how(self, broken: Broken, endpoint: Endpoint) -> How | None:
        """Return how this backend would continue; None if it cannot."""
        if not broken.call.state.text:
            return "afresh"
        way = endpoint.config.continuation
        if way == "none" or (way == "prompt" and self.request.features.wants_json):
            return None
        return way

    async def _open(self, tier: str, slot: Slot, broken: Broken) -> Continued | None:
        """Return the call to this endpoint once its answer has begun; None if it fails before that."""
        request = self.request
        request.ledger.attempts += 1
        number = 1 + max(hop.attributes.get(names.ATTEMPT_NUMBER, 0) for hop in request.trace.hops)
        how = self._how(broken, slot.endpoint)
        timeout_s = min(request.budget_s(), slot.endpoint.config.patience)
        described = {names.ATTEMPT_NUMBER: number, names.TIER: tier, names.CONTINUES: broken.attempt.number}
        hop = request.trace.begin(names.ATTEMPT, described | {names.TIMEOUT: round(timeout_s * 1000, 1)})
        with BackendCall(request.ledger, slot, hop, request.features.approx_tokens, broken.call.owes) as call:
            # Inside the block, so that an error in the gateway itself releases the slot.
            asked, overlap, given = _backend_request(request, broken, how or "afresh", hop, slot.endpoint)
            call.tokens_in += given
            try:
                events = await _first_events(request, call, asked, timeout_s)
            except BackendError as error:
                hop.attributes[names.OUTCOME] = "retryable"
                hop.attributes[names.REASON] = f"{error.error_type}: {error}"
                call.close(error)
                return None
            except asyncio.CancelledError:
                hop.attributes[names.OUTCOME] = "caller_gone"
                hop.end("client_gone")
                raise
            call.note_first_token()
            # Its chunks are adapted to the text before them.
            call.state.follow(broken.call.state, partial(fit_to_text, overlap=overlap))
            call.keep_open()
        hop.attributes[names.OUTCOME] = "accepted"
        hop.attributes[names.REASON] = f"attempt {broken.attempt.number} broke off ({broken.error.error_type}); {how}"
        return Continued(tier, number, call, events)


def _may_go_on(request: RequestContext, broken: Broken) -> bool:
    """Return whether the policy allows it, and the stream is a single text that another model can continue."""
    state = broken.call.state
    if request.policy.escalate.stream.on_break == "error" or isinstance(broken.error, DeadlinePassed):
        return False
    if state.more_than_text or (request.body.get("n") or 1) > 1:
        return False
    if not state.text:
        return not state.thought
    return not request.body.get("logprobs")


def _backend_request(
    request: RequestContext, broken: Broken, how: How, hop: Hop, endpoint: Endpoint
) -> tuple[BackendRequest, Overlap, int]:
    """Return the request, the overlap to look for in its answer, and how many tokens of the text so far it holds."""
    if how == "afresh":
        return backend_request(request, hop, request.body, endpoint=endpoint), Overlap(""), 0
    text, tokens = broken.call.state.text, broken.call.state.text_tokens
    beginning = without_loop(text) if isinstance(broken.error, Degenerate) else text
    body = continuing_body(request.body, beginning, tokens, how)
    return backend_request(request, hop, body, endpoint=endpoint), Overlap(text), tokens


async def _first_events(
    request: RequestContext, call: BackendCall, asked: BackendRequest, timeout_s: float
) -> list[Event]:
    """Open the stream and return its events up to the first with a token. Raises BackendError."""
    state = StreamState(looks_for_loops=request.policy.escalate.when.repetition)
    events: list[Event] = []
    try:
        async with asyncio.timeout(timeout_s):
            source = await call.open(asked, state)
            while not (state.tokens or state.finish_reason):
                read = await source.read()
                if not read:
                    raise Truncated("the stream ended before its answer")
                for event in read if read is not ALIVE else ():
                    state.add(event.value)
                    events.append(event)
    except TimeoutError:
        raise BudgetSpent(timeout_s) from None
    return events
