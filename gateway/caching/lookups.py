"""Steps 5 to 7: look up a stored answer to an equal request or question, each a hop of its trace, and reply with it.

The vector is computed once per request, without holding the event loop for long. A static embedding of a short prompt
takes less time than a thread's wake-up, so it is made in place; everything else goes to one worker thread, where
requests that came while it was busy are embedded as one batch.

A hit is replied as JSON or as the stream it would have been, at no cost. The stored answer is sent unchanged, but for
its id and its time, which are each reply's own: what counts answers by their ids takes equal ones for one request. A
stream has the whole text in one chunk.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any, Final

import orjson

from cache.planning.plan import DENIED
from cache.semantic.matcher import Candidates
from cache.store.connections import Deadline
from cache.text.conversation import readable
from gateway.accounting import replayed
from gateway.caching.batches import Batcher
from gateway.chat.completions import DONE_EVENT, chunks_of, completion_text, wants_usage
from gateway.off_loop import off_loop
from gateway.request.context import Header, Reply
from gateway.telemetry import names
from policies.value_type import value_type
from routing.embedder import Embedder, EmbedderKind, Vector

if TYPE_CHECKING:
    from cache.entry import CacheEntry, Hit, Lookup
    from cache.planning.plan import CachePlan
    from cache.response_cache import ResponseCache
    from cache.semantic.cross_encoder import TokenSums
    from gateway.caching.coalescer import CoalescedRequest
    from gateway.cascade.protocols import ConversationAdvisor
    from gateway.request.context import Client, RequestContext
    from gateway.request.load_shedding import LoadShedder
    from gateway.telemetry.trace import Hop
    from routing.features import Features


class ExactLookup:
    """Step 5: plan what the cache may do for a request, and find the stored answer to an equal one."""

    def __init__(self, cache: ResponseCache, gate: LoadShedder) -> None:
        self._cache = cache
        self._gate = gate

    async def plan(self, request: RequestContext) -> CachePlan:
        """Return what the cache may do. The plan's keys hash the whole body, for a large one in a thread."""
        plan: Callable[..., Any] = partial(_in_thread, self._cache.plan) if request.large else self._cache.plan
        planned = plan(
            request.body,
            request.policy,
            request.caller.owner,
            request.features,
            model=request.policy.surface,
            read=request.options.cache.read,
            write=request.options.cache.write and self._gate.keeps_answers,
            demands=request.options.cache.demands,
            tags=request.options.tags,
            own=request.native,
            large=request.large,
        )
        made: CachePlan = await planned if request.large else planned
        return made

    async def find(self, request: RequestContext, plan: CachePlan, coalesced: CoalescedRequest | None) -> Hit | None:
        """Return the stored answer; None if there is none.

        A `coalesced` request shares the lookup with simultaneous equal requests. It returns None without a lookup if it
        can join a flight.
        """
        if coalesced is not None and coalesced.can_join:
            return None
        hop = request.trace.begin(names.CACHE_EXACT)
        if plan.reason:
            hop.attributes[names.CACHE_OUTCOME], hop.attributes[names.CACHE_REASON] = "bypass", plan.reason
            hop.end()
            return None
        look = partial(self._cache.exact, plan, request.allowed_tiers())
        return end_lookup(hop, await (look() if coalesced is None else coalesced.look_up(look)))


def _in_thread(work: Callable[..., CachePlan], *arguments: Any, **named: Any) -> Awaitable[CachePlan]:
    return off_loop(partial(work, *arguments, **named))


@value_type
class SemanticSearch:
    """What a search found, and the hop of the lookup under way; without a lookup both are None."""

    hop: Hop | None = None
    found: Candidates | Lookup | None = None
    doubtful: bool = False
    """Whether the cross-encoder has to be asked before it is known whether there is a hit."""


_NO_SEARCH = SemanticSearch()


class SemanticLookup:
    """Step 7: find the stored answer to another question that means the same."""

    def __init__(self, cache: ResponseCache) -> None:
        """Search in this cache."""
        self._cache = cache

    async def find_respaced(self, request: RequestContext, plan: CachePlan) -> Hit | None:
        """Return the stored answer to a question that differs in spaces alone; None if none is known or it may not be
        served. Takes no vector; where such a question is known, there is no `search` after it.
        """
        if request.clamp is not None or (found := self._cache.respaced(plan)) is None:
            return None
        return await self.find(request, plan, SemanticSearch(request.trace.begin(names.CACHE_SEMANTIC), found))

    async def search(self, request: RequestContext, plan: CachePlan, vector: Vector | None) -> SemanticSearch:
        """Return the stored questions that may mean the same, for `find`. Calls no model.

        There is no lookup where there is no vector or the plan forbids semantic hits.
        """
        if plan.same_as or plan.why_not_semantic() or (vector := plan.vector_of(vector)) is None:
            return _NO_SEARCH
        hop = request.trace.begin(names.CACHE_SEMANTIC)
        found = await self._cache.search(plan, vector)
        return SemanticSearch(hop, found, isinstance(found, Candidates) and found.doubtful)

    async def find(self, request: RequestContext, plan: CachePlan, search: SemanticSearch) -> Hit | None:
        """Return the stored answer of what `search` found; None if there is none, or it may not be served."""
        if search.hop is None or search.found is None:
            return None
        needed = request.options.cache.only_if_cached
        lookup = await self._cache.match(
            plan, search.found, request.allowed_tiers(), needed=needed, left_s=request.budget_s()
        )
        self._describe(search.hop, request, plan, lookup)
        return end_lookup(search.hop, lookup)

    def _describe(self, hop: Hop, request: RequestContext, plan: CachePlan, lookup: Lookup) -> None:
        if lookup.score is not None:
            hop.attributes[names.CACHE_SCORE] = lookup.score
        if lookup.read is not None:
            hop.attributes[names.READ_SCORE] = lookup.read
        if lookup.stage:
            hop.attributes[names.STAGE] = lookup.stage
        if lookup.waited_s:
            hop.attributes[names.CHECK_MS] = round(lookup.waited_s * 1000, 3)
            hop.attributes[names.CHECK_PAIRS] = lookup.batch
        if lookup.similarity is not None:
            hop.attributes[names.SIMILARITY] = round(lookup.similarity, 4)
        if lookup.neighbour is not None:
            hop.attributes[names.NEIGHBOUR] = (
                readable(lookup.question or "") if request.trace.captures else lookup.neighbour
            )
        if lookup.vetoed:
            hop.attributes[names.VETOED] = lookup.vetoed
        bound = self._cache.bound
        if bound is not None and (state := bound.in_force(plan.surface, plan.owner, plan.language)):
            hop.attributes[names.THRESHOLD] = round(state.threshold, 4)
            hop.attributes[names.LABELS] = state.labels
            hop.attributes[names.BREACHED] = state.breached


