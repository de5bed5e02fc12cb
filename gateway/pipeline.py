"""Answer one request, top to bottom: the eleven steps of Tierline in the order in which they happen.

     1. accept          http.exchange         root span, load shedding, key -> tenant, body within its limit
     2. parse           request.body          bytes -> a checked body, once
     3. context         http.build_context    tenant + surface -> policy, features, deadline: a `RequestContext`
    3a. limits          http.exchange         what the sender may still send and spend (`hold`)
    3b. admissions      http.exchange         what parts ask of a chat: a session's caps, shorter input, your guardrail
     4. answer          this module           calls 5 to 9, in order
     5. cache.exact     caching.lookups       has just this been answered? Then at once: no embedding, no model
                        caching.coalescer     is it being answered right now? Then that answer is shared
     6. embed           caching.lookups       the vector that the semantic cache and the classifier share
     7. cache.semantic  caching.lookups       has another question been answered that means the same?
     8. route           cascade.router        how hard is it, and which tiers should try? `routing.decide`, pure
     9. attempt         cascade.runner        call a tier; the next if not good enough, within the budget
    10. reply           http.exchange         JSON or server-sent events; `http.messages.explain` makes the headers
    11. write behind    caching.write_behind  cache write, ledger, trace, once the reply is out

All of it runs inside `http.exchange`, which also turns errors into replies and notices a client that leaves.
8 and 9 may begin inside 7: a tier is called while the cross-encoder reads a question that may mean the same.
`routing` and `cache` never import each other; the gateway joins them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.caching.lookups import replay_hit
from gateway.errors import CacheOnlyMiss

if TYPE_CHECKING:
    from gateway.request.context import Reply, RequestContext
    from gateway.steps import Steps

_NOT_STORED: Final = "There is no stored answer to this request."


async def answer(request: RequestContext, steps: Steps) -> Reply:
    """Return the reply to one request; raise ApiError when there is none. See the module's docstring."""
    plan = await steps.exact_cache.plan(request)
    coalesced = steps.coalescer.accept(request, plan)  # None for a request that must not share its answer
    if hit := await steps.exact_cache.find(request, plan, coalesced):  # 5
        return replay_hit(request, hit)
    if plan.reason:  # it has no cache: nobody shares its answer, and no other question's may serve it
        vector = await steps.embedder.vector_for(request, plan) if request.is_classified() else None  # 6
        if request.options.cache.only_if_cached:
            raise CacheOnlyMiss(_NOT_STORED)
        run = await steps.cascade.route(request, vector, steps.router)  # 8
        return steps.write_behind.reply_with(request, plan, vector, await run.answer())  # 9
    with await steps.coalescer.enter(coalesced) as shared:  # 5: follow an answer under way, or lead
        if shared.reply is not None:
            return shared.reply
        if hit := await steps.semantic_cache.find_respaced(request, plan):  # 7: just this question, spaced otherwise
            return shared.publish(replay_hit(request, hit), hit)
        vector = await steps.embedder.vector_for(request, plan)  # 6
        async with steps.cascade.early(request, vector, steps.router) as early:  # owns an attempt beside the lookup
            near = await steps.semantic_cache.search(request, plan, vector)  # 7
            if near.doubtful:  # a cross-encoder will be asked
                early.beside_check()
            if hit := await steps.semantic_cache.find(request, plan, near):  # 7
                await early.aclose()  # the head of a stream says what the request cost
                return shared.publish(replay_hit(request, hit), hit)
            if request.options.cache.only_if_cached:
                raise CacheOnlyMiss(_NOT_STORED)
            run = early.run or await steps.cascade.route(request, vector, steps.router)  # 8
            served = await run.answer()  # 9
            return shared.publish(
                steps.write_behind.reply_with(request, plan, vector, served)
            )  # http.exchange sends it