log = logging.getLogger("tierline.embedding")

# Measured: the static embedding reads 1,000 characters in about 0.1 ms; a hop to a thread and back costs as much.
_IN_PLACE_CHARS = {"static": 2000, "minilm": 0}
_MAX_BATCH = 32
PATIENCE_S = 0.5
"""Seconds an embedding may take. After that the request continues without semantic cache and classifier."""


class QuestionEmbedder:
    """Compute the vectors of questions for one event loop. Close it when done."""

    def __init__(
        self,
        embedder: Embedder,
        kind: EmbedderKind,
        vectors: TokenSums | None = None,
        conversations: ConversationAdvisor | None = None,
    ) -> None:
        """`vectors`, if there are any, search questions in the languages that they know."""
        self.embedder = embedder
        self._conversations = conversations
        self._vectors = vectors
        self._in_place = _IN_PLACE_CHARS[kind]
        self._described = names.of_embedder(embedder.name, is_model=kind != "static")
        self._batches: Batcher[str, Vector] = Batcher(embedder.embed, _MAX_BATCH, "tierline-embed")

    async def vector_for(self, request: RequestContext, plan: CachePlan) -> Vector | None:
        """Return the request's vector, as a hop of its trace; None if it is not needed or not ready in time.

        Without a vector, exact caching and the policy's default tier still work.
        """
        why_not = plan.why_not_semantic()
        if why_not and not request.is_classified():
            return None
        hop = request.trace.begin(names.EMBED, {**self._described})
        try:
            vector = await self.vector(request.features.rated_text, request.budget_s())
            if "conversation_difficulty" in request.policy.asked and request.is_classified():
                await self.read_turns(request.features, vector, request.budget_s())
            # The semantic cache compares a conversation by its user turns; else by the last message alone, which the
            # classifier rates as the message that it hangs on.
            own = plan.keys and (plan.keys.user_turns or (request.features.in_context and request.features.text))
            if not why_not:
                if self._vectors is not None and plan.language in self._vectors.languages:
                    plan.own_vector = self._vectors.embed(own or request.features.text, self.embedder.dimension)
                elif own:
                    plan.own_vector = await self.vector(own, request.budget_s())
        except TimeoutError:
            hop.end("timeout")
            return None
        except Exception:  # an encoder may raise anything, which must not fail the request
            log.exception("the embedding of request %s failed", request.request_id)
            hop.end("embedding_failed")
            return None
        hop.end()
        return vector

    async def read_turns(self, features: Features, vector: Vector, limit_s: float = PATIENCE_S) -> None:
        """Embed the conversation's earlier turns that were not yet, where earlier turns count for the difficulty."""
        if self._conversations is not None:
            await self._conversations.read(features, vector, self._vectors_of, limit_s)

    async def _vectors_of(self, texts: Sequence[str], limit_s: float) -> Sequence[Vector]:
        if sum(map(len, texts)) <= self._in_place:
            return list(self.embedder.embed(texts))
        with Deadline(min(limit_s, PATIENCE_S)):
            return await self._batches.done(tuple(texts))

    async def vector(self, text: str, limit_s: float = PATIENCE_S) -> Vector:
        """Return the vector of `text`, shape (dimension,), of length 1 (or 0 for a text without a token).

        Raises TimeoutError when it is not there within `limit_s`, or PATIENCE_S if that is less.
        """
        if len(text) <= self._in_place:
            vector: Vector = self.embedder.embed((text,))[0]
            return vector
        with Deadline(min(limit_s, PATIENCE_S)):
            [vector] = await self._batches.done((text,))
        return vector

    def close(self) -> None:
        """Stop the thread and cancel what still waits."""
        self._batches.close()


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
    if hit.entry.in_doubt:
        attributes[names.CACHE_DOUBT_TTL] = round(hit.entry.expires_at - hit.entry.created_at, 1)
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
